"""Shards: the same rows in an order that is a function of what they say, every unit whole within one of them."""

from typing import Any

import numpy as np
import pytest

from log_frames import COLUMNS, WAYS, frame
from offpolicy import LoggedData, ParameterError, read_log


def said(log: LoggedData) -> list[tuple[object, ...]]:
    """Every row in the user's own terms."""
    columns = log.contexts.take(log.context_index).to_frame().rows()
    ids: list[Any] = [None] * log.n_rows
    if log.cluster is not None and log.cluster_vocabulary is not None:
        ids = log.cluster_vocabulary.decode(log.cluster)
    names = log.actions.vocabulary.decode(log.action)
    return [(repr(x), a, r, c) for x, a, r, c in zip(columns, names, log.reward.tolist(), ids, strict=True)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shards", [1, 7, 64])
def test_shards_hold_the_same_rows_and_whole_units(way: str, shards: int) -> None:
    """The shards one after another are the log: every row once, no unit in two of them, each shard a valid log."""
    log = read_log(frame(), **COLUMNS, **WAYS[way])
    made = log.sharded(shards)
    assert sorted(map(str, said(made))) == sorted(map(str, said(log)))
    assert 1 <= made.n_shards <= shards
    parts = list(made.shards)
    assert [row for part in parts for row in said(part)] == said(made)
    checked = [LoggedData(**part._fields) for part in parts]
    assert all(left == right for left, right in zip(checked, parts, strict=True))
    units = [set(part.cluster_hashes.tolist()) for part in parts]
    assert sum(map(len, units)) == len(set.union(*units))
    if log.request is not None:
        assert sum(part.summary()["slates"]["requests"] for part in parts) == 300


@pytest.mark.parametrize("way", ["contexts", "clusters"])
def test_the_order_of_the_file_does_not_matter(way: str) -> None:
    """Shuffled rows give the same shards, array by array."""
    rows = frame()
    left = read_log(rows, **COLUMNS, **WAYS[way]).sharded(8)
    right = read_log(rows.sample(fraction=1.0, shuffle=True, seed=3), **COLUMNS, **WAYS[way]).sharded(8)
    assert left == right
    assert left.fingerprint == right.fingerprint
    assert left.rows_fingerprint == right.rows_fingerprint


@pytest.mark.parametrize("way", WAYS)
def test_parts_keep_their_shards(way: str) -> None:
    """Rows of a divided log in ascending order are divided alike, and dividing anew changes nothing."""
    made = read_log(frame(), **COLUMNS, **WAYS[way]).sharded(8)
    train, test = made.split((0.7, 0.3))
    for part in (train, test):
        assert part.layout is not None
        assert [row for one in part.shards for row in said(one)] == said(part)
        again = LoggedData(**part._fields)
        assert again.layout == part.layout
        if way != "slates":
            assert part.sharded(8) == part
    assert made.take(np.arange(made.n_rows)[::-1]).layout is None
    few = made.take(np.arange(3))
    assert few.n_shards == 1
    assert few.shard(0).n_rows == 3


def test_what_may_be_asked_for() -> None:
    """A number of shards from 1 on; a shard that there is."""
    log = read_log(frame(), **COLUMNS)
    with pytest.raises(ParameterError, match="whole number"):
        log.sharded(0)
    with pytest.raises(ParameterError, match="numbered from 0"):
        log.shard(1)
    assert log.n_shards == 1
    assert log.shard(0) is log
