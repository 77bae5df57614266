"""Propensity error, apart from sampling error: how far the value moves when β̂ is wrong.

The worst cases assume only that each row's β lies in [β̂·e^{−s}, β̂·e^{s}], rows independently of each other: nothing
about how errors are distributed, and not that a context's probabilities sum to one. They are exact ranges, hence wide.
The linearised error assumes instead that log β̂ has a standard deviation U in each row, perfectly correlated within a
group and independent between groups, and gives a standard error.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from offpolicy.estimators.logspace import LOG_LIMIT, SPREAD_LIMIT
from offpolicy.evaluation.clusters import Array
from offpolicy.evaluation.value import Terms


class WorstCase(NamedTuple):
    """The least and greatest value; infinite where no row has weight, so that nothing is known."""

    low: float
    high: float


def worst_case_plain(log_ratio: ArrayLike, spread: ArrayLike, reward: ArrayLike) -> WorstCase:
    """Exact range of mean v·ρ·r over v ∈ [e^{−s}, e^{s}], s = `spread` per row.

    Rows are separate: each is at the end of its interval that its sign asks for. `reward` may be a residual r − q̂.
    """
    log_ratio, spread, outcome = _rows(log_ratio, spread, reward)
    if not _weighted(log_ratio):
        return WorstCase(-np.inf, np.inf)
    small = np.exp(np.minimum(log_ratio - spread, LOG_LIMIT)) * outcome
    large = np.exp(np.minimum(log_ratio + spread, LOG_LIMIT)) * outcome
    return WorstCase(float(np.minimum(small, large).mean()), float(np.maximum(small, large).mean()))


def worst_case_self_normalised(log_ratio: ArrayLike, spread: ArrayLike, reward: ArrayLike) -> WorstCase:
    """Exact range of Σvρr/Σvρ over v ∈ [e^{−s}, e^{s}], s = `spread` per row.

    A ratio of linear functions of v is least where v is large for rewards below the value and small above it, so only
    thresholds in the reward compete.
    """
    log_ratio, spread, outcome = _rows(log_ratio, spread, reward)
    if not _weighted(log_ratio):
        return WorstCase(-np.inf, np.inf)
    order = outcome.argsort(kind="stable")
    log_ratio, spread, outcome = log_ratio[order], spread[order], outcome[order]
    top = (log_ratio + spread).max()
    small, large = np.exp(log_ratio - spread - top), np.exp(log_ratio + spread - top)
    return WorstCase(_smallest_ratio(small, large, outcome), -_smallest_ratio(small[::-1], large[::-1], -outcome[::-1]))


def worst_case_doubly_robust(
    log_ratio: ArrayLike, spread: ArrayLike, residual: ArrayLike, baseline: float, *, self_normalised: bool = True
) -> WorstCase:
    """Exact range of `baseline` + Σvρ(r − q̂)/Σvρ (or /N), baseline = mean q̂(x, π): a threshold in the residual."""
    form = worst_case_self_normalised if self_normalised else worst_case_plain
    low, high = form(log_ratio, spread, residual)
    return WorstCase(baseline + low, baseline + high)


def linearised_propensity_error(
    terms: Terms, uncertainty: Tensor, group: Tensor | None = None, *, elasticity: Tensor | None = None
) -> float:
    """√Σ_g (Σ_{n∈g} ∂V/∂log β_n · U_n)²: the standard error that β̂'s own error puts into the value.

    Errors of log β̂ are perfectly correlated within a group (pass the action, or zeros for one common error) and
    independent between groups (by default every row is its own). `elasticity` is −∂log w/∂log β, 1 for ratios (the
    default); a row scale z is held fixed. First order only: for U of 1 and more use the worst case. Infinite without
    weight.
    """
    weight, normaliser = terms.weight.double(), terms.normaliser.double()
    total = float(normaliser.sum())
    if total <= 0:
        return float("inf")
    outcome = (terms.reward - terms.imputed).double()
    if torch.equal(weight, normaliser):
        outcome = outcome - (weight * outcome).sum() / total
    change = -weight * outcome / total * uncertainty.double()
    if elasticity is not None:
        change = change * elasticity.double()
    if group is not None:
        change = torch.zeros(int(group.max()) + 1, dtype=torch.float64).index_add_(0, group, change)
    return float(change.square().sum().sqrt())


def _rows(log_ratio: ArrayLike, spread: ArrayLike, outcome: ArrayLike) -> tuple[Array, Array, Array]:
    """float64 rows; one spread may stand for all."""
    ratio, values = np.asarray(log_ratio, dtype=np.float64), np.asarray(outcome, dtype=np.float64)
    wide = np.minimum(np.asarray(spread, dtype=np.float64), SPREAD_LIMIT)
    return ratio, np.broadcast_to(wide, ratio.shape), values


def _weighted(log_ratio: Array) -> bool:
    return bool((log_ratio > -np.inf).any())


def _smallest_ratio(small: Array, large: Array, outcome: Array) -> float:
    """min Σ u·y/Σ u over u_n ∈ [small_n, large_n], outcomes ascending: u is large for the first k, for the best k.

    Starting anywhere, taking k = #{y < ratio} and its ratio again only decreases and ends at the minimum.
    """
    mass, gain = _split_sums(small, large), _split_sums(small * outcome, large * outcome)
    ratio, last = float(gain[0] / mass[0]), np.inf
    while ratio < last:
        k = int(np.searchsorted(outcome, ratio))
        ratio, last = min(ratio, float(gain[k] / mass[k])), ratio
    return ratio


def _split_sums(small: Array, large: Array) -> Array:
    """Σ large over the first k + Σ small over the rest, for k = 0..n; sums from both ends, so nothing cancels."""
    first = np.concatenate([[0.0], large.cumsum()])
    rest = np.concatenate([small[::-1].cumsum()[::-1], [0.0]])
    return np.asarray(first + rest)
