"""U of the rows of any log, from matrices that are computed once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offpolicy.engine import Engine, beside, engine_of, in_groups, merged
from offpolicy.log import LoggedData
from offpolicy.policies import (
    UniformPolicy,
    logged_log_prob,
    row_weights,
    tensor,
)
from offpolicy.propensity import FittedModel, LoggingPolicy
from offpolicy.uncertainty.per_action import PerActionMatrices, PerActionUncertainty
from offpolicy.uncertainty.rows import States, codes_of_rows, of_events, state_function, together, where_chosen


@dataclass(frozen=True)
class UncertaintyModel:
    """U per action of the rows of any log that β̂ was not fitted to; the matrices are computed once."""

    model: FittedModel
    members: tuple["UncertaintyModel", ...] = ()
    states: States | None = None
    matrices: PerActionUncertainty | None = None
    action_weight: Tensor | None = None
    """Events of each action, where β̂ is its share of them."""

    @staticmethod
    def of(logging_policy: LoggingPolicy, engine: Engine | str | None = None) -> "UncertaintyModel":
        """From the rows that the logging policy was fitted to; where they are many shards, by whoever works on them."""
        if logging_policy.model in ("recorded", "uniform"):
            return UncertaintyModel(logging_policy.whole)
        return UncertaintyModel._of(logging_policy.whole, logging_policy.log, engine)

    @staticmethod
    def _of(model: FittedModel, data: LoggedData, engine: Engine | str | None = None) -> "UncertaintyModel":
        if model.members:
            inner, seen = model.in_view(data)
            parts = (inner,) if model.view is not None else model.members
            return UncertaintyModel(model, tuple(UncertaintyModel._of(one, seen) for one in parts))
        if isinstance(model.base, UniformPolicy):
            return UncertaintyModel(model)
        if model.is_counted:
            return UncertaintyModel(model, action_weight=tensor(data.action_weight))
        softmax = model.softmax
        states = state_function(softmax, data, intercept=softmax is None or softmax.scorer.items() is None)
        assert isinstance(states, States)
        return UncertaintyModel(model, states=states, matrices=_all_matrices(data, states, engine).finish(model.ridge))

    def __call__(self, rows: LoggedData, inside: bool = False) -> Tensor:
        """U of every row of a log, float64; rows that are `inside` the data are left out, each of its own U."""
        found = where_chosen(rows, lambda choice: self(rows.take(choice), inside))
        if found is not None:
            return found
        if self.model.view is not None and self.members:
            return self.members[0](self.model.in_view(rows)[1], inside)
        if self.members:
            return together(self.model, rows, [one(rows, inside) for one in self.members])
        if self.action_weight is not None:
            return of_events(logged_log_prob(self.model.policy, rows), self.action_weight, rows)
        if self.states is None or self.matrices is None:
            return torch.zeros(rows.n_rows, dtype=torch.float64)
        weight = row_weights(rows) if inside else None
        own = self.matrices.of(self.states(rows), *codes_of_rows(rows), inside if weight is None else weight)
        share = self.model.softmax_share(rows)
        return own if share is None else own * share


def _all_matrices(data: LoggedData, states: States, engine: Engine | str | None) -> PerActionMatrices:
    if data.n_shards == 1:
        return _matrices(data, 0, states)
    groups = {group[0]: group for group in in_groups(range(data.n_shards))}
    with engine_of(engine) as working, working.over(data, list(groups.values())) as pool:
        matrices: PerActionMatrices = merged(pool.map(_of_group, states, groups, only=list(groups)))
    return matrices


def _of_group(shard: LoggedData, index: int, states: States, groups: Mapping[int, Sequence[int]]) -> PerActionMatrices:
    matrices: PerActionMatrices = merged(beside(number, _matrices, states) for number in groups[index])
    matrices.sort_pending()  # which is what is sent
    return matrices


def _matrices(shard: LoggedData, index: int, states: States) -> PerActionMatrices:
    """What the rows of a shard say about each action."""
    table = states(shard)
    matrices = PerActionMatrices(table.shape[1], shard.n_actions)
    matrices.add(table, *codes_of_rows(shard), row_weights(shard))
    matrices.sort_pending()  # so that shards that follow each other do not wait together
    return matrices
