"""Weights that grow ever more slowly with the ratio instead of stopping at a cap, and estimators that follow from them.

Each has one parameter that makes it plain IPS at an end of its range; `evaluation.hyper.log_driven` sets it from the
number of rows and the size of the weights as its authors advise, the defaults here are for logs of some thousand rows.
"""

from typing import Annotated

import torch
from torch import Tensor

from offpolicy.checks import Range
from offpolicy.estimators.logspace import bounded_exp, log_floor
from offpolicy.estimators.registry import estimator

UNIT = Range(0.0, 1.0, grid=(0.001, 0.01, 0.05, 0.1, 0.5))
Share = Annotated[float, UNIT]
Power = Annotated[float, Range(0.0, 1.0, grid=(0.0, 0.3, 0.5, 0.7, 1.0))]


@estimator("log_smoothing", "sakhi2024smoothing", ips_limit={"smoothing": 0.0})
def log_smoothing(log_ratio: Tensor, reward: Tensor, *, smoothing: Share = 0.01) -> Tensor:
    """w = log(1 + λρr)/(λr), so that V = mean log(1 + λρr)/λ; λ = `smoothing`, 1/√N by the log."""
    ratio = bounded_exp(log_ratio)
    x = smoothing * ratio * reward
    return ratio * torch.where(x > 0, torch.log1p(x) / x, torch.ones_like(x))


@estimator("implicit_exploration", "gabbianelli2024exploration", ips_limit={"floor": 0.0})
def implicit_exploration(log_target: Tensor, log_logging: Tensor, *, floor: Share = 0.01) -> Tensor:
    """w = π/(β̂ + floor); floor = 1/(2√N) by the log."""
    raised = torch.logaddexp(log_floor(log_logging), log_target.new_tensor(floor).log())
    return bounded_exp(log_target - raised)


@estimator("exponential_smoothing", "aouali2023exponential", ips_limit={"alpha": 1.0})
def exponential_smoothing(log_target: Tensor, log_logging: Tensor, *, alpha: Power = 0.7) -> Tensor:
    """w = π/β̂^α; α = 1 − 1/K by the log."""
    return bounded_exp(log_target - alpha * log_floor(log_logging))


@estimator("power_mean", "metelli2021subgaussian", ips_limit={"mixing": 0.0})
def power_mean(log_ratio: Tensor, *, mixing: Share = 0.01) -> Tensor:
    """w = ρ/(1 − λ + λρ), λ = `mixing`, √(ln 10/(3N·mean ρ²)) by the log."""
    ratio = bounded_exp(log_ratio)
    below = 1 - mixing + mixing * ratio
    return torch.where(ratio > 0, ratio / below, torch.zeros_like(ratio))


@estimator("log_sum_exp", "behnamnia2025lse", ips_limit={"temperature": 0.0})
def log_sum_exp(log_ratio: Tensor, reward: Tensor, *, temperature: Share = 0.01) -> Tensor:
    """w = (1 − e^{−λρr})/(λr), V = −log(1 − λ·mean wr)/λ = −log(mean e^{−λρr})/λ; λ = `temperature`, by the log.

    The one aggregate that is no mean: sums of wr still merge, and the logarithm is taken of their total.
    """
    ratio = bounded_exp(log_ratio)
    x = temperature * ratio * reward
    return ratio * torch.where(x > 0, -torch.expm1(-x) / x, torch.ones_like(x))


@estimator("beta_ips", "gupta2024baseline", constant_baseline=True, ips_limit={})
def beta_ips(log_ratio: Tensor) -> Tensor:
    """w = ρ, and a constant b in place of q̂: V = b + mean ρ(r − b), b = mean r(ρ² − ρ)/mean(ρ² − ρ), cut to [0, 1].

    The b of least variance. A learner under this name is plain IPS: give it a `reward_baseline`.
    """
    return bounded_exp(log_ratio)
