"""Slates from files and arrays: positions, candidates, and complaints that name the request."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from offpolicy.errors import LogError, OffPolicyError
from offpolicy.log import LoggedData, read_log

GOOD = pl.DataFrame(
    {
        "visit": ["v1", "v1", "v1", "v2", "v2", "v3"],
        "place": [1, 2, 3, 2, 1, 1],
        "age": [0.5, 0.5, 0.5, 1.5, 1.5, 0.5],
        "item": ["a", "b", "c", "b", "d", "c"],
        "click": [0, 1, 0, 1, 1, 0],
        "user": ["u1", "u1", "u1", "u1", "u1", "u2"],
    }
)
ROLES: dict[str, Any] = {
    "context": ["age"],
    "action": "item",
    "reward": "click",
    "request": "visit",
    "position": "place",
}


def offered(log: LoggedData) -> list[set[str]]:
    """What each row could choose among."""
    assert log.candidates is not None
    sets = log.candidates.take(log.context_index)
    ids = log.actions.vocabulary.to_list()
    return [{ids[code] for code in sets.codes[sets.offsets[n] : sets.offsets[n + 1]]} for n in range(log.n_rows)]


def test_each_position_chooses_among_what_is_not_yet_shown() -> None:
    log = read_log(GOOD, **ROLES)
    assert log.position is not None
    assert log.position.tolist() == [0, 1, 2, 1, 0, 0]
    every = {"a", "b", "c", "d"}
    assert offered(log) == [every, every - {"a"}, every - {"a", "b"}, every - {"d"}, every, every]
    assert sorted(log.contexts) == ["age", "place"]
    assert log.cluster_index.tolist() == [0, 0, 0, 1, 1, 2]
    assert log.summary()["slates"] == {"requests": 3, "positions": 3}


def test_positions_may_count_from_zero_and_the_file_may_be_csv(tmp_path: Any) -> None:
    path = tmp_path / "log.csv"
    GOOD.with_columns(pl.col("place") - 1).write_csv(path)
    log = read_log(path, **ROLES)
    assert log.position is not None
    assert log.position.tolist() == [0, 1, 2, 1, 0, 0]


def test_where_an_action_is_shown_twice_all_are_on_offer() -> None:
    log = read_log(GOOD.with_columns(item=pl.Series(["a", "a", "c", "b", "d", "c"])), **ROLES)
    assert log.candidates is None


def test_what_stands_above_is_taken_out_of_given_candidates() -> None:
    lists = [["a", "b", "c"], ["a", "b", "c"], ["a", "b", "c"], ["b", "d"], ["b", "d"], ["c", "a"]]
    log = read_log(GOOD.with_columns(offer=pl.Series(lists)), candidates="offer", **ROLES)
    assert offered(log) == [{"a", "b", "c"}, {"b", "c"}, {"c"}, {"b"}, {"b", "d"}, {"a", "c"}]


def test_a_larger_cluster_stays_the_unit() -> None:
    log = read_log(GOOD, cluster="user", **ROLES)
    assert log.cluster_index.tolist() == [0, 0, 0, 0, 0, 1]


def test_arrays_give_the_same_log() -> None:
    ids = sorted(set(GOOD["item"]))
    made = LoggedData.from_arrays(
        {"age": GOOD["age"].to_numpy()},
        GOOD["item"].to_list(),
        GOOD["click"].to_numpy(),
        actions=ids,
        request=GOOD["visit"].to_list(),
        position=GOOD["place"].to_numpy(),
    )
    read = read_log(GOOD, actions=ids, **ROLES)
    assert offered(made) == offered(read)
    assert made.request is not None
    assert read.request is not None
    np.testing.assert_array_equal(made.request, read.request)
    assert sorted(made.contexts) == ["age", "position"]


def test_rewards_from_a_position_on_are_a_share_of_the_longest_slate() -> None:
    log = read_log(GOOD, **ROLES)
    np.testing.assert_allclose(log.outcome, np.array([1, 1, 0, 1, 2, 0]) / 3)


def test_a_split_keeps_requests_whole() -> None:
    n = 200
    log = LoggedData.from_arrays(
        {"x": np.repeat(np.arange(n) % 7, 3)},
        np.tile([0, 1, 2], n),
        np.zeros(3 * n),
        actions=5,
        request=np.repeat(np.arange(n), 3),
        position=np.tile([1, 2, 3], n),
    )
    for part in log.split((0.6, 0.4)):
        assert part.request is not None
        assert set(np.bincount(part.request)[np.unique(part.request)]) == {3}


def swapped(row: int, column: str, value: Any) -> pl.DataFrame:
    values = GOOD[column].to_list()
    values[row] = value
    return GOOD.with_columns(pl.Series(column, values))


COMPLAINTS: dict[str, tuple[pl.DataFrame, dict[str, Any], str]] = {
    "a gap": (
        GOOD.filter(pl.col("item") != "b"),
        {},
        r"Request 'v1' has an action in position 3 but none in position 2",
    ),
    "no top": (
        GOOD.filter(pl.col("item") != "d"),
        {},
        r"Request 'v2' has an action in position 2 but none in position 1",
    ),
    "two in one position": (swapped(3, "place", 1), {}, r"Request 'v2' shows two actions in position 1"),
    "counted from 2": (
        GOOD.with_columns(pl.col("place") + 1),
        {},
        r"Positions count from 0 or from 1, but request 'v1'",
    ),
    "a half": (
        GOOD.with_columns(pl.col("place") * 0.5),
        {},
        r"'place' must hold .* whole number from 0 or 1",
    ),
    "negative": (
        GOOD.with_columns(pl.col("place") - 5),
        {},
        r"'place' must hold .* whole number from 0 or 1, but row 1 ",
    ),
    "no number": (GOOD.with_columns(place=pl.lit("top")), {}, r"column 'place'"),
    "no request": (swapped(2, "visit", None), {}, r"column 'visit' must hold an id in every row, but row 3 "),
    "two users": (swapped(1, "user", "u2"), {"cluster": "user"}, r"The rows of request 'v1' are in two clusters"),
    "not offered": (
        GOOD.with_columns(offer=pl.Series([["a", "b"]] * 6)),
        {"candidates": "offer"},
        r"must hold the action that was shown, 'c'",
    ),
    "position without request": (GOOD, {"request": None}, r"both of these need request"),
    "request without position": (GOOD, {"position": None}, r"request needs one more column"),
    "shown and position": (GOOD, {"shown": "click"}, r"shown belongs to tables with a row a candidate"),
}


@pytest.mark.parametrize("name", COMPLAINTS)
def test_bad_slates_are_refused_in_words(name: str) -> None:
    frame, changes, said = COMPLAINTS[name]
    with pytest.raises(OffPolicyError, match=said):
        read_log(frame, **ROLES | changes)


def test_arrays_are_refused_alike() -> None:
    with pytest.raises(LogError, match="Request 'v' has an action in position 3 but none in position 2"):
        LoggedData.from_arrays({"x": [0, 0]}, [0, 1], [0, 1], actions=3, request=["v", "v"], position=[1, 3])
    with pytest.raises(LogError, match="both the request and the position"):
        LoggedData.from_arrays({"x": [0, 0]}, [0, 1], [0, 1], actions=3, request=["v", "v"])
    n = 2000
    with pytest.raises(LogError, match="Name the actions that each request could show"):
        LoggedData.from_arrays(
            {"x": np.zeros(n)},
            np.arange(n) % 2,
            np.zeros(n),
            actions=10**6,
            request=np.arange(n) // 2,
            position=np.arange(n) % 2,
        )
