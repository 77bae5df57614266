"""From rewards in [0, 1] to the user's own scale, once, where results are made."""

from dataclasses import dataclass

from offpolicy.evaluation.intervals import Interval as UnitInterval
from offpolicy.results import Comparison, Interval, Sensitivity, TwoPartInterval


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

    def interval(self, found: UnitInterval) -> Interval:
        """An interval."""
        low, high, centre = (self.value(end) for end in (found.low, found.high, found.centre))
        return Interval(
            low=low,
            high=high,
            level=found.level,
            method=found.method,
            vacuous=found.vacuous,
            centre=centre,
            note=found.note,
        )

    def two_part(self, found: TwoPartInterval) -> TwoPartInterval:
        """An interval with its two parts."""
        centre = None if found.centre is None else self.value(found.centre)
        ends = {"low": self.value(found.low), "high": self.value(found.high), "centre": centre}
        parts = {"sampling": self.width(found.sampling), "propensity": self.width(found.propensity)}
        return found.model_copy(update=ends | parts)

    def comparison(self, found: Comparison, reference: float) -> Comparison:
        """A difference in [−1, 1] against a reference whose value in [0, 1] is given."""
        ends = {name: self.width(getattr(found, name)) for name in ("difference", "low", "high")}
        size = abs(self.value(reference))
        return found.model_copy(update=ends | {"relative": ends["difference"] / size if size > 0 else None})

    def sensitivity(self, found: Sensitivity) -> Sensitivity:
        """The range of the value by Γ."""
        curves = {
            name: [None if v is None else self.value(v) for v in getattr(found, name)] for name in ("low", "high")
        }
        return found.model_copy(update=curves)
