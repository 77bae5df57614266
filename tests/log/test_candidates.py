"""Candidate sets: read from lists and from a row a candidate, stored once, and never without the shown action."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from offpolicy.errors import LogError, ParameterError
from offpolicy.log import ActionTable, Candidates, FeatureTable, LoggedData, NumericColumn, Vocabulary, read_log

FRAME = pl.DataFrame(
    {
        "x": [1.0, 1.0, 2.0, 1.0],
        "item": ["p", "q", "r", "p"],
        "click": [0, 1, 1, 0],
        "offered": [["p", "q"], ["r", "q"], ["r", "s", "p"], ["q", "p"]],
        "price": [[1.0, 2.0], [3.0, 4.0], [1.0, 2.0, 3.0], [2.0, 1.0]],
    }
)
ROLES: dict[str, Any] = {"context": ["x"], "action": "item", "reward": "click"}
LISTS: dict[str, Any] = ROLES | {"candidates": "offered", "candidate_features": ["price"]}
LONG = pl.DataFrame(
    {
        "id": ["u", "u", "v", "v", "v"],
        "x": [1.0, 1.0, 2.0, 2.0, 2.0],
        "item": ["b", "a", "a", "b", "c"],
        "price": [2.0, 1.0, 3.0, 4.0, 5.0],
        "shown": [False, True, False, True, False],
        "click": [0, 1, 0, 0, 0],
    }
)
LONG_ROLES: dict[str, Any] = {**ROLES, "context": ["x", "price"], "request": "id", "shown": "shown"}


def offered(log: LoggedData) -> list[dict[Any, float]]:
    """Of each row, the price of every candidate."""
    sets = log.candidates
    assert sets is not None
    assert sets.features is not None
    price = sets.features["price"]
    assert isinstance(price, NumericColumn)
    names = sets.vocabulary.to_list()
    return [
        {names[sets.codes[j]]: float(price.values[j]) for j in range(sets.offsets[c], sets.offsets[c + 1])}
        for c in log.context_index
    ]


def test_lists_are_stored_once_whatever_their_order() -> None:
    log = read_log(FRAME, **LISTS)
    assert log.actions.vocabulary.to_list() == ["p", "q", "r", "s"]  # s was never shown
    assert log.context_index.tolist() == [0, 1, 2, 0]  # the first and the last row are one decision point
    expected = [{"p": 1.0, "q": 2.0}, {"r": 3.0, "q": 4.0}, {"r": 1.0, "s": 2.0, "p": 3.0}, {"p": 1.0, "q": 2.0}]
    assert offered(log) == expected
    assert (log.n_contexts, log.width, log.n_actions) == (3, 3, 4)
    assert log.row_place.tolist() == [0, 0, 1, 0]
    assert log.summary()["candidates"] == {
        "sets": 3,
        "least": 2,
        "median": 2.0,
        "most": 3,
        "rows_without_choice": 0,
        "features": {"price": "numeric"},
    }


@pytest.mark.parametrize("suffix", [".parquet", ".ndjson", ".csv"])
def test_every_format_reads_the_same_lists(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"log{suffix}"
    if suffix == ".parquet":
        FRAME.write_parquet(path)
    elif suffix == ".ndjson":
        FRAME.write_ndjson(path)
    else:
        joined = FRAME.with_columns(
            pl.col("offered").list.join("|"), pl.col("price").cast(pl.List(pl.String)).list.join("|")
        )
        joined.write_csv(path)
    assert read_log(path, **LISTS) == read_log(FRAME, **LISTS)


def test_a_row_a_candidate_is_a_request() -> None:
    log = read_log(LONG, **LONG_ROLES)
    assert offered(log) == [{"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 4.0, "c": 5.0}]
    assert log.actions.vocabulary.decode(log.action) == ["a", "b"]
    assert log.reward.tolist() == [1.0, 0.0]
    assert list(log.contexts) == ["x"]  # the price varies within a request: it describes candidates
    shuffled = LONG.sample(fraction=1.0, shuffle=True, seed=3)
    again = read_log(shuffled, **LONG_ROLES)
    assert sorted(map(str, offered(again))) == sorted(map(str, offered(log)))
    beside = LONG.filter("shown").drop("price", "shown")
    lists = LONG.group_by("id", maintain_order=True).agg(offered="item", price="price")
    assert read_log(beside.join(lists, on="id"), **LISTS, cluster="id") == log


def test_requests_are_the_units_unless_a_larger_one_is_named() -> None:
    same = LONG.with_columns(pl.lit(1.0).alias("x"))
    assert read_log(same, **LONG_ROLES).cluster_index.tolist() == [0, 1]
    assert read_log(same, **LONG_ROLES, cluster="id").cluster_index.tolist() == [0, 1]
    assert read_log(same, **LONG_ROLES, cluster="x").cluster_index.tolist() == [0, 0]
    named = FRAME.with_columns(id=pl.Series(["u", "v", "w", "z"]))
    log = read_log(named, **LISTS, request="id")
    assert log == read_log(named, **LISTS, cluster="id")
    assert log.cluster_vocabulary is not None
    assert log.cluster_vocabulary.to_list() == ["u", "v", "w", "z"]


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("offered", [["q"], ["r", "q"], ["r"], ["p"]], "the action that was shown, 'p', but request 'u' holds"),
        ("offered", [["p"], [], ["r"], ["p"]], "at least one candidate, but request 'v'"),
        ("offered", [["p"], ["q"], ["r", "r"], ["p"]], "each candidate once, but request 'w'"),
        ("price", [[1.0, 2.0], [3.0], [1.0, 2.0, 3.0], [2.0, 1.0]], "for each candidate in 'offered', but request 'v'"),
        ("id", ["u", "v", "w", "v"], "request 'v' has more than one row, so it shows more than one action"),
        ("id", ["u", None, "w", "v"], "must name the request of every row, but row 2"),
    ],
)
def test_bad_lists_are_refused_with_their_request(column: str, values: list[Any], said: str) -> None:
    named = FRAME.with_columns(id=pl.Series(["u", "v", "w", "z"]))
    roles = ROLES | {"candidates": "offered"} if column == "offered" else LISTS
    with pytest.raises(LogError, match=said):
        read_log(named.with_columns(pl.Series(column, values)), **roles, request="id")


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("offered", [["q"], ["r", "q"], ["r"], ["p"]], "must hold the action that was shown, 'p', but row 1"),
        ("offered", [["p"], [], ["r"], ["p"]], "at least one candidate, but row 2"),
        ("offered", [["p"], ["q"], ["r", "r"], ["p"]], "each candidate once, but row 3"),
        ("offered", [["p"], ["q"], None, ["p"]], "at least one candidate, but row 3"),
        (
            "price",
            [[1.0], [3.0, 4.0], [1.0, 2.0, 3.0], [2.0, 1.0]],
            "one value for each candidate in 'offered', but row 1",
        ),
        ("offered", [[1], [2], [3], [4]], "ids of type"),
    ],
)
def test_bad_lists_are_refused_with_their_row(column: str, values: list[Any], said: str) -> None:
    roles = LISTS if column == "price" else ROLES | {"candidates": "offered"}
    with pytest.raises(LogError, match=said):
        read_log(FRAME.with_columns(pl.Series(column, values)), **roles)


@pytest.mark.parametrize(
    ("shown", "said"),
    [([1, 1, 0, 1, 0], "more than one candidate of request 'u'"), ([1, 0, 0, 0, 0], "no candidate of request 'v'")],
)
def test_a_request_shows_one_action(shown: list[int], said: str) -> None:
    with pytest.raises(LogError, match=said):
        read_log(LONG.with_columns(pl.Series("shown", shown)), **LONG_ROLES)
    with pytest.raises(LogError, match="whether it was shown"):
        read_log(LONG.with_columns(pl.Series("shown", ["maybe"] * 5)), **LONG_ROLES)


def test_a_candidate_twice_in_a_request_is_named_by_the_request() -> None:
    twice = LONG.with_columns(pl.Series("item", ["b", "b", "a", "b", "c"]))
    with pytest.raises(LogError, match="each candidate once, but request 'u'"):
        read_log(twice, **LONG_ROLES)


def test_roles_that_contradict_each_other_are_refused() -> None:
    for roles, said in (
        ({"request": "id"}, "request needs one more column: shown"),
        ({"request": "id", "shown": "s", "candidates": "c"}, "not both"),
        ({"candidate_features": ["price"]}, "need candidates"),
        ({"keep_prob": "k", "row_weight": "w"}, "not both"),
    ):
        with pytest.raises(ParameterError, match=said):
            read_log(FRAME, **ROLES | roles)


def test_kept_shares_and_weights_are_events() -> None:
    frame = FRAME.with_columns(pl.Series("kept", [1.0, 0.5, 0.25, 0.5]), pl.Series("events", [1.0, 2.0, 4.0, 2.0]))
    kept, weighted = read_log(frame, **ROLES, keep_prob="kept"), read_log(frame, **ROLES, row_weight="events")
    assert kept == weighted
    assert kept.row_weight is not None
    assert kept.row_weight.tolist() == [1.0, 2.0, 4.0, 2.0]
    assert kept.mean_reward == pytest.approx((2 + 4) / 9)
    with pytest.raises(LogError, match="with which rows were kept"):
        read_log(frame.with_columns(kept=pl.Series([1.0, 0.0, 1.0, 1.0])), **ROLES, keep_prob="kept")


def built(lists: list[list[int]], x: list[float], action: list[int], **more: Any) -> LoggedData:
    return LoggedData.from_arrays({"x": np.array(x)}, action, [0.0] * len(action), actions=6, candidates=lists, **more)


def test_a_log_cannot_be_built_wrong() -> None:
    with pytest.raises(LogError, match="not among its candidates"):
        built([[0, 1], [2, 3]], [1.0, 2.0], [0, 0])
    with pytest.raises(LogError, match="at least one candidate"):
        built([[0, 1], []], [1.0, 2.0], [0, 0])
    with pytest.raises(LogError, match="distinct and ascending"):
        Candidates(np.array([0, 2]), np.array([1, 1]), Vocabulary(range(3)))
    with pytest.raises(LogError, match="not among the actions"):
        built([[0, 9]], [1.0], [0])
    with pytest.raises(LogError, match="candidate sets"):
        FeatureTable({"x": NumericColumn(np.zeros(2))}, Candidates.of_lists([[0]], Vocabulary(range(3))))


def test_contexts_that_differ_in_their_sets_alone_are_one_unit() -> None:
    log = built([[0, 1], [2, 1], [0, 1], [3, 4]], [1.0, 1.0, 2.0, 2.0], [0, 1, 0, 3])
    assert log.n_contexts == 4
    unit = log.cluster_index
    assert unit[0] == unit[1]
    assert unit[2] == unit[3]
    assert unit[0] != unit[2]
    many = built([[i % 5, 5] for i in range(400)], [float(i // 4) for i in range(400)], [5] * 400)
    for part in many.split((0.5, 0.5)):
        assert part.n_rows % 4 == 0
        assert 0 < part.n_rows < 400
    fold = many.folds(3)
    assert all(len(set(fold[4 * i : 4 * i + 4])) == 1 for i in range(100))


def test_identity_follows_content() -> None:
    log = built([[0, 1], [2, 1], [0, 1]], [1.0, 1.0, 2.0], [0, 1, 0])
    other = built([[0, 1], [2, 3, 1], [0, 1]], [1.0, 1.0, 2.0], [0, 1, 0])
    assert log.fingerprint != other.fingerprint
    assert log != other
    plain = LoggedData.from_arrays({"x": np.array([1.0, 1.0, 2.0])}, [0, 1, 0], [0.0] * 3, actions=6)
    assert log.fingerprint != plain.fingerprint
    assert log != plain
    turned = log.with_actions(ActionTable(Vocabulary([5, 4, 3, 2, 1, 0])))
    assert np.array_equal(turned.context_hashes, log.context_hashes)
    assert turned.candidates is not None
    assert log.candidates is not None
    for mine, own in zip(turned.candidates.padded(), log.candidates.padded(), strict=True):
        assert sorted(5 - a for a in mine if a >= 0) == sorted(a for a in own if a >= 0)
    assert pickle.loads(pickle.dumps(log)) == log
    with pytest.raises(LogError, match="actions that the table does not"):
        log.with_actions(ActionTable(Vocabulary([0, 1])))  # 2 was on offer


def test_parts_keep_their_sets() -> None:
    log = read_log(FRAME, **LISTS)
    assert offered(log.take([2, 0])) == [offered(log)[2], offered(log)[0]]
    batch = list(log.batches(budget=1))
    assert [b.row_place.tolist() for b in batch] == [[0, 0], [0], [1]]
    sets = log.candidates
    assert sets is not None
    assert sets.padded().tolist() == [[0, 1, -1], [1, 2, -1], [0, 2, 3]]
    assert sets.padded(Vocabulary(["s", "p"])).tolist() == [[1, -1, -1], [-1, -1, -1], [1, -1, 0]]
    assert sets.places(np.array([0, 0, 2]), np.array([1, 3, 3])).tolist() == [1, -1, 2]
