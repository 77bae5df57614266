"""`learn_policy`: from a log to a policy, by any method of the table."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.estimators import Hyper
from offpolicy.learning.checkpoints import fingerprint
from offpolicy.learning.config import LearnerConfig, settle
from offpolicy.learning.history import Epoch
from offpolicy.learning.methods import METHODS, Method, find_method
from offpolicy.learning.monitors import HeldOut, Monitor, held_out_metric, is_ranking, monitor_of
from offpolicy.learning.rows import Integers, RowInputs
from offpolicy.learning.schedule import Alternate, Pretrained, Schedule
from offpolicy.learning.supply import Supply, asks_for_logging
from offpolicy.learning.surrogate import Plan, Surrogate
from offpolicy.learning.trainer import Trainer
from offpolicy.log import ActionTable, FeatureTable, LoggedData
from offpolicy.models import LinearScorer, Scorer, linear_scorer, two_tower_scorer
from offpolicy.policies import Policy, ScorerPolicy, logged_log_prob
from offpolicy.rewards import RewardModel
from offpolicy.seeding import torch_generator

FREE_TO_CHANGE = ("epochs", "patience", "show_progress", "tensorboard")
"""Fields that may differ when a training is resumed."""


@dataclass(frozen=True)
class LearnedPolicy:
    """A policy learned from a log, and how it came about."""

    policy: ScorerPolicy = field(repr=False)
    scorer: Scorer = field(repr=False)
    method: str
    label: str
    """What reports print for the method."""
    hyper: Mapping[str, Hyper]
    config: LearnerConfig = field(repr=False)
    history: list[Epoch] = field(repr=False)
    """One record an epoch."""
    best_epoch: int
    """The epoch whose weights these are, from 0; without a metric, the last."""
    best_metric: float | None
    metric: str | None
    """What the epochs were chosen by."""
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

    def logged_log_prob(self, log: LoggedData) -> Tensor:
        """log π(a_n|x_n) of logged rows, float64, actions matched by id."""
        return logged_log_prob(self.policy, log)


def learn_policy(
    log: LoggedData,
    method: str | Method = "uips",
    *,
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
    (`logging_policy`: a fitted one, any policy, or the name of a model), U (`uncertainty`: one number a row, or the
    name of a form), q̂ (`reward_model`). `validation` decides when to stop: a function of the policy, candidate lists,
    a pair (contexts, positives), or another log; with `metric="value"` or `"lower_bound"` and none of these, a share
    of the log is held out. With a `directory`, a checkpoint follows every epoch and a killed training is resumed to
    the same result. `changes` are fields of `LearnerConfig` and hyper-parameters of the method, by name.
    """
    trainer = prepare_training(
        log,
        method,
        logging_policy=logging_policy,
        uncertainty=uncertainty,
        reward_model=reward_model,
        config=config,
        validation=validation,
        directory=directory,
        **changes,
    )
    trainer.run()
    plan, logging = trainer.surrogate.plan, trainer.schedule.scorer
    return LearnedPolicy(
        ScorerPolicy(trainer.scorer, log.actions),
        trainer.scorer,
        plan.method.name,
        plan.method.label or plan.method.name,
        plan.hyper,
        trainer.config,
        trainer.history,
        trainer.best.epoch,
        trainer.best.metric,
        None if trainer.monitor is None else trainer.monitor.name,
        None if logging is None else ScorerPolicy(logging, log.actions),
    )


def prepare_training(
    log: LoggedData,
    method: str | Method = "uips",
    *,
    logging_policy: Policy | str | None = None,
    uncertainty: Tensor | str | None = None,
    reward_model: RewardModel | None = None,
    config: LearnerConfig | None = None,
    validation: Any = None,
    directory: str | Path | None = None,
    **changes: Any,
) -> Trainer:
    """Everything `learn_policy` does before the first step."""
    row = find_method(method)
    config, hyper = settle(row, config, changes)
    train_rows, valid_rows = _held_out_rows(log, validation, config)
    supply = Supply(log, row, config, hyper, logging_policy, uncertainty, reward_model)
    scorer = make_scorer(log, config)
    dtype = next(iter(scorer.parameters())).dtype
    plan = Plan.of(row, hyper, config, float(log.reward.mean()))
    inputs = supply.inputs(dtype)
    train, rows = log, inputs
    parts: list[tuple[LoggedData, RowInputs]] = []
    monitor = None if isinstance(validation, LoggedData) else monitor_of(validation, config.metric)
    if valid_rows is not None and train_rows is not None:
        train, rows = _part(log, inputs, train_rows)
        valid, held = _part(log, inputs, valid_rows)
        parts = [(valid, held)]
        monitor = _held_out(valid, held, supply, plan, config)
    elif isinstance(validation, LoggedData):
        held, judge = supply.other_inputs(validation, dtype, plan)
        monitor = HeldOut(held_out_metric(config.metric), validation, Surrogate(judge, held, 1.0, supply.values()))
    schedule = _schedule(scorer, [(train, rows), *parts], config, row)
    live = None
    if config.in_batch:
        live = schedule.scorer if config.schedule == "alternate" else supply.live()
    surrogate = Surrogate(plan, rows, 1.0, supply.values(), live)
    folder = None if directory is None else Path(directory)
    identity = {} if folder is None else _identity(row, config, hyper, train, rows)
    return Trainer(scorer, train, surrogate, config, schedule, monitor, folder, identity)


def make_scorer(log: LoggedData, config: LearnerConfig) -> Scorer:
    """A fresh scorer for a log, as configured."""
    options: dict[str, Any] = dict(config.scorer_options)
    if callable(config.scorer):
        return config.scorer(log)
    if config.scorer == "two_tower":
        return two_tower_scorer(log, **({"seed": config.seed} | options))
    scorer = linear_scorer(log, **options)
    if config.initial_spread > 0:
        _scatter(scorer, config)
    return scorer


@torch.no_grad()
def _scatter(scorer: LinearScorer, config: LearnerConfig) -> None:
    random = torch_generator(config.seed, "learning", "initial")
    scorer.weights.normal_(0.0, config.initial_spread, generator=random)


def _held_out_rows(log: LoggedData, validation: Any, config: LearnerConfig) -> tuple[Integers | None, Integers | None]:
    """Rows to learn from and rows to judge by, where the log itself is to be divided."""
    if validation is not None or config.metric is None:
        return None, None
    if is_ranking(config.metric):
        raise ParameterError(
            f"metric={config.metric!r} ranks unbiased lists: pass them as `validation` (candidate lists, or contexts "
            "with their positives)."
        )
    held_out_metric(config.metric)
    (train, _), (valid, _) = log.divide((1 - config.held_out, config.held_out), seed=config.seed)
    return train, valid


def _part(log: LoggedData, inputs: RowInputs, rows: Integers) -> tuple[LoggedData, RowInputs]:
    contexts = np.unique(log.context_index[rows]).astype(np.int64)
    part = log.take(rows)
    taken = inputs.taken(rows, contexts)
    if "context_index" in taken.fixed:
        taken.put("context_index", torch.from_numpy(part.context_index.astype(np.int64)))
    return part, taken


def _held_out(valid: LoggedData, rows: RowInputs, supply: Supply, plan: Plan, config: LearnerConfig) -> Monitor:
    """The value of held-out rows by the method's own weight; likelihood is judged by SNIPS where β̂ is known."""
    judge = plan
    if plan.method.weight is None and "log_logging" in rows.fixed:
        judge = Plan(METHODS["snips"], {})
    return HeldOut(held_out_metric(config.metric), valid, Surrogate(judge, rows, 1.0, supply.values()))


def _schedule(
    scorer: Scorer, parts: list[tuple[LoggedData, RowInputs]], config: LearnerConfig, method: Method
) -> Schedule:
    if config.schedule == "pretrained" or not asks_for_logging(method, config):
        return Pretrained()
    return Alternate(scorer, parts, config, method.needs_uncertainty)


def _identity(
    method: Method, config: LearnerConfig, hyper: Mapping[str, Hyper], log: LoggedData, rows: RowInputs
) -> dict[str, Any]:
    """Everything that makes a training what it is; a checkpoint of another one is not resumed."""
    settings = {name: value for name, value in config.as_json().items() if name not in FREE_TO_CHANGE}
    data = fingerprint(log, rows.fixed.get("log_logging"), rows.fixed.get("uncertainty"), rows.fixed.get("imputed"))
    return {"method": method.name, "hyper": dict(hyper), "data": data, **settings}
