"""From a log to a trainer that is ready for its first step: config → nuisances → objective → trainer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.learning.alternation import Alternation
from offpolicy.learning.budget import scored_rows
from offpolicy.learning.config import LearnerConfig, resolve_config
from offpolicy.learning.methods import AUTO, LEARNING_SHARE, LOGGING_INPUTS, METHODS, MethodSpec, find_method
from offpolicy.learning.monitors import HeldOut, Monitor, held_out_metric, is_ranking, monitor_of
from offpolicy.learning.objective import Objective
from offpolicy.learning.rows import Integers, check_rows, is_kept, row_count, row_inputs
from offpolicy.learning.starts import (
    greedy_scorer,
    grouped_scorer,
    make_scorer,
    model_of,
    scorer_of,
    starts_from_rewards,
)
from offpolicy.learning.trainer import Trainer
from offpolicy.log import LoggedData, Unit, digest
from offpolicy.models import (
    Scorer,
    has_many_ids,
)
from offpolicy.nuisances import Nuisances
from offpolicy.policies import Policy
from offpolicy.propensity import LoggingPolicy
from offpolicy.rewards import CrossFittedRewards, RewardFitConfig, RewardModel, row_rewards

PESSIMISM = 1.0
"""Standard deviations by which q̂ of hardly ever logged actions is lowered for learning."""
FEWEST_CLUSTERS = 50
"""A log with fewer is not divided without being asked."""
FREE_TO_CHANGE = ("epochs", "patience", "show_progress", "tensorboard")
"""Fields that may differ when a training is resumed."""


def prepare_training(
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
) -> Trainer:
    """Everything `learn_policy` does before the first step."""
    config, spec = resolve_config(method, config, changes, log.mean_reward)
    check_rewards(log)
    config = replace(config, scorer=scorer_of(log, config))
    if isinstance(uncertainty, str):
        config, uncertainty = replace(config, uncertainty_form=uncertainty), None
    _check_countable(spec, log)
    split = _held_out_rows(log, validation, config, spec)
    given = (logging_policy, uncertainty, reward_model)
    known = _own_nuisances(log, config, *given) if nuisances is None else _checked(nuisances, log, given)
    if changes.get("gamma") == AUTO and "gamma" in spec.hyper:
        spec = replace(spec, given={**spec.given, "gamma": LEARNING_SHARE * known.gamma})
    has_held_out = (split is not None and config.metric is not None) or isinstance(validation, LoggedData)
    offered = logging_policy is not None or (nuisances is not None and has_held_out)
    needed = asks_for_logging(spec, config) and config.schedule == "pretrained"
    logging = known.logging_policy if offered or needed else None
    scorer = make_scorer(log, config)
    whole = _objective(known, spec, config, logging, next(iter(scorer.parameters())).dtype)
    starts = starts_from_rewards(whole.reward_model, scorer, config, spec)
    if starts:
        scorer = greedy_scorer(whole.reward_model, log)  # type: ignore[arg-type]
    if spec.by_group:
        scorer = grouped_scorer(scorer, log, whole, config, starts)
    monitor: Monitor | None
    train, objective, parts = log, whole, [(log, whole.rows)]
    if split is not None:
        (train, objective), (valid, held) = (_part(log, whole, rows) for rows in split)
        parts = [(train, objective.rows), (valid, held.rows)]
        monitor = HeldOut(held_out_metric(config.metric), valid, _scoring_objective(held))
    elif isinstance(validation, LoggedData):
        held = _validation_objective(known, validation, whole, config, logging)
        monitor = HeldOut(held_out_metric(config.metric), validation, held)
    else:
        monitor = monitor_of(validation, config.metric)
    alternation = None
    if config.schedule == "alternate" and asks_for_logging(spec, config):
        alternation = Alternation(scorer, parts, config, spec.needs_uncertainty)
    if config.in_batch and asks_for_logging(spec, config):
        objective.current_propensity_scorer = _propensity_scorer(alternation, logging)
    folder = None if directory is None else Path(directory)
    identity = {} if folder is None else _identity(spec, config, log, whole, validation)
    trainer = Trainer(scorer, train, objective, config, alternation, monitor, folder, identity)
    trainer.started, trainer.converged = starts, starts and not spec.corrects
    return trainer


def asks_for_logging(spec: MethodSpec, config: LearnerConfig) -> bool:
    """Whether β̂ is needed: by the method, or by the capped ratio that stands for its weight in the first epoch."""
    return spec.needs_logging_policy or (config.first_epoch_cap is not None and spec.weighs)


def _check_countable(spec: MethodSpec, log: LoggedData) -> None:
    if log.row_weight is not None and (spec.compares_rows or spec.selection is not None):
        raise ParameterError(
            f"Method {spec.name!r} compares the rows of a log with each other and cannot count one as several events, "
            "but this log has a row_weight. Choose another method, or repeat the rows."
        )


def _own_nuisances(
    log: LoggedData,
    config: LearnerConfig,
    logging_policy: Policy | str | None,
    uncertainty: Tensor | None,
    reward_model: RewardModel | None,
) -> Nuisances:
    """What is given, and the rest fitted with the policy's architecture when it is asked for."""
    return Nuisances(
        log,
        model=model_of(log, config, logging_policy),
        logging_policy=None if isinstance(logging_policy, str) else logging_policy,
        uncertainty=None if uncertainty is None else check_rows("uncertainty", uncertainty, log.n_rows),
        reward_model=reward_model,
        seed=config.seed,
    )


def _checked(nuisances: Nuisances, log: LoggedData, given: tuple[object, ...]) -> Nuisances:
    if any(each is not None for each in given):
        raise ParameterError(
            "Give nuisances, or logging_policy, uncertainty and reward_model, not both: nuisances hold all three."
        )
    if not nuisances.log.same_as(log):
        raise ParameterError("These nuisances belong to another log than the one to learn from. Make them of this log.")
    return nuisances


def form_of(config: LearnerConfig) -> dict[str, Any]:
    """Which U is computed."""
    options: dict[str, Any] = {"normalisation": "official" if config.unit_gradients else "raw"}
    return options if config.uncertainty_form is None else options | {"form": config.uncertainty_form}


def _objective(
    known: Nuisances, spec: MethodSpec, config: LearnerConfig, logging: Policy | None, dtype: torch.dtype
) -> Objective:
    """The objective on all rows of the log; β̂ and U of the rows follow later where they alternate."""
    log, alternates = known.log, config.schedule == "alternate"
    if alternates and "log_target_top" in spec.inputs:
        raise ParameterError(f"{spec.name!r} chooses actions by β̂ once, before learning. Use schedule='pretrained'.")
    u = known.uncertainty(**form_of(config)) if spec.needs_uncertainty and not alternates else None
    rows = row_inputs(spec, config, log, dtype, logging=None if alternates else logging, uncertainty=u)
    if not spec.uses_reward_model:
        return Objective(spec, rows, count=row_count(log, dtype))
    fit = RewardFitConfig(seed=config.seed, show_progress=config.show_progress, pessimism=PESSIMISM)
    model = known.cross_fitted_rewards(config.scorer, fit)
    rows.put("imputed", row_rewards(model, log))
    if isinstance(model, CrossFittedRewards) and model.row_fold is not None and model.log.same_as(log):
        rows.put("fold", torch.from_numpy(model.row_fold))
        if is_kept(log) and model.context_rewards is not None:
            rows.by_context["rewards"] = model.context_rewards
    return Objective(spec, rows, model, row_count(log, dtype))


def _part(log: LoggedData, whole: Objective, rows: Integers) -> tuple[LoggedData, Objective]:
    """Some rows of the log and the objective on them."""
    part, contexts = log.take(rows), np.unique(log.context_index[rows]).astype(np.int64)
    count = None if whole.count is None else whole.count[torch.from_numpy(rows)]
    return part, replace(whole, rows=whole.rows.taken(part, rows, contexts), count=count)


def _scoring_objective(held: Objective) -> Objective:
    """What weighs held-out rows: the method's own weight, or, where that follows the log or is none (likelihood), one
    that no epoch changes and no single row can decide.
    """
    spec = held.spec
    likelihood = spec.weight is None or spec.formula.name == "likelihood"
    if not (likelihood or spec.auto or spec.by_group) or "log_logging" not in held.rows.fixed:
        return held
    events = float(len(held.rows.fixed["reward"]) if held.count is None else held.count.sum())
    name = "sn_shrinkage_dr" if spec.uses_reward_model else "sn_shrinkage"
    return replace(held, spec=replace(find_method(name), given={"lam": events}))


def _validation_objective(
    known: Nuisances, log: LoggedData, whole: Objective, config: LearnerConfig, logging: Policy | None
) -> Objective:
    """What weighs the rows of another log: as the method does, or SNIPS where U of its rows is not known."""
    spec, model, dtype = whole.spec, whole.reward_model, whole.rows.fixed["reward"].dtype
    if logging is None and spec.inputs & LOGGING_INPUTS:
        raise ParameterError(
            "With schedule='alternate' a validation log has no β̂ of its own. Set metric='value' instead, which holds "
            "out a share of the log."
        )
    u = known.uncertainty_of(log, **form_of(config)) if spec.needs_uncertainty else None
    if (spec.weight is None and logging is not None) or (spec.needs_uncertainty and u is None):
        spec = METHODS["snips"]
    if spec.by_group:
        spec = METHODS["dr"]
    rows = row_inputs(spec, config, log, dtype, logging=logging, uncertainty=u)
    if model is not None:
        rows.put("imputed", row_rewards(model, log))
    return Objective(spec, rows, model, row_count(log, dtype))


def _propensity_scorer(alternation: Alternation | None, logging: Policy | None) -> Scorer:
    """The scorer of β̂, for probabilities within a batch."""
    if alternation is not None:
        return alternation.scorer
    scorer = logging.whole.scorer if isinstance(logging, LoggingPolicy) else None
    if scorer is None:
        raise ParameterError(
            "in_batch=True takes β̂ as a softmax over the batch, so it needs a scorer: fit the logging policy with "
            "model='linear' or 'two_tower', or set schedule='alternate'."
        )
    return scorer


def _held_out_rows(
    log: LoggedData, validation: Any, config: LearnerConfig, spec: MethodSpec
) -> tuple[Integers, Integers] | None:
    """Rows to learn from and rows to validate on, where the log itself is split."""
    if validation is not None:
        return None
    if config.metric is None:
        few = len(np.unique(log.cluster_index)) < FEWEST_CLUSTERS
        if config.epochs is not None or few or not spec.corrects:
            return None
    if is_ranking(config.metric):
        raise ParameterError(
            f"metric={config.metric!r} ranks unbiased lists: pass them as `validation` (candidate lists, or contexts "
            "with their positives)."
        )
    held_out_metric(config.metric)
    shares = (1 - config.held_out, config.held_out)
    (train, _), (valid, _) = log.divide(shares, by=held_out_unit(log), seed=config.seed)
    return train, scored_rows(log, valid, config.seed)


def held_out_unit(log: LoggedData) -> Unit | None:
    """What is held out as a whole: clusters or contexts; rows where contexts are known by ids, which a policy has to
    have seen, unless clusters or slates were named.
    """
    return "row" if log.cluster is None and log.request is None and has_many_ids(log.contexts) else None


def check_rewards(log: LoggedData) -> None:
    """Refuse a log whose rewards are all alike, before any work."""
    if log.n_rows and log.reward.min() == log.reward.max():
        value = log.reward_to_user_scale(float(log.reward[0]))
        raise ParameterError(
            f"Every reward in the rows to learn from is {value:g}: nothing tells actions apart. Check that the reward "
            "column is the right one, or give rows with other rewards."
        )


def _identity(
    spec: MethodSpec, config: LearnerConfig, log: LoggedData, whole: Objective, validation: Any
) -> dict[str, Any]:
    """Everything that makes a training what it is; a checkpoint of another one is not resumed."""
    settings = {name: value for name, value in config.as_json().items() if name not in FREE_TO_CHANGE}
    given = (whole.rows.fixed.get(name) for name in ("log_logging", "uncertainty", "imputed"))
    digests = {
        "data": log.fingerprint,
        "nuisances": digest(*(None if values is None else values.numpy() for values in given)),
        "validation": validation.fingerprint if isinstance(validation, LoggedData) else None,
    }
    return {"method": spec.name, "hyper": dict(spec.values), **digests, **settings}
