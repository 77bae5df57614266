"""Value and difference by segment: those of the segment's rows alone, with every look counted."""

import itertools
from typing import Any

import numpy as np
import polars as pl
import pytest

from offpolicy.errors import ParameterError
from offpolicy.evaluation import Evaluator, Options
from offpolicy.evaluation.segments import segments_of
from offpolicy.log import LoggedData, read_log
from offpolicy.nuisances import Nuisances
from offpolicy.policies import UniformPolicy
from offpolicy.results import Evaluation

N = 1200
RANDOM = np.random.default_rng(3)
COUNTRY = np.array(["de", "fr", "it"])[RANDOM.choice(3, N, p=[0.5, 0.3, 0.2])]
AGE = RANDOM.normal(size=N)
ACTION = RANDOM.integers(0, 2, N)
# The second action pays in Germany and costs in France.
REWARD = np.clip(0.5 + np.where(COUNTRY == "de", 0.2, np.where(COUNTRY == "fr", -0.2, 0.0)) * ACTION, 0, 1)
REWARD = np.clip(REWARD + 0.1 * RANDOM.normal(size=N), 0, 1)
SECOND, FIRST = np.array([0.1, 0.9])[ACTION], np.array([0.8, 0.2])[ACTION]


def a_log(kept: Any = slice(None), low: float = 0.0, high: float = 1.0) -> LoggedData:
    return LoggedData.from_arrays(
        contexts={"country": COUNTRY[kept], "age": AGE[kept]},
        action=ACTION[kept],
        reward=low + (high - low) * REWARD[kept],
        actions=2,
        reward_range=(low, high),
        timestamp=np.arange(N)[kept],
    )


def judged(log: LoggedData, policies: dict[str, Any], **options: Any) -> Evaluation:
    nuisances = Nuisances(log, logging_policy=UniformPolicy(2))
    return Evaluator(nuisances, policies, options=Options(("snips",), **options)).evaluation


def test_a_segment_is_its_rows_alone_at_a_level_that_counts_all() -> None:
    found = judged(a_log(), {"second": SECOND, "first": FIRST}, by=("country",)).segments
    assert [(one.policy, one.segment) for one in found] == [
        (policy, country) for policy in ("second", "first") for country in ("de", "fr", "it")
    ]
    for one in found:
        kept = np.asarray(COUNTRY) == np.asarray(one.segment)
        column = (SECOND if one.policy == "second" else FIRST)[kept]
        alone = judged(a_log(kept), {"new": column}, level=1 - 0.05 / 6)
        (comparison,) = alone.comparisons
        assert one.rows == kept.sum()
        assert one.value == pytest.approx(alone["new"].value, rel=1e-9)
        assert (one.low, one.high) == pytest.approx((alone["new"].interval.low, alone["new"].interval.high), rel=1e-9)
        assert one.logging == pytest.approx(REWARD[kept].mean(), rel=1e-9)
        assert one.difference == pytest.approx(comparison.difference, abs=1e-9)
        assert (one.difference_low, one.difference_high) == pytest.approx((comparison.low, comparison.high), abs=1e-9)
        assert (one.adjusted_p_value or 0.0) >= (comparison.p_value or 0.0)


def test_a_policy_can_be_better_here_and_worse_there() -> None:
    by_name = {one.segment: one for one in judged(a_log(), {"second": SECOND}, by=("country",)).segments}
    assert by_name["de"].difference_low > 0
    assert by_name["fr"].difference_high < 0
    assert by_name["it"].difference_low < 0 < by_name["it"].difference_high
    assert (by_name["de"].adjusted_p_value or 1.0) < 0.05 < (by_name["it"].adjusted_p_value or 1.0)


def test_segments_are_on_the_users_scale() -> None:
    plain, wide = (
        judged(log, {"second": SECOND}, by=("country",)).segments for log in (a_log(), a_log(low=-10, high=30))
    )
    for one, other in zip(plain, wide, strict=True):
        for name in ("value", "low", "high", "logging"):
            assert getattr(other, name) == pytest.approx(-10 + 40 * getattr(one, name), rel=1e-9)
        for name in ("difference", "difference_low", "difference_high"):
            assert getattr(other, name) == pytest.approx(40 * getattr(one, name), rel=1e-9)


@pytest.mark.parametrize(("column", "values"), [("age", AGE), ("time", np.arange(N))])
def test_numbers_and_times_are_cut_into_four_parts_of_equal_size(column: str, values: Any) -> None:
    parts = segments_of(a_log(), column)
    assert [one.rows for one in parts] == [300] * 4
    masks = [one.mask(a_log()) for one in parts]
    assert np.sum(masks, axis=0).tolist() == [1] * N
    for lower, upper in itertools.pairwise(masks):
        assert values[lower].max() <= values[upper].min()


def test_rows_in_which_a_number_is_missing_are_a_segment_of_their_own() -> None:
    """0 was filled in and flagged there: nobody is 0 years old."""
    age = [None if place % 5 == 0 else 20.0 + place % 40 for place in range(N)]
    frame = pl.DataFrame({"age": age, "item": ACTION, "click": REWARD})
    log = read_log(frame, context=["age"], action="item", reward="click", missing={"age": "indicator"})
    parts = segments_of(log, "age")
    assert [(one.label, one.rows) for one in parts if one.label == "null"] == [("null", N // 5)]
    assert parts[0].label.startswith("21 to ")
    (absent,) = (one.mask(log) for one in parts if one.label == "null")
    assert absent.tolist() == [one is None for one in age]


def test_equal_numbers_stay_in_one_part() -> None:
    log = LoggedData.from_arrays(
        contexts={"x": np.repeat([1.0, 2.0], 50)}, action=np.arange(100) % 2, reward=np.arange(100) % 2, actions=2
    )
    assert [(one.label, one.rows) for one in segments_of(log, "x")] == [("1 to 1", 50), ("2 to 2", 50)]


def test_a_segment_too_small_to_answer_has_no_p_value() -> None:
    small = np.where(np.arange(N) < 30, "rare", "often")
    log = LoggedData.from_arrays(contexts={"kind": small, "age": AGE}, action=ACTION, reward=REWARD, actions=2)
    by_name = {one.segment: one for one in judged(log, {"second": SECOND}, by=("kind",)).segments}
    assert by_name["rare"].refused
    assert by_name["rare"].adjusted_p_value is None
    assert not by_name["often"].refused


def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(ParameterError, match=r"no column .colour. to break down by. Known: country, age, time"):
        segments_of(a_log(), "colour")
    bare = LoggedData.from_arrays(contexts={"age": AGE}, action=ACTION, reward=REWARD, actions=2)
    with pytest.raises(ParameterError, match="no timestamp column"):
        segments_of(bare, "time")


def test_periods_of_the_calendar_and_kept_columns() -> None:
    times = np.datetime64("2026-09-28T00:00") + np.arange(N) * np.timedelta64(30, "m")  # 25 days from a Monday on
    kept = {"device": np.where(np.arange(N) % 3, "phone", "desk"), "price": np.arange(N) * 1.0}
    log = LoggedData.from_arrays({"age": AGE}, ACTION, REWARD, actions=2, timestamp=times, keep=kept)
    weeks = segments_of(log, "week")
    assert [one.label for one in weeks] == ["2026-W40", "2026-W41", "2026-W42", "2026-W43"]
    assert [one.rows for one in weeks] == [336, 336, 336, 192]
    assert [one.label for one in segments_of(log, "month")] == ["2026-09", "2026-10"]
    assert len(segments_of(log, "day")) == 25
    assert segments_of(log, "hour")[3].label == "03 h"
    assert [one.label for one in segments_of(log, "weekday")][:2] == ["Monday", "Tuesday"]
    assert [(one.label, one.rows) for one in segments_of(log, "device")] == [("phone", 800), ("desk", 400)]
    assert [one.rows for one in segments_of(log, "price")] == [300] * 4
    assert segments_of(log, "time")[0].label == "2026-09-28 00:00 to 2026-10-04 05:30"
    found = judged(log, {"second": SECOND}, by=("device", "week")).segments
    assert [one.column for one in found] == ["device"] * 2 + ["week"] * 4
    first = weeks[0].mask(log)
    alone = judged(log.take(first), {"new": SECOND[first]}, level=1 - 0.05 / 6)
    assert found[2].difference_low == pytest.approx(alone.comparisons[0].low, abs=1e-9)


def test_every_reward_has_its_segments_and_counts_as_a_look() -> None:
    cost = 3.0 * RANDOM.random(N) + ACTION
    log = LoggedData.from_arrays(
        {"country": COUNTRY, "age": AGE}, ACTION, REWARD, actions=2, reward_range=(0.0, 1.0), keep={"cost": cost}
    )
    evaluation = judged(log, {"second": SECOND}, by=("country",), rewards=("cost",))
    assert [(one.reward, one.segment) for one in evaluation.segments] == [
        (reward, country) for reward in ("reward", "cost") for country in ("de", "fr", "it")
    ]
    assert list(evaluation.breakdowns()) == ["country, reward", "country, cost"]
    for one in evaluation.segments[3:]:
        kept = np.asarray(COUNTRY) == np.asarray(one.segment)
        alone = LoggedData.from_arrays(
            {"country": COUNTRY[kept], "age": AGE[kept]},
            ACTION[kept],
            cost[kept],
            actions=2,
            reward_range=(0, cost.max()),
        )
        (compared,) = judged(alone, {"new": SECOND[kept]}, level=1 - 0.05 / 6).comparisons
        assert one.logging == pytest.approx(cost[kept].mean())
        ends = (compared.difference, compared.low, compared.high)
        assert (one.difference, one.difference_low, one.difference_high) == pytest.approx(ends)
    rows = evaluation.to_frame().filter(reward="cost", by="country")
    assert rows["segment"].to_list() == ["de", "fr", "it"]
