"""`results.json`: everything a report shows about a run, as plain numbers; written whole or not at all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from offpolicy.artifacts import library_versions
from offpolicy.checks import check_choice, check_number
from offpolicy.estimators import ESTIMATORS
from offpolicy.evaluation import GAMMA, LEVEL, Evaluation, PolicyRows, log_driven, propensity_ladder
from offpolicy.json_writer import jsonable, write_json
from offpolicy.log import LoggedData
from offpolicy.models import DesignMatrix
from offpolicy.policies import Policy
from offpolicy.propensity import MODELS, QUADRATIC_WIDTH, LoggingPolicy
from offpolicy.rewards import PooledRewardModel
from offpolicy.uncertainty import frequency_profile
from offpolicy.workflows.roles import LogSpec, columns_of

FORMAT, VERSION = "offpolicy-results", 1
RESULTS = "results.json"
BINS = 40
"""Bars of a histogram of weights."""
TINIEST, LARGEST = -12.0, 12.0
"""Ends of that histogram at most, in powers of ten; what lies beyond counts in the last bar."""
RISKY = 20
"""Actions that the list of risky ones holds."""
QUADRATIC_ROWS = 200_000
"""Most rows for which the ladder fits products of features."""


@dataclass(frozen=True)
class RunOptions:
    """What every run may be told."""

    seed: int = 0
    level: float = 0.95
    logging_model: str | None = None
    """Which model of β̂; None takes the recorded propensities where their column was named, else `auto`."""
    ladder: bool = True
    """Whether to answer under several models of β̂ too."""
    command: str = ""
    """The command line, for the record."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """All options by name, for the record."""

    def __post_init__(self) -> None:
        """Refuse what would only fail after hours."""
        check_number("level", self.level, LEVEL)
        if self.logging_model is not None:
            check_choice("logging_model", self.logging_model, MODELS)


@dataclass(frozen=True)
class Judged:
    """An evaluation and what it was made from."""

    log: LoggedData
    targets: Mapping[str, Policy]
    beta: LoggingPolicy
    uncertainty: Tensor
    rewards: PooledRewardModel | None
    """q̂, where a policy is known by more than a column."""
    evaluation: Evaluation

    def rows(self, name: str) -> PolicyRows:
        """Ratios of one policy."""
        return PolicyRows.of(self.log, self.targets[name], self.beta, uncertainty=self.uncertainty)

    def reweighted(self, name: str, rows: PolicyRows) -> Tensor:
        """The weights after UIPS has damped those that β̂ is unsure of."""
        row = ESTIMATORS["uips"]
        return rows.terms(row, slice(None), **log_driven(row, {"lam": self.evaluation[name].lam}, GAMMA)).weight


class Clock:
    """When a run began and how long it took."""

    def __init__(self) -> None:
        """Start now."""
        self.started = datetime.now(UTC)
        self._start = perf_counter()

    def facts(self, options: RunOptions, notes: Sequence[str] = ()) -> dict[str, Any]:
        """The `run` of a results file; `notes` say what was inferred or decided on the way."""
        return {
            "command": options.command,
            "config": dict(options.config),
            "notes": list(notes),
            "seed": options.seed,
            "versions": library_versions(),
            "started": self.started.isoformat(timespec="seconds"),
            "seconds": round(perf_counter() - self._start, 3),
        }


def judged_parts(judged: Judged, ladder: bool, seed: int) -> dict[str, Any]:
    """Evaluation, weights, frequencies, ladder and risky actions."""
    weights: dict[str, Any] = {}
    risky: list[dict[str, Any]] = []
    best = judged.evaluation.best
    for name in judged.targets:
        rows = judged.rows(name)
        weights[name] = weight_histogram(rows.ratio, judged.reweighted(name, rows))
        if name == best:
            risky = risky_actions(judged, rows.ratio)
    profile = frequency_profile(judged.beta, judged.uncertainty)
    return {
        "evaluation": judged.evaluation.to_json(),
        "weights": weights,
        "frequency": [bucket.to_json() for bucket in profile],
        "ladder": _ladder(judged, seed) if ladder else [],
        "risky_actions": risky,
    }


def weight_histogram(before: Tensor, after: Tensor) -> dict[str, Any]:
    """Counts of log10 weights over shared edges; weights of 0 count in the first bar."""
    logs = [_log10(before), _log10(after)]
    low = max(min(float(one.min()) for one in logs), TINIEST)
    high = min(max(float(one.max()) for one in logs), LARGEST)
    edges = np.linspace(low, high if high > low else low + 1.0, BINS + 1)
    counts = [np.histogram(one.clip(edges[0], edges[-1]), edges)[0].tolist() for one in logs]
    return {"edges": edges.tolist(), "before": counts[0], "after": counts[1]}


def _log10(weight: Tensor) -> npt.NDArray[np.float64]:
    return np.asarray(np.log10(weight.detach().double().clamp(min=10**TINIEST, max=10**LARGEST).numpy()))


def risky_actions(judged: Judged, ratio: Tensor) -> list[dict[str, Any]]:
    """The actions on which the estimate hangs although β̂ is unsure of them: largest share of weight times U."""
    log = judged.log
    action = log.action.astype(np.int64)
    count = np.maximum(log.action_count, 1)
    total = max(float(ratio.sum()), np.finfo(float).tiny)
    share = np.bincount(action, ratio.double().numpy(), log.n_actions) / total
    prob = np.bincount(action, judged.beta.row_log_prob.double().exp().numpy(), log.n_actions) / count
    spread = np.bincount(action, judged.uncertainty.double().numpy(), log.n_actions) / count
    worst = np.lexsort((-share, -share * spread))[:RISKY]
    worst = worst[log.action_count[worst] > 0]
    ids = log.actions.vocabulary.decode(worst.tolist()) if len(worst) else []
    return [
        {
            "action": name,
            "count": int(log.action_count[a]),
            "logging_prob": float(prob[a]),
            "uncertainty": float(spread[a]),
            "weight_share": float(share[a]),
        }
        for name, a in zip(ids, worst, strict=True)
    ]


def _ladder(judged: Judged, seed: int) -> list[dict[str, Any]]:
    """The best policy's value under simple to rich models of β̂, on the user's scale."""
    models: list[Any] = ["uniform", "popularity", "linear"]
    width = DesignMatrix.fit(judged.log.contexts).width
    if width <= QUADRATIC_WIDTH and judged.log.n_rows <= QUADRATIC_ROWS:
        models.append("quadratic")
    models = [judged.beta if model == judged.beta.model else model for model in models]
    evaluation = judged.evaluation
    rungs = propensity_ladder(judged.log, judged.targets[evaluation.best], models, level=evaluation.level, seed=seed)
    scaled = ("value", "low", "high")
    return [r.to_json() | {name: evaluation.scale.value(getattr(r, name)) for name in scaled} for r in rungs]


def results(
    kind: str, run: Mapping[str, Any], spec: LogSpec, log: LoggedData, parts: Mapping[str, Any]
) -> dict[str, Any]:
    """The whole document; parts that are not given are empty."""
    facts = log.summary() | {"source": spec.source, "columns": columns_of(spec, log)}
    empty: dict[str, Any] = {
        "evaluation": None,
        "weights": {},
        "frequency": [],
        "ladder": [],
        "learning": {},
        "risky_actions": [],
    }
    document = {"format": FORMAT, "version": VERSION, "kind": kind, "run": dict(run), "log": facts, **empty, **parts}
    return dict(jsonable(document, "results"))


def write_results(document: Mapping[str, Any], folder: str | Path) -> Path:
    """Write `results.json` into a folder, which is made where it is missing."""
    path = Path(folder).expanduser() / RESULTS
    write_json(path, document, "results")
    return path
