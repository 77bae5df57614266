"""Every weight against its slow twin, and the one value formula against a loop."""

from typing import Any

import numpy as np
import pytest
import torch

import reference
from offpolicy.estimators import ESTIMATORS, OFFICIAL
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


OFF_DEFAULT: dict[str, Any] = {
    "lam": 0.6,
    "gamma": 0.7,
    "eta1": 0.6,
    "eta2": 0.5,
    "cap": 0.8,
    "threshold": 0.9,
    "quantile": 0.4,
    "q2": 0.3,
    "alpha": 0.9,
    "top_p": 1.0,
    "ratio_guard": 0.1,
    "variance_guard": 0.05,
    "denominator_guard": 0.4,
    "second_term": False,
    "eta1_on_variance": False,
    "smoothing": 0.8,
    "floor": 0.2,
    "mixing": 0.4,
    "temperature": 0.7,
}
"""For each hyper-parameter a value that is not its default and bites in a tiny world."""

HYPER = [(name, parameter) for name in reference.WEIGHTS for parameter in ESTIMATORS[name].hyper]


def against_twin(name: str, seed: int, hyper: dict[str, Any]) -> Any:
    world = small_log(seed, top_p=hyper.get("top_p", 2.0))
    weights = ESTIMATORS[name].terms(world.inputs, **hyper)[0].numpy()
    expected = [reference.WEIGHTS[name](world.arrays, n, **hyper) for n in range(len(weights))]
    np.testing.assert_allclose(weights, expected, rtol=1e-9)
    return weights


@pytest.mark.parametrize(("name", "parameter"), HYPER)
def test_every_hyper_parameter_off_its_default_is_its_twins(name: str, parameter: str) -> None:
    switches = {key for key, known in ESTIMATORS[name].hyper.items() if known.allowed is None}
    off = {key: known.default if key in switches else OFF_DEFAULT[key] for key, known in ESTIMATORS[name].hyper.items()}
    changed = off | {parameter: OFF_DEFAULT[parameter] if parameter in switches else defaults(name)[parameter]}
    both = [[against_twin(name, seed, hyper) for seed in SEEDS] for hyper in (off, changed)]
    assert not np.allclose(both[0], both[1], rtol=1e-6)  # it matters here
    for seed in SEEDS:
        against_twin(name, seed, defaults(name) | {parameter: OFF_DEFAULT[parameter]})


@pytest.mark.parametrize("folder", list(OFFICIAL))
def test_the_switches_of_every_released_folder_are_its_twins(folder: str) -> None:
    for seed in SEEDS:
        for hyper in ({"gamma": 0.7, "eta2": 0.5}, {"lam": 0.3, "eta1": 5.0}):
            given = defaults("uips_official") | OFFICIAL[folder].weight_switches() | hyper
            against_twin("uips_official", seed, given)


def test_the_settings_of_the_released_folders() -> None:
    """Guards, terms and first-epoch caps as the released scripts have them."""
    found = {
        name: (
            p.ratio_guard,
            p.variance_guard,
            p.denominator_guard,
            p.second_term,
            p.eta1_on_variance,
            p.first_epoch_cap,
        )
        for name, p in OFFICIAL.items()
    }
    assert found == {
        "wiki": (1e-6, 1e-6, 1e-6, True, True, None),
        "coat": (1e-7, 1e-7, 1e-6, True, True, 1.0),
        "yahoo": (1e-7, 1e-7, 1e-5, True, True, 0.05),
        "kuairec": (1e-7, 1e-7, 1e-6, False, False, 100.0),
    }


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
