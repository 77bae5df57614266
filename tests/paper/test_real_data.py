"""Evaluation on real rewards, where the data are at hand; actions matched by id, and the arithmetic of the tables."""

from typing import Any

import numpy as np
import pytest

from offpolicy.datasets.jester import JesterDesign, load_jester, simulate_log
from offpolicy.paper.real_data import (
    jester_markdown,
    jester_seed,
    jester_targets,
    open_bandit,
    open_bandit_markdown,
    summarise_jester,
)
from offpolicy.policies import LinearSoftmaxPolicy
from shared_data import shared_data


def _ratings() -> np.ndarray[Any, np.dtype[np.float64]]:
    random = np.random.default_rng(0)
    taste, joke = random.standard_normal((150, 2)), random.standard_normal((2, 20))
    return np.clip(0.5 + 0.15 * (taste @ joke + random.standard_normal((150, 20))), 0, 1)


def test_targets_beat_logging() -> None:
    world = simulate_log(_ratings(), 0, JesterDesign(gauge_jokes=8, dimensions=2))
    logging = world.value(world.logging_policy)
    targets = jester_targets(world)
    assert logging < world.value(targets["softmax"]) < world.value(targets["0.1-greedy"])
    assert isinstance(targets["softmax"], LinearSoftmaxPolicy)


def test_summary_is_arithmetic() -> None:
    def row(seed: int, value: float, answer: str) -> dict[str, Any]:
        interval = {"auto": [value, value - 0.1, value + 0.1]}
        common = {"target": "t", "rows_per_user": 1, "seed": seed, "truth": 0.5}
        return common | {"answer": answer, "intervals": interval}

    (line,) = summarise_jester([row(0, 0.45, "answerable"), row(1, 0.65, "run an experiment")])
    assert line["coverage"] == 0.5
    assert line["answered"] == 0.5
    assert line["bias"] == pytest.approx(0.05)
    assert line["rmse"] == pytest.approx(((0.05**2 + 0.15**2) / 2) ** 0.5)
    assert line["width"] == pytest.approx(0.2)
    assert "0.500" in jester_markdown([line])


def test_jester_truth_and_intervals() -> None:
    ratings = load_jester(shared_data("jester"))
    rows = jester_seed(ratings, 0, 1)
    assert {row["target"] for row in rows} == {"softmax", "0.1-greedy"}
    for row in rows:
        assert 0 < row["truth"] < 1
        value, low, high = row["intervals"]["auto"]
        assert low <= value <= high
        assert abs(value - row["truth"]) < 0.15


def test_open_bandit_answers_beside_the_own_logs() -> None:
    rows = open_bandit(shared_data("obd"))
    assert {(row["policy"], row["propensities"]) for row in rows} == {
        (policy, known) for policy in ("random", "bts, modelled") for known in ("hidden", "recorded")
    }
    clicks = {"random": (69, 46), "bts, modelled": (46, 69)}
    for row in rows:
        logged, own = clicks[row["policy"]]
        assert row["clicks"] == logged
        assert row["on_policy"] == pytest.approx(own / 10_000)
        assert row["on_policy_low"] < row["on_policy"] < row["on_policy_high"]
        assert 0 <= row["low"] <= row["value"] <= row["high"] < 0.05
    assert open_bandit_markdown(rows).count("\n") == len(rows) + 1
