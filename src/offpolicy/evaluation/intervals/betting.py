"""Betting: a gambler who doubts a candidate v bets on it, cluster by cluster; the truth seldom makes anyone rich.

Under v the stakes d_c(v) = y_c − v·z_c have mean zero, so the capital Π(1 + λ_c·d_c(v)) is a fair game for any λ_c
chosen before cluster c, and reaches 2/δ with probability at most δ/2 — at any time, which is why one may look after
every batch of clusters. One gambler bets that v is too low, one that it is too high; both get rich monotonically in v,
so each end of the interval is found by refining a grid.
"""

import math
from collections.abc import Callable
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from offpolicy.evaluation.clusters import ClusteredTerms, pooled
from offpolicy.evaluation.intervals.bounded import Bound, BoundedRatio, bounded_ratios, obstacle
from offpolicy.evaluation.intervals.registry import SEED, Bounds, interval
from offpolicy.evaluation.value import Array
from offpolicy.seeding import generator

Verdicts = NDArray[np.bool_]

MOST_UNITS = 100_000
"""Above this many clusters, the gambler bets on random groups of them."""

BLOCK = 8
"""Clusters between two looks at the capital."""

GRID, ROUNDS = 33, 5
"""Candidates per round and rounds of refinement: a resolution of 32⁻⁵ of the range of v."""

STAKE = 0.75
"""Largest share of the capital that one cluster can lose."""


@interval("betting")
def betting(terms: ClusteredTerms, level: float, *, bound: Bound = math.inf, seed: Annotated[int, SEED] = 0) -> Bounds:
    """The candidates neither gambler got rich on, over clusters in a seeded order: valid for any number of clusters.

    Follows the hedged capital of Waudby-Smith and Ramdas, with bets √(2·ln(2/δ)/(C·variance so far)).
    """
    if reason := obstacle(terms, bound):
        return Bounds(-math.inf, math.inf, reason)
    parts = bounded_ratios(terms, bound)
    ends = [_ends(part, (1 - level) / len(parts), seed) for part in parts]
    return Bounds(sum(low for low, _ in ends), sum(high for _, high in ends))


def _ends(part: BoundedRatio, miss: float, seed: int) -> tuple[float, float]:
    random = generator(seed, "betting")
    clusters = len(part.numerator)
    order = random.permutation(clusters)
    units = pooled(np.stack([part.numerator, part.denominator], 1)[order], MOST_UNITS, random)
    # In units of the largest denominator: 0 ≤ z ≤ 1 and 0 ≤ y ≤ ceiling·z.
    y, z = (units / (part.largest * math.ceil(clusters / len(units)))).T
    bet = _bets(y, z, part.ceiling, miss)
    goal = math.log(2 / miss)

    def too_low(v: Array) -> Verdicts:
        return _richest(y, z, v, np.minimum(bet, _cap(v)), 1) >= goal

    def too_high(v: Array) -> Verdicts:
        return _richest(y, z, v, np.minimum(bet, _cap(part.ceiling - v)), -1) >= goal

    low = _frontier(too_low, 0.0, part.ceiling)
    high = _frontier(too_high, part.ceiling, 0.0)
    # Where both gamblers win everywhere the clusters contradict the bound; an empty set is reported as its limits.
    return (low + part.shift, high + part.shift) if low <= high else (part.shift, part.ceiling + part.shift)


def _cap(loss: Array) -> Array:
    """The largest bet when one cluster may lose `loss` a unit staked."""
    return STAKE / np.maximum(loss, 1e-12)


def _bets(y: Array, z: Array, ceiling: float, miss: float) -> Array:
    """Predictable bets (clusters, 1): each from the ratio and variance of the clusters before it."""
    count = np.arange(1, len(y) + 1)
    seen_y = np.concatenate([[0.0], y.cumsum()[:-1]]) + ceiling / 2
    seen_z = np.concatenate([[0.0], z.cumsum()[:-1]]) + 1.0
    squares = np.square((y - seen_y / seen_z * z) / ceiling)
    variance = (np.concatenate([[0.0], squares.cumsum()[:-1]]) + 0.25) / count
    return np.asarray(np.sqrt(2 * math.log(2 / miss) / (len(y) * variance)) / ceiling)[:, None]


def _richest(y: Array, z: Array, v: Array, bet: Array, sign: int) -> Array:
    """log of the largest capital ever seen, for every candidate v."""
    factor = v * -z[:, None]
    factor += y[:, None]
    factor *= sign * bet
    factor += 1.0
    whole = len(y) // BLOCK * BLOCK
    blocks = factor[:whole].reshape(-1, BLOCK, len(v)).prod(1)
    rest = factor[whole:].prod(0, keepdims=True)
    return np.asarray(np.log(np.concatenate([blocks, rest])).cumsum(0).max(0))


def _frontier(rejected: Callable[[Array], Verdicts], start: float, stop: float) -> float:
    """The last rejected candidate on the way from start to stop, where rejected ones come first; else start."""
    for _ in range(ROUNDS):
        grid = np.linspace(start, stop, GRID)
        count = int(np.logical_and.accumulate(rejected(grid)).sum())
        if count == 0:
            return start
        if count == GRID:
            return stop
        start, stop = float(grid[count - 1]), float(grid[count])
    return start
