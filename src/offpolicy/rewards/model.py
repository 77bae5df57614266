"""What every reward model offers."""

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from offpolicy.log import FeatureTable, LoggedData, pieces


@runtime_checkable
class RewardModel(Protocol):
    """q̂: expected rewards of all actions. One fitted to a log also knows that log's rows without having seen them."""

    def rewards(self, contexts: FeatureTable) -> Tensor:
        """q̂(x, a), shape (contexts, actions)."""
        ...


def choice_rewards(model: RewardModel, contexts: FeatureTable) -> Tensor:
    """q̂ of what each context offers: all actions, (contexts, actions), or its candidates, (contexts, width)."""
    candidates = contexts.candidates
    if candidates is None:
        return model.rewards(contexts)
    own: Any = getattr(model, "rewards_among", None)
    if own is not None:
        found: Tensor = own(contexts)
        return found
    actions = torch.from_numpy(candidates.padded()).clamp(min=0)
    n_actions = len(candidates.vocabulary)
    parts = [model.rewards(contexts.take(part)).gather(1, actions[part]) for part in pieces(len(actions), n_actions)]
    return torch.cat(parts)


def row_rewards(model: RewardModel, log: LoggedData) -> Tensor:
    """q̂(x_n, a_n) of logged rows, float64; by the model's own `row_rewards` where it has one."""
    own: Any = getattr(model, "row_rewards", None)
    found: Tensor = rewards_of_rows(model, log) if own is None else own(log)
    return found


def rewards_of_rows(model: RewardModel, log: LoggedData) -> Tensor:
    """q̂(x_n, a_n) of logged rows, float64, gathered from those of all actions."""
    result = torch.empty(log.n_rows, dtype=torch.float64)
    for batch in log.batches():
        rewards = choice_rewards(model, log.contexts.take(batch.contexts))
        result[batch.rows] = rewards[batch.row_context, batch.row_place].double()
    return result
