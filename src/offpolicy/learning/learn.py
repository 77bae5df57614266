"""`learn_policy`: config → nuisances → objective → head → trainer, for any method of the table."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from offpolicy.estimators import Hyper
from offpolicy.learning.checkpoints import Epoch
from offpolicy.learning.config import LearnerConfig
from offpolicy.learning.methods import MethodSpec
from offpolicy.learning.prepare import prepare_training
from offpolicy.log import ActionTable, FeatureTable, LoggedData
from offpolicy.models import Scorer
from offpolicy.nuisances import Nuisances
from offpolicy.policies import Policy, ScorerPolicy, logged_log_prob
from offpolicy.rewards import RewardModel


@dataclass(frozen=True)
class LearnedPolicy:
    """A policy learned from a log, and how it was learned."""

    policy: ScorerPolicy = field(repr=False)
    scorer: Scorer = field(repr=False)
    method: str
    label: str
    """What reports print for the method."""
    hyper: Mapping[str, Hyper]
    config: LearnerConfig = field(repr=False)
    history: list[Epoch] = field(repr=False)
    """One record per epoch."""
    best_epoch: int
    """The epoch whose weights these are, from 0; without a metric, the last."""
    best_metric: float | None
    metric: str | None
    """The metric that chose the epoch."""
    logging: ScorerPolicy | None = field(default=None, repr=False)
    """β̂ as it ended, where it was estimated in alternation."""

    @property
    def actions(self) -> ActionTable:
        """The actions it chooses among."""
        return self.policy.actions

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return self.policy.n_actions

    def aligned(self, actions: ActionTable) -> "LearnedPolicy":
        """The same policy over another table that holds all its actions."""
        return replace(self, policy=self.policy.aligned(actions))

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """log π(·|x), (contexts, actions)."""
        return self.policy.log_probs(contexts)

    def log_probs_among(self, contexts: FeatureTable) -> Tensor:
        """log π of the candidates, (contexts, width)."""
        return self.policy.log_probs_among(contexts)

    def logged_log_prob(self, log: LoggedData) -> Tensor:
        """log π(a_n|x_n) of logged rows, float64, actions matched by id."""
        return logged_log_prob(self.policy, log)


def learn_policy(
    log: LoggedData,
    method: str | MethodSpec = "uips",
    *,
    nuisances: Nuisances | None = None,
    logging_policy: Policy | str | None = None,
    uncertainty: Tensor | str | None = None,
    reward_model: RewardModel | None = None,
    config: LearnerConfig | None = None,
    validation: Any = None,
    directory: str | Path | None = None,
    **changes: Any,
) -> LearnedPolicy:
    """Learn a policy from a log.

    `method` is a name of `METHODS` or of any registered estimator. What it needs and is not given is fitted: β̂
    (`logging_policy`: a fitted one, any policy, or the name of a model), U (`uncertainty`: one number per row, or the
    name of a form), q̂ (`reward_model`); or give `nuisances` of this log, which several methods may share.
    `validation` decides when to stop: a function of the policy, candidate lists, a pair (contexts, positives), or
    another log; with `metric="value"` or `"lower_bound"` and none of these, a share of the log is held out. With a
    `directory`, a checkpoint is written every epoch and a killed training resumes to the same result. `changes` are
    fields of `LearnerConfig` and hyper-parameters of the method, by name.
    """
    trainer = prepare_training(
        log,
        method,
        nuisances=nuisances,
        logging_policy=logging_policy,
        uncertainty=uncertainty,
        reward_model=reward_model,
        config=config,
        validation=validation,
        directory=directory,
        **changes,
    )
    trainer.run()
    spec, alternation = trainer.objective.spec, trainer.alternation
    return LearnedPolicy(
        ScorerPolicy(trainer.scorer, log.actions),
        trainer.scorer,
        spec.name,
        spec.label or spec.name,
        spec.values,
        trainer.config,
        trainer.history,
        trainer.best.epoch,
        trainer.best.metric,
        None if trainer.monitor is None else trainer.monitor.name,
        None if alternation is None else ScorerPolicy(alternation.scorer, log.actions),
    )
