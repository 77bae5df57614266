"""The cluster bootstrap: whole clusters are drawn with replacement, and the value recomputed from their sums."""

from typing import Annotated, Literal

import numpy as np
from scipy.special import ndtr, ndtri

from offpolicy.checks import Range
from offpolicy.evaluation.clusters import ClusterStatistic, pooled
from offpolicy.evaluation.intervals.registry import SEED, Bounds, interval
from offpolicy.evaluation.value import Array
from offpolicy.seeding import generator

Replicates = Annotated[int, Range(50, 1_000_000, integer=True)]
Kind = Literal["studentised", "percentile", "bca"]

MOST_UNITS = 10_000
"""Above this many clusters, random groups of them are drawn instead of single ones."""

BATCH = 1 << 22
"""Counts held at once (clusters × replicates): 32 MB."""


@interval("bootstrap")
def bootstrap(
    terms: ClusterStatistic,
    level: float,
    *,
    kind: Kind = "studentised",
    replicates: Replicates = 1000,
    seed: Annotated[int, SEED] = 0,
) -> Bounds:
    """Quantiles over resampled clusters: of V* (percentile), of V* corrected for bias and skew (bca), or of
    (V* − V̂)/error* (studentised, which follows skewed weights best and is the widest with few clusters).
    """
    random = generator(seed, "bootstrap")
    columns = pooled(terms.columns, MOST_UNITS, random)
    values, errors = resampled(terms, columns, replicates, random, studentise=kind == "studentised")
    tails = np.array([(1 - level) / 2, (1 + level) / 2])
    if kind == "studentised":
        difference = values - terms.value
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(difference == 0, 0.0, difference / errors)
        high, low = terms.value - np.quantile(ratio, tails, method="nearest") * terms.standard_error
        return Bounds(low, high)
    if kind == "bca":
        tails = _corrected_tails(values, terms, tails)
    low, high = np.quantile(values, tails)
    return Bounds(low, high)


def resampled(
    terms: ClusterStatistic, columns: Array, replicates: int, random: np.random.Generator, *, studentise: bool = False
) -> tuple[Array, Array]:
    """Values of resampled clusters, and their linearised errors (empty unless asked for)."""
    units, width = columns.shape
    products = (columns[:, :, None] * columns[:, None, :]).reshape(units, -1) if studentise else None
    values, errors = [], []
    batch = max(1, BATCH // units)
    for start in range(0, replicates, batch):
        size = min(batch, replicates - start)
        drawn = random.integers(0, units, (size, units)) + units * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * units).reshape(size, units).astype(np.float64)
        totals = counts @ columns
        values.append(terms.values(totals))
        if products is not None:
            # Σ_c count·(S_c·∇V)² = ∇V'·(Σ_c count·S_c S_c')·∇V, at each replicate's own gradient.
            second = (counts @ products).reshape(size, width, width)
            gradient = terms.gradient(totals)
            variance = np.einsum("bi,bij,bj->b", gradient, second, gradient)
            errors.append(np.sqrt(np.maximum(variance, 0.0) * units / (units - 1)))
    return np.concatenate(values), np.concatenate(errors) if errors else np.empty(0)


def _corrected_tails(values: Array, terms: ClusterStatistic, tails: Array) -> Array:
    """Tail shares moved for the median's bias and for the acceleration, from leave-one-out values."""
    below = np.mean(values < terms.value) + np.mean(values == terms.value) / 2
    shift = ndtri(np.clip(below, 1 / (len(values) + 1), 1 - 1 / (len(values) + 1)))
    change = terms.leave_one_out.mean() - terms.leave_one_out
    scale = np.square(change).sum() ** 1.5
    acceleration = np.power(change, 3).sum() / (6 * scale) if scale > 0 else 0.0
    moved = shift + ndtri(tails)
    return np.asarray(ndtr(shift + moved / np.maximum(1 - acceleration * moved, 1e-3)))
