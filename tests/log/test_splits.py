"""Splits and folds: exact places by an independent twin, and what must not move them."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpolicy.errors import ParameterError
from offpolicy.log import LoggedData

WORD = 2**64


def text_hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def mixed(value: int) -> int:
    """One step of SplitMix64, in Python's own integers."""
    value = (value + 0x9E3779B97F4A7C15) % WORD
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % WORD
    return value ^ (value >> 31)


def place_of(hashed: int, key: str) -> float:
    return (mixed(hashed ^ text_hash(key)) >> 11) / 2**53


def parts_of(places: Sequence[float], shares: Sequence[float]) -> list[int]:
    """The share each place falls into; an empty part then takes the nearest place from a part that can spare one."""
    ends = [sum(shares[: k + 1]) for k in range(len(shares))]
    parts = [sum(place >= end for end in ends[:-1]) for place in places]
    for empty in [k for k in range(len(shares)) if k not in parts]:
        middle = ends[empty] - shares[empty] / 2
        spare = [n for n, part in enumerate(parts) if parts.count(part) > 1]
        parts[min(spare, key=lambda n: abs(places[n] - middle))] = empty
    return parts


def clustered(names: Sequence[Any], seed: int = 0) -> LoggedData:
    """Two rows per cluster, in clusters of these names."""
    random = np.random.default_rng(seed)
    rows = [name for name in names for _ in range(2)]
    return LoggedData.from_arrays(
        random.normal(size=(len(rows), 2)),
        random.integers(0, 3, len(rows)),
        random.random(len(rows)),
        actions=3,
        cluster=rows,
    )


def clusters(log: LoggedData) -> list[Any]:
    assert log.cluster_vocabulary is not None
    return sorted(log.cluster_vocabulary.to_list())


LETTERS = list("ABCDEFGHIJ")
SHARES = (0.5, 0.3, 0.2)


@given(st.integers(0, 500), st.integers(3, 10))
def test_a_cluster_goes_where_its_hash_and_the_seed_say(seed: int, count: int) -> None:
    names = LETTERS[:count]
    expected = parts_of([place_of(text_hash(f"id {name}"), f"split {seed}") for name in names], SHARES)
    parts = clustered(names).split(SHARES, seed=seed)
    for number, part in enumerate(parts):
        assert clusters(part) == [name for name, own in zip(names, expected, strict=True) if own == number]
    folds = parts_of([place_of(text_hash(f"id {name}"), f"folds {seed}") for name in names], [1 / 3] * 3)
    assert clustered(names).folds(3, seed=seed).tolist() == [fold for fold in folds for _ in range(2)]


def test_the_parts_of_a_small_log_by_name() -> None:
    log = clustered(LETTERS)
    found = {seed: [clusters(part) for part in log.split((0.6, 0.4), seed=seed)] for seed in (0, 1)}
    assert found == {0: [list("ADEGHIJ"), list("BCF")], 1: [list("ABEFGIJ"), list("CDH")]}


def test_a_context_goes_by_its_content() -> None:
    """Numbers by their bits, columns by their names, ids by their spelling: written out for one small table."""
    user, age = ["ann", "bob", "cy", "dan"], [1.5, -2.0, 0.0, 7.25]
    log = LoggedData.from_arrays({"user": user, "age": np.array(age)}, [0, 1, 0, 1], [0, 1, 0, 1], actions=2)
    expected = []
    for name, number in zip(user, age, strict=True):
        bits = int(np.float64(number).view(np.uint64))
        columns = {"user": text_hash(f"id {name}"), "age": mixed(bits)}
        expected.append(sum(mixed(value ^ text_hash(f"column {key}")) for key, value in columns.items()) % WORD)
    assert log.context_hashes.tolist() == expected
    part = parts_of([place_of(one, "split 3") for one in expected], (0.5, 0.5))
    rows = [rows.tolist() for rows, _ in log.divide((0.5, 0.5), seed=3)]
    assert rows == [[n for n, own in enumerate(part) if own == k] for k in (0, 1)]


def side_of(log: LoggedData, by: Any, seed: int = 4) -> dict[str, int]:
    """Part of every context (by its number column) or cluster."""
    found: dict[str, int] = {}
    for number, part in enumerate(log.split((0.5, 0.3, 0.2), by=by, seed=seed)):
        names = clusters(part) if by == "cluster" else part.contexts["n"].values.tolist()  # type: ignore[union-attr]
        found |= {str(name): number for name in names}
    return found


def wide_log(rows: int = 240) -> LoggedData:
    """Every kind of column; the number column tells contexts apart."""
    n = np.arange(rows) % 80
    tags = [["rock", "jazz", "folk"][: k % 4] for k in n.tolist()]
    contexts = {"n": n * 1.0, "name": [f"u{k % 7}" for k in n], "tags": tags, "v": np.stack([n / 3.0, -n / 7.0], 1)}
    return LoggedData.from_arrays(
        contexts, n % 5, n / 80, actions=5, cluster=[f"c{k // 2}" for k in n], timestamp=np.arange(rows)
    )


@pytest.mark.parametrize("by", ["context", "cluster"])
def test_appended_dropped_and_shuffled_rows_move_nobody(by: Any) -> None:
    log = wide_log()
    before = side_of(log, by)
    assert set(before.values()) == {0, 1, 2}
    order = np.random.default_rng(1).permutation(log.n_rows)
    assert side_of(log.take(order), by) == before
    fewer = side_of(log.take(np.flatnonzero(log.context_index % 3 > 0)), by)
    assert fewer == {name: before[name] for name in fewer}
    assert len(fewer) < len(before) or by == "cluster"
    alone = log.take(log.context_index < 40)
    assert side_of(alone, by).items() <= before.items()


def test_columns_in_another_order_are_the_same_contexts() -> None:
    one = LoggedData.from_arrays({"a": [1.0, 2.0, 3.0], "b": ["x", "y", "z"]}, [0, 1, 0], [0, 1, 1], actions=2)
    other = LoggedData.from_arrays({"b": ["x", "y", "z"], "a": [1.0, 2.0, 3.0]}, [0, 1, 0], [0, 1, 1], actions=2)
    swapped = LoggedData.from_arrays({"b": [1.0, 2.0, 3.0], "a": ["x", "y", "z"]}, [0, 1, 0], [0, 1, 1], actions=2)
    assert one.context_hashes.tolist() == other.context_hashes.tolist()
    assert not set(one.context_hashes.tolist()) & set(swapped.context_hashes.tolist())


def test_bags_are_told_apart_by_ids_order_and_length() -> None:
    bags = [["a", "b"], ["b", "a"], ["a"], ["b"], [], ["a", "a"], ["a", "a", "b"]]
    log = LoggedData.from_arrays({"bag": bags}, [0, 1] * 3 + [0], np.zeros(7), actions=2)
    hashes = log.context_hashes.tolist()
    assert len(set(hashes)) == 7
    for bag, hashed in zip(bags, hashes, strict=True):
        total = sum(mixed(text_hash(f"id {one}") ^ mixed(place)) for place, one in enumerate(bag)) % WORD
        assert hashed == mixed(total ^ text_hash("column bag"))


def test_vectors_are_told_apart_by_the_order_of_their_numbers() -> None:
    vectors = np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 1.0], [2.0, 2.0]])
    log = LoggedData.from_arrays({"v": vectors}, [0, 1, 0, 1], np.zeros(4), actions=2)
    bits = vectors.view(np.uint64).tolist()
    expected = [mixed(mixed(mixed(first) ^ second) ^ text_hash("column v")) for first, second in bits]
    assert log.context_hashes.tolist() == expected


def test_a_missing_id_is_not_the_word_none() -> None:
    log = LoggedData.from_arrays({"user": [None, "None", "x"]}, [0, 1, 0], [0, 1, 1], actions=2)
    assert len(set(log.context_hashes.tolist())) == 3


@pytest.mark.parametrize("by", ["context", "cluster"])
def test_different_seeds_give_different_parts(by: Any) -> None:
    log = wide_log()
    sides = [tuple(sorted(side_of(log, by, seed).items())) for seed in range(5)]
    assert len(set(sides)) == 5
    folds = [tuple(log.folds(3, by=by, seed=seed).tolist()) for seed in range(5)]
    assert len(set(folds)) == 5


@pytest.mark.parametrize("seed", [0, 1])
def test_a_part_is_split_again_independently_of_how_it_came_about(seed: int) -> None:
    log = clustered([f"u{k}" for k in range(2000)])
    first, second = log.split((0.5, 0.5), seed=0)
    for part in (first, second):
        inner = part.split((0.5, 0.5), seed=seed)
        share = len(clusters(inner[0])) / len(clusters(part))
        assert abs(share - 0.5) < 0.06  # over five standard errors
        deeper = inner[0].split((0.5, 0.5), seed=seed)
        assert abs(len(clusters(deeper[0])) / len(clusters(inner[0])) - 0.5) < 0.09
        folds = np.bincount(part.folds(4, seed=seed), minlength=4) / part.n_rows
        assert abs(folds - 0.25).max() < 0.06
    both = [np.bincount(log.folds(2, seed=0)[rows], minlength=2) for rows, _ in log.divide((0.5, 0.5), seed=0)]
    assert min(count for pair in both for count in pair) > 0.2 * log.n_rows


def test_shares_are_those_asked_for() -> None:
    log = clustered([f"u{k}" for k in range(4000)])
    sizes = [len(clusters(part)) / 4000 for part in log.split((0.7, 0.2, 0.1), seed=5)]
    assert sizes == pytest.approx([0.7, 0.2, 0.1], abs=0.03)


def in_time(counts: Sequence[int], shares: Sequence[float]) -> list[list[int]]:
    """Instants of each part of a log with so many rows at each instant, in a shuffled order."""
    instant = np.repeat(np.arange(len(counts)) * 10, counts)
    instant = np.random.default_rng(0).permutation(instant)
    log = LoggedData.from_arrays(
        instant * 1.0, np.arange(len(instant)) % 2, np.zeros(len(instant)), actions=2, timestamp=instant
    )
    parts = log.split(shares, by="time")
    return [sorted({int(time) // 10 for time in part.timestamp}) for part in parts if part.timestamp is not None]


def test_an_instant_goes_where_its_middle_row_would() -> None:
    # One row, then four, then five: their middles are at 0.05, 0.3 and 0.75 of the rows.
    assert in_time([1, 4, 5], (0.2, 0.8)) == [[0], [1, 2]]  # by its start, 0.1, the second would be early
    assert in_time([1, 4, 5], (0.4, 0.6)) == [[0, 1], [2]]  # by its end, 0.5, the second would be late
    assert in_time([1, 4, 5], (0.3, 0.7)) == [[0], [1, 2]]  # at the border it is late
    assert in_time([1, 4, 5], (0.1, 0.3, 0.6)) == [[0], [1], [2]]
    assert in_time([1] * 10, (0.3, 0.7)) == [[0, 1, 2], [3, 4, 5, 6, 7, 8, 9]]


def test_a_part_in_time_without_rows_is_refused() -> None:
    with pytest.raises(ParameterError, match="leave part 1 without rows, because the log has only 2 instants"):
        in_time([5, 5], (0.5, 0.2, 0.3))


def test_equal_rows_of_a_unit_are_spread_over_row_folds() -> None:
    """Else a model that knows the unit never sees, in the other folds, what it is asked about."""
    user, nothing = np.arange(300) % 10, np.zeros(300, dtype=int)
    log = LoggedData.from_arrays({"user": user}, nothing, nothing, actions=2)
    order = np.random.default_rng(0).permutation(300)
    fold, shuffled = log.row_folds(3, seed=1), log.take(order).row_folds(3, seed=1)
    for one in range(10):
        count = np.bincount(fold[user == one], minlength=3)
        assert count.min() >= 2, count
        # Which of two equal rows is where means nothing; how many are there does.
        assert np.array_equal(count, np.bincount(shuffled[user[order] == one], minlength=3))
