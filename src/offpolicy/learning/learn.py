"""`learn_policy`: one method, or a portfolio of them and the choice among what they learned."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from offpolicy.engine import Engine
from offpolicy.errors import ParameterError
from offpolicy.evaluation import Evaluator, Options
from offpolicy.learning.config import LearnerConfig
from offpolicy.learning.methods import MethodSpec
from offpolicy.learning.over_shards import SAMPLE_ROWS, sample_of
from offpolicy.learning.portfolio import AUTO, PORTFOLIO, choice_of, member_settings
from offpolicy.learning.prepare import FEWEST_CLUSTERS, check_rewards, held_out_unit
from offpolicy.learning.single import LearnedPolicy, learn_single
from offpolicy.log import LoggedData
from offpolicy.models import has_many_ids
from offpolicy.nuisances import Nuisances
from offpolicy.policies import Policy
from offpolicy.rewards import RewardModel

HELD_OUT = 0.2
"""Share of contexts (or clusters) on which the portfolio is chosen from."""


def learn_policy(
    log: LoggedData,
    method: str | MethodSpec = AUTO,
    *,
    nuisances: Nuisances | None = None,
    logging_policy: Policy | str | None = None,
    uncertainty: Tensor | str | None = None,
    reward_model: RewardModel | None = None,
    config: LearnerConfig | None = None,
    validation: Any = None,
    directory: str | Path | None = None,
    engine: Engine | str | None = None,
    **changes: Any,
) -> LearnedPolicy:
    """Learn a policy from a log.

    `method` is "auto", a name of `METHODS` or of any registered estimator. "auto" learns with several methods on 80 %
    of the log and chooses on the rest, or on a log given as `validation`; the result's `choice` says why, and whether
    the policy is better than logging. What a method needs and is not given is fitted: β̂ (`logging_policy`: a fitted
    one, any policy, or the name of a model), U (`uncertainty`: one number per row, or the name of a form), q̂
    (`reward_model`); or give `nuisances` of this log, which several methods may share. `validation` decides when to
    stop: a function of the policy, candidate lists, a pair (contexts, positives), or another log; without it and
    without a number of `epochs`, a share of the log is held out. With a `directory`, a checkpoint is written every
    epoch and a killed training resumes to the same result. `changes` are fields of `LearnerConfig` and
    hyper-parameters of the method, by name.

    A log of many shards is learned from over its shards, by the workers of an `engine` where one is given ("local",
    "ray" or one made by `make_engine`), with the same weights for any of them; what the method needs beside the rows is
    estimated on a sample of whole units that fits into memory. "auto" learns all of its methods from such a sample.
    """
    given: dict[str, Any] = {"nuisances": nuisances, "logging_policy": logging_policy, "uncertainty": uncertainty}
    given |= {"reward_model": reward_model, "validation": validation}
    if method == AUTO:
        return _learn_auto(log, given, config, directory, changes)
    given |= {"engine": engine, "config": config, "directory": directory}
    return learn_single(log, method, **given, **changes)


def _learn_auto(
    log: LoggedData,
    given: Mapping[str, Any],
    config: LearnerConfig | None,
    directory: str | Path | None,
    changes: Mapping[str, Any],
) -> LearnedPolicy:
    """The chosen policy of the portfolio."""
    members = member_settings(changes)
    note = ""
    if log.n_shards > 1:
        whole, log = log, sample_of(log, SAMPLE_ROWS, range(log.n_shards), "portfolio")
        if log.n_rows < whole.n_rows:
            note = f"Learned from a sample of {log.n_rows:,} of {whole.n_rows:,} rows, drawn by whole units."
    check_rewards(log)
    seed = int(changes.get("seed", (config or LearnerConfig()).seed))
    validation, rewards = given["validation"], given["reward_model"]
    if given["uncertainty"] is not None or (validation is not None and not isinstance(validation, LoggedData)):
        raise ParameterError(
            "method='auto' divides the log and chooses on logged rows: it takes another log as validation, and no "
            "uncertainty by row. Name a method to give these."
        )
    train, held = (log, validation) if validation is not None else _divided(log, seed)
    model, beta = _propensities(given, log, changes.get("scorer", (config or LearnerConfig()).scorer))
    own = None if isinstance(beta, str) else beta
    known = Nuisances(train, model=model, logging_policy=own, reward_model=rewards, seed=seed)
    learned = {
        name: learn_single(
            known.log,
            name,
            nuisances=known,
            config=config,
            directory=None if directory is None else Path(directory) / name,
            **settings,
        )
        for name, settings in members.items()
    }
    judged = Nuisances(held, model=model, logging_policy=own, seed=seed)
    options = Options(best_by="value", prefer=PORTFOLIO[0], seed=seed)
    evaluator = Evaluator(judged, {name: one.policy for name, one in learned.items()}, options=options)
    choice = choice_of(evaluator, {name: one.seconds for name, one in learned.items()})
    return replace(learned[choice.method], choice=choice, note=note)


def _propensities(given: Mapping[str, Any], log: LoggedData, scorer: Any) -> tuple[Any, Policy | None]:
    """The model of β̂ to fit, or the β̂ that is given."""
    nuisances, beta = given["nuisances"], given["logging_policy"]
    if nuisances is not None:
        return nuisances.model, None
    if isinstance(beta, str):
        return beta, None
    linear = scorer == "linear" or (scorer == AUTO and not has_many_ids(log.contexts))
    return "linear" if linear else AUTO, beta


def _divided(log: LoggedData, seed: int) -> tuple[LoggedData, LoggedData]:
    """Rows to learn from and rows to choose on: all of them for both where they are very few."""
    if len(np.unique(log.cluster_index)) < FEWEST_CLUSTERS:
        return log, log
    train, held = log.split((1 - HELD_OUT, HELD_OUT), by=held_out_unit(log), seed=seed)
    return train, held
