"""Another reward of a log in shards: a column kept beside the rows, moved to [0, 1] by what holds for all shards."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from offpolicy.errors import ParameterError
from offpolicy.evaluation.order import Array, digits, exact_quantiles
from offpolicy.log import LoggedData


@dataclass(frozen=True)
class OtherReward:
    """The column, its range, and the ends beyond which its values are cut."""

    name: str
    low: float
    high: float
    ends: tuple[float, float] | None = None
    treated: tuple[str, ...] = ()

    @classmethod
    def of(cls, log: LoggedData, name: str, winsorise: float = 0.0) -> "OtherReward":
        """What all shards say about the column; a value that is no number is refused, as `with_reward` does."""
        if not 0 <= winsorise < 0.5:
            raise ParameterError(f"winsorise must be a share of at least 0 and below 0.5, but it is {winsorise}.")
        least, most, different = np.inf, -np.inf, 0
        for shard in log.shards:
            shard.with_reward(name)
            values = _column(shard, name)
            least, most = min(least, float(values.min())), max(most, float(values.max()))
            different = max(different, len(np.unique(values[values != 0])))
        ends: tuple[float, float] | None = None
        treated: tuple[str, ...] = ()
        if winsorise > 0 and (different > 1 or (least < 0 < most)):
            ends, treated = _ends(log, name, winsorise, least, most)
            least, most = max(least, ends[0]), min(most, ends[1])
        inside = least >= 0 and most <= 1
        low, high = (0.0, 1.0) if inside else (min(least, 0.0), max(most, 0.0))
        return cls(name, low, high, ends, treated)

    def header(self, log: LoggedData) -> LoggedData:
        """The whole log by what it says about itself under this reward; its array is still that of the first."""
        return log.renamed_reward(self.name, (self.low, self.high), self.treated)

    def seen(self, log: LoggedData) -> LoggedData:
        """A shard, or a sample, under this reward."""
        values = _column(log, self.name)
        if self.ends is not None:
            values = values.clip(*self.ends)
        if (self.low, self.high) != (0.0, 1.0):
            values = np.minimum((values - self.low) / (self.high - self.low), 1.0)
        return self.header(log).with_unit_reward(values)


def _column(log: LoggedData, name: str) -> Array:
    return np.asarray(log.kept_column(name).cast(float).to_numpy())


def _ends(
    log: LoggedData, name: str, share: float, least: float, most: float
) -> tuple[tuple[float, float], tuple[str, ...]]:
    """The quantiles of values that are not 0, beyond which values are cut, and a note."""
    count = sum(int(np.count_nonzero(_column(shard, name))) for shard in log.shards)

    def counts(*given: Any) -> Any:
        return sum(digits(values[values != 0], *given) for values in (_column(one, name) for one in log.shards))

    found: Callable[..., Any] = counts
    low, high = (float(end) for end in exact_quantiles(found, count, (share, 1 - share)))
    low, high = min(low, 0.0), max(high, 0.0)
    columns = (_column(shard, name) for shard in log.shards)
    changed = sum(int(np.count_nonzero((one < low) | (one > high))) for one in columns)
    note = (
        f"{name} winsorised at {share:g}: {changed:,} of {log.n_rows:,} rewards beyond {low:g} to {high:g} were set "
        f"to these ends (the data reach from {least:g} to {most:g}); values are means of what is left."
    )
    return (low, high), (note,)
