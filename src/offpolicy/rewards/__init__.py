"""Reward models: q̂(x, a), one protocol, fitted to a log once."""

from offpolicy.rewards.cross_fitted import CrossFittedRewards, RewardFitConfig, fit_reward_model
from offpolicy.rewards.model import RewardModel, choice_rewards, row_rewards
from offpolicy.rewards.pooled import PooledRewardModel

__all__ = [
    "CrossFittedRewards",
    "PooledRewardModel",
    "RewardFitConfig",
    "RewardModel",
    "choice_rewards",
    "fit_reward_model",
    "row_rewards",
]
