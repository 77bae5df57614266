"""The normal interval: estimate ± t·error, with as many degrees of freedom as clusters, less one."""

from typing import Literal

from scipy.special import stdtrit

from offpolicy.evaluation.clusters import ClusterStatistic
from offpolicy.evaluation.intervals.registry import Bounds, interval


@interval("normal")
def normal(terms: ClusterStatistic, level: float, *, error: Literal["linear", "jackknife"] = "jackknife") -> Bounds:
    """V̂ ± t·error over clusters: approximate, and too short where a few weights dominate.

    `error` is the linearised standard error, or the jackknife's: the same for many even clusters, larger for few or
    uneven ones.
    """
    spread = terms.jackknife_error if error == "jackknife" else terms.standard_error
    half = t_quantile(level, terms.clusters) * spread
    return Bounds(terms.value - half, terms.value + half)


def t_quantile(level: float, clusters: int) -> float:
    """The two-sided t quantile for a level and a number of clusters."""
    return float(stdtrit(clusters - 1, (1 + level) / 2))
