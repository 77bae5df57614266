"""The Pareto shape of weights: recovered from samples, invariant to scale, unknown where there is no tail."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import genpareto

from offpolicy.evaluation.tails import pareto_shape


@pytest.mark.parametrize("shape", [-0.2, 0.0, 0.3, 0.5, 0.8, 1.2])
def test_the_shape_of_a_generalised_pareto_sample_is_found(shape: float) -> None:
    found = [pareto_shape(genpareto.rvs(shape, size=20_000, random_state=seed)) for seed in range(12)]
    assert np.mean([k or 0.0 for k in found]) == pytest.approx(shape, abs=0.06)


@pytest.mark.parametrize("shape", [0.2, 0.7, 1.1])
def test_it_is_close_to_the_likeliest_shape_of_the_same_tail(shape: float) -> None:
    weight = np.sort(genpareto.rvs(shape, size=10_000, random_state=3))
    tail = weight[-300:] - weight[-301]  # 3·√10,000 of them
    likeliest = genpareto.fit(tail, floc=0)[0]
    assert pareto_shape(weight) == pytest.approx((300 * likeliest + 10 * 0.5) / 310, abs=0.03)


@given(st.integers(0, 1000), st.floats(1e-6, 1e6))
def test_scale_and_order_do_not_matter(seed: int, scale: float) -> None:
    weight = np.exp(np.random.default_rng(seed).normal(size=200))
    assert pareto_shape(scale * weight[::-1]) == pytest.approx(pareto_shape(weight), abs=1e-6)


def test_there_is_no_tail_in_few_or_equal_weights() -> None:
    assert pareto_shape(np.exp(np.random.default_rng(0).normal(size=24))) is None
    assert pareto_shape(np.ones(1000)) is None
    assert pareto_shape(np.concatenate([np.ones(1000), [2.0, 3.0]])) is None
    assert pareto_shape(np.zeros(0)) is None


def test_weights_above_many_equal_ones_are_a_tail() -> None:
    above = 1 + genpareto.rvs(0.9, size=60, random_state=1)
    found = pareto_shape(np.concatenate([np.ones(2000), above]))
    assert found == pytest.approx(0.9, abs=0.3)
