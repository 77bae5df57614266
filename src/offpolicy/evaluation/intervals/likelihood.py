"""Empirical likelihood: a candidate v stands if some distribution on the clusters has mean v and is likely enough.

For unit moments g_c(v) the best such distribution is p_c = 1/(C·(1 + λ·g_c)), with λ maximising Σ log(1 + λ·g_c): a
smooth concave problem in one or two dimensions. Moments are y − v·z and, where weights are ratios, Σw − rows, because
E[w] = 1. With a bound on w, unlogged rows of the most extreme kind may carry probability too, so that few clusters do
not pretend to have seen the tail.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from scipy.special import chdtri

from offpolicy.evaluation.clusters import BASELINE, CORRECTION, NORMALISER, ROWS, WEIGHT, ClusteredTerms, pooled
from offpolicy.evaluation.intervals.bounded import NO_FORM, Bound, obstacle
from offpolicy.evaluation.intervals.normal import t_quantile
from offpolicy.evaluation.intervals.registry import Bounds, interval
from offpolicy.evaluation.value import Array
from offpolicy.seeding import generator

MOST_UNITS = 20_000
"""Above this many clusters, random groups of them are the units."""

UNSEEN = 1e-3
"""Weight of an unlogged extreme row in the dual: a barrier, whose error in the statistic is at most 2·8·UNSEEN."""

IMPLAUSIBLE = float(chdtri(1, 1e-4))
"""A mean weight of 1 is given up when its own statistic exceeds this."""

HALVINGS = 16

Divergence = Literal["likelihood", "euclidean"]


@interval("empirical_likelihood")
def empirical_likelihood(
    terms: ClusteredTerms,
    level: float,
    *,
    divergence: Divergence = "likelihood",
    ratio_weights: bool = False,
    bound: Bound = math.inf,
) -> Bounds:
    """Every v whose profile statistic stays below t², over clusters; `ratio_weights` adds the constraint E[w] = 1.

    `divergence` is Owen's likelihood or its quadratic relative in the Cressie–Read family, which ignores `bound`.
    """
    if terms.temperature:
        return Bounds(-math.inf, math.inf, NO_FORM)
    profile = Profile.of(terms, bound, divergence)
    limit = t_quantile(level, terms.clusters) ** 2
    centre, note, free = terms.value, "", 0.0
    if ratio_weights:
        free, tilt = profile.statistic(centre, slice(1, 2), IMPLAUSIBLE)
        ratio_weights = free <= IMPLAUSIBLE
        if ratio_weights:
            centre = float((tilt * profile.y).sum() / (tilt * profile.z).sum())
        else:
            note = "the mean weight is too far from 1 to be used as a constraint"
    used, free = (slice(0, 2), free) if ratio_weights else (slice(0, 1), 0.0)

    def rejected(v: float) -> bool:
        return not profile.statistic(v, used, limit + free)[0] <= limit + free

    if not math.isfinite(centre) or rejected(centre):
        half = math.sqrt(limit) * terms.jackknife_error
        return Bounds(terms.value - half, terms.value + half, "no maximum of the likelihood; a normal interval instead")
    step = math.sqrt(limit) * terms.standard_error
    return Bounds(_end(rejected, centre, -step), _end(rejected, centre, step), note, centre)


@dataclass(frozen=True, eq=False)
class Profile:
    """Units and their moments at a candidate value."""

    y: Array
    z: Array
    excess: Array
    """Σw − rows of each unit."""
    unseen: Array
    """Moments of unlogged rows: (y, z, w − 1), of a cluster of the largest size."""
    divergence: Divergence

    @classmethod
    def of(cls, terms: ClusteredTerms, bound: float, divergence: Divergence) -> Self:
        """The units of clustered terms, pooled where they are many."""
        columns = pooled(terms.columns, MOST_UNITS, generator(0, "empirical_likelihood"))
        unseen = extreme_rows(terms, bound) * columns[:, ROWS].max()
        return cls(*linear_ratio(columns, terms), columns[:, WEIGHT] - columns[:, ROWS], unseen, divergence)

    def statistic(self, v: float, used: slice, enough: float) -> tuple[float, Array]:
        """The profile statistic of the moments used, and the units' probabilities up to scale."""
        seen = np.stack([self.y - v * self.z, self.excess], 1)[:, used]
        unseen = np.stack([self.unseen[:, 0] - v * self.unseen[:, 1], self.unseen[:, 2]], 1)[:, used]
        size = np.sqrt(np.square(seen).mean(0))
        scale = np.where(size > 0, size, 1.0)
        if self.divergence == "euclidean":
            return _euclidean(seen / scale)
        return _likelihood(seen / scale, unseen / scale, enough)


def linear_ratio(columns: Array, terms: ClusteredTerms) -> tuple[Array, Array]:
    """y and z with Σy/Σz = V and the influences of V; exact but for a reward model with other divisors than rows."""
    correction, normaliser, baseline, rows = (columns[:, k] for k in (CORRECTION, NORMALISER, BASELINE, ROWS))
    if not terms.has_baseline:
        return correction, normaliser
    if terms.is_plain or terms.no_weight:
        return baseline + correction, rows
    ratio = terms.totals[CORRECTION] / terms.totals[NORMALISER]
    per_row = terms.totals[ROWS] / terms.totals[NORMALISER]
    return baseline + ratio * rows + per_row * (correction - ratio * normaliser), rows


def extreme_rows(terms: ClusteredTerms, bound: float) -> Array:
    """(y, z, w − 1) of the most extreme rows that could have been logged, one per line; none where unknown."""
    if obstacle(terms, bound) or (terms.has_baseline and not terms.is_plain):
        return np.empty((0, 3))
    residuals, baselines = ((-1.0, 1.0), (0.0, 1.0)) if terms.has_baseline else ((0.0, 1.0), (0.0,))
    return np.array(
        [
            (baseline + w * residual, 1.0 if terms.is_plain else w, w - 1)
            for baseline in baselines
            for residual in residuals
            for w in (0.0, bound)
        ]
    )


def _end(rejected: Callable[[float], bool], centre: float, step: float) -> float:
    """Where rejection starts, going from the centre by steps that double and then halve."""
    inside, outside = centre, centre + step
    for _ in range(60):
        if rejected(outside):
            break
        inside, outside = outside, outside + 2 * (outside - centre)
    else:
        return math.copysign(math.inf, step)
    for _ in range(HALVINGS):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if rejected(middle) else (middle, outside)
    return outside


def _likelihood(seen: Array, extreme: Array, enough: float) -> tuple[float, Array]:
    """2·max Σ log(1 + λ·g) and the units' probabilities up to scale; stops early once above `enough`.

    Newton's method with halving: every term is a logarithm, so steps shrink only while they leave the domain.
    """
    moments = np.concatenate([seen, extreme])
    share = np.concatenate([np.ones(len(seen)), np.full(len(extreme), UNSEEN)])
    multiplier = np.zeros(moments.shape[1])
    argument, reached = np.ones(len(moments)), 0.0
    for _ in range(100):
        slope = moments / argument[:, None]
        gradient = share @ slope
        hessian = (share[:, None] * slope).T @ slope
        step = np.linalg.lstsq(hessian, gradient, rcond=1e-14)[0]
        gain = float(gradient @ step)
        if not gain > 1e-10 or 2 * reached > enough:
            break
        for part in np.exp2(-np.arange(40.0)):
            trial = 1 + moments @ (multiplier + part * step)
            if trial.min() > 0 and (value := float(share @ np.log(trial))) >= reached + 0.1 * part * gain:
                multiplier, argument, reached = multiplier + part * step, trial, value
                break
        else:
            break
    return 2 * reached, 1 / argument[: len(seen)]


def _euclidean(seen: Array) -> tuple[float, Array]:
    """C·ḡ'·S⁻¹·ḡ with the covariance S: the quadratic member of the family; probabilities may be negative."""
    mean, centred = seen.mean(0), seen - seen.mean(0)
    multiplier = np.linalg.lstsq(centred.T @ centred / len(seen), mean, rcond=1e-14)[0]
    return float(len(seen) * mean @ multiplier), 1 - centred @ multiplier
