"""The estimate to rely on, its half-width and each of its parts, against slow NumPy on small logs; and λ behind it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm

from hand_made import HandMade
from offpolicy.estimators import ESTIMATORS
from offpolicy.evaluation import auto_estimate, log_driven, plug_in_lambda
from offpolicy.evaluation.hyper import chosen_lambdas, lambda_grid, least_error_lambda

WEIGHTS = HandMade.draw(1)
WITH_U = HandMade.draw(2, uncertainty=True)
WITH_REWARDS = HandMade.draw(4, uncertainty=True, rewards=True)
IN_EVENTS = HandMade.draw(7, uncertainty=True, rewards=True, row_weight=True)
CAPPED = HandMade.draw(9, uncertainty=True)
CAPPED_WITH_REWARDS = HandMade.draw(1, rewards=True)
UNSHRUNK = HandMade.draw(0, uncertainty=True)
WITH_U_OF_WEIGHTS = HandMade.draw(13, uncertainty=True, rewards=True, row_weight=True)
CASES = {
    "weights": WEIGHTS,
    "uncertainty": WITH_U,
    "reward model": WITH_REWARDS,
    "events": IN_EVENTS,
    "capped": CAPPED,
    "capped, reward model": CAPPED_WITH_REWARDS,
    "unshrunk": UNSHRUNK,
    "larger error without rewards": WITH_U_OF_WEIGHTS,
}


def close(expected: Any) -> Any:
    """Equal but for rounding."""
    return pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_half_width_and_its_parts_are_those_of_the_docstring(name: str, level: float) -> None:
    case = CASES[name]
    expected, found = case.expected(level), auto_estimate(case.rows, level)
    assert found.lam == pytest.approx(expected.lam, rel=1e-9)
    assert found.value == close(expected.value)
    assert [view.value for view in found.views] == close(expected.values)
    interval = found.interval
    assert interval.sampling == close(expected.sampling)
    assert interval.propensity == close(expected.half - expected.sampling)
    assert interval.low == close(max(expected.value - expected.half, 0))
    assert interval.high == close(min(expected.value + expected.half, 1))
    assert interval.centre == found.value
    assert (interval.level, interval.method, interval.note, interval.vacuous) == (level, "auto", "", False)
    assert found.disagreement == close(expected.distance / expected.shrunk_error)


def test_the_cases_hold_every_regime() -> None:
    """Without this, a part could be zero in every case above, and its loss go unnoticed."""
    found = {name: case.expected() for name, case in CASES.items()}
    for name in ("capped", "capped, reward model"):
        assert found[name].largest_error > 2.05 * found[name].shrunk_error, name
    for name in ("weights", "reward model", "events"):
        assert 1.04 * found[name].shrunk_error < found[name].largest_error < 2 * found[name].shrunk_error, name
    assert found["unshrunk"].lam == np.inf
    assert all(np.isfinite(one.lam) for name, one in found.items() if name != "unshrunk")
    for name, one in found.items():
        assert one.misweighted > 1e-4
        assert one.distance > 0.001 or name == "unshrunk"
        assert (one.propensity_error > 0.001) == (CASES[name].uncertainty is not None), name
        assert one.value - one.half > 0
        assert one.value + one.half < 1
    errors = [
        [CASES[name].propensity_error(found[name].lam, kind) for kind in (False, True)]
        for name in ("reward model", "larger error without rewards")
    ]
    assert errors[0][0] < errors[0][1]
    assert errors[1][0] > errors[1][1]


def test_numbers_worked_out_by_hand() -> None:
    """Four clusters of one row, weights 1: value 0.5, error √(Σ(r − r̄)²/(n(n − 1))), and a missing tenth of weight."""
    even = HandMade(np.ones(4), np.array([0.0, 0.5, 0.5, 1.0]), np.arange(4), np.arange(4))
    found = auto_estimate(even.rows)
    assert found.value == 0.5
    assert found.interval.sampling == pytest.approx(1.959963985 * np.sqrt(0.5 / 12), rel=1e-9)
    assert found.interval.propensity == pytest.approx(0, abs=1e-12)
    short = auto_estimate(replace(even, ratio=np.full(4, 0.7)).rows).interval
    assert short.propensity == pytest.approx(0.3 * np.sqrt(0.125) / 3, rel=1e-9)
    long = auto_estimate(replace(even, ratio=np.full(4, 1.3)).rows).interval
    assert long.propensity == pytest.approx(0.3 * np.sqrt(0.125) / 3, rel=1e-9)
    # U of 0.4 in the row with reward 1 alone: ∂V/∂log β̂ = w(r − V)/Σw = 0.5/4, elasticity 1 (nothing is shrunk).
    unsure = replace(even, ratio=np.array([1.0, 1.0, 1.0, 1.0]), uncertainty=np.array([0.0, 0.0, 0.0, 0.4]))
    lam = auto_estimate(unsure.rows).lam
    elasticity = 1 - 2 / (1 + lam) if np.isfinite(lam) else 1.0
    half = 1.959963985 * np.hypot(np.sqrt(0.5 / 12), elasticity * 0.4 * 0.125)
    interval = auto_estimate(unsure.rows).interval
    assert interval.sampling + interval.propensity == pytest.approx(half, rel=1e-8)


@pytest.mark.parametrize("name", CASES)
def test_the_paired_statistic_is_the_view_that_is_reported(name: str) -> None:
    case = CASES[name]
    found, expected = auto_estimate(case.rows), case.expected()
    rewards = case.baseline is not None
    assert len(found.views) == (4 if rewards else 2)
    assert found.statistic.value == close(found.value)
    assert found.statistic.jackknife_error == pytest.approx(
        case.jackknife(case.shrunk(expected.lam), rewards), rel=1e-9
    )
    if rewards:
        assert abs(found.value - expected.values[0]) > 0.001
        assert abs(found.value - expected.values[3]) > 1e-4


def test_value_and_interval_stay_within_the_rewards() -> None:
    high = replace(WITH_REWARDS, baseline=np.full(24, 0.95), imputed=np.full(24, 0.1))
    low = replace(WITH_REWARDS, baseline=np.full(24, 0.05), imputed=np.full(24, 0.9))
    assert high.expected().value > 1
    assert low.expected().value < 0
    for case, end in ((high, 1.0), (low, 0.0)):
        found, expected = auto_estimate(case.rows), case.expected()
        assert found.value == end
        assert found.interval.centre == end
        assert found.interval.low == close(max(end - expected.half, 0))
        assert found.interval.high == close(min(end + expected.half, 1))
        assert not found.interval.vacuous
    wide = HandMade.draw(9, spread=2.0)
    assert wide.expected().half > 1
    interval = auto_estimate(wide.rows).interval
    assert (interval.low, interval.high, interval.vacuous) == (0.0, 1.0, True)
    assert interval.sampling + interval.propensity == pytest.approx(wide.expected().half, rel=1e-9)


@pytest.mark.parametrize(
    ("case", "note", "value"),
    [
        (replace(WEIGHTS, cluster=np.zeros(24, dtype=np.int64)), "1 cluster only", None),
        (replace(WEIGHTS, ratio=np.zeros(24)), "all weights are zero", 0.0),
        (
            replace(WITH_REWARDS, ratio=np.zeros(24)),
            "all weights are zero: the log says nothing",
            float(np.mean(WITH_REWARDS.baseline)),  # type: ignore[arg-type]
        ),
        (replace(WITH_REWARDS, reward=np.full(24, 0.5), imputed=np.full(24, 0.5)), "no variation", None),
    ],
)
def test_a_refused_estimate_says_why_and_claims_nothing(case: HandMade, note: str, value: float | None) -> None:
    found = auto_estimate(case.rows, 0.9)
    interval = found.interval
    assert interval.note.startswith(note)
    assert (interval.low, interval.high, interval.vacuous) == (0.0, 1.0, True)
    assert (interval.sampling, interval.propensity, interval.level) == (1.0, 0.0, 0.9)
    assert found.disagreement == 0.0
    assert interval.centre == found.value
    if value is not None:
        assert found.value == pytest.approx(value, abs=1e-12)
    elif not case.reward.std():
        assert found.value == pytest.approx(float(np.mean(case.baseline)), abs=1e-12)  # type: ignore[arg-type]
    else:  # no λ has an error, so the first is taken
        weight = case.shrunk(float(np.median(case.ratio)) ** 2)
        assert found.value == close(case.value(weight, rewards=False))


def test_bare_weights_that_are_refused_count_as_twice_the_error_of_shrunk_ones() -> None:
    """One giant ratio leaves fewer than two effective clusters before shrinking, and enough after."""
    ratio = np.array([1.0, 1.1, 0.9, 1.2, 0.8, 1.05, 60.0])
    giant = HandMade(ratio, np.array([0.2, 0.6, 0.4, 0.7, 0.3, 0.5, 0.55]), np.arange(7) % 4, np.arange(7))
    found = auto_estimate(giant.rows)
    weight = giant.shrunk(found.lam)
    assert found.views[1].refusal
    assert weight.sum() ** 2 / (weight**2).sum() > 2
    error = 2 * giant.jackknife(weight, rewards=False)
    assert found.interval.sampling == pytest.approx(float(norm.ppf(0.975)) * error, rel=1e-9)
    assert found.interval.note == ""


def test_lambda_is_the_one_of_least_estimated_error() -> None:
    for seed in range(6):
        case = HandMade.draw(seed, row_weight=seed % 2 == 1, rewards=seed % 3 == 0)
        assert least_error_lambda(case.rows) == pytest.approx(case.chosen_lambda(), rel=1e-9)


def test_grid_of_lambda_runs_from_the_squared_median_to_ten_squared_largest() -> None:
    grid = lambda_grid(2.0, 8.0)
    assert len(grid) == 12
    assert grid[0] == pytest.approx(4.0)
    assert grid[-1] == pytest.approx(640.0)
    assert np.diff(np.log(grid)) == pytest.approx(np.full(11, np.log(160) / 11))
    tiny = lambda_grid(0.0, 0.0)
    assert tiny[0] == pytest.approx(1e-6)
    assert tiny[-1] == pytest.approx(1e-3)


def test_plugged_in_lambda_is_the_winsorised_second_moment() -> None:
    random = np.random.default_rng(3)
    ratio, reward = np.exp(random.normal(size=500)), random.random(500)
    square = np.sort((ratio * reward) ** 2)
    # The 99 % quantile of 500 numbers lies between the 495th and the 496th (at 0.99·499 = 494.01).
    cut = square[494] + 0.01 * (square[495] - square[494])
    expected = np.where(square > cut, cut, square).mean()
    assert plug_in_lambda(torch.from_numpy(ratio), torch.from_numpy(reward)) == pytest.approx(expected, rel=1e-9)
    assert plug_in_lambda(torch.zeros(4), torch.ones(4)) == 1e-12


def test_hyper_parameters_come_from_the_log_by_name() -> None:
    lam = {"lam": 9.0, "uips_tight": 0.25}
    assert log_driven(ESTIMATORS["shrinkage"], lam, 2.0) == {"lam": 9.0}
    assert log_driven(ESTIMATORS["clipped"], lam, 2.0) == {"cap": 1.5}
    assert log_driven(ESTIMATORS["ips"], lam, 2.0) == {}
    assert log_driven(ESTIMATORS["uips"], lam, 1.7) == {"lam": 9.0, "gamma": 1.7}
    assert log_driven(ESTIMATORS["uips_tight"], lam, 1.7)["lam"] == 0.25
    assert log_driven(ESTIMATORS["clipped"], {"lam": np.inf}, 2.0) == {}
    case = WEIGHTS
    square = (case.ratio * case.reward) ** 2
    winsorised = np.minimum(square, np.quantile(square, 0.99)).mean()
    expected = {"lam": case.chosen_lambda(), "uips_tight": winsorised}
    for given, lam_ in ((None, expected["lam"]), (3.0, 3.0)):
        found = chosen_lambdas(case.rows, given)
        assert {name: found[name] for name in expected} == pytest.approx({**expected, "lam": lam_}, rel=1e-9)
