"""A map over shards, merged in their order."""

import math
from dataclasses import dataclass, field

import pytest

from offpolicy.engine import map_merge


@dataclass
class Seen:
    total: float = 0.0
    order: list[int] = field(default_factory=list)

    def merge(self, other: "Seen") -> None:
        self.total += other.total
        self.order += other.order


def test_shards_are_merged_in_their_order_and_each_is_worked_once() -> None:
    found = map_merge(lambda n: Seen(math.sqrt(n), [n]), iter([3, 1, 2]))
    assert found.order == [3, 1, 2]
    assert found.total == pytest.approx(math.sqrt(3) + 1 + math.sqrt(2), abs=1e-15)
    assert map_merge(lambda n: Seen(n, [n]), [7]).order == [7]
