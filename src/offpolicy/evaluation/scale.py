"""From rewards in [0, 1] to the user's own scale, once, where results are made."""

from dataclasses import dataclass

from offpolicy.evaluation.intervals import Interval as UnitInterval
from offpolicy.results import Comparison, Interval, Sensitivity, TwoPartInterval

SIZES = ("difference", "low", "high", "joint_low", "joint_high")


@dataclass(frozen=True)
class Scale:
    """The declared range of rewards."""

    low: float = 0.0
    high: float = 1.0

    def value(self, value: float) -> float:
        """A value."""
        return self.low + value * (self.high - self.low)

    def width(self, width: float) -> float:
        """A difference or a width."""
        return width * (self.high - self.low)

    def interval(self, interval: UnitInterval) -> Interval:
        """An interval."""
        low, high, centre = (self.value(end) for end in (interval.low, interval.high, interval.centre))
        return Interval(
            low=low,
            high=high,
            level=interval.level,
            method=interval.method,
            vacuous=interval.vacuous,
            centre=centre,
            note=interval.note,
        )

    def two_part(self, interval: TwoPartInterval) -> TwoPartInterval:
        """An interval with its two parts."""
        centre = None if interval.centre is None else self.value(interval.centre)
        ends = {"low": self.value(interval.low), "high": self.value(interval.high), "centre": centre}
        parts = {"sampling": self.width(interval.sampling), "propensity": self.width(interval.propensity)}
        return interval.model_copy(update=ends | parts)

    def comparison(self, comparison: Comparison, reference: float) -> Comparison:
        """A difference in [−1, 1] against a reference whose value in [0, 1] is given."""
        sizes = {name: getattr(comparison, name) for name in SIZES}
        ends = {name: None if size is None else self.width(size) for name, size in sizes.items()}
        size = abs(self.value(reference))
        relative = self.width(comparison.difference) / size if size > 0 else None
        return comparison.model_copy(update=ends | {"relative": relative})

    def sensitivity(self, sensitivity: Sensitivity) -> Sensitivity:
        """The range of the value by Γ."""
        names = ("low", "high", "sharp_low", "sharp_high")
        curves = {name: [None if v is None else self.value(v) for v in getattr(sensitivity, name)] for name in names}
        return sensitivity.model_copy(update=curves)
