"""Columns kept beside the rows, rewards that are expressions, and outliers: all by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from offpolicy.errors import LogError, ParameterError
from offpolicy.log import LoggedData, read_log

FRAME = pl.DataFrame(
    {
        "user": ["a", "b", "a", "c", "b", "a"],
        "item": [1, 2, 1, 2, 1, 2],
        "click": [0, 1, 1, 0, 1, 0],
        "revenue": [0.0, 0.4, 0.2, 0.0, 0.5, 900.0],
        "request": ["r0", "r1", "r2", "r3", "r4", "r5"],
        "day": [1, 1, 1, 2, 2, 2],
    }
)
ROLES: dict[str, Any] = {"context": ["user"], "action": "item"}


@pytest.mark.parametrize("form", ["frame", "csv", "parquet"])
def test_kept_columns_follow_their_rows(tmp_path: Path, form: str) -> None:
    source: pl.DataFrame | Path = FRAME
    if form != "frame":
        source = tmp_path / f"log.{form}"
        getattr(FRAME, f"write_{form}")(source)
    log = read_log(source, **ROLES, reward="click", keep=["request", "value=2*click - revenue"])
    for rows in (np.array([5, 0, 3]), np.array([True, False, True, False, False, True])):
        part = log.take(rows)
        assert part.kept is not None
        own = FRAME.with_columns(value=2 * pl.col("click") - pl.col("revenue")).select("request", "value")
        assert part.kept.rows() == (own.filter(rows) if rows.dtype == bool else own[rows]).rows()
    assert [part.kept is not None and part.kept.height for part in log.split((0.5, 0.5))] == [
        part.n_rows for part in log.split((0.5, 0.5))
    ]
    assert log == read_log(source, **ROLES, reward="click", keep=["request", "value=2*click - revenue"])
    assert log != read_log(source, **ROLES, reward="click")


def test_a_reward_may_be_an_expression() -> None:
    log = read_log(FRAME, **ROLES, reward="0.1*click + revenue", reward_range=(0, 1000))
    assert log.reward_name == "0.1*click + revenue"
    np.testing.assert_allclose(log.reward, (0.1 * FRAME["click"] + FRAME["revenue"]).to_numpy() / 1000)
    with pytest.raises(ParameterError, match="'click' is part of the reward"):
        read_log(FRAME, context=["user", "click"], action="item", reward="0.1*click + revenue")
    with pytest.raises(ParameterError, match="has a column 'day'"):
        read_log(FRAME, **ROLES, reward="day=0.1*click")
    with pytest.raises(LogError, match="no column 'clack'"):
        read_log(FRAME, **ROLES, reward="0.1*clack")
    with pytest.raises(LogError, match="holds no reward at all"):
        read_log(FRAME, **ROLES, reward="click/0", reward_range=(0, 9))


def test_another_reward_takes_the_place_of_the_first() -> None:
    log = read_log(FRAME, **ROLES, reward="click", keep=["revenue", "request"]).with_reward("revenue")
    assert (log.reward_range, log.reward_name) == ((0.0, 900.0), "revenue")
    np.testing.assert_allclose(log.reward_to_user_scale(log.reward), FRAME["revenue"].to_numpy())
    with pytest.raises(ParameterError, match="keeps no column 'margin'"):
        log.with_reward("margin")
    with pytest.raises(ParameterError, match="must hold numbers"):
        log.with_reward("request")


def test_outliers_are_named_and_winsorised() -> None:
    revenue = np.concatenate([np.zeros(500), np.linspace(1, 100, 500)])
    revenue[-2:] = 10_000.0
    frame = pl.DataFrame({"x": np.arange(1000) % 7, "a": np.arange(1000) % 3, "revenue": revenue})
    with pytest.raises(LogError, match=r"reward_range=\(0, 10000\).*at most 9\d.*winsorising at 0.01"):
        read_log(frame, context=["x"], action="a", reward="revenue")
    log = read_log(frame, context=["x"], action="a", reward="revenue", winsorise=0.01)
    high = np.quantile(revenue[revenue != 0], 0.99)
    assert log.reward_range == pytest.approx((0.0, high))
    np.testing.assert_allclose(log.reward_to_user_scale(log.reward), revenue.clip(0, high))
    assert f"{np.sum(revenue > high)} of 1,000 rewards" in log.treated[0]
    same = LoggedData.from_arrays(frame["x"], frame["a"], np.zeros(1000), actions=3, keep={"revenue": revenue})
    np.testing.assert_allclose(same.with_reward("revenue", 0.01).reward, log.reward)


def test_rewards_of_two_values_are_never_winsorised() -> None:
    rare = np.zeros(1000)
    rare[:3] = 1
    frame = pl.DataFrame({"x": np.arange(1000) % 7, "a": np.arange(1000) % 3, "click": rare})
    log = read_log(frame, context=["x"], action="a", reward="click", winsorise=0.01)
    assert log.reward.sum() == 3
    assert log.treated == ()
    with pytest.raises(ParameterError, match=r"below 0\.5"):
        read_log(frame, context=["x"], action="a", reward="click", winsorise=0.5)


@pytest.mark.parametrize("ticks", [1, 1_000, 1_000_000, 1_000_000_000])
def test_integer_times_are_dates_in_any_unit(ticks: int) -> None:
    seconds = np.array([1_790_000_000, 1_790_086_400])
    log = LoggedData.from_arrays(np.eye(2), [0, 1], [0, 1], actions=2, timestamp=seconds * ticks)
    assert log.instants is not None
    assert log.instants.astype("datetime64[s]").astype(np.int64).tolist() == seconds.tolist()
    assert LoggedData.from_arrays(np.eye(2), [0, 1], [0, 1], actions=2, timestamp=[0, 1]).instants is None


@pytest.mark.parametrize(("how", "rows"), [("drop", 5), ("zero", 6)])
def test_feedback_that_is_not_in_yet_is_treated_in_further_rewards_too(how: Any, rows: int) -> None:
    frame = FRAME.with_columns(revenue=pl.when(pl.col("request") == "r2").then(None).otherwise("revenue"))
    log = read_log(frame, **ROLES, reward="click", keep=["revenue", "request"], missing={"revenue": how})
    assert log.n_rows == rows
    values = frame.drop_nulls("revenue") if how == "drop" else frame.with_columns(pl.col("revenue").fill_null(0.0))
    assert log.kept is not None
    assert log.kept.rows() == values.select("revenue", "request").rows()
    untreated = read_log(frame, **ROLES, reward="click", keep=["revenue"])
    with pytest.raises(LogError, match="--missing revenue=drop"):
        untreated.with_reward("revenue")


@pytest.mark.parametrize(("how", "rows"), [("drop", 5), ("zero", 6)])
def test_yes_and_no_that_is_not_in_yet_is_treated_as_numbers_are(how: Any, rows: int) -> None:
    frame = FRAME.with_columns(kept=pl.when(pl.col("request") == "r2").then(None).otherwise(pl.col("click") == 1))
    log = read_log(frame, **ROLES, reward="click", keep=["kept"], missing={"kept": how})
    assert log.n_rows == rows
    assert log.with_reward("kept").n_rows == rows


def test_a_number_is_kept_as_it_is_where_the_context_flags_it() -> None:
    """A column of the context by which results are broken down is no reward whose feedback is missing."""
    frame = FRAME.with_columns(size=pl.when(pl.col("request") == "r2").then(None).otherwise(pl.col("click") + 0.5))
    roles = ROLES | {"context": [*ROLES["context"], "size"]}
    log = read_log(frame, **roles, reward="click", keep=["size"], missing={"size": "indicator"})
    assert log.kept is not None
    assert log.kept["size"].null_count() == 1
