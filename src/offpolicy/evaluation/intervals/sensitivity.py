"""Γ-sensitivity: how wrong β̂ must be, by one factor in every row, before a conclusion flips."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from offpolicy.checks import Range, check_number
from offpolicy.evaluation.value import Array
from offpolicy.log import row_pieces

GAMMAS = (1.0, 1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0)
GAMMA = Range(1.0, np.inf, include_high=False)
Each: TypeAlias = Callable[..., Iterable[Any]]
"""A map over the shards of some rows, in their order."""


@dataclass(frozen=True, eq=False)
class GammaSensitivity:
    """Ranges of the self-normalised value when every β lies within a factor Γ of β̂, and where they reach a value."""

    threshold: float
    gamma_low: float
    """Least Γ at which the low end reaches the threshold: 1 if the value is not above it, infinite if never."""
    gamma_high: float
    """Least Γ at which the high end reaches the threshold: 1 if the value is not below it, infinite if never."""
    gammas: Array
    low: Array
    high: Array


def gamma_sensitivity(
    log_ratio: ArrayLike, reward: ArrayLike, baseline_value: float, *, gammas: Sequence[float] = GAMMAS
) -> GammaSensitivity:
    """Γ at which Σvρr/Σvρ, v ∈ [1/Γ, Γ] per row, can reach `baseline_value` (say, the logging policy's value t).

    The low end is at or below t iff Σρ(r − t)₊/Γ ≤ Γ·Σρ(r − t)₋, so Γ² is the ratio of gains to losses: exact, without
    search. The curve over `gammas` takes a few passes. `reward` may be a residual, q̂'s mean taken off the threshold.
    """
    log_rho, outcome = np.asarray(log_ratio, dtype=np.float64), np.asarray(reward, dtype=np.float64)
    return sensitivity_over(lambda work, *given: [work(log_rho, outcome, *given)], baseline_value, gammas=gammas)


def sensitivity_over(each: Each, baseline_value: float, *, gammas: Sequence[float] = GAMMAS) -> GammaSensitivity:
    """The same for rows in shards: `each(work, ...)` is work(log ρ, reward, ...) of every shard."""
    factors = np.array([check_number("gammas", float(gamma), GAMMA) for gamma in gammas])
    top = max(each(_top))
    if top == -np.inf:
        nothing = np.full(len(factors), np.inf)
        return GammaSensitivity(baseline_value, 1.0, 1.0, factors, -nothing, nothing)
    above, below = _added(each(_gaps, top, baseline_value))
    low, high = (_low_curve(each, top, factors, sign) for sign in (1, -1))
    return GammaSensitivity(baseline_value, _tipping(above, below), _tipping(below, above), factors, low, -high)


def _added(parts: Iterable[Any]) -> Any:
    """The sum of arrays, in their order."""
    found = iter(parts)
    return sum(found, start=next(found))


def _top(log_rho: Array, outcome: Array) -> float:
    return float(log_rho.max(initial=-np.inf))


def _gaps(log_rho: Array, outcome: Array, top: float, value: float) -> Array:
    """Σ of ρ(r − t) above and below the threshold."""
    above = below = 0.0
    for part in row_pieces(len(log_rho)):
        gap = np.exp(log_rho[part] - top) * (outcome[part] - value)
        above += float(gap[gap > 0].sum())
        below -= float(gap[gap < 0].sum())
    return np.array([above, below])


def _tipping(gains: float, losses: float) -> float:
    """Γ ≥ 1 with gains/Γ = losses·Γ."""
    if gains <= losses:
        return 1.0
    return float(np.sqrt(gains / losses)) if losses > 0 else np.inf


def _low_curve(each: Each, top: float, gammas: Array, sign: int) -> Array:
    """The low end for every Γ, y = ±outcome: raise the rows with y below the value, until nothing changes."""
    squares = np.square(gammas)
    value = np.full(len(gammas), np.inf)
    limit = np.full(len(gammas), -np.inf)
    while True:
        order = limit.argsort()
        mass, gain = _added(each(_sums_between, top, sign, limit[order]))
        rank = order.argsort()
        low_mass, low_gain = mass.cumsum()[rank], gain.cumsum()[rank]
        # Raised by Γ against lowered by 1/Γ is a factor Γ² − 1 on top of everything.
        lower = ((squares - 1) * low_gain + gain.sum()) / ((squares - 1) * low_mass + mass.sum())
        if not (lower < value).any():
            return value
        limit = value = np.minimum(lower, value)


def _sums_between(log_rho: Array, outcome: Array, top: float, sign: int, limits: Array) -> Array:
    """Σρ and Σρy over the rows with y between ascending limits."""
    mass, gain = np.zeros(len(limits) + 1), np.zeros(len(limits) + 1)
    for part in row_pieces(len(log_rho)):
        ratio, y = np.exp(log_rho[part] - top), sign * outcome[part]
        # A row with `place` limits at or below it lies below all the others.
        place = np.searchsorted(limits, y, side="right")
        mass += np.bincount(place, ratio, len(mass))
        gain += np.bincount(place, ratio * y, len(gain))
    return np.stack([mass, gain])
