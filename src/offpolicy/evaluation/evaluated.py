"""The policies of an evaluation on their log: what estimators ask for, supplied in one pass over the rows."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self
from weakref import finalize

from torch import Tensor

from offpolicy.artifacts import TableSource, policy_source
from offpolicy.engine import Engine, engine_of
from offpolicy.errors import ParameterError
from offpolicy.estimators import ESTIMATORS, Estimator
from offpolicy.evaluation.groups import action_groups, learned_groups
from offpolicy.evaluation.inputs import GROUP_INPUT
from offpolicy.evaluation.options import DEFAULT_ESTIMATORS, Options
from offpolicy.evaluation.other_rewards import OtherReward
from offpolicy.evaluation.rows import PolicyRows
from offpolicy.evaluation.scale import Scale
from offpolicy.evaluation.segments import segments_of
from offpolicy.evaluation.sharded import UNITS, ShardedRows, ShardWork, divided, part_of, sharded_rows
from offpolicy.evaluation.slates import SLATE_ESTIMATORS, chosen_user_model, why_missing, with_slates, with_user_model
from offpolicy.evaluation.statistics import RowStatistics
from offpolicy.log import LoggedData
from offpolicy.memory import give_back
from offpolicy.nuisances import Nuisances
from offpolicy.policies import Policy, as_policy, rows_only
from offpolicy.rewards import RewardModel


def scratch() -> TemporaryDirectory[str]:
    """A folder that is removed in the end."""
    return TemporaryDirectory(prefix="offpolicy-")


@dataclass(frozen=True)
class EvaluatedPolicies:
    """The policies of an evaluation on their log: every policy's rows, from one pass.

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
        pool = self._shards.enter_context(engine.over(log))
        return sharded_rows(log, pool, work, folder, self.nuisances.fitted_log)

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

    @property
    def _any_rows(self) -> RowStatistics:
        """The rows of some policy, where all would say the same."""
        return next(iter(self.rows.values()))

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

    @property
    def scale(self) -> Scale:
        """To the user's rewards."""
        return Scale(*self.log.reward_range)
