"""Empirical Bernstein: holds for every number of clusters, at the price of width."""

import math

import numpy as np

from offpolicy.evaluation.clusters import ClusteredTerms
from offpolicy.evaluation.intervals.bounded import Bound, BoundedRatio, bounded_ratios, obstacle
from offpolicy.evaluation.intervals.registry import Bounds, interval


@interval("empirical_bernstein")
def empirical_bernstein(terms: ClusteredTerms, level: float, *, bound: Bound = math.inf) -> Bounds:
    """|mean d(v)| ≤ √(2·var d(v)·ln(4/δ)/C) + 7·range·ln(4/δ)/(3(C − 1)), solved for v; d_c(v) = y_c − v·z_c.

    For clusters of one size and z = 1 this is the inequality of Maurer and Pontil for cluster means of w·r in
    [0, bound]; larger clusters than average scale the range by their relative size.
    """
    if reason := obstacle(terms, bound):
        return Bounds(-math.inf, math.inf, reason)
    parts = bounded_ratios(terms, bound)
    ends = [_ends(part, (1 - level) / len(parts)) for part in parts]
    return Bounds(sum(low for low, _ in ends), sum(high for _, high in ends))


def _ends(part: BoundedRatio, miss: float) -> tuple[float, float]:
    """The candidates v at which the inequality holds, at a probability of missing."""
    y, z, count = part.numerator, part.denominator, len(part.numerator)
    log_term = math.log(4 / miss)
    ratio = y.sum() / z.sum() if z.sum() > 0 else 0.0
    (var, cov), (_, var_z) = np.cov(y - ratio * z, z)
    slack = 7 * part.ceiling * part.largest * log_term / (3 * (count - 1))
    factor = 2 * log_term / count

    def reach(cov: float) -> float:
        # The larger root t of (t·mean z − slack)² = factor·(var − 2·t·cov + t²·var_z): v = ratio ± t.
        square = z.mean() ** 2 - factor * var_z
        if square <= 0:
            return math.inf
        half = slack * z.mean() - factor * cov
        return float((half + math.sqrt(max(half**2 - square * (slack**2 - factor * var), 0.0))) / square)

    low, high = max(ratio - reach(-cov), 0.0), min(ratio + reach(cov), part.ceiling)
    return low + part.shift, high + part.shift
