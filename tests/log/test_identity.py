"""What a log is known by: its fingerprint, its rows' hashes, its actions' ids, its batches and its event weights."""

from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from offpolicy.errors import LogError
from offpolicy.log import ActionTable, FeatureTable, LoggedData, NumericColumn, Vocabulary, read_log

N = 24
USER = np.arange(N) % 6


def a_log(**change: Any) -> LoggedData:
    given: dict[str, Any] = {
        "contexts": {"user": [f"u{k}" for k in USER], "age": USER * 1.5},
        "action": [f"a{k % 3}" for k in range(N)],
        "reward": np.arange(N) / N,
        "actions": ["a0", "a1", "a2", "a3"],
        "logging_prob": np.full(N, 0.3),
        "cluster": [f"c{k // 2}" for k in USER],
        "timestamp": np.arange(N),
        "reward_range": (0.0, 1.0),
        "row_weight": np.full(N, 2.0),
    }
    return LoggedData.from_arrays(**given | change)


def changed(array: np.ndarray, value: Any, row: int = 7) -> np.ndarray:
    found = np.array(array)
    found[row] = value
    return found


CHANGES: dict[str, dict[str, Any]] = {
    "a context's number": {"contexts": {"user": [f"u{k}" for k in USER], "age": np.where(USER == 5, 9.0, USER * 1.5)}},
    "a context's id": {"contexts": {"user": [f"u{k if k < 5 else 9}" for k in USER], "age": USER * 1.5}},
    "a column's name": {"contexts": {"who": [f"u{k}" for k in USER], "age": USER * 1.5}},
    "an action": {"action": changed(np.array([f"a{k % 3}" for k in range(N)]), "a3")},
    "a reward": {"reward": changed(np.arange(N) / N, 0.999)},
    "the action table": {"actions": ["a0", "a1", "a2", "b3"]},
    "the order of actions": {"actions": ["a1", "a0", "a2", "a3"]},
    "one more action": {"actions": ["a0", "a1", "a2", "a3", "a4"]},
    "a propensity": {"logging_prob": changed(np.full(N, 0.3), 0.31)},
    "no propensities": {"logging_prob": None},
    "a cluster's id": {"cluster": [f"c{k // 2 if k < 4 else 7}" for k in USER]},
    "a cluster's rows": {"cluster": [f"c{k // 3}" for k in USER]},
    "no clusters": {"cluster": None},
    "an instant": {"timestamp": changed(np.arange(N), 99)},
    "no instants": {"timestamp": None},
    "the reward range": {"reward_range": (0.0, 2.0), "reward": np.arange(N) / N * 2},
    "an event weight": {"row_weight": changed(np.full(N, 2.0), 3.0)},
    "no event weights": {"row_weight": None},
}


@pytest.mark.parametrize("what", CHANGES)
def test_the_fingerprint_changes_with(what: str) -> None:
    log, other = a_log(), a_log(**CHANGES[what])
    assert log.fingerprint == a_log().fingerprint
    assert other.fingerprint != log.fingerprint
    assert other != log
    assert not log.same_as(other)
    assert log.same_as(a_log())


def test_the_fingerprint_knows_action_features_and_the_order_of_rows() -> None:
    log = a_log()
    tables = [
        ActionTable(log.actions.vocabulary, FeatureTable({"price": NumericColumn(np.array([1.0, 2.0, 3.0, last]))}))
        for last in (4.0, 5.0)
    ]
    prints = {log.with_actions(table).fingerprint for table in tables} | {log.fingerprint}
    assert len(prints) == 3
    order = np.random.default_rng(0).permutation(N)
    assert log.take(order).fingerprint != log.fingerprint
    assert log.take(order).take(np.argsort(order)).fingerprint == log.fingerprint
    assert log.take(np.arange(N - 1)).fingerprint != log.fingerprint


def test_zero_and_minus_zero_are_one_context_and_one_fingerprint() -> None:
    def of(numbers: Any) -> LoggedData:
        return LoggedData.from_arrays(numbers, [0, 1, 0, 1], [0, 1, 1, 0], actions=2)

    for zeros in (np.array([0.0, -0.0, 1.0, -0.0]), np.array([[0.0, 2.0], [-0.0, 2.0], [1.0, 0.0], [-0.0, 2.0]])):
        log = of({"x": zeros})
        assert log.n_contexts == 2
        assert log.context_index.tolist() == [0, 0, 1, 0]
        assert len(set(log.context_hashes.tolist())) == 2
        assert log.fingerprint == of({"x": np.abs(zeros)}).fingerprint
    frame = LoggedData.from_arrays(
        FeatureTable({"x": NumericColumn(np.array([0.0, -0.0]))}), [0, 1], [0, 1], context_index=[0, 1], actions=2
    )
    assert len(set(frame.context_hashes.tolist())) == 1


def test_a_row_is_known_by_what_it_says() -> None:
    log = a_log()
    hashes = log.row_hashes
    assert len(set(hashes.tolist())) == N
    order = np.random.default_rng(1).permutation(N)
    assert log.take(order).row_hashes.tolist() == hashes[order].tolist()
    assert log.take(order[:5]).row_hashes.tolist() == hashes[order[:5]].tolist()
    assert (
        log.with_actions(ActionTable(Vocabulary(["z", "a3", "a2", "a1", "a0"]))).row_hashes.tolist() == hashes.tolist()
    )
    for what in ("a context's number", "an action", "a reward", "an instant"):
        moved = np.flatnonzero(a_log(**CHANGES[what]).row_hashes != hashes)
        assert moved.tolist() == (np.flatnonzero(USER == 5).tolist() if what == "a context's number" else [7])
    wide = a_log(reward=np.arange(N) / N, reward_range=(0.0, 4.0))  # the same rewards on the user's scale
    assert wide.row_hashes.tolist() == hashes.tolist()


@pytest.mark.parametrize("budget", [1, 8 * 4, 3 * 8 * 4, 10**9, None])
@pytest.mark.parametrize("shuffled", [False, True])
def test_batches_hold_every_row_once_with_its_own_context_and_action(budget: int | None, shuffled: bool) -> None:
    log = a_log() if shuffled else a_log().take(np.argsort(USER, kind="stable"))
    seen: list[int] = []
    start = 0
    for batch in log.batches(budget):
        assert batch.contexts.start == start
        start = batch.contexts.stop
        if budget is not None:
            assert (batch.contexts.stop - batch.contexts.start) == min(max(1, budget // 32), 6 - batch.contexts.start)
        assert batch.row_context.min() >= 0
        places = batch.row_context + batch.contexts.start
        assert places.tolist() == log.context_index[batch.rows].tolist()
        assert batch.row_action.tolist() == log.action[batch.rows].tolist()
        seen += batch.rows.tolist()
    assert start == log.n_contexts == 6
    assert sorted(seen) == list(range(N))


def test_a_batch_is_as_large_as_its_width_allows() -> None:
    log = a_log()
    assert [b.contexts.stop - b.contexts.start for b in log.batches(160, width=5)] == [4, 2]
    assert [b.contexts.stop - b.contexts.start for b in log.batches(160, width=20)] == [1] * 6
    assert len(list(log.batches())) == 1


def test_another_action_table_matches_ids_and_keeps_everything_else() -> None:
    log = a_log()
    table = ActionTable(Vocabulary(["new", "a2", "a0", "a1"]))
    moved = log.with_actions(table)
    assert moved.actions is table
    assert moved.n_actions == 4
    assert moved.action.tolist() == [{0: 2, 1: 3, 2: 1}[code] for code in log.action.tolist()]
    assert table.vocabulary.decode(moved.action) == log.actions.vocabulary.decode(log.action)
    assert moved.action_count.tolist() == [0, 8, 8, 8]
    assert replace(moved, action=log.action, actions=log.actions) == log
    assert log.with_actions(log.actions) is log
    with pytest.raises(LogError, match="1 actions that the table does not, such as 'a2'"):
        log.with_actions(ActionTable(Vocabulary(["a0", "a1", "a3"])))


def test_a_row_stands_for_as_many_events_as_its_weight() -> None:
    weight = np.arange(N) % 3 * 1.0
    log = a_log(row_weight=weight)
    again = a_log(row_weight=None).take(np.repeat(np.arange(N), weight.astype(int)))
    assert log.n_events == again.n_events == again.n_rows == weight.sum()
    assert log.action_weight.tolist() == again.action_count.tolist() == again.action_weight.tolist()
    assert log.action_count.tolist() == [0, 8, 8, 0]  # rows that stand for no event do not count
    by_user = dict(zip(again.contexts["user"].codes, again.context_weight, strict=True))  # type: ignore[union-attr]
    assert log.context_weight.tolist() == [by_user.get(code, 0.0) for code in range(6)]
    assert log.mean_reward == pytest.approx(again.reward.mean(), rel=1e-12)
    assert log.summary()["reward_mean"] == pytest.approx(again.reward.mean(), rel=1e-12)
    taken = log.take([4, 5, 7])
    assert taken.row_weight is not None
    assert taken.row_weight.tolist() == [1.0, 2.0, 1.0]
    assert log.weighted(None) == a_log(row_weight=None)
    assert a_log(row_weight=None).weighted(weight) == log
    assert a_log(row_weight=None).n_events == N


@pytest.mark.parametrize(
    ("weight", "said"),
    [
        (np.zeros(N), "zero in every row"),
        (changed(np.ones(N), -1.0), "row 7 holds -1"),
        (changed(np.ones(N), np.nan), "row 7 holds nan"),
        (changed(np.ones(N), np.inf), "row 7 holds inf"),
        (np.ones(N - 1), "24 rows"),
    ],
)
def test_impossible_event_weights_are_refused(weight: np.ndarray, said: str) -> None:
    with pytest.raises(LogError, match=said):
        a_log(row_weight=weight)


def test_parts_and_changes_keep_hashes_that_are_right() -> None:
    log = LoggedData.from_arrays(
        {"user": [f"u{i % 7}" for i in range(40)], "x": np.arange(40) % 5},
        np.arange(40) % 3,
        np.zeros(40),
        actions=3,
        cluster=[f"c{i % 4}" for i in range(40)],
    )
    plain = LoggedData.from_arrays(log.contexts, log.action, log.reward, context_index=log.context_index, actions=3)
    _ = log.context_hashes, log.cluster_hashes, plain.context_hashes
    parts = [log.take(np.arange(3, 20, 2)), log.split((0.5, 0.5))[0], log.weighted(np.ones(40)), plain.take([1, 5, 30])]
    for part in parts:
        fresh = LoggedData(**{name: getattr(part, name) for name in part.__dataclass_fields__})
        assert np.array_equal(part.context_hashes, fresh.context_hashes)
        assert np.array_equal(part.cluster_hashes, fresh.cluster_hashes)
        assert part.fingerprint == fresh.fingerprint


@pytest.mark.parametrize("form", ["csv", "ndjson", "pandas"])
def test_a_log_is_the_same_in_every_format(tmp_path: Path, form: str) -> None:
    place = pl.Series(range(N))
    frame = pl.DataFrame(
        {
            "member": place % 2 == 0,
            "city": pl.Series(["Oslo", "Bonn", None] * 8).cast(pl.Categorical),
            "age": place * 0.1,
            "spent": pl.Series([Decimal(k) / 4 for k in range(N)], dtype=pl.Decimal(8, 2)),
            "signup": [date(2024, 1, 1 + k) for k in range(N)],
            "places": place.cast(pl.Int16),
            "at": [datetime(2026, 1, 1, k, 0, 0, 123_000) for k in range(N)],
            "item": [f"i{k % 3}" for k in range(N)],
            "click": (place % 5 == 0).cast(pl.Int8),
        }
    )
    frame.write_parquet(tmp_path / "log.parquet")
    other = tmp_path / ("log.ndjson" if form == "ndjson" else "log.csv")
    if form == "csv":
        frame.write_csv(other)
    else:  # JSON has no decimals, and pandas no decimals of its own
        plain = frame.with_columns(pl.col("spent").cast(pl.Float64))
        plain.write_ndjson(other) if form == "ndjson" else plain.to_pandas().to_csv(other, index=False)
    given: dict[str, Any] = {"context": frame.columns[:6], "action": "item", "reward": "click", "timestamp": "at"}
    one, two = read_log(tmp_path / "log.parquet", **given), read_log(other, **given)
    np.testing.assert_array_equal(one.row_hashes, two.row_hashes)
