"""Whatever is computed over a log is a map over its shards and a merge in their order.

A log in memory is one shard. Because every cluster is whole within its shard, clustered errors are plain sums; because
the number of shards is fixed and merging follows their order, the answer does not depend on who computed it.
"""

from collections.abc import Callable, Iterable
from typing import Protocol, Self, TypeVar

import numpy as np


class Mergeable(Protocol):
    """What a map leaves of a shard: sums, counts, statistics that add up."""

    def merge(self, other: Self) -> None:
        """Take in what another has seen."""
        ...


GROUPS = 16
"""Sums of shards are sent in so many groups at most: fixed, so that what is found does not depend on the number of
workers."""


def in_groups(shards: range) -> list[list[int]]:
    """Shards that follow each other in groups, each of which adds up what it finds before it is sent (`beside`)."""
    return [part.tolist() for part in np.array_split(np.arange(shards.start, shards.stop), min(GROUPS, len(shards)))]


Shard = TypeVar("Shard")
Found = TypeVar("Found", bound=Mergeable)


def merged(results: Iterable[Found]) -> Found:
    """What was found of each shard, taken together in shard order, as it comes."""
    each = iter(results)
    total = next(each)
    for found in each:
        total.merge(found)
    return total


def map_merge(work: Callable[[Shard], Found], shards: Iterable[Shard]) -> Found:
    """The work of every shard, merged in shard order; in this process, one shard after the other."""
    return merged(map(work, shards))
