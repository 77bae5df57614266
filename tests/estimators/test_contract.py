"""Contract checks run over every row of the registry."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from offpolicy.checks import Range
from offpolicy.errors import ParameterError
from offpolicy.estimators import ESTIMATORS, INPUTS
from offpolicy.estimators.registry import REFERENCES, HyperParameter, weight
from worlds import defaults, small_log

NAMES = list(ESTIMATORS)

ASKED_FOR = [
    "ips",
    "clipped",
    "shrinkage",
    "snips",
    "minvar",
    "stablevar",
    "minvar_paper",
    "stablevar_paper",
    "uips_p",
    "uips_o",
    "uips",
    "dm",
    "dr",
    "sndr",
    "switch_dr",
    "minvar_dr",
    "shrinkage_dr",
    "uips_dr",
    "dice_s",
    "ips_un",
    "ips_un_simplex",
    "poxm",
    "prune",
    "uips_tight",
    "snuips",
    "log_smoothing",
    "implicit_exploration",
    "exponential_smoothing",
    "power_mean",
    "log_sum_exp",
    "beta_ips",
    "mips",
    "offcem",
    "balanced",
    "sips",
    "rips",
    "cascade_dr",
    "iips",
    "pseudo_inverse",
]


@pytest.mark.parametrize("name", ASKED_FOR)
def test_every_method_asked_for_has_a_row(name: str) -> None:
    assert ESTIMATORS[name].name == name


@pytest.mark.parametrize("name", NAMES)
def test_the_signature_is_a_complete_schema(name: str) -> None:
    row = ESTIMATORS[name]
    assert set(row.inputs + row.optional_inputs) <= set(INPUTS)
    assert row.reference in REFERENCES
    assert row.formula.startswith("w =")
    for parameter in row.hyper.values():
        assert parameter.check(parameter.default) == parameter.default


def outside(allowed: Range) -> list[float]:
    values = [math.nan]
    values.append(allowed.low - 1 if allowed.include_low else allowed.low)
    if not allowed.include_high:
        values.append(allowed.high)
    elif math.isfinite(allowed.high):
        values.append(allowed.high + 1)
    if allowed.integer:
        values.append(allowed.low + 0.5)
    return values


def bad_values(parameter: HyperParameter) -> list[Any]:
    return ["ten", None, True, *outside(parameter.allowed)] if parameter.allowed else [1.0, "yes"]


@pytest.mark.parametrize("name", NAMES)
def test_values_outside_the_declared_range_are_refused_by_name(name: str) -> None:
    row = ESTIMATORS[name]
    for parameter in row.hyper.values():
        for value in bad_values(parameter):
            with pytest.raises(ParameterError, match=parameter.name):
                row.check_hyper({parameter.name: value})
    with pytest.raises(ParameterError, match="nonsense"):
        row.check_hyper({"nonsense": 1.0})


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_input_is_named(name: str) -> None:
    row = ESTIMATORS[name]
    inputs = small_log(0).inputs
    for needed in row.inputs:
        with pytest.raises(ParameterError, match=needed):
            row.terms({key: value for key, value in inputs.items() if key != needed})


EXTREMES = [-math.inf, -1e4, -300.0, -1.0, 0.0, 1.0, 300.0, 1e4, math.inf]


def extreme_inputs(dtype: torch.dtype) -> dict[str, Tensor]:
    """Every combination of extreme ratios and uncertainties, probabilities from 0 to 1 among them."""
    ratio, spread = torch.cartesian_prod(
        torch.tensor(EXTREMES, dtype=dtype), torch.tensor([0.0, 1e-30, 1.0, 30.0, 1e30], dtype=dtype)
    ).unbind(1)
    rows = len(ratio)
    return {
        "log_ratio": ratio,
        "recorded_log_ratio": ratio,
        "log_target": ratio.clamp(max=0.0),
        "log_logging": -ratio.abs(),
        "uncertainty": spread,
        "reward": torch.linspace(0, 1, rows, dtype=dtype),
        "context_index": torch.arange(rows) % 3,
        "action": torch.arange(rows) % 5,
        "log_second_moment": ratio.abs(),
        "log_minvar_mass": ratio.abs(),
        "log_stablevar_mass": ratio.abs(),
        "log_count_prob": -ratio.abs().clamp(max=50.0),
        "logging_rank": torch.arange(rows),
        "log_target_top": -ratio.abs(),
        "log_logging_top": -ratio.abs(),
        "log_group_ratio": ratio,
        "log_balanced_ratio": ratio,
        "log_slate_ratio": ratio,
        "log_cascade_ratio": ratio,
        "log_position_ratio": ratio,
        "slate_surplus": torch.linspace(-3, 1e30, rows, dtype=dtype),
    }


def edge_values(parameter: HyperParameter) -> list[Any]:
    if parameter.allowed is None:
        return [True, False]
    ends = [1e-30, 1e30, parameter.allowed.low, parameter.allowed.high]
    return [value for value in ends if parameter.allowed.contains(value)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_weights_are_finite_and_non_negative_for_any_input(name: str, dtype: torch.dtype) -> None:
    row = ESTIMATORS[name]
    inputs = extreme_inputs(dtype)
    settings: list[dict[str, Any]] = [{}]
    settings += [{p.name: value} for p in row.hyper.values() for value in edge_values(p)]
    for hyper in settings:
        for part in row.terms(inputs, **hyper):
            assert part.shape == inputs["log_ratio"].shape
            assert part.dtype == dtype
            assert bool(torch.isfinite(part).all()), hyper
            assert row.signed or bool((part >= 0).all()), hyper


@pytest.mark.parametrize("name", [name for name in NAMES if not ESTIMATORS[name].signed])
def test_an_action_the_target_never_takes_weighs_nothing(name: str) -> None:
    inputs = extreme_inputs(torch.float64)
    never = inputs["log_target"] == -math.inf
    assert never.any()
    assert bool((ESTIMATORS[name].terms(inputs)[0][never] == 0).all())


@pytest.mark.parametrize("name", NAMES)
def test_inputs_are_left_alone_and_rows_may_come_in_any_order(name: str) -> None:
    inputs = small_log(3).inputs
    before = {key: value.clone() for key, value in inputs.items()}
    weights, normaliser = ESTIMATORS[name].terms(inputs, **defaults(name))
    assert all(torch.equal(inputs[key], before[key]) for key in inputs)
    order = torch.randperm(len(weights), generator=torch.Generator().manual_seed(0))
    shuffled = {key: value[order] if value.ndim else value for key, value in inputs.items()}
    again, normaliser_again = ESTIMATORS[name].terms(shuffled, **defaults(name))
    torch.testing.assert_close(again, weights[order])
    torch.testing.assert_close(normaliser_again, normaliser[order])


@pytest.mark.parametrize("name", [name for name in NAMES if ESTIMATORS[name].ips_limit is not None])
def test_the_declared_limit_is_plain_ips(name: str) -> None:
    row = ESTIMATORS[name]
    inputs = small_log(5, top_p=1e9).inputs
    inputs["uncertainty"] = torch.zeros_like(inputs["uncertainty"])
    assert row.ips_limit is not None
    weights, _ = row.terms(inputs, **row.ips_limit)
    torch.testing.assert_close(weights, inputs["log_ratio"].exp(), rtol=1e-9, atol=0)


def test_the_door_speaks_of_inputs_and_hyper_parameters() -> None:
    given = weight("uips", log_ratio=[0.0, 1.0], uncertainty=[0.1, 0.2], lam=10, gamma=2, eta1=1, eta2=1)
    assert given.shape == (2,)
    assert weight("BIPS-Cap", log_ratio=[5.0], cap=3.0).item() == 3.0
    with pytest.raises(ParameterError, match="Did you mean 'uips'"):
        weight("uipz", log_ratio=[0.0])
    with pytest.raises(ParameterError, match=r"log_ratio is NaN at row 1"):
        weight("ips", log_ratio=[0.0, math.nan])
    with pytest.raises(ParameterError, match="differ in length"):
        weight("uips", log_ratio=[0.0, 1.0], uncertainty=[0.1])
    with pytest.raises(ParameterError, match="uncertainty must be at least 0"):
        weight("uips", log_ratio=[0.0], uncertainty=[-0.1])
    with pytest.raises(ParameterError, match="no hyper-parameter 'lambda'"):
        weight("uips", log_ratio=[0.0], uncertainty=[0.1], **{"lambda": 3.0})
    with pytest.raises(ParameterError, match="one value per row"):
        weight("ips", log_ratio=[[0.0]])
