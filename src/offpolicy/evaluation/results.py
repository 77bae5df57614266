"""What an evaluation found: plain, frozen, ready for JSON, on the user's own scale of rewards."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from offpolicy.evaluation.auto import TwoPartInterval
from offpolicy.evaluation.comparison import Comparison
from offpolicy.evaluation.intervals import Interval
from offpolicy.evaluation.preflight import Preflight


@dataclass(frozen=True)
class Scale:
    """From rewards in [0, 1] to the user's."""

    low: float = 0.0
    high: float = 1.0

    def value(self, value: float) -> float:
        """A value."""
        return self.low + value * (self.high - self.low)

    def width(self, width: float) -> float:
        """A difference or a width."""
        return width * (self.high - self.low)

    def interval(self, interval: TwoPartInterval | Interval) -> dict[str, Any]:
        """An interval with its ends and parts rescaled."""
        plain = asdict(interval)
        plain |= {name: self.value(plain[name]) for name in ("low", "high", "centre") if name in plain}
        return plain | {name: self.width(plain[name]) for name in ("sampling", "propensity") if name in plain}


@dataclass(frozen=True)
class EstimatorResult:
    """One estimator's answer."""

    name: str
    value: float
    standard_error: float
    intervals: Mapping[str, Interval]
    hyper: Mapping[str, float | bool]
    mean_weight: float
    note: str = ""

    def to_json(self, scale: Scale) -> dict[str, Any]:
        """Plain values on the user's scale."""
        return {
            "name": self.name,
            "value": scale.value(self.value),
            "standard_error": scale.width(self.standard_error),
            "intervals": {name: scale.interval(found) for name, found in self.intervals.items()},
            "hyper": dict(self.hyper),
            "mean_weight": self.mean_weight,
            "note": self.note,
        }


@dataclass(frozen=True)
class Sensitivity:
    """How wrong β̂ must be, by one factor in every row, before the conclusion against the logging policy flips."""

    flips_at: float
    """The factor Γ; infinite if none does, 1 if there is nothing to flip."""
    gammas: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class PolicyEvaluation:
    """Everything about one policy."""

    name: str
    value: float
    interval: TwoPartInterval
    lam: float
    estimates: tuple[EstimatorResult, ...]
    left_out: Mapping[str, str]
    """Estimators that could not be used for this policy, and why."""
    preflight: Preflight
    sensitivity: Sensitivity
    detectable_effect: float
    propensity_intervals: Mapping[str, Interval] = field(default_factory=dict)
    """Intervals that let β̂ itself vary: the worst case over its band, and the refit bootstrap where asked for."""

    def to_json(self, scale: Scale) -> dict[str, Any]:
        """Plain values on the user's scale."""
        curve = {name: [scale.value(v) for v in getattr(self.sensitivity, name)] for name in ("low", "high")}
        return {
            "name": self.name,
            "value": scale.value(self.value),
            "interval": scale.interval(self.interval),
            "lam": self.lam,
            "estimates": [estimate.to_json(scale) for estimate in self.estimates],
            "left_out": dict(self.left_out),
            "preflight": self.preflight.to_json(),
            "sensitivity": asdict(self.sensitivity) | curve,
            "detectable_effect": scale.width(self.detectable_effect),
            "propensity_intervals": {name: scale.interval(i) for name, i in self.propensity_intervals.items()},
        }


@dataclass(frozen=True)
class Evaluation:
    """The answer to `evaluate`."""

    policies: Mapping[str, PolicyEvaluation]
    logging_value: float
    logging_interval: Interval
    comparisons: tuple[Comparison, ...]
    best: str
    """The candidate with the highest low end."""
    level: float
    logging_model: str
    logging_quality: Mapping[str, Any]
    scale: Scale
    log_summary: Mapping[str, Any]

    def __getitem__(self, name: str) -> PolicyEvaluation:
        """The evaluation of one policy."""
        return self.policies[name]

    def to_json(self) -> dict[str, Any]:
        """Plain values on the user's scale."""
        differences = ("difference", "low", "high")
        return {
            "level": self.level,
            "best": self.best,
            "logging": {
                "model": self.logging_model,
                "value": self.scale.value(self.logging_value),
                "interval": self.scale.interval(self.logging_interval),
                "quality": dict(self.logging_quality),
            },
            "policies": {name: found.to_json(self.scale) for name, found in self.policies.items()},
            "comparisons": [
                c.to_json() | {name: self.scale.width(getattr(c, name)) for name in differences}
                for c in self.comparisons
            ],
            "reward_range": [self.scale.low, self.scale.high],
            "log": dict(self.log_summary),
        }
