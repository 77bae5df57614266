"""How sure several views of one number are: the half-width of an interval, for a value or a difference of two policies.

A number (the value of a policy, or the difference of two) is looked at in several ways that are all right if β̂ is: with
shrunk weights and with bare ones, with and without a reward model. Around the view that is reported, the half-width is

    z(level)·√(error² + propensity²) + distance/2 + misweighted

- *error*: the largest clustered standard error of the views; that of the bare weights counts up to twice that of the
  shrunk ones, because what shrinking gains in variance it may lose in bias. Where there are times and the number moves
  from period to period clearly more than independent clusters would let it, the error over periods counts instead;
- *propensity*: the first-order effect of log β̂'s standard deviation U on that view, errors common to an action's rows;
- *distance*: the range of the views, what is left when weights and rewards are modelled differently;
- *misweighted*: where the weights do not average to 1, that share of the policy's choices is weighed wrongly, and may
  have other rewards, by a third of their standard deviation.

The cap of two and the third were set on half of the simulated settings of benchmarks/coverage.py and judged on the
others; they are rules of thumb, not theorems.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.stats import norm
from torch import Tensor

from offpolicy.evaluation.clusters import ClusterStatistic
from offpolicy.evaluation.value import Array

MISWEIGHTED = 1 / 3
"""How many standard deviations of the rewards the misweighted choices may differ by."""
CLEARLY_MORE = 1.5
"""How many times the clustered error the error over periods must be to count; over 20 periods its relative standard
deviation is about a sixth."""
MOST_BARE = 2.0
"""How many times the error of the shrunk views the error of the bare ones may count."""


@dataclass(frozen=True)
class View:
    """One look at a number: what is left of it when its sums per cluster have gone."""

    value: float
    jackknife_error: float
    """Infinite where `refusal` says why."""
    refusal: str
    totals: Array
    """The sums over all clusters."""

    @classmethod
    def of(cls, statistic: ClusterStatistic) -> Self:
        """What is kept of a statistic."""
        return cls(statistic.value, statistic.jackknife_error, statistic.refusal, statistic.totals)


@dataclass(frozen=True)
class Width:
    """What makes up a half-width, so that every level, p-value and probability comes from the same parts."""

    error: float
    """Standard error of the sampling of rows."""
    propensity: float
    """Standard error from β̂ itself."""
    fixed: float
    """What is added at every level: half the distance of the views, and the misweighted share."""
    disagreement: float = 0.0
    """Distance of the views in standard errors of the shrunk ones."""
    least: float = 0.0
    """The least of the views."""
    refusal: str = ""
    """Why there is no error; empty where there is one."""
    note: str = ""
    """A caveat on the error; usually empty."""

    @property
    def scale(self) -> float:
        """The part that grows with the level, for one standard error."""
        return float(np.hypot(self.error, self.propensity))

    def half(self, level: float) -> float:
        """The half-width at a level; infinite where there is no error."""
        return np.inf if self.refusal else quantile(level) * self.scale + self.fixed

    def sampling(self, level: float) -> float:
        """The half-width that the sampling of rows alone would give."""
        return quantile(level) * self.error

    def p_value(self, difference: float) -> float:
        """Two-sided, for no difference: below 1 − level exactly where the interval of that level leaves 0 out."""
        beyond = abs(difference) - self.fixed
        if self.refusal or beyond <= 0:
            return 1.0
        return float(2 * norm.sf(beyond / self.scale)) if self.scale > 0 else 0.0

    def probability(self, difference: float) -> float:
        """That the difference is above 0: above (1 + level)/2 exactly where the interval of that level is."""
        p = self.p_value(difference)
        return 1 - p / 2 if difference > 0 else p / 2


def quantile(level: float) -> float:
    """The two-sided normal quantile."""
    return float(norm.ppf(0.5 + level / 2))


def width_of(
    shrunk: Sequence[View],
    bare: Sequence[View],
    effects: Tensor | None,
    misweighted: float,
    by_period: ClusterStatistic | None = None,
) -> Width:
    """The parts of the half-width around the last of the shrunk views.

    `effects` are the effects of one standard deviation of log β̂ on that view, by action; `misweighted` is the
    misweighted share times the standard deviation of the rewards; `by_period` is the last view over periods of time.
    """
    views = (*shrunk, *bare)
    extra = misweighted * MISWEIGHTED
    refusal = next((view.refusal for view in shrunk if view.refusal), "")
    if refusal:
        return Width(0.0, 0.0, 0.0, refusal=refusal)
    largest = max(view.jackknife_error for view in shrunk)
    least = min(view.value for view in views)
    distance = max(view.value for view in views) - least
    error, note = min(max(view.jackknife_error for view in views), MOST_BARE * largest), ""
    if by_period is not None and error * CLEARLY_MORE < by_period.jackknife_error < np.inf:
        times = by_period.jackknife_error / error
        error = by_period.jackknife_error
        note = f"the error is {times:.1f} times that of independent clusters, because the value moves over time"
    return Width(
        error=error,
        propensity=0.0 if effects is None else float(effects.norm()),
        fixed=distance / 2 + extra,
        disagreement=distance / largest if largest > 0 else 0.0,
        least=least,
        note=note,
    )
