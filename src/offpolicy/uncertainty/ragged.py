"""Groups of unequal length, processed many at a time: padded a little, batched by size, bounded in memory."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

LONGEST = 1024
"""Longer groups are cut into runs of this many entries."""


class Runs(NamedTuple):
    """Consecutive entries that belong to one group; a long group has several runs."""

    group: Tensor  # (runs,)
    start: Tensor  # (runs,)
    length: Tensor  # (runs,), 1..LONGEST


def runs_of(lengths: Tensor) -> Runs:
    """Runs of groups whose entries follow one another."""
    pieces = (lengths + LONGEST - 1) // LONGEST
    group = torch.repeat_interleave(pieces)
    first = (pieces.cumsum(0) - pieces)[group]
    offset = (torch.arange(len(group)) - first) * LONGEST
    start = (lengths.cumsum(0) - lengths)[group] + offset
    return Runs(group, start, (lengths[group] - offset).clamp(max=LONGEST))


def padded_length(length: Tensor) -> Tensor:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, ...: at most half as long again."""
    power = 2 ** torch.log2(length.clamp(min=1).double()).ceil().long()
    return torch.where(length <= power * 3 // 4, power * 3 // 4, power)


class Batch(NamedTuple):
    """Items to be processed together and the common sizes they are padded to."""

    items: Tensor
    sizes: tuple[int, ...]


def batches(sizes: Tensor, bytes_each: Callable[..., int], limit: int) -> Iterator[Batch]:
    """Items of equal padded sizes (items, kinds), so many at a time that each takes its bytes within the limit."""
    if len(sizes) == 0:
        return
    distinct, kind = torch.unique(padded_length(sizes), dim=0, return_inverse=True)
    order = kind.argsort(stable=True)
    ends = torch.bincount(kind).cumsum(0).tolist()
    for number, stop in enumerate(ends):
        common = tuple(distinct[number].tolist())
        size = max(1, limit // bytes_each(*common))
        begin = ends[number - 1] if number else 0
        for start in range(begin, stop, size):
            yield Batch(order[start : min(start + size, stop)], common)


def padded(start: Tensor, length: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Positions (items, width) of the entries of runs, and which of them are real; the others repeat the last."""
    place = torch.arange(width)
    real = place < length.unsqueeze(1)
    return start.unsqueeze(1) + torch.minimum(place, length.unsqueeze(1) - 1), real
