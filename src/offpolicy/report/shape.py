"""The results file as types: what a run leaves behind, parsed once; whatever may be missing has a default."""

import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError

from offpolicy.errors import ParameterError

FORMAT = "offpolicy-results"
VERSION = 1
REMEDY = "Run `offpolicy learn` or `offpolicy evaluate` with --out again to write a fresh one."
LARGEST = 1e100
"""Numbers beyond this are drawn and written as unknown, so that no arithmetic of a chart overflows."""


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and abs(value) < LARGEST else None


def _or_empty(value: Any) -> Any:
    return {} if value is None else value


def _or_none_listed(value: Any) -> Any:
    return [] if value is None else value


Number = Annotated[float | None, AfterValidator(_finite)]
Maybe = BeforeValidator(_or_empty)
MaybeList = BeforeValidator(_or_none_listed)


class Part(BaseModel):
    """A part of the file: unknown fields are left alone, so that a newer writer of the same version is readable."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


class Ends(Part):
    """An interval; the two half-widths are known for the value that is reported."""

    low: Number = None
    high: Number = None
    sampling: Number = None
    propensity: Number = None
    note: str = ""


class Estimate(Part):
    """One estimator's answer."""

    name: str
    value: Number = None
    standard_error: Number = None
    intervals: Annotated[dict[str, Ends], Maybe] = {}
    hyper: Annotated[dict[str, Any], Maybe] = {}
    mean_weight: Number = None
    note: str = ""


class Check(Part):
    """One pre-flight check."""

    name: str
    value: Number = None
    passed: bool
    meaning: str = ""


class Verdict(Part):
    """Whether the log can answer, and what to do."""

    answer: str
    reasons: Annotated[list[str], MaybeList] = []
    advice: str = ""


class Preflight(Part):
    """Checks, verdict and covariate balance."""

    checks: Annotated[list[Check], MaybeList] = []
    verdict: Verdict
    balance: Annotated[list[tuple[str, Number, Number]], MaybeList] = []


class Sensitivity(Part):
    """The range of the value by Γ."""

    flips_at: float | None = None
    gammas: Annotated[list[Number], MaybeList] = []
    low: Annotated[list[Number], MaybeList] = []
    high: Annotated[list[Number], MaybeList] = []


class PolicyResult(Part):
    """Everything about one policy."""

    value: Number = None
    interval: Ends
    estimates: Annotated[list[Estimate], MaybeList] = []
    left_out: Annotated[dict[str, str], Maybe] = {}
    preflight: Preflight
    sensitivity: Annotated[Sensitivity, Maybe] = Sensitivity()
    detectable_effect: Number = None
    propensity_intervals: Annotated[dict[str, Ends], Maybe] = {}


class Comparison(Part):
    """A candidate against a reference."""

    candidate: str
    reference: str
    difference: Number = None
    low: Number = None
    high: Number = None
    probability_of_improvement: Number = None
    adjusted_p_value: Number = None
    relative: Number = None


class Bin(Part):
    """Predicted and observed share of rows where β̂ lies in one bin."""

    low: Number = None
    predicted: Number = None
    observed: Number = None
    pairs: Number = None


class Quality(Part):
    """How good β̂ is on rows it did not see."""

    log_likelihood: Number = None
    uniform_log_likelihood: Number = None
    popularity_log_likelihood: Number = None
    calibration_error: Number = None
    mean_weight: Number = None
    rows: Number = None
    bins: Annotated[list[Bin], MaybeList] = []


class Logging(Part):
    """The logging policy."""

    model: str = ""
    value: Number = None
    interval: Annotated[Ends, Maybe] = Ends()
    quality: Annotated[Quality, Maybe] = Quality()


class Evaluation(Part):
    """What `evaluate` found."""

    level: float = 0.95
    best: str = ""
    logging: Annotated[Logging, Maybe] = Logging()
    policies: Annotated[dict[str, PolicyResult], Maybe] = {}
    comparisons: Annotated[list[Comparison], MaybeList] = []
    reward_range: Annotated[list[Number], MaybeList] = []


class Run(Part):
    """How the run was made."""

    command: str = ""
    config: Annotated[dict[str, Any], Maybe] = {}
    notes: Annotated[list[str], MaybeList] = []
    seed: int | None = None
    versions: Annotated[dict[str, Any], Maybe] = {}
    started: str = ""
    seconds: Number = None


class Weights(Part):
    """Counts of weights between edges in log10."""

    edges: Annotated[list[Number], MaybeList] = []
    before: Annotated[list[Number], MaybeList] = []
    after: Annotated[list[Number], MaybeList] = []


class Frequency(Part):
    """β̂ and U of the rows whose actions were logged about equally often; the place is on the scale ln n."""

    log_frequency: Number = None
    logging_prob: Number = None
    uncertainty: Number = None
    rows: int = 0
    actions: int = 0


class Rung(Part):
    """One model of the propensity ladder."""

    model: str
    log_likelihood: Number = None
    calibration_error: Number = None
    mean_weight: Number = None
    value: Number = None
    low: Number = None
    high: Number = None


class RiskyAction(Part):
    """An action that carries much weight on little knowledge."""

    action: Any
    count: int = 0
    logging_prob: Number = None
    uncertainty: Number = None
    weight_share: Number = None


class Results(Part):
    """The whole file."""

    kind: Literal["learn", "evaluate"]
    run: Annotated[Run, Maybe] = Run()
    log: Annotated[dict[str, Any], Maybe] = {}
    evaluation: Evaluation | None = None
    weights: Annotated[dict[str, Weights], Maybe] = {}
    frequency: Annotated[list[Frequency], MaybeList] = []
    ladder: Annotated[list[Rung], MaybeList] = []
    learning: Annotated[dict[str, list[dict[str, Any]]], Maybe] = {}
    risky_actions: Annotated[list[RiskyAction], MaybeList] = []


def read_results(path: Path) -> Any:
    """The JSON in a results file, or in the `results.json` of a folder; not yet parsed."""
    file = path / "results.json" if path.is_dir() else path
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ParameterError(f"{file} cannot be read: {error.strerror or error}. {REMEDY}") from error
    except (ValueError, RecursionError) as error:
        raise ParameterError(f"{file} is damaged: it does not hold JSON ({error}). {REMEDY}") from error


def parse_results(plain: Any, where: str) -> Results:
    """Typed results; `where` names the file in messages."""
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise ParameterError(f"{where} is not a results file: its format is not {FORMAT!r}. {REMEDY}")
    if plain.get("version") != VERSION:
        raise ParameterError(
            f"{where} has version {str(plain.get('version'))[:40]!r} of the results format, but this release reads "
            f"version {VERSION}. {REMEDY} A file of a newer release needs that release."
        )
    try:
        return Results.model_validate(plain)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(step) for step in first["loc"])[:200]
        raise ParameterError(f"{where} is damaged at {place}: {first['msg']}. {REMEDY}") from error
