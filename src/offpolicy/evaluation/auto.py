"""The estimate to rely on: several views of the value, their disagreement, and an interval with β̂'s own error in it.

Neither weights alone nor a reward model is right everywhere when propensities are estimated, nor is shrinking the
weights or leaving them alone. So the value is looked at in four ways: self-normalised weights, shrunk or not, with or
without a reward model. The shrunk weights with a reward model (where there is one) give the estimate, and the interval
around it has two parts:

- *sampling*: the largest clustered standard error of the views, times the normal quantile (that of the bare weights
  counts up to twice that of the shrunk ones: what shrinking gains in variance it may lose in bias);
- *propensity*: half the range of all four views (what is left when weights and rewards are modelled differently); the
  first-order effect of log β̂'s standard deviation U, errors common to an action's rows, added in quadrature; and where
  the weights do not average to 1, the share that is missing or too much, times a third of the rewards' standard
  deviation, because that share of the policy's choices is weighed wrongly.

The cap of two standard errors and the third of a standard deviation were set on the simulated settings of
benchmarks/coverage.py; they are rules of thumb, not theorems.
"""

import math
from dataclasses import dataclass, replace

import torch
from scipy.stats import norm

from offpolicy.estimators import ESTIMATORS
from offpolicy.evaluation.clusters import ClusteredTerms
from offpolicy.evaluation.hyper import least_error_lambda
from offpolicy.evaluation.intervals import linearised_propensity_error
from offpolicy.evaluation.rows import PolicyRows
from offpolicy.policies import tensor
from offpolicy.results import TwoPartInterval

WEIGHTS_ONLY, WITH_REWARDS = SHRUNK = "sn_shrinkage", "sn_shrinkage_dr"


@dataclass(frozen=True)
class AutoEstimate:
    """The value to report in [0, 1], its interval, and the views behind it."""

    value: float
    interval: TwoPartInterval
    lam: float
    views: tuple[ClusteredTerms, ...]
    disagreement: float
    """Range of the views in standard errors; far above 3 they contradict each other."""

    @property
    def statistic(self) -> ClusteredTerms:
        """The view whose value is reported, for paired comparisons."""
        return self.views[len(self.views) // 2 - 1]


def auto_estimate(rows: PolicyRows, level: float = 0.95) -> AutoEstimate:
    """Value and two-part interval of one policy from the log alone."""
    chosen = least_error_lambda(rows, WEIGHTS_ONLY)
    shrunk = [chosen.estimate]
    bare = [rows.clustered(ESTIMATORS["snips"])]
    if rows.has_reward_model:
        shrunk.append(rows.clustered(ESTIMATORS[WITH_REWARDS], lam=chosen.lam))
        bare.append(rows.clustered(ESTIMATORS["sndr"]))
    views = (*shrunk, *bare)
    value = min(max(shrunk[-1].value, 0.0), 1.0)
    refusal = next((view.refusal for view in shrunk if view.refusal), "")
    if refusal:
        interval = _interval(value, (0.0, 1.0), level, (1.0, 0.0), note=refusal)
        return AutoEstimate(value, interval, chosen.lam, views, 0.0)
    largest = max(view.jackknife_error for view in shrunk)
    error = min(max(view.jackknife_error for view in views), 2 * largest)
    propensity = max(_propensity_error(rows, name, chosen.lam) for name in SHRUNK[: len(shrunk)])
    distance = max(view.value for view in views) - min(view.value for view in views)
    quantile = float(norm.ppf(0.5 + level / 2))
    half = quantile * (error**2 + propensity**2) ** 0.5 + distance / 2 + _misweighted(rows)
    low, high = max(value - half, 0.0), min(value + half, 1.0)
    sampling = quantile * error
    interval = _interval(value, (low, high), level, (sampling, half - sampling))
    return AutoEstimate(value, interval, chosen.lam, views, distance / largest)


def _interval(
    value: float, ends: tuple[float, float], level: float, parts: tuple[float, float], note: str = ""
) -> TwoPartInterval:
    low, high = ends
    return TwoPartInterval(
        low=low,
        high=high,
        level=level,
        method="auto",
        vacuous=low <= 0.0 and high >= 1.0,
        centre=value,
        note=note,
        sampling=parts[0],
        propensity=parts[1],
    )


def _misweighted(rows: PolicyRows) -> float:
    """How much the misweighted share of the policy's choices may change the value, on either side."""
    share = abs(1 - rows.mean(rows.ratio.double()))
    reward = rows.reward.double()
    if rows.row_weight is None:
        return share * float(reward.std(correction=0)) / 3
    spread = rows.mean((reward - rows.mean(reward)).square()) ** 0.5
    return float(share * spread / 3)


def _propensity_error(rows: PolicyRows, name: str, lam: float) -> float:
    """First-order standard error from β̂ itself; errors of log β̂ are common to the rows of an action."""
    if "uncertainty" not in rows.inputs:
        return 0.0
    # −∂log w/∂log β of a shrunk ratio: 1 for small ratios, −1 for large ones.
    elasticity = 1 - 2 * torch.sigmoid(2 * rows.log_ratio - math.log(lam))
    terms = rows.terms(ESTIMATORS[name], lam=lam)
    if rows.row_weight is not None:
        terms = replace(terms, weight=terms.weight * rows.row_weight, normaliser=terms.normaliser * rows.row_weight)
    action = tensor(rows.log.action).long()
    return linearised_propensity_error(terms, rows.inputs["uncertainty"], action, elasticity=elasticity)
