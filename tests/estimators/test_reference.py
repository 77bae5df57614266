"""Every weight against its slow twin, and the one value formula against a loop."""

import numpy as np
import pytest
import torch

import reference
from offpolicy.estimators import ESTIMATORS
from offpolicy.evaluation.value import Terms, value
from worlds import defaults, small_log

SEEDS = range(8)


def test_every_row_has_a_twin() -> None:
    assert set(reference.WEIGHTS) == set(ESTIMATORS) - {"ips_un_simplex"}


@pytest.mark.parametrize("name", list(reference.WEIGHTS))
@pytest.mark.parametrize("seed", SEEDS)
def test_weight_and_normaliser_equal_their_twins(name: str, seed: int) -> None:
    world = small_log(seed)
    hyper = defaults(name)
    weights, normaliser = ESTIMATORS[name].terms(world.inputs, **hyper)
    rows = range(len(weights))
    expected = np.array([reference.WEIGHTS[name](world.arrays, n, **hyper) for n in rows])
    np.testing.assert_allclose(weights.numpy(), expected, rtol=1e-9)
    if ESTIMATORS[name].normaliser == "weight":
        np.testing.assert_allclose(normaliser.numpy(), expected, rtol=1e-9)
    elif name in reference.NORMALISERS:
        scales = [reference.NORMALISERS[name](world.arrays, n) for n in rows]
        np.testing.assert_allclose(normaliser.numpy(), scales, rtol=1e-9)
    else:
        assert bool((normaliser == 1).all())


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_the_value_is_the_one_formula(name: str) -> None:
    world = small_log(11)
    weights, normaliser = ESTIMATORS[name].terms(world.inputs, **defaults(name))
    random = np.random.default_rng(0)
    imputed, baseline = torch.from_numpy(random.uniform(size=(2, len(weights))))
    if not ESTIMATORS[name].uses_reward_model:
        imputed, baseline = torch.zeros_like(imputed), torch.zeros_like(baseline)
    terms = Terms(weights, normaliser, world.inputs["reward"], imputed, baseline)
    expected = reference.value(
        weights.numpy(), normaliser.numpy(), world.inputs["reward"].numpy(), imputed.numpy(), baseline.numpy()
    )
    assert value(terms) == pytest.approx(expected, rel=1e-12)
