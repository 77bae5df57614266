"""Which part or fold each row belongs to. Groups of rows move together; single rows are never split apart."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from offpolicy.errors import ParameterError
from offpolicy.seeding import generator


def parts_of_rows(
    unit: npt.NDArray[Any], in_time: bool, fractions: Sequence[float], seed: int
) -> list[npt.NDArray[np.int64]]:
    """The rows of each part, ascending; `unit` is the group (or the instant) of each row."""
    shares = _checked_fractions(fractions)
    part = _place(unit, in_time, np.cumsum(shares)[:-1], seed, "split")
    rows = [np.flatnonzero(part == number) for number in range(len(shares))]
    empty = [number for number, held in enumerate(rows) if held.size == 0]
    if empty:
        raise ParameterError(
            f"fractions {tuple(shares)} leave part {empty[0]} without rows, because the log has only "
            f"{len(np.unique(unit))} groups. Use larger fractions, fewer parts or more data."
        )
    return rows


def fold_of_each_row(unit: npt.NDArray[Any], in_time: bool, k: int, seed: int) -> npt.NDArray[np.int64]:
    """The fold 0..k-1 of each row."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 2:
        raise ParameterError(f"k must be an integer of at least 2, but it is {k!r}.")
    fold = _place(unit, in_time, np.arange(1, k) / k, seed, "folds")
    if len(np.unique(fold)) < k:
        raise ParameterError(
            f"k = {k} folds need at least {k} groups of rows, but the log has {len(np.unique(unit))}. Use fewer folds."
        )
    return fold


def _place(
    unit: npt.NDArray[Any], in_time: bool, cuts: npt.NDArray[np.float64], seed: int, stream: str
) -> npt.NDArray[np.int64]:
    """For each row the number of cuts that lie at or before its group's place on the line from 0 to 1."""
    if in_time:
        _, group, counts = np.unique(unit, return_inverse=True, return_counts=True)
        before = np.cumsum(counts) - counts
        place = (before + 0.5 * counts) / counts.sum()  # an instant goes where its middle row would
    else:
        group = unit
        present = np.flatnonzero(np.bincount(unit))
        place = np.zeros(int(present[-1]) + 1)
        place[present] = (generator(seed, "log", stream).permutation(len(present)) + 0.5) / len(present)
    part: npt.NDArray[np.int64] = np.searchsorted(cuts, place, side="right")
    return part[group]


def _checked_fractions(fractions: Sequence[float]) -> list[float]:
    try:
        shares = [float(share) for share in fractions]
    except (TypeError, ValueError):
        raise ParameterError(f"fractions must be a sequence of numbers, but they are {fractions!r}.") from None
    if len(shares) < 2 or not all(0.0 < share < 1.0 for share in shares) or abs(sum(shares) - 1.0) > 1e-9:
        raise ParameterError(
            f"fractions must be two or more positive numbers that sum to 1, such as (0.8, 0.2), but they are {shares}."
        )
    return shares
