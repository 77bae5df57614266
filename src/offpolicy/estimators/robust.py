"""IPS-UN: the value under the worst logging policy within a factor e^α of β̂, in the two forms that are not inert.

Without a constraint the worst case merely rescales every weight by e^{−α}. It becomes a method when the value is
self-normalised (`ips_un`) or when each context's probabilities must still sum to one (`ips_un_simplex`).
"""

import math
from typing import Annotated

import torch
from torch import Tensor

from offpolicy.checks import Range
from offpolicy.estimators.logspace import LOG_LIMIT, bounded_exp
from offpolicy.estimators.registry import estimator

Alpha = Annotated[float, Range(0.0, LOG_LIMIT / 2, grid=(0.05, 0.1, 0.2, 0.5, 1.0))]


@estimator("ips_un", "xu2022robust", normaliser="weight", ips_limit={"alpha": 0.0}, whole_log=True)
def ips_un(log_ratio: Tensor, reward: Tensor, *, alpha: Alpha = 0.1) -> Tensor:
    """w = vρ, divided by Σw; v ∈ [e^{−α}, e^{α}] minimises Σvρr/Σvρ: e^{α} up to a reward threshold, e^{−α} above."""
    ratio = bounded_exp(log_ratio)
    order = reward.argsort(stable=True)
    sorted_ratio, sorted_reward = ratio[order].double(), reward[order].double()
    # Value when the k smallest rewards are raised and the others lowered, for every k at once.
    raised, lowered = math.exp(alpha), math.exp(-alpha)
    mass = _split_sums(sorted_ratio, raised, lowered)
    gain = _split_sums(sorted_ratio * sorted_reward, raised, lowered)
    value = torch.where(mass > 0, gain / mass.clamp(min=torch.finfo(mass.dtype).tiny), torch.inf)
    split = int(value.argmin()) if len(value) else 0
    log_factor = torch.full_like(log_ratio, -alpha)
    log_factor[order[:split]] = alpha
    return bounded_exp(log_ratio + log_factor)


def _split_sums(values: Tensor, raised: float, lowered: float) -> Tensor:
    """raised·Σ first k + lowered·Σ the rest, for k = 0..n."""
    first = torch.cat([values.new_zeros(1), values.cumsum(0)])
    return raised * first + lowered * (first[-1] - first)


@estimator("ips_un_simplex", "xu2022robust", ips_limit={"alpha": 0.0}, whole_log=True)
def ips_un_simplex(
    log_target: Tensor,
    log_logging: Tensor,
    reward: Tensor,
    context_index: Tensor,
    action: Tensor,
    *,
    alpha: Alpha = 0.1,
) -> Tensor:
    """w = π/b, b the worst logging policy with e^{−α} ≤ b/β̂ ≤ e^{α} and Σ_a b(a|x) = 1 in every context.

    In a context the worst b minimises Σ_a R_a/b_a, R_a = Σ πr over the rows of action a, so b_a = √(R_a/μ) cut to its
    interval; the multiplier μ is found by bisection so that logged actions take all mass the others can spare.
    """
    pairs, pair = torch.unique(torch.stack([context_index, action], 1), dim=0, return_inverse=True)
    contexts, owner = torch.unique(pairs[:, 0], return_inverse=True)
    logging = log_logging.new_zeros(len(pairs), dtype=torch.float64)
    logging[pair] = log_logging.double().exp()
    gain = torch.zeros_like(logging).index_add_(0, pair, bounded_exp(log_target).double() * reward.double())
    low, high = logging * math.exp(-alpha), logging * math.exp(alpha)
    zeros = torch.zeros(len(contexts), dtype=torch.float64)
    logged_mass = zeros.index_add(0, owner, logging).clamp(max=1.0)
    spare = 1 - math.exp(-alpha) * (1 - logged_mass)

    def allotted(log_root: Tensor) -> Tensor:
        # b_a = √R_a·e^{log_root}, log_root = −½ log μ, one per context.
        return torch.clamp(gain.sqrt() * torch.exp(log_root)[owner], min=low, max=high)

    smallest, largest = zeros - LOG_LIMIT, zeros + LOG_LIMIT
    for _ in range(100):
        middle = (smallest + largest) / 2
        over = zeros.index_add(0, owner, allotted(middle)) > spare
        smallest, largest = torch.where(over, smallest, middle), torch.where(over, middle, largest)
    log_worst = allotted(smallest).clamp(min=torch.finfo(torch.float64).tiny).log()
    return bounded_exp(log_target - log_worst[pair].to(log_target.dtype))
