"""The interval with a proof: the bound by hand and by simulation, its order in γ, the band, and what is said of it."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hand_made import HandMade
from offpolicy import evaluate
from offpolicy.datasets import LinearSoftmaxWorld
from offpolicy.errors import ParameterError
from offpolicy.evaluation import Evaluator, Options
from offpolicy.evaluation.guaranteed import guarantee, guaranteed_interval, simultaneous_gamma, smoothed_bound
from offpolicy.evaluation.scale import Scale
from offpolicy.nuisances import Nuisances
from offpolicy.policies import UniformPolicy
from offpolicy.propensity import fit_logging_policy
from offpolicy.uncertainty import bootstrap_errors, row_uncertainty

WORLD = LinearSoftmaxWorld.draw(3, n_actions=4, dimensions=3)
LOG = WORLD.log(0, n_contexts=300, rows_per_context=1).without_propensities()


def by_hand(gain: np.ndarray, miss: float) -> float:
    """(e^{λ(V̂ − ln(1/δ)/(λC))} − 1)/λ, V̂ = mean log(1 + λy)/λ, λ = 1/√C."""
    lam = 1 / math.sqrt(len(gain))
    value = sum(math.log(1 + lam * y) / lam for y in gain) / len(gain)
    return max((math.exp(lam * (value - math.log(1 / miss) / (lam * len(gain)))) - 1) / lam, 0.0)


@given(st.integers(0, 1000), st.floats(0.001, 0.5))
def test_the_bound_is_its_formula_and_below_the_mean(seed: int, miss: float) -> None:
    gain = np.exp(2 * np.random.default_rng(seed).normal(size=50))
    found = smoothed_bound(gain, miss)
    assert found == pytest.approx(by_hand(gain, miss), rel=1e-9, abs=1e-12)
    assert 0 <= found <= gain.mean()
    assert smoothed_bound(gain, miss / 2) <= found


@pytest.mark.parametrize("spread", [0.5, 2.0])
def test_the_bound_misses_no_more_than_its_rate_even_with_heavy_tails(spread: float) -> None:
    random = np.random.default_rng(7)
    gains = np.exp(spread * random.normal(size=(2000, 100)) - spread**2 / 2)  # of mean 1
    missed = np.mean([smoothed_bound(gain, 0.2) > 1 for gain in gains])
    assert missed <= 0.2
    assert np.median([smoothed_bound(gain, 0.2) for gain in gains]) > 0.3, "it says something"


def expected(case: HandMade, gamma: float, level: float) -> tuple[float, float]:
    assert case.uncertainty is not None
    ratio = case.ratio * np.exp(-gamma * case.uncertainty)
    names = np.unique(case.cluster)
    size = np.array([case.events[case.cluster == c].sum() for c in names]).mean()
    ends = []
    for outcome in (case.reward, 1 - case.reward):
        gain = np.array([(case.events * ratio * outcome)[case.cluster == c].sum() for c in names]) / size
        ends.append(by_hand(gain, (1 - level) / 4))
    return ends[0], 1 - ends[1]


@pytest.mark.parametrize("level", [0.95, 0.8])
@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_both_ends_by_hand_over_clusters_and_events(gamma: float, level: float) -> None:
    case = HandMade.draw(3, rows=400, clusters=150, spread=0.4, uncertainty=True, row_weight=True)
    found = guaranteed_interval(case.rows, gamma, level)
    assert (found.low, found.high) == pytest.approx(expected(case, gamma, level), rel=1e-9)
    assert 0 < found.low < found.high < 1
    assert not found.vacuous


def test_a_wider_band_and_a_higher_level_widen_it() -> None:
    case = HandMade.draw(3, rows=400, clusters=150, spread=0.4, uncertainty=True)
    ends = [guaranteed_interval(case.rows, gamma, level) for gamma, level in ((0, 0.8), (0, 0.95), (0.5, 0.95))]
    for narrow, wide in itertools.pairwise(ends):
        assert wide.low < narrow.low
        assert wide.high > narrow.high


def test_the_band_is_the_largest_error_of_all_rows_over_as_many_refits_as_its_level_needs() -> None:
    beta = fit_logging_policy(LOG, "linear")
    u = row_uncertainty(beta)
    errors = bootstrap_errors(beta, 9, 0)
    assert simultaneous_gamma(beta, u, 0.8) == pytest.approx(float((errors / u).max()), rel=1e-9)
    assert simultaneous_gamma(beta, torch.zeros_like(u), 0.8) == 0.0


def test_what_is_said_counts_the_logging_policys_own_bound() -> None:
    random = np.random.default_rng(0)
    n = 20_000
    reward = random.random(n).round()
    good = HandMade(np.where(reward > 0, 1.9, 0.1), reward, np.arange(n) % 4, np.arange(n), np.zeros(n))
    found = guaranteed_interval(good.rows, 0.0)
    assert found.low > 1 - by_hand(1 - reward, 0.0125) > 0.5
    assert guarantee(good.rows, found, Scale(0, 10)).startswith("Safe to ship: with at least 95% confidence the value")
    assert f"at most {10 - 10 * by_hand(1 - reward, 0.0125):.4g}" in guarantee(good.rows, found, Scale(0, 10))
    same = HandMade(np.ones(n), reward, np.arange(n) % 4, np.arange(n), np.zeros(n))
    assert guarantee(same.rows, guaranteed_interval(same.rows, 0.0), Scale()).startswith("Not shown to be safe")


def test_evaluate_adds_it_on_request_and_says_what_it_needs() -> None:
    found = evaluate(LOG, "uniform", "linear", estimators=("snips",), interval="guaranteed", level=0.8)["policy"]
    one = found.propensity_intervals["guaranteed"]
    assert 0 <= one.low < found.value < one.high <= 1
    assert found.guarantee.startswith("Not shown to be safe")
    plain = evaluate(LOG, "uniform", "linear", estimators=("snips",))["policy"]
    assert plain.guarantee == ""
    assert "guaranteed" not in plain.propensity_intervals
    with pytest.raises(ParameterError, match="Did you mean 'guaranteed'"):
        evaluate(LOG, "uniform", "linear", interval="guarantee")
    known = Nuisances(LOG, logging_policy=UniformPolicy(4))
    with pytest.raises(ParameterError, match="fitted by fit_logging_policy"):
        _ = Evaluator(known, {"new": "uniform"}, options=Options(("snips",), interval="guaranteed")).evaluation
