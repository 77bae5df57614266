"""An evaluation with its inputs: what is asked of the log, computed when it is first needed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self
from weakref import finalize

import numpy as np
from torch import Tensor

from offpolicy.artifacts import TableSource, policy_source
from offpolicy.engine import Engine, engine_of
from offpolicy.errors import ParameterError
from offpolicy.estimators import ESTIMATORS, Estimator
from offpolicy.evaluation.auto import AutoEstimate, auto_estimate, logging_estimate
from offpolicy.evaluation.clusters import ClusteredTerms
from offpolicy.evaluation.comparison import best_by_lower_bound, best_by_value, compare, difference_width
from offpolicy.evaluation.groups import action_groups, learned_groups
from offpolicy.evaluation.guaranteed import guarantee, guaranteed_interval, simultaneous_gamma
from offpolicy.evaluation.hidden import column_strengths, hidden_sentence, moved_to, sharp_range, tipping
from offpolicy.evaluation.hyper import chosen_lambdas, log_driven
from offpolicy.evaluation.inputs import GROUP_INPUT
from offpolicy.evaluation.intervals import GAMMAS, INTERVALS, Interval, sensitivity_over
from offpolicy.evaluation.options import DEFAULT_ESTIMATORS, Options
from offpolicy.evaluation.other_rewards import OtherReward
from offpolicy.evaluation.outcomes import decided, outcomes_of
from offpolicy.evaluation.preflight import detectable_effect, preflight
from offpolicy.evaluation.propensities import (
    refit_bootstrap,
    under_model,
    under_other_models,
    worst_case_band,
)
from offpolicy.evaluation.rows import PolicyRows
from offpolicy.evaluation.scale import Scale
from offpolicy.evaluation.segments import breakdown, segments_of
from offpolicy.evaluation.sharded import UNITS, ShardedRows, ShardWork, divided, part_of, sharded_rows
from offpolicy.evaluation.slates import SLATE_ESTIMATORS, chosen_user_model, why_missing, with_slates, with_user_model
from offpolicy.evaluation.statistics import Asked, RowStatistics
from offpolicy.log import LoggedData
from offpolicy.memory import give_back
from offpolicy.nuisances import Nuisances
from offpolicy.policies import Policy, as_policy, rows_only
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
from offpolicy.rewards import RewardModel


def scratch() -> TemporaryDirectory[str]:
    """A folder that is removed in the end."""
    return TemporaryDirectory(prefix="offpolicy-")


@dataclass(frozen=True)
class Evaluator:
    """An evaluation with its inputs: every policy's rows, from one pass over the log.

    Actions are matched by id: the log is coded as β̂ is, and every policy is aligned to it, once, here.
    """

    nuisances: Nuisances
    candidates: Mapping[str, Any]
    references: Mapping[str, Any] = field(default_factory=dict)
    options: Options = field(default_factory=Options)
    engine: Engine | str | None = None
    """Who works on the shards of a log that has many; this process where nobody is named."""

    def __enter__(self) -> Self:
        """What is kept beside shards while questions are asked goes with the block."""
        return self

    def __exit__(self, *error: object) -> None:
        """Let go of the shards."""
        if "_shards" in vars(self):
            self._shards.close()

    @cached_property
    def _shards(self) -> ExitStack:
        """What has to be let go of in the end."""
        stack = ExitStack()
        finalize(self, stack.close)
        return stack

    def __post_init__(self) -> None:
        """Refuse a log whose rewards are all alike, two policies of one name, and any that does not fit the log."""
        twice = next((name for name in self.references if name in self.candidates), None)
        if twice is not None:
            raise ParameterError(f"{twice!r} is both a policy and a reference. Give one of them another name.")
        log = self.nuisances.log
        if log.reward.min() == log.reward.max():
            value = log.reward_to_user_scale(float(log.reward[0]))
            raise ParameterError(
                f"Every reward in this log is {value:g}: nothing tells policies apart. Check that the reward column is "
                "the right one."
            )
        if log.n_shards > 1:
            self._check_shards()
        for column in self.options.by:
            segments_of(log, column)  # an unknown column is refused before any work
        _ = self.other_logs, self.targets
        if self.options.action_groups is not None:
            action_groups(self.options.action_groups, log)

    def _check_shards(self) -> None:
        """Refuse what needs all rows at once."""
        options = self.options
        asked = {
            "a log of slates": self.log.request is not None,
            "refits": options.refits > 0,
            "sensitivity_columns": options.sensitivity_columns,
        }
        refused = next((name for name, wanted in asked.items() if wanted), None)
        if refused is not None:
            raise ParameterError(
                f"This log is read shard by shard, but {refused} needs all of its rows at once. Leave it out, or read "
                "the log into memory as one shard."
            )

    @cached_property
    def beta(self) -> Policy:
        """β̂."""
        return self.nuisances.logging_policy

    @cached_property
    def log(self) -> LoggedData:
        """The log, its actions coded as β̂ codes them."""
        return self.nuisances.log

    @cached_property
    def targets(self) -> dict[str, Policy]:
        """Every policy, aligned to the log by id."""
        whole = self.log.n_shards == 1
        log = self.log if whole else self.log.shard(0)
        own = self._sources if whole else {k: divided(v, self.log, k) for k, v in self._sources.items()}
        return {name: as_policy(part_of(target, 0), log, name) for name, target in own.items()}

    @cached_property
    def _sources(self) -> dict[str, Any]:
        """What every policy is made of."""
        return {name: self._source(target) for name, target in {**self.candidates, **self.references}.items()}

    def _source(self, target: Any) -> Any:
        """What a policy's name stands for; anything else is the policy itself."""
        kept = [] if self.log.kept is None else self.log.kept.columns
        if not isinstance(target, str | Path) or target in kept:
            return target
        source = policy_source(target)
        return {"rows": source.path} if isinstance(source, TableSource) else source

    @cached_property
    def uncertainty(self) -> Tensor | None:
        """U of every row, where it is known."""
        return self.nuisances.known_uncertainty

    @cached_property
    def gamma(self) -> float:
        """γ as given or calibrated."""
        given = self.options.gamma
        return self.nuisances.gamma if isinstance(given, str) else float(given)

    @cached_property
    def asked(self) -> list[Estimator]:
        """The estimators asked for; where none is, those of slates for a log of slates."""
        if self.log.request is None or self.options.estimators != DEFAULT_ESTIMATORS:
            return self.options.rows
        return [ESTIMATORS[name] for name in SLATE_ESTIMATORS]

    @cached_property
    def rows(self) -> Mapping[str, RowStatistics]:
        """What the estimators ask for, of every policy; in slates with the log-ratio of the user model."""
        if self.log.n_shards > 1:
            return self._sharded_rows
        if self.log.request is None:
            return self._single_rows
        return {name: with_user_model(rows, self.user_model) for name, rows in self._slate_rows.items()}

    @cached_property
    def user_model(self) -> str:
        """How users look at a slate, as given or as the log can carry; empty where requests show one action."""
        if self.log.request is None:
            return ""
        given = self.options.user_model
        return chosen_user_model(self._slate_rows.values()) if given == "auto" else given

    @cached_property
    def _slate_rows(self) -> dict[str, PolicyRows]:
        return {name: with_slates(rows, self.targets[name], self.beta) for name, rows in self._single_rows.items()}

    @cached_property
    def _single_rows(self) -> dict[str, PolicyRows]:
        """What the estimators ask for, of every policy and action by itself, in one pass."""
        rewards = None
        if not all(rows_only(target) for target in self.targets.values()):
            rewards = self.nuisances.reward_model
        found = PolicyRows.of_all(
            self.log,
            self.targets,
            self.beta,
            uncertainty=self.uncertainty,
            reward_model=rewards,
            estimators=self.asked,
            support=True,
            groups=self._groups(rewards),
            other_rewards=self.other_models,
        )
        give_back()
        return found

    @cached_property
    def _sharded_rows(self) -> dict[str, ShardedRows]:
        """The same of a log of many shards, each asked where it is worked on."""
        log, every = self.log, not all(rows_only(target) for target in self.targets.values())
        rewards = self.nuisances.reward_model if every else None
        others = {name: one.seen(self.nuisances.fitted_log) for name, one in self._other_rewards.items()}
        work = ShardWork(
            {name: divided(source, log, name) for name, source in self._sources.items()},
            self.nuisances.for_shards(every, others if every else {}),
            tuple(row.name for row in self.asked if not row.whole_log),
            float(log.n_contexts),
            max(UNITS // log.n_shards, 1),
            self._groups(rewards),
        )
        folder = Path(self._shards.enter_context(scratch()))
        engine = self._shards.enter_context(engine_of(self.engine))
        crew = self._shards.enter_context(engine.over(log))
        return sharded_rows(log, crew, work, folder, self.nuisances.fitted_log)

    @cached_property
    def other_logs(self) -> dict[str, LoggedData]:
        """The log under each further reward and guardrail."""
        names = (*self.options.rewards, *self.options.limits)
        if self.log.n_shards > 1:
            return {name: one.header(self.log) for name, one in self._other_rewards.items()}
        return {name: self.log.with_reward(name, self.options.winsorise) for name in names}

    @cached_property
    def _other_rewards(self) -> dict[str, OtherReward]:
        """Each of them, as what all shards say about it."""
        names = (*self.options.rewards, *self.options.limits)
        return {name: OtherReward.of(self.log, name, self.options.winsorise) for name in names}

    @cached_property
    def other_models(self) -> dict[str, RewardModel]:
        """q̂ of each of them, where some policy knows all actions."""
        if all(rows_only(target) for target in self.targets.values()):
            return {}
        return {name: self.nuisances.reward_model_of(log) for name, log in self.other_logs.items()}

    def _groups(self, rewards: RewardModel | None) -> Tensor | None:
        """Groups of actions where an estimator asks for them: as given, or learned from the reward model."""
        if not any(GROUP_INPUT in row.inputs for row in self.asked):
            return None
        if self.options.action_groups is not None:
            return action_groups(self.options.action_groups, self.log)
        return None if rewards is None else learned_groups(self.log, rewards, self.options.seed)

    @cached_property
    def on_policy(self) -> AutoEstimate:
        """The logging policy's own value."""
        return logging_estimate(self._any_rows, self.options.level)

    @property
    def _any_rows(self) -> RowStatistics:
        """The rows of some policy, where all would say the same."""
        return next(iter(self.rows.values()))

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

    @property
    def scale(self) -> Scale:
        """To the user's rewards."""
        return Scale(*self.log.reward_range)

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

    @cached_property
    def _under(self) -> dict[str, Mapping[str, RowStatistics]]:
        """The rows of every candidate under every reward and guardrail."""
        candidates = {name: self.rows[name] for name in self.candidates}
        under: dict[str, Mapping[str, RowStatistics]] = {self.log.reward_name: candidates}
        if self.log.n_shards > 1:
            sharded = {name: self._sharded_rows[name] for name in self.candidates}
            for reward, other in self._other_rewards.items():
                under[reward] = {name: rows.under_reward(other) for name, rows in sharded.items()}
            return under
        for reward, log in self.other_logs.items():
            model = self.other_models.get(reward)
            under[reward] = {
                name: rows.under(log, model) for name, rows in candidates.items() if isinstance(rows, PolicyRows)
            }
        return under

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

    def _rows_for(self, name: str, row: Estimator) -> RowStatistics:
        """The rows that an estimator takes: those of the evaluation's user model, unless it assumes one of its own."""
        return self._slate_rows[name] if row.assumes and self.user_model else self.rows[name]

    def _unavailable(self, rows: RowStatistics, row: Estimator) -> str:
        """Why an estimator is left out; empty where it is not."""
        if self.log.request is not None and row.name == "dm":
            return "the reward model of slates predicts all rewards from a position on, which needs weights"
        if row.assumes and row.inputs[0] not in rows.known:
            return why_missing(row.inputs[0], self.log)
        return rows.unavailable(row)

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
