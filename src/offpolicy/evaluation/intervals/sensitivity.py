"""Γ-sensitivity: how wrong β̂ must be, by one factor in every row, before a conclusion flips."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from offpolicy.checks import Range, check_number
from offpolicy.evaluation.clusters import Array

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
    search. The curve over `gammas` needs one sort. `reward` may be a residual, with q̂'s mean taken off the threshold.
    """
    factors = np.array([check_number("gammas", float(gamma), GAMMA) for gamma in gammas])
    log_rho, outcome = np.asarray(log_ratio, dtype=np.float64), np.asarray(reward, dtype=np.float64)
    top = log_rho.max(initial=-np.inf)
    if top == -np.inf:
        nothing = np.full(len(factors), np.inf)
        return GammaSensitivity(baseline_value, 1.0, 1.0, factors, -nothing, nothing)
    ratio = np.exp(log_rho - top)
    above = float((ratio * np.maximum(outcome - baseline_value, 0)).sum())
    below = float((ratio * np.maximum(baseline_value - outcome, 0)).sum())
    order = outcome.argsort(kind="stable")
    ratio, outcome = ratio[order], outcome[order]
    return GammaSensitivity(
        baseline_value,
        _tipping(above, below),
        _tipping(below, above),
        factors,
        _low_curve(ratio, outcome, factors),
        -_low_curve(ratio[::-1], -outcome[::-1], factors),
    )


def _tipping(gains: float, losses: float) -> float:
    """Γ ≥ 1 with gains/Γ = losses·Γ."""
    if gains <= losses:
        return 1.0
    return float(np.sqrt(gains / losses)) if losses > 0 else np.inf


def _low_curve(ratio: Array, outcome: Array, gammas: Array) -> Array:
    """The low end for every Γ, outcomes ascending: raise the first k, k = #{r < value}, until nothing changes."""
    mass = np.concatenate([[0.0], ratio.cumsum()])
    gain = np.concatenate([[0.0], (ratio * outcome).cumsum()])
    squares = np.square(gammas)
    # Raised by Γ against lowered by 1/Γ is a factor Γ² − 1 on top of everything.
    value = np.full(len(gammas), gain[-1] / mass[-1])
    while True:
        k = np.searchsorted(outcome, value)
        lower = ((squares - 1) * gain[k] + gain[-1]) / ((squares - 1) * mass[k] + mass[-1])
        if not (lower < value).any():
            return np.asarray(np.minimum(lower, value))
        value = np.minimum(lower, value)
