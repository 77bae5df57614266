"""The frozen log: built from arrays, taken apart, split and folded without leaks."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpolicy.errors import LogError, ParameterError
from offpolicy.log import ActionTable, CategoricalColumn, FeatureTable, LoggedData, NumericColumn, Vocabulary
from offpolicy.log.grouping import group_rows


def some_log(n_rows: int = 60, seed: int = 0, **extra: Any) -> LoggedData:
    rng = np.random.default_rng(seed)
    user = rng.integers(0, 12, n_rows)
    given: dict[str, Any] = {
        "logging_prob": rng.uniform(0.1, 1.0, n_rows),
        "cluster": np.array(["A", "B", "C", "D"])[user % 4],
        "timestamp": rng.integers(0, 30, n_rows),
    }
    contexts = {"user": user, "age": user * 0.5, "vector": np.eye(12)[user][:, :3]}
    return LoggedData.from_arrays(contexts, rng.integers(0, 5, n_rows), rng.random(n_rows), actions=7, **given | extra)


words = st.sampled_from(["a", "b", None])
rows = st.tuples(words, st.sampled_from([0.0, -0.0, 1.5]), st.lists(st.integers(0, 2), max_size=2), st.booleans())


@given(st.lists(rows, min_size=1, max_size=30))
def test_contexts_are_stored_once_and_give_every_row_back(given: list[Any]) -> None:
    word, number, bag, flag = (list(column) for column in zip(*given, strict=True))
    log = LoggedData.from_arrays(
        {"word": word, "number": np.array(number), "bag": bag, "flag": np.array(flag)},
        np.zeros(len(given), dtype=int),
        np.zeros(len(given)),
        actions=2,
    )
    assert log.n_contexts == len({(w, n, tuple(b), f) for w, n, b, f in given})
    back = log.contexts.take(log.context_index)
    held = back["word"], back["number"], back["bag"], back["flag"]
    assert held[0].vocabulary.decode(held[0].codes) == word  # type: ignore[union-attr]
    assert held[1].values.tolist() == number  # type: ignore[union-attr]
    codes = held[2].vocabulary.decode(held[2].codes)  # type: ignore[union-attr]
    offsets = held[2].offsets  # type: ignore[union-attr]
    assert [codes[a:b] for a, b in pairwise(offsets)] == bag
    assert held[3].vocabulary.decode(held[3].codes) == flag  # type: ignore[union-attr]


@given(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=1, max_size=40))
def test_grouping_equals_a_dictionary(table: list[list[int]]) -> None:
    columns = [list(column) for column in zip(*table, strict=True)]
    keys = [pl.Series(columns[0]), pl.Series([f"s{v}" for v in columns[1]]), pl.Series([v * 1e17 for v in columns[2]])]
    groups = group_rows(keys)
    seen: dict[tuple[int, ...], int] = {}
    expected = [seen.setdefault(tuple(row), len(seen)) for row in table]
    assert groups.index.tolist() == expected
    assert groups.first_row.tolist() == [expected.index(number) for number in range(len(seen))]


def test_grouping_of_lists_is_exact_even_when_hashes_collide(monkeypatch: pytest.MonkeyPatch) -> None:
    key = pl.Series([[1, 2], None, [2, 1], [1, 2], [], None])
    expected = [0, 1, 2, 0, 3, 1]
    assert group_rows([key]).index.tolist() == expected
    monkeypatch.setattr(pl.Series, "hash", lambda self: pl.repeat(7, len(self), dtype=pl.UInt64, eager=True))
    assert group_rows([key]).index.tolist() == expected


def test_a_matrix_of_contexts_is_an_embedding() -> None:
    matrix = np.array([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]])
    log = LoggedData.from_arrays(matrix, [0, 1, 1], [0, 1, 1], actions=2)
    assert log.n_contexts == 2
    assert log.context_index.tolist() == [0, 1, 0]
    assert log.contexts["context"].kind == "embedding"
    whole = LoggedData.from_arrays(matrix[:2], [0, 1, 1], [0, 1, 1], actions=2, context_index=[0, 1, 0])
    assert whole == log


def test_actions_may_be_ids_codes_or_a_table() -> None:
    contexts = [1, 2, 1]
    by_id = LoggedData.from_arrays(contexts, ["b", "a", "b"], [0, 1, 1])
    assert by_id.actions.vocabulary.decode(by_id.action) == ["b", "a", "b"]
    listed = LoggedData.from_arrays(contexts, ["b", "a", "b"], [0, 1, 1], actions=["c", "b", "a"])
    assert listed.action.tolist() == [1, 2, 1]
    assert listed.summary()["actions_never_logged"] == 1
    table = ActionTable(Vocabulary(["a", "b"]), FeatureTable({"price": NumericColumn(np.array([1.0, 2.0]))}))
    assert LoggedData.from_arrays(contexts, ["b", "a", "b"], [0, 1, 1], actions=table).actions is table
    with pytest.raises(LogError, match="row 1 holds 'zz'"):
        LoggedData.from_arrays(contexts, ["a", "zz", "b"], [0, 1, 1], actions=["a", "b"])
    with pytest.raises(LogError, match="row 2 holds null"):
        LoggedData.from_arrays(contexts, ["a", "b", None], [0, 1, 1])


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_rewards_return_to_the_users_scale(low: float, width: float, shares: list[float]) -> None:
    high = low + width
    reward = np.clip(low + np.array(shares) * (high - low), low, high)
    log = LoggedData.from_arrays(
        np.zeros(len(reward), int), np.zeros(len(reward), int), reward, actions=2, reward_range=(low, high)
    )
    assert log.reward.min() >= 0.0
    assert log.reward.max() <= 1.0
    scale = max(abs(low), abs(high))
    np.testing.assert_allclose(log.reward_to_user_scale(log.reward), reward, atol=1e-12 * scale)
    assert log.summary()["reward_mean"] == pytest.approx(reward.mean(), abs=1e-9 * scale)


@given(st.lists(st.integers(0, 59), min_size=1, max_size=80))
def test_take_keeps_every_fact_of_the_rows(positions: list[int]) -> None:
    log = some_log()
    part = log.take(positions)
    for name in ("action", "reward", "logging_prob", "timestamp"):
        assert getattr(part, name).tolist() == getattr(log, name)[positions].tolist()
    assert part.contexts.take(part.context_index) == log.contexts.take(log.context_index[positions])
    assert part.n_contexts == len(set(log.context_index[positions].tolist()))
    assert part.actions == log.actions
    assert log.cluster_vocabulary is not None
    assert part.cluster_vocabulary is not None
    assert log.cluster is not None
    assert part.cluster_vocabulary.decode(part.cluster) == log.cluster_vocabulary.decode(log.cluster[positions])


def test_take_by_mask_equals_take_by_position() -> None:
    log = some_log()
    mask = log.reward > 0.5
    assert log.take(mask) == log.take(np.flatnonzero(mask))
    with pytest.raises(ParameterError, match="60 entries"):
        log.take([True, False])
    with pytest.raises(ParameterError, match="below 60"):
        log.take([60])
    with pytest.raises(ParameterError, match="integer positions"):
        log.take([0.5])
    with pytest.raises(LogError, match="at least one row"):
        log.take([])


def users(log: LoggedData) -> set[Any]:
    column = log.contexts["user"]
    assert isinstance(column, CategoricalColumn)
    return set(column.vocabulary.decode(column.codes))


@given(st.integers(0, 10_000))
def test_a_split_by_context_shares_no_context(seed: int) -> None:
    log = some_log()
    parts = log.split((0.5, 0.3, 0.2), by="context", seed=seed)
    assert sum(part.n_rows for part in parts) == log.n_rows
    sets = [users(part) for part in parts]
    assert set.union(*sets) == users(log)
    assert sum(map(len, sets)) == len(users(log))
    assert log.split((0.5, 0.3, 0.2), by="context", seed=seed) == parts


@given(st.integers(0, 10_000))
def test_a_split_keeps_clusters_whole_even_when_they_share_contexts(seed: int) -> None:
    log = some_log(cluster=[row // 10 for row in range(60)])  # every cluster meets many of the same users
    parts = log.split((0.5, 0.5), seed=seed)
    ids = [set(part.cluster_vocabulary.to_list()) for part in parts if part.cluster_vocabulary is not None]
    assert ids[0].isdisjoint(ids[1])
    assert ids[0] | ids[1] == set(range(6))
    assert sum(part.n_rows for part in parts) == log.n_rows


def test_a_split_by_time_is_in_order_and_keeps_instants_together() -> None:
    log = some_log()
    early, late = log.split((0.7, 0.3), by="time")
    assert early.timestamp is not None
    assert late.timestamp is not None
    assert early.timestamp.max() < late.timestamp.min()
    assert 0.5 < early.n_rows / log.n_rows < 0.9


@given(st.integers(2, 4), st.integers(0, 1000), st.sampled_from([None, "context", "cluster", "time"]))
def test_folds_never_part_a_group(k: int, seed: int, by: Any) -> None:
    log = some_log()
    fold = log.folds(k, by=by, seed=seed)
    unit = {None: log.cluster, "cluster": log.cluster, "context": log.context_index, "time": log.timestamp}[by]
    assert unit is not None
    assert sorted(set(fold.tolist())) == list(range(k))
    assert len({*zip(unit.tolist(), fold.tolist(), strict=True)}) == len(set(unit.tolist()))


def test_bad_splits_are_refused() -> None:
    log = some_log()
    bare = LoggedData.from_arrays([1, 2], [0, 1], [0, 1], actions=2)
    for build, said in (
        (lambda: log.split((0.5, 0.6)), "sum to 1"),
        (lambda: log.split((1.0,)), "two or more"),
        (lambda: log.split(0.5), "sequence"),  # type: ignore[arg-type]
        (lambda: log.split((0.5, 0.5), by="day"), "context, cluster, time or row"),  # type: ignore[arg-type]
        (lambda: bare.split((0.5, 0.5), by="time"), "needs a timestamp"),
        (lambda: bare.split((0.5, 0.5), by="cluster"), "needs a cluster"),
        (lambda: bare.split((0.5, 0.3, 0.2)), "at least 3 groups"),
        (lambda: bare.folds(3), "at least 3 groups"),
        (lambda: bare.folds(1), "at least 2"),
    ):
        with pytest.raises(ParameterError, match=said):
            build()


def test_propensities_can_be_forgotten_and_nothing_else_changes() -> None:
    log = some_log()
    hidden = log.without_propensities()
    assert hidden.logging_prob is None
    assert replace(hidden, logging_prob=log.logging_prob) == log
    assert log.summary()["propensities_recorded"]
    assert not hidden.summary()["propensities_recorded"]


def test_summary_counts() -> None:
    log = LoggedData.from_arrays([1, 1, 2], [0, 1, 1], [0, 4, 2], actions=3, reward_range=(0, 4))
    assert log.summary() == {
        "rows": 3,
        "contexts": 2,
        "rows_per_context_median": 1.5,
        "actions": 3,
        "actions_never_logged": 1,
        "reward_mean": 2.0,
        "reward_range": [0.0, 4.0],
        "reward_name": "reward",
        "reward_binary": False,
        "propensities_recorded": False,
        "clusters": None,
        "timestamps_recorded": False,
        "context_features": {"context": "categorical"},
        "action_features": {},
    }
    assert log.cluster_index is log.context_index
    assert log.action_count.tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"context_index": np.full(60, 99)}, "context_index must lie in"),
        ({"context_index": np.full(60, -1)}, "context_index must lie in"),
        ({"action": np.full(60, 7)}, r"action must lie in 0\.\.6"),
        ({"action": np.full(60, 2**40)}, "action must lie in"),
        ({"action": np.full(60, 0.5)}, "must hold integers"),
        ({"action": np.zeros(59, dtype=int)}, "60 rows"),
        ({"reward": np.r_[np.zeros(59), np.nan]}, "row 59 holds nan"),
        ({"reward": np.r_[np.zeros(59), 1.1]}, "row 59 holds 1.1"),
        ({"reward": np.array(["x"] * 60)}, "must hold numbers"),
        ({"logging_prob": np.zeros(60)}, r"\(0, 1\]"),
        ({"logging_prob": np.full(60, 1.5)}, r"\(0, 1\]"),
        ({"cluster": np.full(60, 3)}, "contiguous"),
        ({"cluster": np.zeros(60, dtype=int)}, "1 clusters but 4"),
        ({"cluster": None}, "without the cluster"),
        ({"timestamp": np.full(60, 0.5)}, "must hold integers"),
    ],
)
def test_a_wrong_log_cannot_be_built(change: dict[str, Any], said: str) -> None:
    with pytest.raises(LogError, match=said):
        replace(some_log(), **change)


def test_other_wrong_logs() -> None:
    with pytest.raises(LogError, match="at least two actions"):
        LoggedData.from_arrays([1, 2], ["a", "a"], [0, 1])
    with pytest.raises(LogError, match="at least one row"):
        LoggedData.from_arrays(np.zeros((0, 2)), [], [], actions=2)
    with pytest.raises(LogError, match="row 1 holds 2"):
        LoggedData.from_arrays([1, 2], [0, 1], [0, 2], actions=2)
    with pytest.raises(LogError, match="one entry per action"):
        ActionTable(Vocabulary([1, 2]), FeatureTable({"x": NumericColumn(np.ones(3))}))
    with pytest.raises(LogError, match=r"row 2 \(counted from 1\) holds"):
        LoggedData.from_arrays(np.array([[1.0], [np.nan]]), [0, 1], [0, 1], actions=2)
    for wrong in ((1, 0), (0, np.inf), (0,), "ab"):
        with pytest.raises(ParameterError, match="reward_range"):
            LoggedData.from_arrays([1, 2], [0, 1], [0, 1], actions=2, reward_range=wrong)  # type: ignore[arg-type]


def test_arrays_are_read_only() -> None:
    log = some_log()
    for name in ("context_index", "action", "reward", "logging_prob", "cluster", "timestamp"):
        assert not getattr(log, name).flags.writeable
    with pytest.raises(AttributeError):
        log.reward = np.zeros(60)  # type: ignore[misc]
