"""Plain importance ratios: IPS with estimated or recorded propensities, and their DM/DR companions."""

import torch
from torch import Tensor

from offpolicy.estimators.logspace import bounded_exp
from offpolicy.estimators.registry import estimator


@estimator("sndr", "dudik2011dr", uses_reward_model=True, normaliser="weight", ips_limit={})
@estimator("dr", "dudik2011dr", uses_reward_model=True, ips_limit={})
@estimator("snips", "swaminathan2015snips", normaliser="weight", ips_limit={})
@estimator("ips", "strehl2010", ips_limit={}, aliases=("bips",))
def ips(log_ratio: Tensor) -> Tensor:
    """w = ρ, ρ = π/β̂."""
    return bounded_exp(log_ratio)


@estimator("ips_gt", "horvitz1952")
def ips_gt(recorded_log_ratio: Tensor) -> Tensor:
    """w = π/β*, with the recorded propensities β*."""
    return bounded_exp(recorded_log_ratio)


@estimator("dm", "dudik2011dr", uses_reward_model=True)
def dm(log_ratio: Tensor) -> Tensor:
    """w = 0: the reward model alone."""
    return torch.zeros_like(log_ratio)
