"""Which columns are taken for context: none that came after the decision, whatever it is called."""

from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest

from offpolicy.errors import LogError
from offpolicy.log import CategoricalColumn, Known, choose_context, read_log

ROWS = 4_000
DRAW = np.random.default_rng(5)
CLICK = DRAW.random(ROWS) < 0.08
BOUGHT = CLICK & (DRAW.random(ROWS) < 0.3)
START = pl.Series(np.datetime64("2026-03-01T12:00:00", "us") + np.arange(ROWS) * np.timedelta64(60, "s"))


def reason(values: Any, timestamp: pl.Series | None = None) -> str | None:
    """Why a column of that content is left out."""
    column, other = pl.Series("warenkorb", values), pl.Series("age", DRAW.integers(1, 9, ROWS))
    known = Known(pl.Series(DRAW.integers(0, 5, ROWS)), pl.Series(CLICK), timestamp)
    return choose_context({"warenkorb": column, "age": other}, known).left_out.get("warenkorb")


def test_what_is_there_only_where_there_was_a_reward_came_after_it() -> None:
    amount = np.where(BOUGHT, DRAW.gamma(2, 10, ROWS), 0.0)
    said = reason(amount)
    assert said == (
        f"100.0% of the rows in which it is not 0.0 have a reward, and {CLICK.mean():.1%} of all: it came after the "
        "reward"
    )
    assert "not null" in str(reason([float(x) if x else None for x in amount]))
    assert "not 'none'" in str(reason(["card" if x else "none" for x in BOUGHT]))
    amount[np.flatnonzero(~CLICK)[:2]] = 9.0  # a few mistakes do not hide it
    assert str(reason(amount)).endswith("it came after the reward")


def test_what_raises_the_chance_of_a_reward_is_context() -> None:
    likely = DRAW.random(ROWS) < np.where(CLICK, 0.5, 0.02)
    assert reason(np.where(likely, 7, 0)) is None
    assert reason(np.where(np.arange(ROWS) < 3, 1, 0)) is None


def zoned(hours: int) -> pl.Series:
    """The times half a minute after the timestamps, written by clocks that are so many hours ahead of UTC."""
    wall = START + timedelta(hours=hours, seconds=30)
    return wall.dt.strftime("%Y-%m-%dT%H:%M:%S") + f"{hours:+03}:00"


@pytest.mark.parametrize("hours", [-8, 0, 5])
def test_times_are_compared_in_utc(hours: int) -> None:
    """A time after the decision, written in another time zone, is found to be one."""
    stamps = START.dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    later = zoned(hours)
    assert reason(later, stamps) == "a time after the decision"
    assert reason(later.str.to_datetime(time_zone="UTC"), stamps) == "a time after the decision"


def test_hours_are_those_of_the_clock_on_the_wall() -> None:
    """In a frame with a time zone as in a file that writes it out."""
    wall = pl.Series(["2026-03-01T23:30:00-05:00", "2026-03-02T01:30:00-05:00"] * 10)
    aware = wall.str.to_datetime(time_zone="UTC").dt.convert_time_zone("America/New_York")
    for values in (wall, aware):
        frame = pl.DataFrame({"at": values, "item": ["a", "b"] * 10, "click": [0, 1] * 10})
        log = read_log(frame, context=["at"], action="item", reward="click", timestamp="at")
        hour, weekday = log.contexts["at:hour"], log.contexts["at:weekday"]
        assert isinstance(hour, CategoricalColumn)
        assert isinstance(weekday, CategoricalColumn)
        assert set(hour.vocabulary.ids) == {"23h", "01h"}
        assert set(weekday.vocabulary.ids) == {"Sun", "Mon"}
        assert log.timestamp is not None
        assert str(log.timestamp.astype("datetime64[us]").min()) == "2026-03-02T04:30:00.000000"


def test_integers_that_are_times_are_called_so() -> None:
    milliseconds = START.dt.epoch("ms")
    assert reason(milliseconds) == (
        "times as numbers, such as 2026-03-01 12:00:00 UTC; name it with --timestamp if that is when it was decided"
    )
    assert str(reason(np.arange(ROWS) * 7)).startswith("an id: ")


def test_the_range_that_is_offered_holds_all_rewards() -> None:
    most = 422.10433256002005
    frame = pl.DataFrame({"x": [1.0, 2.0] * 9, "item": ["a", "b"] * 9, "seconds": [0.1, most] * 9})
    roles: dict[str, Any] = {"context": ["x"], "action": "item", "reward": "seconds"}
    with pytest.raises(LogError) as caught:
        read_log(frame, **roles)
    assert caught.value.fix is not None
    low, high = map(float, caught.value.fix.value.split(","))
    assert (low, high) == (0.0, most)
    assert read_log(frame, **roles, reward_range=(low, high)).n_rows == 18
