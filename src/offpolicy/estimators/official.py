"""The weights of the authors' released code, each deviation from the formulas a named switch.

The released code adds small constants inside its probabilities. They look harmless and change the method: with
K = 30,938 actions the 1e-6 dominates most logged rows and switches the shrinkage off. `OFFICIAL` holds the settings of
each released folder; the defaults of the functions are those of the synthetic (Wiki) one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from offpolicy.checks import NON_NEGATIVE, PAPER_GRID, Range
from offpolicy.estimators.bounded import Cap
from offpolicy.estimators.logspace import LOG_LIMIT, bounded_exp, spread
from offpolicy.estimators.registry import estimator
from offpolicy.estimators.uncertainty_aware import Eta1, Eta2, Gamma

Guard = Annotated[float, NON_NEGATIVE]
FiniteLam = Annotated[float, Range(0.0, math.inf, include_low=False, include_high=False, grid=PAPER_GRID)]


@dataclass(frozen=True)
class OfficialProfile:
    """Switches of one released folder; each can be set alone to ablate it."""

    ratio_guard: float
    """ρ = π/(β̂ + guard)."""
    variance_guard: float
    """π²/(β̂²e^{−s} + guard) in the first term of φ."""
    denominator_guard: float
    """Added to the denominator of the first term of φ."""
    second_term: bool = True
    """Whether φ takes the minimum with η2/cosh s."""
    eta1_on_variance: bool = True
    """Whether η1 multiplies the variance term."""
    first_epoch_cap: float | None = None
    """In the first epoch π's weight is min(ρ, cap)."""
    reward_baseline: float = 0.0
    """Subtracted from the reward while learning."""
    in_batch_softmax: bool = True
    """β̂ and π are softmaxes over the items of a batch."""
    normalise_gradients: bool = True
    """U from unit gradients with ridge d."""
    per_action_uncertainty: bool = False
    """One matrix per action instead of a shared one."""

    def weight_switches(self) -> dict[str, float | bool]:
        """The switches `uips_official` takes."""
        names = ("ratio_guard", "variance_guard", "denominator_guard", "second_term", "eta1_on_variance")
        return {name: getattr(self, name) for name in names}


OFFICIAL: Mapping[str, OfficialProfile] = {
    "wiki": OfficialProfile(1e-6, 1e-6, 1e-6, in_batch_softmax=False, per_action_uncertainty=True),
    "coat": OfficialProfile(1e-7, 1e-7, 1e-6, first_epoch_cap=1.0),
    "yahoo": OfficialProfile(1e-7, 1e-7, 1e-5, first_epoch_cap=0.05),
    "kuairec": OfficialProfile(
        1e-7,
        1e-7,
        1e-6,
        second_term=False,
        eta1_on_variance=False,
        first_epoch_cap=100.0,
        reward_baseline=0.65,
    ),
}


@estimator("clipped_official", "zhang2023uips", ips_limit={"cap": math.inf, "ratio_guard": 0.0})
def clipped_official(log_target: Tensor, log_logging: Tensor, *, cap: Cap = 10.0, ratio_guard: Guard = 1e-9) -> Tensor:
    """w = min(cap, π/(β̂ + guard))."""
    return _guarded_ratio(log_target, log_logging, ratio_guard).clamp(max=cap).to(log_target.dtype)


@estimator(
    "uips_official",
    "zhang2023uips",
    ips_limit={"lam": 1e300, "eta1": 1.0, "eta2": 1.0}
    | dict.fromkeys(("ratio_guard", "variance_guard", "denominator_guard"), 0.0),
)
def uips_official(
    log_target: Tensor,
    log_logging: Tensor,
    uncertainty: Tensor,
    *,
    lam: FiniteLam = 20.0,
    gamma: Gamma = 25.0,
    eta1: Eta1 = 2.0,
    eta2: Eta2 = 1000.0,
    ratio_guard: Guard = 1e-6,
    variance_guard: Guard = 1e-6,
    denominator_guard: Guard = 1e-6,
    second_term: bool = True,
    eta1_on_variance: bool = True,
) -> Tensor:
    """w = φπ/(β̂ + g1), φ = min(λ/[(λ/η1)e^{−s} + η1π²/(β̂²e^{−s} + g2) + g3], 2η2/(e^{s} + e^{−s})).

    The bound w ≤ √λ/2 does not survive the guards.
    """
    s = spread(uncertainty.double(), gamma)
    target, logging = bounded_exp(log_target.double()), bounded_exp(log_logging.double())
    variance = _quotient(target**2, logging**2 * torch.exp(-s) + variance_guard)
    scale = eta1 if eta1_on_variance else 1.0
    phi = lam / (lam / eta1 * torch.exp(-s) + scale * variance + denominator_guard)
    if second_term:
        phi = torch.minimum(phi, eta2 / torch.cosh(s))
    weight = phi * _guarded_ratio(log_target, log_logging, ratio_guard)
    return weight.clamp(max=math.exp(LOG_LIMIT)).to(log_target.dtype)


def _guarded_ratio(log_target: Tensor, log_logging: Tensor, guard: float) -> Tensor:
    return _quotient(bounded_exp(log_target.double()), bounded_exp(log_logging.double()) + guard)


def _quotient(numerator: Tensor, denominator: Tensor) -> Tensor:
    """A quotient in float64 that stays finite where the denominator underflows."""
    return numerator / denominator.clamp(min=math.exp(-2 * LOG_LIMIT))
