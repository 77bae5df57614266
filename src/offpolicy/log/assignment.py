"""Which part or fold each row belongs to: a function of its unit's content and the seed, never of the row's place.

A unit is a cluster or a context; its hash, keyed by the seed, is its place on the line from 0 to 1. Appending, dropping
or shuffling rows therefore never moves a unit to another part. Splits by time are chronological instead.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from offpolicy.errors import ParameterError
from offpolicy.log.hashing import Hashes, uniform
from offpolicy.log.mapped import AT_ONCE, joined, mapped_file
from offpolicy.log.rules import used_of

if TYPE_CHECKING:
    from offpolicy.log.log_arrays import LogArrays

Rows = npt.NDArray[np.int64]
Unit: TypeAlias = Literal["context", "cluster", "time", "row"]


def checked_fractions(fractions: Sequence[float]) -> list[float]:
    """Two or more shares that sum to 1."""
    try:
        shares = [float(share) for share in fractions]
    except (TypeError, ValueError):
        raise ParameterError(f"fractions must be a sequence of numbers, but they are {fractions!r}.") from None
    if len(shares) < 2 or not all(0.0 < share < 1.0 for share in shares) or abs(sum(shares) - 1.0) > 1e-9:
        raise ParameterError(
            f"fractions must be two or more positive numbers that sum to 1, such as (0.8, 0.2), but they are {shares}."
        )
    return shares


def checked_folds(k: int) -> list[float]:
    """k equal shares."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 2:
        raise ParameterError(f"k must be an integer of at least 2, but it is {k!r}.")
    return [1 / int(k)] * int(k)


def part_of_units(hashes: Hashes, shares: Sequence[float], key: str) -> npt.NDArray[np.int64]:
    """The part 0, 1, ... of each unit, of about these shares.

    A part that would be empty, as happens with a handful of units, takes the unit whose place is nearest to its own.
    """
    if len(hashes) < len(shares):
        raise ParameterError(
            f"{len(shares)} parts need at least {len(shares)} groups of rows, but the log has {len(hashes)}. Use fewer "
            "parts or more data."
        )
    place = uniform(hashes, key)
    ends = np.cumsum(shares)
    part: npt.NDArray[np.int64] = np.searchsorted(ends[:-1], place, side="right")
    for empty in np.flatnonzero(np.bincount(part, minlength=len(shares)) == 0).tolist():
        distance = np.abs(place - (ends[empty] - shares[empty] / 2))
        distance[np.bincount(part, minlength=len(shares))[part] == 1] = np.inf
        part[np.argmin(distance)] = empty
    return part


def part_in_time(instant: npt.NDArray[Any], shares: Sequence[float]) -> npt.NDArray[np.int64]:
    """The part of each row; parts follow each other in time, and rows of one instant stay together."""
    _, group, counts = np.unique(instant, return_inverse=True, return_counts=True)
    place = (np.cumsum(counts) - 0.5 * counts) / counts.sum()  # an instant goes where its middle row would
    part: npt.NDArray[np.int64] = np.searchsorted(np.cumsum(shares)[:-1], place, side="right")
    empty = np.flatnonzero(np.bincount(part, minlength=len(shares)) == 0)
    if empty.size:
        raise ParameterError(
            f"fractions {tuple(shares)} leave part {empty[0]} without rows, because the log has only {len(counts)} "
            "instants. Use larger fractions, fewer parts or more data."
        )
    return part[group]


def part_of_rows(log: "LogArrays", shares: Sequence[float], by: Unit | None, key: str) -> Rows:
    """The part of each row, its groups being clusters or contexts unless `by` says which."""
    if by == "time":
        return part_in_time(_unit(log, by), shares)
    if by == "row":
        return part_of_units(log.row_identities, shares, log.lineage + key)
    unit = _unit(log, by)
    present = np.flatnonzero(used_of(unit, int(unit.max()) + 1))
    hashes = log.cluster_hashes
    if by == "context" or log.cluster is None:
        hashes = log.context_hashes if log.candidates is None else np.unique(log._feature_hashes)
    part: Rows = np.zeros(int(present[-1]) + 1, dtype=np.int64)
    part[present] = part_of_units(hashes[present], shares, log.lineage + key)
    pieces = (part[unit[start : start + AT_ONCE]] for start in range(0, len(unit), AT_ONCE))
    return joined(pieces, len(unit), np.int64, mapped_file(log.action))


def _unit(log: "LogArrays", by: Unit | None) -> npt.NDArray[Any]:
    """What a group of rows is called in each of them."""
    if by is None:
        return log.cluster_index
    contexts = log.context_index if log.candidates is None else log._feature_unit[log.context_index]
    units = {"context": contexts, "cluster": log.cluster, "time": log.timestamp}
    if by not in units:
        raise ParameterError(f"by must be context, cluster, time or row, but it is {by!r}.")
    unit = units[by]
    if unit is None:
        column = "timestamp" if by == "time" else by
        raise ParameterError(f"A split by {by} needs a {column}, but this log has none. Read the log with one.")
    return unit
