"""An interval with a proof: logarithmic smoothing at the upper end of a band that holds β of all rows at once.

For independent clusters with mean weighted reward y ≥ 0 and any fixed λ > 0, E Π(1 + λy_c) = (1 + λV)^C, so by Markov's
inequality V ≥ (exp[mean log(1 + λy_c) − ln(1/δ)/C] − 1)/λ but for a probability δ, however heavy the tails. The bound
falls as β rises, so at β̂e^{γU} it holds for β too, if β ≤ β̂e^{γU} in every logged row. That band fails with a
probability α where the family of β̂ holds the truth: γ is a quantile, over refits to logs redrawn from β̂, of the largest
|log β̂_b − log β̂|/U of all rows. The upper end is the same for 1 − r. In all it misses with probability α + 2δ; α is
one half of that.

The proof takes β̂'s family, the clusters' independence and their mean size as given; the band is a bootstrap's.
"""

import math

import numpy as np
import torch
from torch import Tensor

from offpolicy.estimators import bounded_exp, spread
from offpolicy.evaluation.intervals import Interval
from offpolicy.evaluation.rows import PolicyRows
from offpolicy.evaluation.scale import Scale
from offpolicy.evaluation.statistics import RowStatistics, Statistic
from offpolicy.evaluation.value import Array
from offpolicy.propensity import LoggingPolicy
from offpolicy.uncertainty import bootstrap_errors


def simultaneous_gamma(beta: LoggingPolicy, uncertainty: Tensor, level: float = 0.95, seed: int = 0) -> float:
    """γ of a band that holds all logged rows at once but for a probability of (1 − level)/2.

    As many refits as make the largest of their errors that quantile, and no more.
    """
    draws = math.ceil(round(2 / (1 - level), 6)) - 1
    errors = bootstrap_errors(beta, draws, seed)
    known = uncertainty > 0
    return float((errors[:, known] / uncertainty[known]).max()) if bool(known.any()) else 0.0


def guaranteed_interval(rows: RowStatistics, gamma: float, level: float = 0.95) -> Interval:
    """Both ends of the value; the band has one half of 1 − level, each end a quarter."""
    miss = (1 - level) / 4
    low = _bound(rows, _gain, miss, gamma)
    high = 1 - _bound(rows, _loss, miss, gamma)
    return Interval(low, high, level, "guaranteed", low <= 0.0 and high >= 1.0, (low + high) / 2)


def _ratio(rows: PolicyRows, gamma: float) -> Tensor:
    return bounded_exp(rows.log_ratio - spread(rows.inputs["uncertainty"], gamma)).double()


def _gain(rows: PolicyRows, gamma: float) -> Tensor:
    return _ratio(rows, gamma) * rows.reward


def _loss(rows: PolicyRows, gamma: float) -> Tensor:
    return _ratio(rows, gamma) * (1 - rows.reward)


def _missed(rows: PolicyRows) -> Tensor:
    return 1 - rows.reward.double()


def guarantee(rows: RowStatistics, found: Interval, scale: Scale) -> str:
    """In one sentence, whether the policy is shown to be better than logging, for which a quarter is left."""
    mean_above = 1 - _bound(rows, _missed, (1 - found.level) / 4)
    low, above = scale.value(found.low), scale.value(mean_above)
    ends = f"is at least {low:.4g}, and that of the logging policy at most {above:.4g}"
    if found.low > mean_above:
        return f"Safe to ship: with at least {found.level:.0%} confidence the value of the policy {ends}."
    return f"Not shown to be safe: with {found.level:.0%} confidence the value of the policy {ends}."


def _bound(rows: RowStatistics, gain: Statistic, miss: float, *given: float) -> float:
    """A lower bound on the mean of one non-negative number a row, but for a probability of `miss`."""
    kept = np.concatenate(list(rows.map(_unit_sums, gain, *given)))
    return smoothed_bound(kept[:, 0] / kept[:, 1].mean(), miss)


def _unit_sums(rows: PolicyRows, gain: Statistic, *given: float) -> Array:
    """Σ of one number a row over events, and the events, of every unit that has some."""
    values = gain(rows, *given).double()
    events = torch.ones_like(values) if rows.row_weight is None else rows.row_weight.double()
    unit = rows.unit.long()
    sums = torch.zeros(int(unit.max()) + 1, 2, dtype=torch.float64)
    sums.index_add_(0, unit, torch.stack([events * values, events], 1))
    return np.asarray(sums[sums[:, 1] > 0].numpy())


def smoothed_bound(gain: Array, miss: float) -> float:
    """(exp[mean log(1 + λy) − ln(1/δ)/C] − 1)/λ at λ = 1/√C, and never below 0."""
    count = len(gain)
    lam = 1 / math.sqrt(count)
    growth = float(np.log1p(lam * gain).mean()) - math.log(1 / miss) / count
    return max(math.expm1(growth) / lam, 0.0)
