"""Is one policy better than another? Paired differences, probability of improvement, many candidates at once."""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import norm

from offpolicy.evaluation.auto import AutoEstimate
from offpolicy.evaluation.clusters import ClusteredDifference, ClusteredTerms
from offpolicy.results import Comparison


def compare(
    estimates: Mapping[str, AutoEstimate],
    reference: ClusteredTerms | AutoEstimate,
    reference_name: str,
    level: float = 0.95,
) -> list[Comparison]:
    """Every candidate against one reference, in [−1, 1]; shared clusters cancel, β̂'s error does not.

    Holm's correction is over these candidates only.
    """
    comparisons = [_one(name, estimate, reference, reference_name, level) for name, estimate in estimates.items()]
    adjusted = holm([1.0 if one.p_value is None else one.p_value for one in comparisons])
    return [one.model_copy(update={"adjusted_p_value": p}) for one, p in zip(comparisons, adjusted, strict=True)]


def _one(
    name: str, estimate: AutoEstimate, reference: ClusteredTerms | AutoEstimate, reference_name: str, level: float
) -> Comparison:
    other = reference.statistic if isinstance(reference, AutoEstimate) else reference
    paired = ClusteredDifference(estimate.statistic, other)
    quantile = float(norm.ppf(0.5 + level / 2))
    sampling = paired.jackknife_error
    extra = estimate.interval.propensity / quantile
    if isinstance(reference, AutoEstimate):
        extra = float(np.hypot(extra, reference.interval.propensity / quantile))
    error = float(np.hypot(sampling, extra))
    difference = estimate.value - reference.value
    if not np.isfinite(error) or error == 0:
        unknown = not np.isfinite(error)
        p = 1.0 if unknown or difference == 0 else 0.0
        probability = 0.5 if p == 1.0 else float(difference > 0)
        low, high = (-1.0, 1.0) if unknown else (difference, difference)
    else:
        p = float(2 * norm.sf(abs(difference) / error))
        probability = float(norm.cdf(difference / error))
        low, high = max(difference - quantile * error, -1.0), min(difference + quantile * error, 1.0)
    return Comparison(
        candidate=name,
        reference=reference_name,
        difference=difference,
        low=low,
        high=high,
        probability_of_improvement=probability,
        p_value=p,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction, in the order given."""
    order = np.argsort(p_values)
    adjusted = np.empty(len(p_values))
    running = 0.0
    for rank, place in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = running
    return [float(p) for p in adjusted]


def best_by_lower_bound(estimates: Mapping[str, AutoEstimate]) -> str:
    """The candidate with the highest lower confidence bound."""
    return max(estimates, key=lambda name: estimates[name].interval.low)
