"""UIPS and its relatives: weights that know how uncertain β̂ is.

With s = γU and the interval β*/β̂ ∈ [l, h], l = e^{-s}/η, h = e^{s}/η, the paper's φ* minimises the worst case of

    T(φ, u) = λ(uφ − 1)² + ρ²φ²   over u ∈ [l, h].

The effective weight w = ρφ is at most √λ/2 whatever U and η, and φ ≤ η.
"""

import math
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import softplus

from offpolicy.checks import PAPER_GRID, Positive, Range
from offpolicy.estimators.bounded import Cap, Lam
from offpolicy.estimators.logspace import bounded, bounded_exp, log_cosh, spread
from offpolicy.estimators.registry import estimator

Gamma = Annotated[float, Range(0.0, math.inf, include_high=False, grid=PAPER_GRID)]
Eta1 = Annotated[float, Range(0.0, math.inf, include_low=False, include_high=False, grid=PAPER_GRID)]
Eta2 = Annotated[float, Range(0.0, math.inf, include_low=False, include_high=False, grid=(1.0, 10.0, 100.0, 1000.0))]


@estimator("uips_p", "zhang2023uips", ips_limit={"gamma": 0.0})
def uips_p(log_ratio: Tensor, uncertainty: Tensor, *, gamma: Gamma = 2.0) -> Tensor:
    """w = ρe^{−s}, s = γU: the pessimist, uncertain rows count less."""
    return bounded_exp(log_ratio - spread(uncertainty, gamma))


@estimator("uips_o", "zhang2023uips", ips_limit={"gamma": 0.0, "cap": math.inf})
def uips_o(log_ratio: Tensor, uncertainty: Tensor, *, gamma: Gamma = 2.0, cap: Cap = 100.0) -> Tensor:
    """w = min(cap, ρe^{s}), s = γU: the optimist; without a cap it is unbounded."""
    return bounded_exp(log_ratio + spread(uncertainty, gamma)).clamp(max=cap)


@estimator("uips_dr", "zhang2023uips", uses_reward_model=True, ips_limit={"lam": math.inf})
@estimator("snuips_dr", "offpolicy", uses_reward_model=True, normaliser="weight", ips_limit={"lam": math.inf})
@estimator("snuips", "offpolicy", normaliser="weight", ips_limit={"lam": math.inf})
@estimator("uips", "zhang2023uips", ips_limit={"lam": math.inf})
def uips(
    log_ratio: Tensor,
    uncertainty: Tensor,
    *,
    lam: Lam = 10.0,
    gamma: Gamma = 2.0,
    eta1: Eta1 = 1.0,
    eta2: Eta2 = 1.0,
) -> Tensor:
    """w = ρφ, φ = min(λ/[(λ/η1)e^{−s} + η1ρ²e^{s}], η2/cosh s), s = γU.

    lam    λ, the weight of bias against variance; w ≤ √λ/2
    gamma  γ, multiplier of the uncertainty; about 2 makes [β̂e^{−s}, β̂e^{s}] a 95 % interval where β̂ fits
    eta1   η1, ratio of the softmax normalisers in the first term; 1 when U is that of log β̂ itself
    eta2   η2, the same in the second term; the theorem has η1 = η2, the paper's experiments do not
    """
    log_ratio = bounded(log_ratio)
    s = spread(uncertainty, gamma)
    log_first = math.log(eta1) + s - softplus(2 * (math.log(eta1) + log_ratio + s) - math.log(lam))
    log_second = math.log(eta2) - log_cosh(s)
    return bounded_exp(log_ratio + torch.minimum(log_first, log_second))


@estimator("uips_tight", "offpolicy", ips_limit={"lam": math.inf})
def uips_tight(
    log_ratio: Tensor,
    uncertainty: Tensor,
    log_logging: Tensor | None = None,
    sample_size: Tensor | None = None,
    *,
    lam: Lam = 1.0,
    gamma: Gamma = 2.0,
    q2: Annotated[float, Range(0.0, 1.0, include_low=False)] = 1.0,
) -> Tensor:
    """w = ρφ, φ = min(λ/[λe^{−s} + q2ρ²e^{s}/N], 2/(e^{−s} + min(e^{s}, 1/β̂))): the bound with its 1/N and r² kept.

    Consistent as N grows and U shrinks, which the paper's φ is not; η = 1 because U is that of log β̂ itself, and the
    interval is cut at β* ≤ 1. N counts independent contexts, q2 bounds E[r²|x,a].
    """
    log_ratio = bounded(log_ratio)
    s = spread(uncertainty, gamma)
    n = float(sample_size) if sample_size is not None else float(max(len(log_ratio), 1))
    log_first = s - softplus(2 * (log_ratio + s) - math.log(lam) - math.log(n / q2))
    log_high = s if log_logging is None else torch.minimum(s, -log_logging)
    log_second = math.log(2) - torch.logaddexp(-s, log_high)
    return bounded_exp(log_ratio + torch.minimum(log_first, log_second))


@estimator("uips_clip", "offpolicy", ips_limit={"gamma": 0.0, "cap": math.inf})
def uips_clip(log_ratio: Tensor, uncertainty: Tensor, *, gamma: Gamma = 2.0, cap: Cap = 10.0) -> Tensor:
    """w = min(ρ/cosh s, cap·e^{−2s}), s = γU: the exact worst-case optimum when `cap` solves `worst_case_cap`."""
    s = spread(uncertainty, gamma)
    return torch.minimum(bounded_exp(bounded(log_ratio) - log_cosh(s)), cap * torch.exp(-2 * s))


def worst_case_cap(
    log_ratio: Tensor,
    uncertainty: Tensor,
    reward: Tensor,
    *,
    gamma: Gamma,
    sample_size: Positive | None = None,
    row_mass: Tensor | None = None,
) -> float:
    """The cap of `uips_clip`, c = N·B, B the fixed point of B = E_π[r(1 − e^{−s}φ)], for rewards in {0, 1}.

    Expectations are taken over the rows, each with `row_mass` (1/N by default); the right side decreases in B, so
    bisection finds the one root.
    """
    n = float(sample_size if sample_size is not None else len(log_ratio))
    mass = row_mass if row_mass is not None else torch.full_like(log_ratio, 1 / len(log_ratio))
    ratio, s = bounded_exp(log_ratio), spread(uncertainty, gamma)

    def remaining_bias(bias: float) -> float:
        weight = uips_clip(log_ratio, uncertainty, gamma=gamma, cap=n * bias)
        return float((mass * reward * (ratio - torch.exp(-s) * weight)).sum())

    low, high = 0.0, remaining_bias(0.0)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if remaining_bias(middle) > middle else (low, middle)
    return n * (low + high) / 2
