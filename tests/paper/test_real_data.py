"""Evaluation on real rewards, where the data are at hand; actions matched by id, and the arithmetic of the tables."""

from typing import Any

import numpy as np
import pytest

from offpolicy.datasets.jester import JesterDesign, load_jester, simulate_log
from offpolicy.errors import ParameterError
from offpolicy.log import LoggedData
from offpolicy.paper.studies import jester
from offpolicy.paper.studies.jester import Jester, answers, jester_targets
from offpolicy.paper.studies.open_bandit import OpenBandit, mean_reward
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
    assert logging < world.value(targets["softmax"]) < world.value(targets["greedy"])
    assert isinstance(targets["softmax"], LinearSoftmaxPolicy)


@pytest.mark.parametrize(("value", "covers"), [(0.45, 1.0), (0.65, 0.0)])
def test_a_row_is_arithmetic(monkeypatch: pytest.MonkeyPatch, value: float, covers: float) -> None:
    found = {"truth": 0.5, "answer": "run an experiment", "intervals": {"dr": (value, value - 0.1, value + 0.15)}}
    monkeypatch.setattr(jester, "_answers", lambda *_: {"greedy": found})
    (row,) = Jester("greedy").measure("dr", {}, 0)
    assert row["bias"] == pytest.approx(value - 0.5)
    assert row["MSE"] == pytest.approx((value - 0.5) ** 2)
    assert row["coverage"] == covers
    assert row["width"] == pytest.approx(0.25)
    assert (row["answered"], row["truth"]) == (0.0, 0.5)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ParameterError, match="target must be one of softmax, greedy"):
        Jester("gready")
    with pytest.raises(ParameterError, match="campaign must be one of all, men, women"):
        OpenBandit("man")  # type: ignore[arg-type]


def test_the_mean_reward_of_clusters() -> None:
    log = LoggedData.from_arrays({"x": [0.0, 1.0]}, [0, 0, 0, 0], [1, 1, 0, 0], context_index=[0, 0, 1, 1], actions=2)
    mean, low, high = mean_reward(log, z=2.0)
    assert mean == 0.5
    assert high - mean == pytest.approx(2.0 * (1.0**2 + 1.0**2) ** 0.5 / 4)  # residuals sum to 1 and −1
    assert low == 0.0


def test_jester_truth_and_intervals() -> None:
    ratings = load_jester(shared_data("jester"))
    found = answers(ratings, 0, 1, 0)
    assert set(found) == {"softmax", "greedy"}
    for row in found.values():
        assert set(row["intervals"]) == set(Jester().labels())
        assert 0 < row["truth"] < 1
        value, low, high = row["intervals"]["auto"]
        assert low <= value <= high
        assert abs(value - row["truth"]) < 0.15


def test_open_bandit_answers_beside_the_own_logs() -> None:
    made = OpenBandit(data=str(shared_data("obd")))
    clicks = {"random": (69, 46), "bts": (46, 69)}
    for line in made.labels():
        (row,) = made.measure(line, {}, 0)
        logged, own = clicks[line.split("_")[0]]
        assert row["clicks"] == logged
        assert row["own log"] == pytest.approx(own / 10)  # per thousand, of 10,000 impressions
        assert row["own log, low"] < row["own log"] < row["own log, high"]
        assert 0 <= row["estimate, low"] <= row["estimate"] <= row["estimate, high"] < 50
