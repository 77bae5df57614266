"""Weights that are no ratio of single actions: ratios of groups of actions, and ratios found without any β̂.

They serve evaluation only: a group's ratio says nothing about which action of it a learner should prefer, and a ratio
without β̂ would have to be found anew for every step of the policy.
"""

from torch import Tensor

from offpolicy.estimators.logspace import bounded_exp
from offpolicy.estimators.registry import estimator


@estimator("offcem", "saito2023offcem", uses_reward_model=True, evaluation_only=True)
@estimator("mips", "saito2022mips", evaluation_only=True)
def mips(log_group_ratio: Tensor) -> Tensor:
    """w = π(g|x)/β̂(g|x), sums over the actions of g, the group of the logged action.

    Right where actions of a group have the same reward in a context (`mips`), or where the reward model gets their
    differences right (`offcem`); then far less variable than ratios of single actions.
    """
    return bounded_exp(log_group_ratio)


@estimator("balanced", "sondhi2020balanced", normaliser="weight", evaluation_only=True)
def balanced(log_balanced_ratio: Tensor) -> Tensor:
    """w = P(C=1|x,a)/P(C=0|x,a), a classifier's odds that a was drawn from π(·|x) and not logged: no β̂ at all."""
    return bounded_exp(log_balanced_ratio)
