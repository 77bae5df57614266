"""An evaluation: what is asked of its policies and their log, computed when it is first needed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from offpolicy.errors import ParameterError
from offpolicy.estimators import ESTIMATORS, Estimator
from offpolicy.evaluation.auto import AutoEstimate, auto_estimate, logging_estimate
from offpolicy.evaluation.clusters import ClusteredTerms
from offpolicy.evaluation.comparison import best_by_lower_bound, best_by_value, compare, difference_width
from offpolicy.evaluation.evaluated import EvaluatedPolicies, scratch
from offpolicy.evaluation.guaranteed import guarantee, guaranteed_interval, simultaneous_gamma
from offpolicy.evaluation.hidden import column_strengths, hidden_sentence, moved_to, sharp_range, tipping
from offpolicy.evaluation.hyper import chosen_lambdas, log_driven
from offpolicy.evaluation.intervals import GAMMAS, INTERVALS, Interval, sensitivity_over
from offpolicy.evaluation.outcomes import decided, outcomes_of
from offpolicy.evaluation.preflight import detectable_effect, preflight
from offpolicy.evaluation.propensities import (
    refit_bootstrap,
    under_model,
    under_other_models,
    worst_case_band,
)
from offpolicy.evaluation.rows import PolicyRows
from offpolicy.evaluation.segments import breakdown
from offpolicy.evaluation.slates import with_slates, with_user_model
from offpolicy.evaluation.statistics import Asked, RowStatistics
from offpolicy.memory import give_back
from offpolicy.policies import Policy, rows_only
from offpolicy.progress import progress
from offpolicy.propensity import LoggingPolicy, Repeats, repeat_test
from offpolicy.results import (
    LOGGING,
    ColumnStrength,
    Comparison,
    Estimate,
    Evaluation,
    Logging,
    Outcome,
    PolicyResult,
    Preflight,
    PropensityModel,
    Segment,
    Sensitivity,
)


@dataclass(frozen=True)
class Evaluator(EvaluatedPolicies):
    """An evaluation: what is asked of its policies, computed when it is first needed."""

    @cached_property
    def on_policy(self) -> AutoEstimate:
        """The logging policy's own value."""
        return logging_estimate(self._any_rows, self.options.level)

    @cached_property
    def estimates(self) -> dict[str, AutoEstimate]:
        """The estimate to rely on, of every policy, in [0, 1]."""
        found = {}
        for name, rows in self.rows.items():
            found[name] = auto_estimate(rows, self.options.level)
            give_back()
        return found

    @cached_property
    def band(self) -> float:
        """γ of the band that holds β of all rows at once, for the guaranteed interval."""
        beta = self._fitted('interval="guaranteed"')
        if self.uncertainty is None:
            raise ParameterError('interval="guaranteed" needs U of every row, which is not known for this β̂.')
        return simultaneous_gamma(beta, self.uncertainty, self.options.level, self.options.seed)

    def _fitted(self, asked: str) -> LoggingPolicy:
        if not isinstance(self.beta, LoggingPolicy):
            raise ParameterError(f"{asked} needs a logging policy that was fitted by fit_logging_policy.")
        return self.beta

    @cached_property
    def preflights(self) -> dict[str, Preflight]:
        """Checks and verdict of every policy."""
        return {name: preflight(rows, self.estimates[name], self.repeats) for name, rows in self.rows.items()}

    @cached_property
    def repeats(self) -> Repeats | None:
        """Whether the logger knew more about users than the columns hold, tested once, on the log of β̂."""
        if not isinstance(self.beta, LoggingPolicy):
            return None
        rows = None if self.log.n_shards == 1 else self.nuisances.fitted_log
        return repeat_test(self.beta, rows, seed=self.options.seed)

    @cached_property
    def evaluation(self) -> Evaluation:
        """Everything on the user's scale."""
        level, beta, scale = self.options.level, self.beta, self.scale
        with progress("evaluating", len(self.targets)) as advance:
            policies = {}
            for name in self.targets:
                policies[name] = self._policy(name)
                give_back()
                advance(f"{name}: {policies[name].value:.4g}")
        outcomes = self._outcomes()
        best, bound = self.best
        return Evaluation(
            level=level,
            best=best,
            best_bound=scale.value(bound),
            logging=Logging(
                model=beta.description if isinstance(beta, LoggingPolicy) else type(beta).__name__,
                value=scale.value(self.on_policy.value),
                interval=scale.interval(INTERVALS["normal"](self._any_rows.on_policy(), level)),
                quality=beta.quality if isinstance(beta, LoggingPolicy) else None,
                note=beta.note if isinstance(beta, LoggingPolicy) else "",
            ),
            policies=policies,
            comparisons=self._comparisons(),
            segments=self._segments(),
            outcomes=outcomes,
            decisions=decided(outcomes),
            reward=self.log.reward_name,
            reward_range=[scale.low, scale.high],
            log=self.log.summary(),
            frames=self.log.frames,
        )

    @cached_property
    def best(self) -> tuple[str, float]:
        """The candidate that is best as the options say, and its lower bound in [0, 1]."""
        candidates = {name: self.estimates[name] for name in self.candidates}
        if self.options.best_by == "value":
            return best_by_value(candidates, self.options.level, self.options.prefer, self.on_policy)
        return best_by_lower_bound(candidates, self.options.level)

    def _comparisons(self) -> list[Comparison]:
        """Every candidate against logging and against each reference."""
        candidates = {name: self.estimates[name] for name in self.candidates}
        against = {LOGGING: self.on_policy} | {name: self.estimates[name] for name in self.references}
        refused = {name for name, found in self.preflights.items() if not found.verdict.answerable}
        return [
            self.scale.comparison(one, other.value)
            for name, other in against.items()
            for one in compare(candidates, other, name, self.options.level, refused=refused)
        ]

    def _segments(self) -> list[Segment]:
        if not self.options.by:
            return []
        return breakdown(self._under, self.options.by, self.options.level, self.repeats)

    def _outcomes(self) -> list[Outcome]:
        """Every candidate under every reward and guardrail; nothing where there is one reward only."""
        if not self.other_logs:
            return []
        return outcomes_of(self._under, self.options.limits, self.options.level, self.repeats)

    def _policy(self, name: str) -> PolicyResult:
        rows, estimate, scale, level = self.rows[name], self.estimates[name], self.scale, self.options.level
        reasons = {row.name: self._unavailable(self._rows_for(name, row), row) for row in self.asked}
        left_out = {row: reason for row, reason in reasons.items() if reason}
        aware = self._propensity_intervals(name)
        return PolicyResult(
            name=name,
            value=scale.value(estimate.value),
            interval=scale.two_part(estimate.interval),
            lam=estimate.lam,
            estimates=self._estimates(name, [row for row in self.asked if row.name not in left_out]),
            left_out=left_out,
            preflight=self.preflights[name],
            sensitivity=scale.sensitivity(self._sensitivity(name)),
            detectable_effect=scale.width(detectable_effect(difference_width(estimate, self.on_policy), level)),
            guarantee=guarantee(rows, aware["guaranteed"], scale) if "guaranteed" in aware else "",
            propensity_intervals={method: scale.interval(interval) for method, interval in aware.items()},
            reference=name in self.references,
            assumes=self.user_model,
        )

    def _sensitivity(self, name: str) -> Sensitivity:
        rows, value, threshold = self.rows[name], self.estimates[name].value, self.on_policy.value
        found = _sensitivity(rows, value, threshold)
        if self.options.sensitivity_columns and self._sharp and not rows_only(self.targets[name]):
            model = self.nuisances.reward_model
            sharp = moved_to(sharp_range(self.log, self.targets[name], self.beta, model, GAMMAS), value)
            flips = tipping(sharp, value, threshold)
            curves = {"sharp_low": sharp.low.tolist(), "sharp_high": sharp.high.tolist()}
            found = found.model_copy(update=curves | {"sharp_flips_at": flips})
        if self.options.sensitivity_columns:
            found = found.model_copy(update={"columns": self.column_strengths})
        return found.model_copy(update={"sentence": hidden_sentence(found)})

    @property
    def _sharp(self) -> bool:
        """Whether sharp bounds are known: for binary rewards, where β̂ knows all actions."""
        binary = bool(np.isin(self.log.reward, (0.0, 1.0)).all())
        return binary and not rows_only(self.beta) and self.log.request is None

    @cached_property
    def column_strengths(self) -> list[ColumnStrength]:
        """What leaving out each context column does to β̂."""
        return column_strengths(self.log, self.options.seed)

    def _propensity_intervals(self, name: str) -> dict[str, Interval]:
        options, rows = self.options, self.rows[name]
        intervals = {} if self.uncertainty is None else {"worst_case": worst_case_band(rows, self.gamma, options.level)}
        if options.interval == "guaranteed":
            intervals["guaranteed"] = guaranteed_interval(rows, self.band, options.level)
        if options.refits:
            intervals["refit_bootstrap"] = refit_bootstrap(
                self.log,
                self.targets[name],
                self._fitted("refits"),
                self.estimates[name].lam,
                draws=options.refits,
                level=options.level,
                seed=options.seed,
                user_model=self.user_model,
            )
        return intervals

    def _estimates(self, name: str, asked: Sequence[Estimator]) -> list[Estimate]:
        """Every estimator of a policy; over shards, those of the same rows in one pass."""
        lam = chosen_lambdas(self.rows[name], self.estimates[name].lam)
        found: dict[str, Estimate] = {}
        hyper = {row.name: log_driven(row, lam, self.gamma) for row in asked}
        for rows in {id(one): one for one in (self._rows_for(name, row) for row in asked)}.values():
            own = [row for row in asked if self._rows_for(name, row) is rows]
            sums = rows.clustered_each([Asked(row.name, hyper[row.name]) for row in own])
            found |= {row.name: self._estimate(row, hyper[row.name], next(sums)) for row in own}
        return [found[row.name] for row in asked]

    def _estimate(self, row: Estimator, hyper: Mapping[str, float], terms: ClusteredTerms) -> Estimate:
        scale, methods = self.scale, self.options.methods.items()
        return Estimate(
            name=row.name,
            value=scale.value(terms.value),
            standard_error=scale.width(terms.standard_error),
            intervals={name: scale.interval(method(terms, self.options.level)) for name, method in methods},
            hyper=row.check_hyper(hyper),
            mean_weight=terms.mean_weight,
            note=terms.refusal or terms.note,
            assumes=row.assumes or self.user_model,
        )

    def damped(self, name: str) -> Asked:
        """UIPS as it damps the weights of a policy that β̂ is unsure of; plain ratios where U is unknown."""
        row = ESTIMATORS["uips"]
        if self.rows[name].unavailable(row):
            return Asked("ips")
        return Asked(row.name, log_driven(row, {"lam": self.estimates[name].lam}, self.gamma))

    def propensity_models(self) -> list[PropensityModel]:
        """The best candidate's value under other models of β̂: those that `auto` chose among, and uniform."""
        if not isinstance(self.beta, LoggingPolicy):
            return []
        name, level, seed = self.evaluation.best, self.options.level, self.options.seed
        if self.log.n_shards > 1:
            folder, sharded = Path(self._shards.enter_context(scratch())), self._sharded_rows[name]

            def in_shards(other: Policy) -> RowStatistics:
                return sharded.under_model(None if other is self.beta else other, folder)

            return under_other_models(self.nuisances.fitted_log, self.beta, in_shards, self.scale, level, seed)
        rows, target = self._single_rows[name], self.targets[name]

        def rows_under(other: Policy) -> PolicyRows:
            changed = under_model(rows, other)
            return with_user_model(with_slates(changed, target, other), self.user_model) if self.user_model else changed

        return under_other_models(self.log, self.beta, rows_under, self.scale, level, seed)


def _sensitivity(rows: RowStatistics, value: float, logging_value: float) -> Sensitivity:
    sensitivity = sensitivity_over(lambda work, *given: rows.map(_weighed, work, *given), logging_value)
    flips = sensitivity.gamma_low if value >= logging_value else sensitivity.gamma_high
    return Sensitivity(
        flips_at=flips, gammas=sensitivity.gammas.tolist(), low=sensitivity.low.tolist(), high=sensitivity.high.tolist()
    )


def _weighed(rows: PolicyRows, work: Callable[..., Any], *given: Any) -> Any:
    """Work on the rows of a shard as log ρ and reward."""
    return work(rows.log_mass.numpy(), rows.reward.numpy(), *given)
