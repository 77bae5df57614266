"""Exact quantiles of numbers that are never in one place: the digits of order statistics, from counts that add up."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]
DIGITS = ((52, 12), (39, 13), (26, 13), (13, 13), (0, 13))
"""The parts of a 64-bit number, the highest first: how far to shift, and how many bits."""
_SIGN = np.uint64(1 << 63)


def exact_quantiles(counts: Callable[..., Any], count: int, shares: Sequence[float]) -> Array:
    """Quantiles of `count` numbers, between neighbours by a straight line, as `np.quantile` has them.

    `counts(*given)` is the sum of `digits(numbers, *given)` over all parts of the numbers.
    """
    positions = np.asarray(shares, dtype=np.float64) * (count - 1)
    below = np.floor(positions).astype(np.int64)
    above = np.minimum(below + 1, count - 1)
    ranks = np.unique(np.concatenate([below, above]))
    found = _ordered(counts, ranks)
    low, high = found[np.searchsorted(ranks, below)], found[np.searchsorted(ranks, above)]
    part, step = positions - below, high - low
    return np.asarray(np.where(part >= 0.5, high - step * (1 - part), low + step * part))


def _ordered(counts: Callable[..., Any], ranks: npt.NDArray[np.int64]) -> Array:
    """The numbers of these ranks."""
    prefix, rank = np.zeros(len(ranks), dtype=np.uint64), ranks.copy()
    for shift, bits in DIGITS:
        wanted, place = np.unique(prefix, return_inverse=True)
        below = np.asarray(counts(wanted, shift, bits)).cumsum(1)
        for each in range(len(ranks)):
            own = below[place[each]]
            digit = int(np.searchsorted(own, rank[each], side="right"))
            rank[each] -= own[digit - 1] if digit else 0
            prefix[each] = (int(prefix[each]) << bits) | digit
    return np.asarray(np.where(prefix & _SIGN, prefix & ~_SIGN, ~prefix).view(np.float64))


def digits(numbers: Array, wanted: npt.NDArray[np.uint64], shift: int, bits: int) -> npt.NDArray[np.int64]:
    """Of the numbers whose key begins with each of these digits, how many have each digit next."""
    keys = _keys(np.asarray(numbers, dtype=np.float64))
    counts = np.zeros((len(wanted), 1 << bits), dtype=np.int64)
    for count, prefix in zip(counts, wanted, strict=True):
        own = keys if shift == DIGITS[0][0] else keys[keys >> np.uint64(shift + bits) == prefix]
        digit = (own >> np.uint64(shift)) & np.uint64((1 << bits) - 1)
        count += np.bincount(digit.astype(np.int64), minlength=1 << bits)
    return counts


def _keys(numbers: Array) -> npt.NDArray[np.uint64]:
    """Whole numbers in the order of the numbers."""
    bits = np.ascontiguousarray(numbers + 0.0).view(np.uint64)  # −0 becomes 0
    return np.asarray(np.where(bits & _SIGN, ~bits, bits | _SIGN))
