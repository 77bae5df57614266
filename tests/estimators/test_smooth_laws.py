"""Laws of the smooth weights: their values by the formula, their bounds, merging, errors, and λ from the log."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import reference
from hand_made import HandMade
from offpolicy.estimators import ESTIMATORS, weight
from offpolicy.evaluation import PolicyRows, chosen_lambdas, clustered, log_driven
from offpolicy.evaluation.clusters import ClusterSums
from offpolicy.evaluation.intervals import INTERVALS
from worlds import small_log

seeds = st.integers(0, 10_000)
shares = st.floats(0.01, 1.0)
log_ratios = st.lists(st.floats(-8, 8), min_size=1, max_size=20)
IPS_AT = {"log_smoothing": "smoothing", "power_mean": "mixing", "log_sum_exp": "temperature"}


def rows_of(seed: int) -> tuple[PolicyRows, reference.World]:
    sample = small_log(seed)
    return PolicyRows(sample.log, sample.inputs), sample.arrays


@given(seeds, shares)
def test_values_are_those_of_the_formulas(seed: int, share: float) -> None:
    rows, arrays = rows_of(seed)
    soft = rows.clustered(ESTIMATORS["log_sum_exp"], temperature=share)
    assert soft.value == pytest.approx(reference.log_sum_exp(arrays, share), rel=1e-9)
    smooth = rows.clustered(ESTIMATORS["log_smoothing"], smoothing=share)
    assert smooth.value == pytest.approx(reference.log_smoothing(arrays, share), rel=1e-9)


@given(seeds)
def test_beta_ips_is_its_formula_where_the_constant_is_a_possible_reward(seed: int) -> None:
    rows, arrays = rows_of(seed)
    found = rows.clustered(ESTIMATORS["beta_ips"])
    if 0 < rows.best_constant < 1 and rows.mean(rows.ratio * (rows.ratio - 1)) > 0:
        assert found.value == pytest.approx(reference.beta_ips(arrays), rel=1e-9)
    ips = rows.clustered(ESTIMATORS["ips"]).value
    assert found.value == pytest.approx(ips + rows.best_constant * (1 - rows.mean(rows.ratio)), rel=1e-9, abs=1e-12)


@given(seeds, st.floats(-0.5, 0.5))
def test_beta_ips_has_the_least_variance_among_constants(seed: int, shift: float) -> None:
    """Over the empirical law reweighted so that weights average to one, b minimises the variance of ρ(r − b) + b."""
    random = np.random.default_rng(seed)
    ratio = np.exp(random.normal(size=40))
    case = HandMade(ratio / ratio.mean(), random.random(40), random.integers(0, 4, 40), np.arange(40))
    best = case.rows.best_constant
    variance = [np.var(case.ratio * (case.reward - b) + b) for b in (best, best + shift)]
    assert 0 < best < 1
    assert variance[0] <= variance[1] * (1 + 1e-12)


def test_the_constant_counts_events_and_is_the_mean_reward_where_nothing_varies() -> None:
    case = HandMade.draw(3, row_weight=True)
    times = case.events.astype(int)
    doubled = HandMade(
        np.repeat(case.ratio, times),
        np.repeat(case.reward, times),
        np.repeat(case.action, times),
        np.repeat(case.cluster, times),
    )
    assert case.rows.best_constant == pytest.approx(doubled.rows.best_constant, rel=1e-12)
    even = HandMade(np.ones(4), np.array([0.0, 0.5, 0.5, 1.0]), np.arange(4), np.arange(4))
    assert even.rows.best_constant == 0.5
    assert even.rows.clustered(ESTIMATORS["beta_ips"]).value == 0.5


@given(log_ratios, shares, st.floats(0, 1))
def test_smooth_weights_lie_below_the_ratio_and_fall_with_their_parameter(
    log_ratio: list[float], share: float, reward: float
) -> None:
    ratio = torch.tensor(log_ratio, dtype=torch.float64).exp()
    rewards = [reward] * len(log_ratio)
    for name, parameter in IPS_AT.items():
        given_rewards = {} if name == "power_mean" else {"reward": rewards}
        more, less = (
            weight(name, log_ratio=log_ratio, **given_rewards, **{parameter: share * factor}) for factor in (1.0, 0.5)
        )
        if name == "power_mean":  # it draws ratios below 1 up towards 1
            assert bool(((more - 1).abs() <= (ratio - 1).abs() * (1 + 1e-9) + 1e-12).all())
            assert bool((more <= 1 / share + 1e-9).all())
        else:
            assert bool((more <= less * (1 + 1e-9)).all())
            assert bool((less <= ratio * (1 + 1e-9)).all())


@given(seeds, shares)
def test_soft_values_lie_between_nothing_and_ips(seed: int, share: float) -> None:
    """Jensen: −log(mean e^{−λy})/λ ≤ mean y, and log(1 + λy)/λ ≤ y."""
    rows, _ = rows_of(seed)
    ips = rows.clustered(ESTIMATORS["ips"]).value
    for name in ("log_smoothing", "log_sum_exp"):
        found = rows.clustered(ESTIMATORS[name], **{IPS_AT[name]: share}).value
        assert -1e-12 <= found <= ips + 1e-12


@given(seeds, st.floats(0, 0.5), st.floats(0, 1))
def test_implicit_exploration_and_exponential_smoothing_by_hand(seed: int, floor: float, alpha: float) -> None:
    arrays, inputs = small_log(seed).arrays, small_log(seed).inputs
    pi, beta = (np.array([arrays[p][n, a] for n, a in enumerate(arrays["action"])]) for p in ("pi", "beta"))
    found = ESTIMATORS["implicit_exploration"].terms(inputs, floor=floor)[0]
    np.testing.assert_allclose(found.numpy(), pi / (beta + floor), rtol=1e-9)
    found = ESTIMATORS["exponential_smoothing"].terms(inputs, alpha=alpha)[0]
    np.testing.assert_allclose(found.numpy(), pi / beta**alpha, rtol=1e-9)


def soft(seed: int) -> tuple[PolicyRows, Tensor]:
    rows = HandMade.draw(seed, row_weight=True).rows
    return rows, rows.cluster.long()


def test_a_log_sum_exp_merges_from_shards_and_keeps_its_error() -> None:
    rows, cluster = soft(5)
    row, temperature = ESTIMATORS["log_sum_exp"], 0.5
    whole = rows.clustered(row, temperature=temperature)
    merged = ClusterSums()
    for part in (slice(0, 7), slice(7, 24)):
        shard = ClusterSums()
        assert rows.row_weight is not None
        shard.add(rows.terms(row, part, temperature=temperature), cluster[part], rows.row_weight[part])
        merged.merge(shard)
    assert merged.finish().value == pytest.approx(whole.value, rel=1e-12)
    # The influence is the derivative: a small change of one cluster's share moves the value by it.
    step = 1e-6
    for c in range(whole.clusters):
        moved = whole.totals + step * whole.columns[c]
        assert (float(whole.values(moved)) - whole.value) / step == pytest.approx(whole.influence[c], abs=1e-5)
    assert rows.row_weight is not None
    events = rows.row_weight.numpy()
    gains = np.exp(-temperature * rows.ratio.numpy() * rows.reward.numpy())
    assert whole.value == pytest.approx(-math.log(np.average(gains, weights=events)) / temperature, rel=1e-12)


@pytest.mark.parametrize("name", ["empirical_bernstein", "betting", "empirical_likelihood"])
def test_intervals_for_means_refuse_a_log_sum_exp(name: str) -> None:
    rows, _ = soft(1)
    options: dict[str, Any] = {} if name == "empirical_likelihood" else {"bound": 1e6}
    found = INTERVALS[name](rows.clustered(ESTIMATORS["log_sum_exp"], temperature=0.5), **options)
    assert found.vacuous
    assert "needs a mean of rows" in found.note


@pytest.mark.parametrize("name", ["normal", "bootstrap"])
def test_intervals_of_any_smooth_statistic_take_a_log_sum_exp(name: str) -> None:
    rows, cluster = soft(1)
    found = INTERVALS[name](rows.clustered(ESTIMATORS["log_sum_exp"], temperature=0.5), clip=False)
    assert found.low < found.centre < found.high
    one = clustered(rows.terms(ESTIMATORS["log_sum_exp"], temperature=0.0), cluster, rows.row_weight)
    assert one.value == pytest.approx(rows.clustered(ESTIMATORS["ips"]).value, rel=1e-12)


def test_parameters_come_from_the_log_as_their_authors_set_them() -> None:
    case = HandMade.draw(2, rows=60, clusters=25)
    ratio, reward, n = case.ratio, case.reward, 25
    lam = chosen_lambdas(case.rows, 9.0)
    found = {name: log_driven(ESTIMATORS[name], lam, 2.0) for name in lam if name in ESTIMATORS}
    assert found["log_smoothing"] == {"smoothing": pytest.approx(0.2)}
    assert found["implicit_exploration"] == {"floor": pytest.approx(0.1)}
    assert found["exponential_smoothing"] == {"alpha": pytest.approx(0.75)}
    second = float(np.mean(ratio**2))
    assert found["power_mean"] == {"mixing": pytest.approx(math.sqrt(math.log(10) / (3 * second * n)))}
    scale = 2 * math.e * math.sqrt(8 / (6 * math.e))  # A of the authors at ε = 1
    adaptive = scale * math.sqrt(math.log(10) / (float(np.mean((ratio * reward) ** 2)) * n))
    assert found["log_sum_exp"] == {"temperature": pytest.approx(min(adaptive, 1.0))}
    assert found["uips_tight"]["lam"] == lam["uips_tight"]
    large = HandMade.draw(2, rows=4000, clusters=3000)
    adaptive = scale * math.sqrt(math.log(10) / (float(np.mean((large.ratio * large.reward) ** 2)) * 3000))
    assert adaptive < 1
    assert chosen_lambdas(large.rows, 9.0)["log_sum_exp"] == pytest.approx(adaptive)
