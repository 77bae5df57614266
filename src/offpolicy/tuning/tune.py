"""`tune`: find hyper-parameters and learning rate of a method by a held-out estimate that is the same for all."""

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offpolicy.engine import Engine, engine_of
from offpolicy.evaluation import Terms, clustered
from offpolicy.learning import (
    BOUND,
    LearnerConfig,
    MethodSpec,
    check_rows,
    find_method,
    held_out_metric,
    held_out_sample,
    held_out_unit,
    learn_policy,
    monitor_of,
    nuisance_sample,
)
from offpolicy.log import LoggedData
from offpolicy.policies import Policy, logged_log_prob, row_weights, tensor
from offpolicy.propensity import LoggingPolicy, fit_logging_policy
from offpolicy.rewards import RewardFitConfig, fit_reward_model
from offpolicy.tuning.spaces import Setting, Space, search_space
from offpolicy.tuning.study import Outcome, Report, Trial, Tuned, search
from offpolicy.uncertainty import row_uncertainty

DEFAULT = -1
"""The place of the method's own defaults among the trials."""
Score = Callable[[Any], float]
"""The score of a policy; larger is better."""


@dataclass(frozen=True)
class HeldOutValue:
    """The self-normalised estimate of a policy's value on rows it was not learned from, or its lower bound.

    Unlike the monitor of `learn_policy`, which weighs as the method does, this score is the same for all methods: caps
    and λ cannot improve it by changing the estimate.
    """

    log: LoggedData
    log_logging: Tensor
    metric: str = "value"

    @torch.no_grad()
    def __call__(self, policy: Any) -> float:
        """V̂, or V̂ − 1.64·s.e. over clusters."""
        ratio = (logged_log_prob(policy, self.log).double() - self.log_logging.double()).clamp(max=50).exp()
        reward = tensor(self.log.reward).double()
        cluster = tensor(self.log.cluster_index).long()
        estimate = clustered(Terms.without_reward_model(ratio, ratio, reward), cluster, row_weights(self.log))
        return float(estimate.value if self.metric == "value" else estimate.value - BOUND * estimate.standard_error)


@dataclass(frozen=True)
class Problem:
    """What every trial of a study learns from and is scored by."""

    log: LoggedData
    score: Score
    given: Mapping[str, Any]
    """β̂, U and q̂, made once, and who works on the shards of the log."""

    @classmethod
    def of(
        cls,
        log: LoggedData,
        method: MethodSpec,
        config: LearnerConfig,
        validation: Any = None,
        metric: str | None = None,
        *,
        logging_policy: Policy | str | None = None,
        uncertainty: Any = None,
        reward_model: Any = None,
        engine: Engine | None = None,
    ) -> "Problem":
        """Divide the log where no validation is given, and make what the method needs.

        What is fitted here is fitted to the training part alone; what is given for the whole log is divided with it. Of
        a log of many shards it is a sample that nuisances are fitted to, and one that judges; trials learn from all.
        """
        train, valid, rows = log, validation, None
        if validation is None:
            shares = (1 - config.held_out, config.held_out)
            (rows, train), (_, valid) = log.divide(shares, by=held_out_unit(log), seed=config.seed)
        valid = held_out_sample(valid) if isinstance(valid, LoggedData) else valid
        on_log, sample = isinstance(valid, LoggedData), nuisance_sample(train)
        logging: Any = logging_policy
        if (
            isinstance(logging, str) or (logging is None and (on_log or method.needs_logging_policy))
        ) and config.schedule == "pretrained":
            logging = fit_logging_policy(sample, logging or config.scorer, seed=config.seed)
        u = uncertainty
        if method.needs_uncertainty and config.schedule == "pretrained":
            if u is None and isinstance(logging, LoggingPolicy) and train.n_shards == 1:
                u = row_uncertainty(logging)
            if u is not None and not isinstance(u, str) and rows is not None and len(u) == log.n_rows:
                u = check_rows("uncertainty", u, log.n_rows)[torch.as_tensor(rows)]
        q = reward_model
        if method.uses_reward_model and q is None:
            q = fit_reward_model(sample, config.scorer, config=RewardFitConfig(seed=config.seed, show_progress=False))
        if on_log:
            score: Score = HeldOutValue(
                valid, logged_log_prob(_scoring_logging_policy(logging_policy, valid), valid), _metric(metric)
            )
        else:
            monitor = monitor_of(valid, metric)
            assert monitor is not None
            score = monitor.score
        given = {"logging_policy": logging, "uncertainty": u, "reward_model": q, "engine": engine}
        return cls(train, score, {name: each for name, each in given.items() if each is not None})

    def trial(
        self, method: MethodSpec, config: LearnerConfig, settings: Mapping[str, Setting], report: Report, first: int = 0
    ) -> Outcome:
        """Learn with these settings; every epoch's score is reported, the steps counted from `first`."""
        step = first

        def score(policy: Any) -> float:
            nonlocal step
            value = self.score(policy)
            report(step, value)
            step += 1
            return value

        changes: dict[str, Any] = {**self.given, **settings}
        learned = learn_policy(self.log, method, config=config, validation=score, **changes)
        assert learned.best_metric is not None
        return Outcome(learned.best_metric, {"epochs": learned.best_epoch + 1})

    def default(self, method: MethodSpec, config: LearnerConfig) -> Trial:
        """The method's own defaults, scored once as they come out: the trial that tuning must not do worse than."""
        learned = learn_policy(self.log, method, config=config, **self.given)
        return Trial(DEFAULT, "complete", self.score(learned.policy), {})


def _metric(metric: str | None) -> str:
    return held_out_metric(metric or "value")


def _scoring_logging_policy(given: Any, valid: LoggedData) -> Any:
    """β̂ to score with: one that was given, else fitted to the rows that judge, which trained no candidate."""
    return given if given is not None and not isinstance(given, str) else fit_logging_policy(valid, given or "linear")


def tune(
    log: LoggedData,
    method: str | MethodSpec = "uips",
    *,
    trials: int = 20,
    seed: int = 0,
    storage: str | Path | None = None,
    space: str | Space = "effective",
    validation: Any = None,
    metric: str | None = None,
    prune: bool = True,
    config: LearnerConfig | None = None,
    show_progress: bool | None = None,
    engine: Engine | str | None = None,
    **given: Any,
) -> Tuned:
    """Search a method's hyper-parameters, learning rate and number of epochs; the same budget whatever the method.

    Beside the trials the method's own defaults are learned with: the best of all wins, so that tuning cannot do worse
    by its own judge. Each trial learns on the log and is scored every epoch, early stopping included: by `validation`
    (a function of the policy, candidate lists, (contexts, positives), or another log), else by the self-normalised
    value of a held-out share (`config.held_out`) of the log with propensities of its own, `metric` "value" (default)
    or "lower_bound". Trials whose scores stay below
    the median of earlier ones are pruned unless `prune=False`. `given` are `logging_policy`, `uncertainty` and
    `reward_model`, as for `learn_policy`. Trials on a log of many shards learn over its shards, by the workers of an
    `engine` where one is given, with the same result for any of them; what is fitted or scored once is so on samples
    of whole units.
    """
    row = find_method(method)
    config = dataclasses.replace(config or LearnerConfig(held_out=0.2), show_progress=False)
    dimensions = search_space(row, space, n_actions=log.n_actions) if isinstance(space, str) else space
    fixed = {name: value for name, value in config.as_json().items() if name not in ("show_progress", "tensorboard")}
    identity = {"method": row.name, "data": log.fingerprint, "config": fixed, "metric": metric or ""}
    with ExitStack() as held:
        working = None if log.n_shards == 1 else held.enter_context(engine_of(engine))
        problem = Problem.of(log, row, config, validation, metric, engine=working, **given)

        def objective(settings: Mapping[str, Setting], report: Report) -> Outcome:
            return problem.trial(row, config, settings, report)

        found = search(
            objective,
            dimensions,
            name=row.name,
            trials=trials,
            seed=seed,
            storage=storage,
            prune=prune,
            identity=identity,
            show_progress=show_progress,
        )
        default = problem.default(row, config)
    trials_done = (default, *found.trials)
    if default.value is None or default.value < found.value:
        return dataclasses.replace(found, trials=trials_done)
    return Tuned(found.method, default.settings, default.value, trials_done)
