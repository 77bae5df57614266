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
