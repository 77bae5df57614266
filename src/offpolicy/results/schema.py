"""The one schema of results: `evaluate` returns a part of it, results.json stores it, the report reads it."""

from typing import Annotated, Any, Literal

from offpolicy.results.evaluation import Evaluation
from offpolicy.results.part import Finite, Maybe, MaybeList, Number, Part

FORMAT: Literal["offpolicy-results"] = "offpolicy-results"
VERSION: Literal[2] = 2


class Run(Part):
    """How the run was made."""

    command: str = ""
    config: Annotated[dict[str, Any], Maybe] = {}
    notes: Annotated[list[str], MaybeList] = []
    """What was inferred or decided on the way."""
    seed: int | None = None
    versions: Annotated[dict[str, Any], Maybe] = {}
    started: str = ""
    seconds: Number = None
    propensity_fits: int | None = None
    """Logging policies that were fitted; those loaded from a run folder do not count."""


class Weights(Part):
    """Counts of weights between edges in log10, before and after reweighting."""

    edges: Annotated[list[Number], MaybeList] = []
    before: Annotated[list[Number], MaybeList] = []
    after: Annotated[list[Number], MaybeList] = []


class Frequency(Part):
    """β̂ and U of the rows whose actions were logged about equally often."""

    log_frequency: Finite
    """Middle of the bucket on the scale ln n, n the times its actions were logged."""
    logging_prob: Finite
    """Mean β̂ of its rows."""
    uncertainty: Finite
    """Mean U of its rows."""
    rows: int = 0
    actions: int = 0


class PropensityModel(Part):
    """The best policy's value under one model of the logging policy."""

    model: str
    log_likelihood: Number = None
    """Held-out; the higher, the more the model's answer deserves trust."""
    calibration_error: Number = None
    mean_weight: Number = None
    value: Number = None
    low: Number = None
    high: Number = None


class RiskyAction(Part):
    """An action that carries much weight although β̂ is unsure of it."""

    action: Any
    count: int = 0
    logging_prob: Number = None
    uncertainty: Number = None
    weight_share: Number = None


class Candidate(Part):
    """One learned policy among which a choice was made, on the user's scale of rewards."""

    method: str
    value: Number = None
    low: Number = None
    """Lower end of an interval that holds for all candidates at once, as all other ends here."""
    high: Number = None
    gain: Number = None
    """Estimated difference to the logging policy."""
    gain_low: Number = None
    gain_high: Number = None
    seconds: Number = None
    """That learning it took."""
    chosen: bool = False


class Choice(Part):
    """Which of several learned policies was chosen, and whether it is better than logging."""

    method: str
    recommendation: Literal["policy", "experiment", "logging"]
    """Ship the policy; probably better, but test it; stay with logging."""
    sentence: str
    candidates: Annotated[list[Candidate], MaybeList] = []


class Results(Part):
    """The whole file."""

    format: Literal["offpolicy-results"] = FORMAT
    version: Literal[2] = VERSION
    kind: Literal["learn", "evaluate"]
    run: Annotated[Run, Maybe] = Run()
    log: Annotated[dict[str, Any], Maybe] = {}
    evaluation: Evaluation | None = None
    weights: Annotated[dict[str, Weights], Maybe] = {}
    frequency: Annotated[list[Frequency], MaybeList] = []
    propensity_models: Annotated[list[PropensityModel], MaybeList] = []
    learning: Annotated[dict[str, list[dict[str, Any]]], Maybe] = {}
    choice: Choice | None = None
    """Where policies were learned: which one was chosen."""
    risky_actions: Annotated[list[RiskyAction], MaybeList] = []

    def __repr__(self) -> str:
        """The kind of run and its evaluation."""
        return f"Results({self.kind}: {self.evaluation!r})"

    __str__ = __repr__
