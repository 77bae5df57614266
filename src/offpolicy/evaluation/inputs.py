"""Supplies what weights ask for by name: row quantities by gathering, context quantities one tile at a time.

Sums over all actions need π(·|x) and β̂(·|x) of a context, never of a row, and never more than a tile of them at once.
"""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from offpolicy.estimators import log_floor
from offpolicy.log import LoggedData
from offpolicy.policies import Policy, aligned, batch_log_probs, logged_log_prob, tensor
from offpolicy.rewards import RewardModel

ContextSum = Callable[[Tensor, Tensor], Tensor]

CONTEXT_SUMS: Mapping[str, ContextSum] = {
    "log_second_moment": lambda target, logging: torch.logsumexp(2 * target - log_floor(logging), 1),
    "log_minvar_mass": lambda target, logging: torch.logsumexp(logging - 2 * log_floor(target), 1),
    "log_stablevar_mass": lambda target, logging: torch.logsumexp(logging / 2 - log_floor(target), 1),
}
"""Inputs that sum over all actions of a context, as functions of log π and log β̂ (contexts, actions)."""

TOP_P_INPUTS = ("logging_rank", "log_target_top", "log_logging_top")
ALL_ACTION_INPUTS = (*CONTEXT_SUMS, *TOP_P_INPUTS)


def weight_inputs(
    names: Iterable[str],
    log: LoggedData,
    target: Policy,
    logging: Policy,
    *,
    uncertainty: Tensor | None = None,
    reward_model: RewardModel | None = None,
    top_p: float = 100.0,
) -> dict[str, Tensor]:
    """The named inputs for every row of the log, and `imputed` and `baseline` where there is a reward model."""
    wanted = set(names)
    target, logging = aligned(target, log.actions, "target"), aligned(logging, log.actions, "logging")
    log_target, log_logging = logged_log_prob(target, log), logged_log_prob(logging, log)
    inputs: dict[str, Tensor] = {
        "log_target": log_target,
        "log_logging": log_logging,
        "log_ratio": _difference(log_target, log_logging),
        "reward": tensor(log.reward),
        "action": tensor(log.action).long(),
        "context_index": tensor(log.context_index).long(),
        "sample_size": torch.tensor(float(log.n_contexts)),
    }
    if log.logging_prob is not None:
        inputs["recorded_log_ratio"] = log_target - tensor(log.logging_prob).log()
    if uncertainty is not None:
        inputs["uncertainty"] = uncertainty
    if "log_count_prob" in wanted:
        inputs["log_count_prob"] = log_count_prob(log)
    inputs = {name: values for name, values in inputs.items() if name in wanted or name == "reward"}
    return inputs | _all_action_inputs(
        wanted.intersection(ALL_ACTION_INPUTS), log, target, logging, reward_model, top_p
    )


def _all_action_inputs(
    names: set[str],
    log: LoggedData,
    target: Policy,
    logging: Policy,
    reward_model: RewardModel | None,
    top_p: float,
) -> dict[str, Tensor]:
    """Inputs that need every action of a context, by one pass over tiles of contexts; no pass where none is asked."""
    kept = names | ({"imputed", "baseline"} if reward_model is not None else set())
    inputs = {name: torch.empty(log.n_rows, dtype=torch.float64) for name in sorted(kept)}
    if not kept:
        return inputs
    for tile in log.batches():
        contexts = log.contexts.take(tile.contexts)
        cell = (torch.from_numpy(tile.row_context), torch.from_numpy(tile.row_action))
        log_target = batch_log_probs(target, log, tile)
        parts: dict[str, Tensor] = {}
        if names:
            log_logging = batch_log_probs(logging, log, tile)
            asked = names.intersection(CONTEXT_SUMS)
            parts = {name: CONTEXT_SUMS[name](log_target, log_logging)[cell[0]] for name in asked}
            if names.intersection(TOP_P_INPUTS):
                parts |= _top_p_parts(log_target, log_logging, cell, top_p)
        if reward_model is not None:
            rewards = reward_model.rewards(contexts)
            parts |= {"imputed": rewards[cell], "baseline": (log_target.exp() * rewards).sum(1)[cell[0]]}
        for name in kept:
            inputs[name][tile.rows] = parts[name].double()
    return inputs


def _top_p_parts(
    log_target: Tensor, log_logging: Tensor, cell: tuple[Tensor, Tensor], top_p: float
) -> dict[str, Tensor]:
    order = log_logging.argsort(dim=1, descending=True, stable=True)
    rank = order.argsort(dim=1, stable=True)
    top = order[:, : int(min(top_p, order.shape[1]))]
    return {
        "logging_rank": rank[cell],
        "log_target_top": log_target.gather(1, top).logsumexp(1)[cell[0]],
        "log_logging_top": log_logging.gather(1, top).logsumexp(1)[cell[0]],
    }


def _difference(log_target: Tensor, log_logging: Tensor) -> Tensor:
    """log π − log β̂, with π = 0 giving −inf even where β̂ = 0 too."""
    return torch.where(log_target == -torch.inf, log_target, log_target - log_logging)


def log_count_prob(log: LoggedData) -> Tensor:
    """log N(x, a)/N(x) of each row, N counting events."""
    context, action = tensor(log.context_index).long(), tensor(log.action).long()
    _, pair = torch.unique(context * log.n_actions + action, return_inverse=True)
    weight = None if log.row_weight is None else tensor(log.row_weight)
    share: Tensor = torch.bincount(pair, weight)[pair].double() / tensor(log.context_weight)[context]
    return share.log()
