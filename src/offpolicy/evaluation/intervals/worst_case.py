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

from offpolicy.estimators import SPREAD_LIMIT
from offpolicy.evaluation.intervals.sensitivity import Each
from offpolicy.evaluation.value import Array, Terms
from offpolicy.log import row_pieces


class WorstCase(NamedTuple):
    """The least and greatest value; infinite where no row has weight, so that nothing is known."""

    low: float
    high: float


def worst_case_self_normalised(log_ratio: ArrayLike, spread: ArrayLike, reward: ArrayLike) -> WorstCase:
    """Exact range of Σvρr/Σvρ over v ∈ [e^{−s}, e^{s}], s = `spread` per row.

    A ratio of linear functions of v is least where v is large for rewards below the value and small above it. `reward`
    may be a residual r − q̂.
    """
    given = _rows(log_ratio, spread, reward)
    return worst_case_over(lambda work, *more: [work(*given, *more)])


def worst_case_over(each: Each) -> WorstCase:
    """The same for rows in shards: `each(work, ...)` is work(log ρ, spread, reward, ...) of every shard."""
    top = max(each(_highest))
    if top == -np.inf:
        return WorstCase(-np.inf, np.inf)
    return WorstCase(_smallest_ratio(each, top, 1), -_smallest_ratio(each, top, -1))


def _highest(log_ratio: Array, spread: Array, outcome: Array) -> float:
    if not bool((log_ratio > -np.inf).any()):
        return -np.inf
    return max(float((log_ratio[part] + spread[part]).max()) for part in row_pieces(len(log_ratio)))


def linearised_propensity_error(
    terms: Terms, uncertainty: Tensor, group: Tensor | None = None, *, elasticity: Tensor | None = None
) -> float:
    """√Σ_g (Σ_{n∈g} ∂V/∂log β_n · U_n)²: the standard error that β̂'s own error puts into the value."""
    return float(propensity_effects(terms, uncertainty, group, elasticity=elasticity).norm())


def propensity_effects(
    terms: Terms,
    uncertainty: Tensor,
    group: Tensor | None = None,
    *,
    elasticity: Tensor | None = None,
    sums: tuple[float, float] | None = None,
) -> Tensor:
    """Σ_{n∈g} ∂V/∂log β_n · U_n of each group: the effect of one standard deviation of log β̂ on the value.

    Errors of log β̂ are perfectly correlated within a group (pass the action, or zeros for one common error) and
    independent between groups (by default every row is its own). `elasticity` is −∂log w/∂log β, 1 for ratios (the
    default); a row scale z is held fixed. First order only: for U of 1 and more use the worst case. Infinite without
    weight. Where these rows are a part of all, `sums` are Σ w(r − q̂) and Σ z of all, and the effects of parts add up.
    """
    weight, normaliser = terms.weight.double(), terms.normaliser.double()
    total = float(normaliser.sum()) if sums is None else sums[1]
    size = len(weight) if group is None else int(group.max()) + 1
    if total <= 0:
        return torch.full((size,), torch.inf, dtype=torch.float64)
    centre = 0.0
    if weight is normaliser or torch.equal(weight, normaliser):
        gain = sums[0] if sums is not None else _gain(terms, weight)
        centre = gain / total
    effects = torch.zeros(size, dtype=torch.float64)
    for part in row_pieces(len(weight)):
        change = weight[part] * (_outcome(terms, part) - centre) / total * uncertainty[part].double()
        if elasticity is not None:
            change *= elasticity[part].double()
        if group is None:
            effects[part] = change
        else:
            effects.index_add_(0, group[part], change)
    return effects


def _gain(terms: Terms, weight: Tensor) -> float:
    return sum(float(weight[part] @ _outcome(terms, part)) for part in row_pieces(len(weight)))


def _rows(log_ratio: ArrayLike, spread: ArrayLike, outcome: ArrayLike) -> tuple[Array, Array, Array]:
    """float64 rows; one spread may stand for all."""
    ratio, values = np.asarray(log_ratio, dtype=np.float64), np.asarray(outcome, dtype=np.float64)
    wide = np.minimum(np.asarray(spread, dtype=np.float64), SPREAD_LIMIT)
    return ratio, np.broadcast_to(wide, ratio.shape), values


def _outcome(terms: Terms, part: slice) -> Tensor:
    return (terms.reward[part] - terms.imputed[part]).double()


def _smallest_ratio(each: Each, top: float, sign: int) -> float:
    """min Σ u·y/Σ u over log u_n ∈ log ρ_n ± s_n, y = ±outcome: u is large exactly where y is below the minimum.

    Starting anywhere, raising u where y is below the ratio and taking the ratio again only decreases it and ends at
    the minimum, after a few rounds.
    """
    ratio, last = np.inf, np.inf
    threshold = -np.inf
    while True:
        mass, gain = np.sum(list(each(_raised_sums, top, sign, threshold)), axis=0)
        ratio, last = min(ratio, float(gain / mass)), ratio
        if not ratio < last:
            return ratio
        threshold = ratio


def _raised_sums(log_ratio: Array, spread: Array, outcome: Array, top: float, sign: int, threshold: float) -> Array:
    """Σ u and Σ u·y with u raised where y is below the threshold."""
    mass = gain = 0.0
    for part in row_pieces(len(outcome)):
        y = sign * outcome[part]
        u = np.exp(log_ratio[part] - top + np.where(y < threshold, spread[part], -spread[part]))
        mass += float(u.sum())
        gain += float(u @ y)
    return np.array([mass, gain])
