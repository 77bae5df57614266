"""Weights that tame large ratios: caps, shrinkage, switching, selection of actions or rows."""

import math
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import softplus

from offpolicy.checks import PAPER_GRID, Range
from offpolicy.estimators.logspace import bounded, bounded_exp
from offpolicy.estimators.registry import estimator

CAP_GRID = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
Lam = Annotated[float, Range(0.0, math.inf, include_low=False, grid=PAPER_GRID)]
Cap = Annotated[float, Range(0.0, math.inf, include_low=False, grid=CAP_GRID)]
TopP = Annotated[float, Range(1.0, math.inf, integer=True, grid=(10, 20, 50, 100, 200, 500))]
Quantile = Annotated[float, Range(0.0, 1.0, grid=(0.01, 0.05, 0.1, 0.2, 0.5))]


@estimator("clipped", "strehl2010", ips_limit={"cap": math.inf}, aliases=("bips_cap", "ips_cap"))
def clipped(log_ratio: Tensor, *, cap: Cap = 10.0) -> Tensor:
    """w = min(cap, ρ)."""
    return bounded_exp(log_ratio).clamp(max=cap)


@estimator("dice_s", "dice")
def dice_s(log_target: Tensor, log_count_prob: Tensor, *, cap: Cap = 10.0) -> Tensor:
    """w = min(cap, π/β̂), β̂ = N(x,a)/N(x) counted over identical contexts.

    Not unbiased: it sums over the *observed* actions of a context only, so its value lacks π's mass on the others.
    """
    return clipped(log_target - log_count_prob, cap=cap)


@estimator("sn_shrinkage_dr", "offpolicy", uses_reward_model=True, normaliser="weight", ips_limit={"lam": math.inf})
@estimator("sn_shrinkage", "offpolicy", normaliser="weight", ips_limit={"lam": math.inf})
@estimator("shrinkage_dr", "su2020dros", uses_reward_model=True, ips_limit={"lam": math.inf})
@estimator("shrinkage", "su2020dros", ips_limit={"lam": math.inf})
def shrinkage(log_ratio: Tensor, *, lam: Lam = 10.0) -> Tensor:
    """w = λρ/(λ + ρ²) ≤ √λ/2."""
    log_ratio = bounded(log_ratio)
    return torch.exp(log_ratio - softplus(2 * log_ratio - math.log(lam)))


@estimator("switch_dr", "wang2017switch", uses_reward_model=True, ips_limit={"threshold": math.inf})
def switch_dr(log_ratio: Tensor, *, threshold: Cap = 10.0) -> Tensor:
    """w = ρ where ρ ≤ threshold, else 0 (the reward model answers there)."""
    weight = bounded_exp(log_ratio)
    return torch.where(weight <= threshold, weight, torch.zeros_like(weight))


@estimator("poxm", "lopez2021poxm", ips_limit={"top_p": math.inf})
def poxm(
    log_ratio: Tensor,
    logging_rank: Tensor,
    log_target_top: Tensor,
    log_logging_top: Tensor,
    *,
    top_p: TopP = 100.0,
) -> Tensor:
    """w = [π(a|x)/π(Φ|x)] / [β̂(a|x)/β̂(Φ|x)] where a ∈ Φ(x), the top-p actions of β̂(·|x), else 0.

    The two masses are those of the same top-p set. Where π has no mass on Φ(x) there is nothing to renormalise: w = 0.
    """
    kept = (logging_rank < top_p) & (log_target_top > -math.inf)
    log_weight = log_ratio - log_target_top.clamp(min=-torch.finfo(log_ratio.dtype).max) + log_logging_top
    return torch.where(kept, bounded_exp(log_weight), torch.zeros_like(log_ratio))


@estimator("prune", "lopez2021poxm", ips_limit={"quantile": 0.0}, whole_log=True)
def prune(log_ratio: Tensor, log_logging: Tensor, *, quantile: Quantile = 0.1) -> Tensor:
    """w = ρ·1{β̂ ≥ its quantile over the log}: rows with the smallest logging probabilities are dropped."""
    # Sorted rather than torch.quantile, which refuses more than 16 million rows.
    rank = min(int(quantile * len(log_logging)), len(log_logging) - 1)
    threshold = log_logging.sort().values[rank] if len(log_logging) else 0.0
    weight = bounded_exp(log_ratio)
    return torch.where(log_logging >= threshold, weight, torch.zeros_like(weight))
