"""Weights of slates: a row is one position of a request, and its weight may depend on the whole request.

They differ in what they assume of users (`assumes`): the less they assume, the more ratios they multiply.
"""

from torch import Tensor

from offpolicy.estimators.logspace import bounded_exp
from offpolicy.estimators.registry import estimator


@estimator("sips", "mcinerney2020rips", assumes="any", evaluation_only=True)
def sips(log_slate_ratio: Tensor) -> Tensor:
    """w = Π_m π_m/β̂_m over all positions m of the request, π_m given the actions above m."""
    return bounded_exp(log_slate_ratio)


@estimator("cascade_dr", "kiyohara2022cascade", assumes="cascade", uses_reward_model=True, evaluation_only=True)
@estimator("rips", "mcinerney2020rips", assumes="cascade")
def rips(log_cascade_ratio: Tensor) -> Tensor:
    """w = Π_{m≤l} π_m/β̂_m, the positions down to the row's own.

    With a reward model (`cascade_dr`), q̂ is of the rewards from the row's position on, and q̂(x, π) is weighed by
    Π_{m<l} π_m/β̂_m.
    """
    return bounded_exp(log_cascade_ratio)


@estimator("iips", "li2018iips", assumes="independent")
def iips(log_position_ratio: Tensor) -> Tensor:
    """w = π_l(a|x)/β̂_l(a|x), the chances of the action in the row's position whatever stands above."""
    return bounded_exp(log_position_ratio)


@estimator("pseudo_inverse", "swaminathan2017slates", assumes="additive", signed=True, evaluation_only=True)
def pseudo_inverse(slate_surplus: Tensor) -> Tensor:
    """w = 1 + Σ_m (π_m(a|x)/β̂_m(a|x) − 1) over all positions m of the request, chances as in `iips`."""
    return 1 + slate_surplus
