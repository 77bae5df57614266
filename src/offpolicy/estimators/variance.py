"""Weights that equalise variance: MinVar and stableVar, as their authors wrote them and as the paper prints them.

The paper normalises h over *actions*, so that the weight sits on actions the target never takes and the value tends to
0 whatever the rewards. The original methods normalise one scalar per *row*. The bare names are the original form.
"""

import torch
from torch import Tensor

from offpolicy.estimators.logspace import bounded, bounded_exp, log_floor
from offpolicy.estimators.registry import estimator


def minvar_scale(log_second_moment: Tensor) -> Tensor:
    """h = 1/Σ_a π²/β̂."""
    return bounded_exp(-bounded(log_second_moment))


def stablevar_scale(log_second_moment: Tensor) -> Tensor:
    """h = (Σ_a π²/β̂)^(−1/2)."""
    return bounded_exp(-bounded(log_second_moment) / 2)


@estimator("minvar_dr", "zhan2021adaptive", uses_reward_model=True, normaliser=minvar_scale)
@estimator("minvar", "zhan2021adaptive", normaliser=minvar_scale, aliases=("minvar_rows",))
def minvar(log_ratio: Tensor, log_second_moment: Tensor) -> Tensor:
    """w = hρ, divided by Σh; h = 1/Σ_a π(a|x)²/β̂(a|x), one scalar per row."""
    return bounded_exp(bounded(log_ratio) - bounded(log_second_moment))


@estimator("stablevar", "zhan2021adaptive", normaliser=stablevar_scale, aliases=("stablevar_rows",))
def stablevar(log_ratio: Tensor, log_second_moment: Tensor) -> Tensor:
    """w = hρ, divided by Σh; h = (Σ_a π(a|x)²/β̂(a|x))^(−1/2), one scalar per row."""
    return bounded_exp(bounded(log_ratio) - bounded(log_second_moment) / 2)


@estimator("minvar_dr_paper", "zhang2023uips", uses_reward_model=True)
@estimator("minvar_paper", "zhang2023uips")
def minvar_paper(log_target: Tensor, log_minvar_mass: Tensor) -> Tensor:
    """w = ρφ, φ = h/Σ_a h, h = β̂/π² over actions (so w = 1/(π Σ_a h)); degenerate, kept to reproduce the paper."""
    return _where_taken(log_target, -log_floor(log_target) - log_minvar_mass)


@estimator("stablevar_paper", "zhang2023uips")
def stablevar_paper(log_target: Tensor, log_logging: Tensor, log_stablevar_mass: Tensor) -> Tensor:
    """w = ρφ, φ = h/Σ_a h, h = √β̂/π over actions (so w = 1/(√β̂ Σ_a h)); degenerate, kept to reproduce the paper."""
    return _where_taken(log_target, -log_floor(log_logging) / 2 - log_stablevar_mass)


def _where_taken(log_target: Tensor, log_weight: Tensor) -> Tensor:
    """exp, and 0 where the target never takes the action."""
    weight = bounded_exp(log_weight)
    return torch.where(log_target == -torch.inf, torch.zeros_like(weight), weight)
