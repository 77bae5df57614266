import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from offpolicy.errors import ParameterError
from offpolicy.estimators import weight
from offpolicy.evaluation.intervals import (
    gamma_sensitivity,
    linearised_propensity_error,
    worst_case_self_normalised,
)
from offpolicy.evaluation.value import Terms, value

rows = st.integers(1, 8).flatmap(
    lambda n: st.tuples(
        st.lists(st.floats(-3, 3), min_size=n, max_size=n),
        st.lists(st.sampled_from([0.0, 0.1, 0.7, 2.0]), min_size=n, max_size=n),
        st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=n, max_size=n),
    )
)


def corners(log_ratio: list[float], spread: list[float]) -> NDArray[np.float64]:
    signs = np.array(list(itertools.product((-1, 1), repeat=len(spread))))
    return np.asarray(np.exp(np.array(log_ratio) + signs * np.array(spread)))  # (corners, rows)


@given(rows)
def test_ranges_are_the_extremes_over_all_corners(case: tuple[list[float], list[float], list[float]]) -> None:
    log_ratio, spread, reward = case
    w, r = corners(log_ratio, spread), np.array(reward)
    ratio = (w * r).sum(1) / w.sum(1)
    assert worst_case_self_normalised(log_ratio, spread, reward) == pytest.approx((ratio.min(), ratio.max()))


@given(rows)
def test_residuals_of_either_sign_are_thresholds_too(case: tuple[list[float], list[float], list[float]]) -> None:
    log_ratio, spread, reward = case
    w, residual = corners(log_ratio, spread), np.array(reward) - 0.4
    ratio = (w * residual).sum(1) / w.sum(1)
    found = worst_case_self_normalised(log_ratio, spread, residual)
    assert found == pytest.approx((ratio.min(), ratio.max()), abs=1e-12)


def test_no_interior_point_is_outside_and_the_range_grows_with_the_spread() -> None:
    random = np.random.default_rng(0)
    log_ratio, spread, reward = random.normal(size=500), random.gamma(1, 0.3, 500), random.random(500)
    low, high = worst_case_self_normalised(log_ratio, spread, reward)
    w = np.exp(log_ratio + spread * random.uniform(-1, 1, (2000, 500)))
    inside = (w * reward).sum(1) / w.sum(1)
    assert low < inside.min() <= inside.max() < high
    wider = worst_case_self_normalised(log_ratio, 1.5 * spread, reward)
    assert wider.low < low < high < wider.high
    assert np.ptp(worst_case_self_normalised(log_ratio, 0.0, reward)) < 1e-12


def test_the_lower_end_is_what_the_robust_estimator_answers() -> None:
    random = torch.Generator().manual_seed(1)
    log_ratio = torch.randn(200, generator=random, dtype=torch.float64)
    reward = torch.rand(200, generator=random, dtype=torch.float64)
    w = weight("ips_un", log_ratio=log_ratio, reward=reward, alpha=0.5)
    expected = value(Terms.without_reward_model(w, w, reward))
    assert worst_case_self_normalised(log_ratio.numpy(), 0.5, reward.numpy()).low == pytest.approx(expected)


def test_extreme_rows_stay_numbers() -> None:
    log_ratio = np.array([-np.inf, 500.0, 0.0, -500.0])
    low, high = worst_case_self_normalised(log_ratio, [0.0, 1000.0, 5.0, np.inf], [1.0, 0.5, 1.0, 0.0])
    assert -1e-12 <= low <= high < math.inf
    nothing = np.full(3, -np.inf)
    assert worst_case_self_normalised(nothing, 0.1, np.ones(3)) == (-math.inf, math.inf)


def propensity_terms(log_ratio: torch.Tensor, form: str, reward: torch.Tensor, q: torch.Tensor) -> Terms:
    w = log_ratio.exp()
    return Terms(w, w if form == "self_normalised" else torch.ones_like(w), reward, q, q)


@pytest.mark.parametrize("form", ["plain", "self_normalised"])
def test_the_linearised_error_adds_derivatives_within_groups_and_squares_between_them(form: str) -> None:
    random = torch.Generator().manual_seed(2)
    log_ratio, reward, q, u = torch.randn(4, 12, generator=random, dtype=torch.float64).unbind(0)
    u, group = u.abs(), torch.arange(12) % 3
    step = 1e-6
    slopes = []
    for n in range(12):
        moved = [log_ratio.clone(), log_ratio.clone()]
        moved[0][n] -= step  # log β up is log ρ down
        moved[1][n] += step
        up, down = (value(propensity_terms(ratio, form, reward, q)) for ratio in moved)
        slopes.append((up - down) / (2 * step))
    change = np.array(slopes) * u.numpy()
    terms = propensity_terms(log_ratio, form, reward, q)
    together = math.sqrt(sum(float(change[g::3].sum()) ** 2 for g in range(3)))
    assert linearised_propensity_error(terms, u, group) == pytest.approx(together, rel=1e-5)
    assert linearised_propensity_error(terms, u) == pytest.approx(math.sqrt(float((change**2).sum())), rel=1e-5)
    halved = linearised_propensity_error(terms, u, group, elasticity=torch.full((12,), 0.5))
    assert halved == pytest.approx(together / 2, rel=1e-5)


def test_the_linearised_error_is_the_spread_of_values_under_errors_shared_by_an_action() -> None:
    random = torch.Generator().manual_seed(3)
    n, actions = 2000, 10
    log_ratio = 0.5 * torch.randn(n, generator=random, dtype=torch.float64)
    action = torch.randint(0, actions, (n,), generator=random)
    reward = (torch.rand(n, generator=random) < 0.1 * (1 + action)).double()
    q, u = torch.zeros(n, dtype=torch.float64), torch.full((n,), 0.1, dtype=torch.float64)
    noise = 0.1 * torch.randn(1000, actions, generator=random, dtype=torch.float64)
    values = [value(propensity_terms(log_ratio - e[action], "self_normalised", reward, q)) for e in noise]
    terms = propensity_terms(log_ratio, "self_normalised", reward, q)
    assert linearised_propensity_error(terms, u, action) == pytest.approx(np.std(values), rel=0.08)
    assert linearised_propensity_error(terms, u) < 0.2 * np.std(values)


def test_without_weight_the_propensity_error_is_unbounded() -> None:
    zero = torch.zeros(4)
    assert linearised_propensity_error(Terms.without_reward_model(zero, zero, zero + 1), zero + 1) == math.inf
    assert linearised_propensity_error(Terms.without_reward_model(zero, zero + 1, zero + 1), zero + 1) == 0


@given(st.integers(0, 1000), st.floats(0.05, 0.95))
def test_the_tipping_gamma_is_where_bisection_finds_it(seed: int, threshold: float) -> None:
    random = np.random.default_rng(seed)
    log_ratio, reward = random.normal(size=30), np.concatenate([[0, 1], random.random(28)])
    found = gamma_sensitivity(log_ratio, reward, threshold)

    def bisected(reached: int) -> float:
        low, high = 0.0, 20.0
        for _ in range(60):
            middle = (low + high) / 2
            ends = worst_case_self_normalised(log_ratio, middle, reward)
            flips = ends.low <= threshold if reached == 0 else ends.high >= threshold
            low, high = (low, middle) if flips else (middle, high)
        return math.exp(high)

    assert found.gamma_low == pytest.approx(bisected(0), rel=1e-9)
    assert found.gamma_high == pytest.approx(bisected(1), rel=1e-9)
    assert min(found.gamma_low, found.gamma_high) == 1


def test_the_curve_is_the_worst_case_at_every_gamma() -> None:
    random = np.random.default_rng(4)
    log_ratio, reward = random.normal(size=300), random.integers(0, 2, 300) * random.random(300)
    found = gamma_sensitivity(log_ratio, reward, 0.2, gammas=(1, 1.3, 2, 50))
    slow = [worst_case_self_normalised(log_ratio, math.log(gamma), reward) for gamma in found.gammas]
    np.testing.assert_allclose(found.low, [low for low, _ in slow], rtol=1e-10)
    np.testing.assert_allclose(found.high, [high for _, high in slow], rtol=1e-10)


def test_a_threshold_out_of_reach_needs_an_infinite_gamma_and_no_weight_needs_none() -> None:
    reward = np.array([0.4, 0.6])
    assert gamma_sensitivity(np.zeros(2), reward, 0.3).gamma_low == math.inf
    assert gamma_sensitivity(np.zeros(2), reward, 0.7).gamma_high == math.inf
    nothing = gamma_sensitivity(np.full(2, -np.inf), reward, 0.5)
    assert nothing.gamma_low == nothing.gamma_high == 1
    assert (nothing.low == -np.inf).all()
    assert (nothing.high == np.inf).all()
    with pytest.raises(ParameterError, match=r"gammas must lie in \[1, inf\)"):
        gamma_sensitivity(np.zeros(2), reward, 0.5, gammas=[0.5])
