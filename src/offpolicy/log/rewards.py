"""Rewards on the user's scale and on ours, [0, 1]."""

from typing import Any

import numpy as np
import numpy.typing as npt

from offpolicy.errors import LogError, ParameterError
from offpolicy.log.ids import owned, sealed


def checked_range(reward_range: Any) -> tuple[float, float]:
    """The declared range of rewards as two finite floats, the lower one first."""
    try:
        low, high = (float(end) for end in reward_range)
    except (TypeError, ValueError):
        raise ParameterError(f"reward_range must be two numbers (low, high), but it is {reward_range!r}.") from None
    if not (np.isfinite(low) and np.isfinite(high) and low < high and np.isfinite(high - low)):
        raise ParameterError(f"reward_range must be finite with low < high, but it is ({low}, {high}).")
    return low, high


def rescaled(reward: npt.NDArray[Any], low: float, high: float) -> npt.NDArray[np.float64]:
    """Rewards in [low, high] moved to [0, 1]; one outside is an error that names it on the user's scale."""
    if reward.dtype.kind not in "iufb" or reward.ndim != 1:
        raise LogError(f"reward must be a vector of numbers, but it is {reward.dtype} of shape {reward.shape}.")
    inside = (reward >= low) & (reward <= high)
    if not inside.all():
        row = int(np.argmin(inside))
        raise LogError(
            f"reward must lie in [{low:g}, {high:g}], but row {row} holds {reward[row]}. "
            "Fix the row, or declare the range of your rewards with reward_range=(low, high)."
        )
    return to_unit(reward, low, high)


def to_unit(reward: npt.NDArray[Any], low: float, high: float) -> npt.NDArray[np.float64]:
    """Rewards known to lie in [low, high] moved to [0, 1]; shared with the caller if there is nothing to do."""
    if (low, high) == (0.0, 1.0):
        return sealed(reward, np.float64)
    values = reward.astype(np.float64)
    values -= low
    values /= high - low
    np.minimum(values, 1.0, out=values)  # rounding may overshoot by one unit in the last place
    return owned(values)


def range_typed(low: float, high: float) -> str:
    """A range as an option takes it, short where that is exact."""
    return ",".join(short if float(short := f"{end:.12g}") == end else repr(float(end)) for end in (low, high))


def data_range(reward: npt.NDArray[np.float64]) -> tuple[float, float]:
    """[0, 1] if the rewards keep to it, else from their least or 0 to their largest or 0."""
    low, high = float(reward.min()), float(reward.max())
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    return min(low, 0.0), max(high, 0.0)


def winsorised(
    name: str, reward: npt.NDArray[np.float64], share: float
) -> tuple[npt.NDArray[np.float64], tuple[str, ...]]:
    """Rewards with the largest and the smallest share of those that are not 0 set to their quantile, and a note.

    Zeros are left aside, because most rewards of a shop are; rewards of two values are left alone.
    """
    if not 0 <= share < 0.5:
        raise ParameterError(f"winsorise must be a share of at least 0 and below 0.5, such as 0.01, but it is {share}.")
    there = reward[np.isfinite(reward)]
    other = there[there != 0]
    if share == 0 or not len(other) or (len(np.unique(other[:10_000])) < 2 and len(np.unique(other)) < 2):
        return reward, ()
    low, high = (float(end) for end in np.quantile(other, (share, 1 - share)))
    low, high = min(low, 0.0), max(high, 0.0)
    changed = np.count_nonzero((reward < low) | (reward > high))
    note = (
        f"{name} winsorised at {share:g}: {changed:,} of {len(there):,} rewards beyond {low:g} to {high:g} were set "
        f"to these ends (the data reach from {there.min():g} to {there.max():g}); values are means of what is left."
    )
    return reward.clip(low, high), (note,)
