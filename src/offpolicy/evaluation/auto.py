"""The estimate to rely on: several views of the value, their disagreement, and an interval with β̂'s own error in it.

Neither weights alone nor a reward model is right everywhere when propensities are estimated, nor is shrinking the
weights or leaving them alone. So the value is looked at in four ways: self-normalised weights, shrunk or not, with or
without a reward model. The shrunk weights with a reward model (where there is one) give the estimate, and `views` says
how wide the interval around it is.
"""

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from offpolicy.estimators import ESTIMATORS
from offpolicy.evaluation.clusters import CORRECTION, NORMALISER, ClusteredTerms
from offpolicy.evaluation.hyper import SHRUNK, least_error_lambda
from offpolicy.evaluation.intervals import propensity_effects
from offpolicy.evaluation.rows import PolicyRows
from offpolicy.evaluation.statistics import Asked, RowStatistics
from offpolicy.evaluation.value import Array
from offpolicy.evaluation.views import View, Width, width_of
from offpolicy.policies import tensor
from offpolicy.results import TwoPartInterval

WEIGHTS_ONLY, WITH_REWARDS = SHRUNK
BARE = ("snips", "sndr")
"""The same weights unshrunk."""


@dataclass(frozen=True, eq=False)
class AutoEstimate:
    """The value to report in [0, 1], its interval, and the views behind it."""

    value: float
    interval: TwoPartInterval
    lam: float
    shrunk: tuple[View, ...]
    """The views with shrunk weights, the reported one last."""
    bare: tuple[View, ...]
    """The same with bare weights."""
    width: Width
    effects: Tensor | None = field(default=None, repr=False)
    """Of one standard deviation of log β̂, by action, on the reported view; None where U is unknown."""
    by_period: ClusteredTerms | None = field(default=None, repr=False)
    """The reported view with periods of time as units; None where there are no times."""
    rows: RowStatistics | None = field(default=None, repr=False)
    """None for the logging policy, whose ratio is 1 in every row."""
    compared: dict["AutoEstimate", Width] = field(default_factory=dict, repr=False)
    """The widths of differences to other estimates that were asked for before."""

    @property
    def views(self) -> tuple[View, ...]:
        """All views of the value."""
        return (*self.shrunk, *self.bare)

    @property
    def statistic(self) -> View:
        """The view whose value is reported."""
        return self.shrunk[-1]

    def asked(self, kinds: int) -> list[Asked]:
        """So many views with shrunk weights and as many with bare ones; the last stands in where there are fewer."""
        if self.rows is None:
            return [Asked()] * 2 * kinds
        shrunk, bare = _asked(self.lam, len(self.shrunk))
        missing = kinds - len(shrunk)
        return [*shrunk, *shrunk[-1:] * missing, *bare, *bare[-1:] * missing]

    @property
    def disagreement(self) -> float:
        """Range of the views in standard errors; far above 3 they contradict each other."""
        return self.width.disagreement


def auto_estimate(rows: RowStatistics, level: float = 0.95) -> AutoEstimate:
    """Value and two-part interval of one policy from the log alone."""
    lam, kinds = least_error_lambda(rows), 1 + rows.has_reward_model
    asked, plain = _asked(lam, kinds)
    views = tuple(map(View.of, rows.clustered_each([*asked, *plain])))
    shrunk, bare = views[:kinds], views[kinds:]
    effects = None
    if "uncertainty" in rows.known:
        effects = rows.total(_effects, SHRUNK[kinds - 1], lam, shrunk[-1].totals)
    by_period = rows.clustered_by_period(asked[-1])
    width = width_of(shrunk, bare, effects, abs(1 - rows.mean_ratio) * rows.reward_deviation, by_period)
    value = min(max(shrunk[-1].value, 0.0), 1.0)
    return AutoEstimate(value, _interval(value, width, level), lam, shrunk, bare, width, effects, by_period, rows)


def _asked(lam: float, kinds: int) -> tuple[list[Asked], list[Asked]]:
    """The views of a policy, with shrunk weights and with bare ones; two kinds where there is a reward model."""
    return [Asked(name, {"lam": lam}) for name in SHRUNK[:kinds]], [Asked(name) for name in BARE[:kinds]]


def logging_estimate(rows: RowStatistics, level: float = 0.95) -> AutoEstimate:
    """The logging policy's own value, the mean reward: one view, and nothing that depends on β̂."""
    mean = View.of(rows.on_policy())
    by_period = rows.clustered_by_period(Asked())
    width = width_of((mean,), (), None, 0.0, by_period)
    interval = _interval(mean.value, width, level)
    return AutoEstimate(mean.value, interval, math.inf, (mean,), (mean,), width, by_period=by_period)


def _interval(value: float, width: Width, level: float) -> TwoPartInterval:
    half = width.half(level)
    low, high = max(value - half, 0.0), min(value + half, 1.0)
    sampling = 1.0 if width.refusal else width.sampling(level)
    return TwoPartInterval(
        low=low,
        high=high,
        level=level,
        method="auto",
        vacuous=low <= 0.0 and high >= 1.0,
        centre=value,
        note=width.refusal or width.note,
        sampling=sampling,
        propensity=0.0 if width.refusal else half - sampling,
    )


def _effects(rows: PolicyRows, name: str, lam: float, totals: Array) -> Tensor:
    """What one standard deviation of log β̂ does to a view, by action: its rows share their errors of log β̂.

    `totals` are the view's sums over all rows, of which these may be a part.
    """
    # −∂log w/∂log β of a shrunk ratio: 1 for small ratios, −1 for large ones.
    elasticity = 1 - 2 * torch.sigmoid(2 * rows.log_ratio - math.log(lam))
    terms = rows.terms(ESTIMATORS[name], lam=lam)
    if rows.row_weight is not None:
        terms = replace(terms, weight=terms.weight * rows.row_weight, normaliser=terms.normaliser * rows.row_weight)
    action = tensor(rows.log.action).long()
    sums = (float(totals[CORRECTION]), float(totals[NORMALISER]))
    found = propensity_effects(terms, rows.inputs["uncertainty"], action, elasticity=elasticity, sums=sums)
    return torch.nn.functional.pad(found, (0, rows.log.n_actions - len(found)))
