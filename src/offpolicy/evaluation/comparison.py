"""Is one policy better than another? Paired differences, probability of improvement, many candidates at once.

A difference is looked at in the same ways as a value (`views`), paired row by row so that what both policies share
cancels, and in one more way that has no value of its own: with d = (π₁ − π₂)/β̂ it is mean d(r − b), where
b = mean rd²/mean d² is the constant of least variance.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from offpolicy.estimators import bounded_exp
from offpolicy.evaluation.auto import AutoEstimate
from offpolicy.evaluation.clusters import ClusteredDifference, ClusteredTerms, ClusterSums
from offpolicy.evaluation.rows import PolicyRows
from offpolicy.evaluation.statistics import RowStatistics
from offpolicy.evaluation.value import Terms
from offpolicy.evaluation.views import View, Width, width_of
from offpolicy.results import Comparison

CLEAR = 2.0
"""Standard errors by which a candidate has to be ahead of the preferred one."""


def compare(
    estimates: Mapping[str, AutoEstimate],
    reference: AutoEstimate,
    reference_name: str,
    level: float = 0.95,
    *,
    refused: Collection[str] = (),
) -> list[Comparison]:
    """Every candidate against one reference, in [−1, 1]; shared clusters cancel, and so do shared errors of β̂.

    Holm's correction and the joint intervals are over these candidates only. A comparison with one of the policies that
    the verdict has refused keeps its interval, but claims no probability.
    """
    joint = 1 - (1 - level) / max(len(estimates), 1)
    found = []
    for name, estimate in estimates.items():
        width = difference_width(estimate, reference)
        difference = estimate.value - reference.value
        low, high = _ends(difference, width.half(level))
        joint_low, joint_high = _ends(difference, width.half(joint))
        no_claim = name in refused or reference_name in refused
        found.append(
            Comparison(
                candidate=name,
                reference=reference_name,
                difference=difference,
                low=low,
                high=high,
                joint_low=joint_low,
                joint_high=joint_high,
                refused=no_claim,
                probability_of_improvement=None if no_claim else width.probability(difference),
                p_value=None if no_claim else width.p_value(difference),
            )
        )
    adjusted = holm([1.0 if one.p_value is None else one.p_value for one in found])
    return [
        one if one.refused else one.model_copy(update={"adjusted_p_value": p})
        for one, p in zip(found, adjusted, strict=True)
    ]


def _ends(difference: float, half: float) -> tuple[float, float]:
    return max(difference - half, -1.0), min(difference + half, 1.0)


def difference_width(first: AutoEstimate, second: AutoEstimate) -> Width:
    """How wide the interval of first − second is, by the views of the difference itself."""
    if second not in first.compared:
        first.compared[second] = _difference_width(first, second)
    return first.compared[second]


def _difference_width(first: AutoEstimate, second: AutoEstimate) -> Width:
    rows = first.rows or second.rows
    assert rows is not None
    # A policy without a reward model is looked at without one, whatever the other has.
    kinds = max(len(first.shrunk), len(second.shrunk))
    sums = [(one.rows or rows).clustered_each(one.asked(kinds)) for one in (first, second)]
    views = list(map(_paired, *sums))
    bare = [*views[kinds:], View.of(_weighted_difference(rows, first.rows, second.rows))]
    shares = [one.rows.mean_ratio if one.rows is not None else 1.0 for one in (first, second)]
    misweighted = abs(shares[0] - shares[1]) * rows.reward_deviation
    by_period = None
    if first.by_period is not None and second.by_period is not None:
        by_period = ClusteredDifference(first.by_period, second.by_period)
    return width_of(views[:kinds], bare, _effects(first.effects, second.effects), misweighted, by_period)


def _paired(first: ClusteredTerms, second: ClusteredTerms) -> View:
    return View.of(ClusteredDifference(first, second))


def _effects(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """What one standard deviation of log β̂ does to the paired view: errors that both share cancel."""
    if first is None or second is None:
        return first if second is None else -second
    return first - second


def _weighted_difference(
    rows: RowStatistics, first: RowStatistics | None, second: RowStatistics | None
) -> ClusteredTerms:
    """mean d(r − b), d = ρ₁ − ρ₂, as sums per cluster; without rows of its own, a policy is the logging policy."""
    square = rows.mean_of(_squares, first, second)
    constant = rows.mean_of(_rewarded_squares, first, second) / square if square > 0 else 0.0
    return ClusteredTerms.joined(list(rows.map(_difference_sums, first, second, constant)))


def _distance(
    rows: PolicyRows, first: PolicyRows | None, second: PolicyRows | None, part: slice = slice(None)
) -> Tensor:
    one, other = (
        torch.ones_like(rows.log_ratio[part]) if each is None else bounded_exp(each.log_ratio[part]).double()
        for each in (first, second)
    )
    return one - other


def _squares(rows: PolicyRows, first: PolicyRows | None, second: PolicyRows | None) -> Tensor:
    return _distance(rows, first, second).square()


def _rewarded_squares(rows: PolicyRows, first: PolicyRows | None, second: PolicyRows | None) -> Tensor:
    return rows.reward.double() * _squares(rows, first, second)


def _difference_sums(
    rows: PolicyRows, first: PolicyRows | None, second: PolicyRows | None, constant: float
) -> ClusteredTerms:
    unit = rows.unit
    sums = ClusterSums(int(unit.max()) + 1)
    for part in rows.parts():
        weight, reward = _distance(rows, first, second, part), rows.reward[part].double()
        # |d| is the weight and the sign belongs to the outcome, so that clusters with weight are counted as such.
        terms = Terms.without_reward_model(weight.abs(), torch.ones_like(weight), weight.sign() * (reward - constant))
        sums.add(terms, unit[part].long(), None if rows.row_weight is None else rows.row_weight[part])
    return sums.finish(rows.first_unit)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction, in the order given."""
    order = np.argsort(p_values)
    adjusted = np.empty(len(p_values))
    running = 0.0
    for rank, place in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = running
    return [float(p) for p in adjusted]


def best_by_value(
    estimates: Mapping[str, AutoEstimate], level: float, prefer: str | None, logging: AutoEstimate | None = None
) -> tuple[str, float]:
    """The candidate with the highest value, and its lower bound at a level at which the bounds of all hold at once.

    A lower bound prefers timid policies: it answers whether to ship, not which one. A candidate takes the place of the
    preferred one only if it is clearly ahead of it, so that noise does not decide; or if it is estimated to be better
    and proven to be better than `logging`, all candidates counted, which the preferred one is not even by itself.
    """
    joint = 1 - (1 - level) / max(len(estimates), 1)
    best = max(estimates, key=lambda name: estimates[name].value)
    if prefer is not None and prefer in estimates:
        start = estimates[prefer]
        gains = {name: one.value - start.value for name, one in estimates.items() if name != prefer}
        clear = [name for name, gain in gains.items() if _is_ahead(gain, difference_width(estimates[name], start))]
        if not clear and logging is not None:
            unproven = _gain_low(start, logging, level) <= 0
            better = [name for name, gain in gains.items() if unproven and gain > 0]
            clear = [name for name in better if _gain_low(estimates[name], logging, joint) > 0]
        best = max(clear, key=lambda name: gains[name], default=prefer)
    return best, max(estimates[best].value - estimates[best].width.half(joint), 0.0)


def _is_ahead(gain: float, width: Width) -> bool:
    """Whether a difference is beyond noise, and no view of it says the opposite by a standard error.

    How far the views are apart does not count: where the preferred one is hardly supported they always are.
    """
    return not width.refusal and gain > CLEAR * width.scale and width.least > -width.scale


def _gain_low(one: AutoEstimate, logging: AutoEstimate, level: float) -> float:
    """The lower end of the interval of what a candidate gains over logging."""
    return one.value - logging.value - difference_width(one, logging).half(level)


def best_by_lower_bound(estimates: Mapping[str, AutoEstimate], level: float = 0.95) -> tuple[str, float]:
    """The candidate with the highest lower confidence bound, and that bound.

    The highest of several bounds is a selection, so every bound is taken at a level at which all hold at once.
    """
    joint = 1 - (1 - level) / max(len(estimates), 1)
    bounds = {name: max(one.value - one.width.half(joint), 0.0) for name, one in estimates.items()}
    best = max(bounds, key=lambda name: (bounds[name], estimates[name].value))
    return best, bounds[best]
