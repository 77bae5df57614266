"""Γ-sensitivity: how wrong β̂ must be, by one factor in every row, before a conclusion flips."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from offpolicy.checks import Range, check_number
from offpolicy.evaluation.value import Array
from offpolicy.log import row_pieces

GAMMAS = (1.0, 1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0)
GAMMA = Range(1.0, np.inf, include_high=False)


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
    factors = np.array([check_number("gammas", float(gamma), GAMMA) for gamma in gammas])
    log_rho, outcome = np.asarray(log_ratio, dtype=np.float64), np.asarray(reward, dtype=np.float64)
    top = log_rho.max(initial=-np.inf)
    if top == -np.inf:
        nothing = np.full(len(factors), np.inf)
        return GammaSensitivity(baseline_value, 1.0, 1.0, factors, -nothing, nothing)
    ratio = np.exp(log_rho - top)
    above = below = 0.0
    for part in row_pieces(len(ratio)):
        gap = ratio[part] * (outcome[part] - baseline_value)
        above += float(gap[gap > 0].sum())
        below -= float(gap[gap < 0].sum())
    return GammaSensitivity(
        baseline_value,
        _tipping(above, below),
        _tipping(below, above),
        factors,
        _low_curve(ratio, outcome, factors, 1),
        -_low_curve(ratio, outcome, factors, -1),
    )


def _tipping(gains: float, losses: float) -> float:
    """Γ ≥ 1 with gains/Γ = losses·Γ."""
    if gains <= losses:
        return 1.0
    return float(np.sqrt(gains / losses)) if losses > 0 else np.inf


def _low_curve(ratio: Array, outcome: Array, gammas: Array, sign: int) -> Array:
    """The low end for every Γ, y = ±outcome: raise the rows with y below the value, until nothing changes."""
    squares = np.square(gammas)
    value = np.full(len(gammas), np.inf)
    limit = np.full(len(gammas), -np.inf)
    while True:
        low_mass, low_gain, mass, gain = _sums_below(ratio, outcome, sign, limit)
        # Raised by Γ against lowered by 1/Γ is a factor Γ² − 1 on top of everything.
        lower = ((squares - 1) * low_gain + gain) / ((squares - 1) * low_mass + mass)
        if not (lower < value).any():
            return value
        limit = value = np.minimum(lower, value)


def _sums_below(ratio: Array, outcome: Array, sign: int, limits: Array) -> tuple[Array, Array, float, float]:
    """Σρ and Σρy over the rows with y below each limit, and over all rows."""
    order = limits.argsort()
    mass, gain = np.zeros(len(limits) + 1), np.zeros(len(limits) + 1)
    for part in row_pieces(len(ratio)):
        y = sign * outcome[part]
        # A row with `place` limits at or below it lies below all the others.
        place = np.searchsorted(limits[order], y, side="right")
        mass += np.bincount(place, ratio[part], len(mass))
        gain += np.bincount(place, ratio[part] * y, len(gain))
    rank = order.argsort()
    return mass.cumsum()[rank], gain.cumsum()[rank], float(mass.sum()), float(gain.sum())
