"""U of every row of a log, from the logging policy that was fitted to it, each row left out of its own U."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from offpolicy.checks import check_choice
from offpolicy.engine import Engine, beside, engine_of, in_groups, merged
from offpolicy.log import LoggedData, pieces
from offpolicy.models import DesignMatrix
from offpolicy.policies import (
    MixturePolicy,
    ScorerPolicy,
    UniformPolicy,
    all_log_probs,
    logged_log_prob,
    row_weights,
    tensor,
)
from offpolicy.propensity import FittedModel, LoggingPolicy, cross_fitted
from offpolicy.uncertainty.block_gauss_newton import BlockGaussNewton
from offpolicy.uncertainty.factor import Normalisation
from offpolicy.uncertainty.gauss_newton import EXACT_LIMIT, LastLayerGaussNewton, LinearGaussNewton, LogProbs
from offpolicy.uncertainty.per_action import PerActionMatrices, PerActionUncertainty
from offpolicy.uncertainty.shared import SharedMatrix

Form = Literal["shared", "per_action", "gauss_newton"]
FORMS: tuple[Form, ...] = ("shared", "per_action", "gauss_newton")


def row_uncertainty(
    logging_policy: LoggingPolicy,
    form: Form = "per_action",
    *,
    ridge: float | None = None,
    normalisation: Normalisation = "raw",
) -> Tensor:
    """U(x_n, a_n) of each row of the logging policy's log, float64.

    With cross-fitting a row's U comes from the rows of the other folds, else from all rows but itself. The ridge is
    that of the fit unless given (and d in the `official` normalisation). Recorded and uniform propensities are not
    estimated: U = 0. Popularity and counts have the standard deviation of a log-frequency.
    """
    check_choice("form", form, FORMS)
    log = logging_policy.log
    plain = {"recorded": _nothing, "uniform": _nothing, "popularity": _of_popularity, "counts": _of_counts}
    if logging_policy.model in plain:
        return plain[logging_policy.model](logging_policy)
    if logging_policy.row_fold is None:
        return uncertainty_of(logging_policy.whole, log, log, form, ridge=ridge, normalisation=normalisation)
    folds, row_fold = logging_policy.folds, logging_policy.row_fold

    def of_fold(k: int, part: LoggedData) -> Tensor:
        return uncertainty_of(folds[k], log.take(row_fold != k), part, form, ridge=ridge, normalisation=normalisation)

    return cross_fitted(log, row_fold, of_fold)


def _nothing(logging_policy: LoggingPolicy) -> Tensor:
    return torch.zeros(logging_policy.log.n_rows, dtype=torch.float64)


def _of_frequencies(log_prob: Tensor, events: float) -> Tensor:
    prob = log_prob.exp()
    return ((1 - prob) / (events * prob)).sqrt()


def _of_popularity(logging_policy: LoggingPolicy) -> Tensor:
    return _of_shares(logging_policy.row_log_prob, logging_policy.log, logging_policy.log)


def _of_shares(log_prob: Tensor, data: LoggedData, rows: LoggedData) -> Tensor:
    return _of_events(log_prob, tensor(data.action_weight), rows)


def _of_events(log_prob: Tensor, action_weight: Tensor, rows: LoggedData) -> Tensor:
    """Of the popularity of actions; among candidates an action's share rests on the events in which it was taken."""
    if rows.candidates is None:
        return _of_frequencies(log_prob, float(action_weight.sum()))
    taken = action_weight[tensor(rows.action).long()]
    return (-torch.expm1(log_prob).clamp(max=0.0) / taken.clamp(min=1.0)).sqrt()


def _of_counts(logging_policy: LoggingPolicy) -> Tensor:
    prob, log = logging_policy.row_log_prob.exp(), logging_policy.log
    rows = tensor(log.context_weight)[tensor(log.context_index).long()]
    return ((1 - prob) / (rows * prob)).sqrt()


def uncertainty_of(
    model: FittedModel,
    data: LoggedData,
    rows: LoggedData,
    form: Form,
    *,
    ridge: float | None = None,
    normalisation: Normalisation = "raw",
) -> Tensor:
    """U of rows under a fitted model, the matrices from `data`; where both are one log, each row is left out.

    Of an ensemble: what its members' U say together, and how far they disagree.
    """
    if rows.candidates is not None and (rows.candidates.sizes[rows.context_index] == 1).any():
        choice = rows.candidates.sizes[rows.context_index] > 1  # where there is none, nothing is uncertain
        result = torch.zeros(rows.n_rows, dtype=torch.float64)
        if choice.any():
            some, source = rows.take(choice), data if rows is not data else data.take(choice)
            given = {"ridge": ridge, "normalisation": normalisation}
            result[torch.from_numpy(choice)] = uncertainty_of(model, source, some, form, **given)  # type: ignore[arg-type]
        return result
    if model.members:
        return _of_ensemble(model, data, rows, form, ridge, normalisation)
    if isinstance(model.base, UniformPolicy):
        return torch.zeros(rows.n_rows, dtype=torch.float64)
    if model.is_counted:
        return _of_shares(logged_log_prob(model.policy, rows), data, rows)
    own = _of_model(
        model, data, rows, form, model.ridge if ridge is None and normalisation == "raw" else ridge, normalisation
    )
    share = model.softmax_share(rows)
    return own if share is None else own * share


def _of_ensemble(
    model: FittedModel,
    data: LoggedData,
    rows: LoggedData,
    form: Form,
    ridge: float | None,
    normalisation: Normalisation,
) -> Tensor:
    """√((Σ r U)² + Σ r (ℓ − ℓ̄)²) over members of responsibility r for the row's action, ℓ their log β̂."""
    if model.view is not None:
        inner, seen = model.in_view(data)
        asked = seen if rows is data else model.in_view(rows)[1]
        return uncertainty_of(inner, seen, asked, form, ridge=ridge, normalisation=normalisation)
    own = [uncertainty_of(one, data, rows, form, ridge=ridge, normalisation=normalisation) for one in model.members]
    return _together(model, rows, own)


def _together(model: FittedModel, rows: LoggedData, own: list[Tensor]) -> Tensor:
    """U of an ensemble from those of its members."""
    mixture = model.policy
    assert isinstance(mixture, MixturePolicy)
    parts = mixture.member_log_probs(rows)
    share = parts.softmax(1)
    likelihood = torch.where(share > 0, parts - mixture.row_log_weights(rows), 0.0)
    centre = (share * likelihood).sum(1, keepdim=True)
    disagreement = (share * (likelihood - centre).square()).sum(1)
    return ((share * torch.stack(own, 1)).sum(1).square() + disagreement).sqrt()


def _of_model(
    model: FittedModel,
    data: LoggedData,
    rows: LoggedData,
    form: Form,
    ridge: float | None,
    normalisation: Normalisation,
) -> Tensor:
    softmax = model.softmax
    items = None if softmax is None else softmax.scorer.items()
    state = state_function(softmax, data, intercept=items is None and normalisation == "raw")
    if form == "shared":
        return _shared(state, items, data, rows, ridge, normalisation)
    if form == "per_action" or softmax is None:
        return _per_action(state, data, rows, ridge, normalisation)
    if items is not None:
        return _last_layer(softmax, items.detach(), data, rows, ridge)
    return _linear(model, state, data, rows, ridge)


State = Callable[[LoggedData], Tensor]


@dataclass(frozen=True)
class States:
    """The last layer's input of every context of a log."""

    source: ScorerPolicy | DesignMatrix
    intercept: bool

    def __call__(self, log: LoggedData) -> Tensor:
        """Of the contexts of this log."""
        source, table = self.source, log.contexts
        found = source.encode(table) if isinstance(source, DesignMatrix) else source.states(table)
        return torch.cat([found, found.new_ones(len(found), 1)], 1) if self.intercept else found


def state_function(softmax: ScorerPolicy | None, data: LoggedData, intercept: bool) -> State:
    """The last layer's input of every context of a log; with an intercept, which is a weight like the others."""
    return States(DesignMatrix.fit(data.contexts) if softmax is None else softmax, intercept)


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
        if rows.candidates is not None and (rows.candidates.sizes[rows.context_index] == 1).any():
            choice = rows.candidates.sizes[rows.context_index] > 1  # where there is none, nothing is uncertain
            result = torch.zeros(rows.n_rows, dtype=torch.float64)
            if choice.any():
                result[torch.from_numpy(choice)] = self(rows.take(choice), inside)
            return result
        if self.model.view is not None and self.members:
            return self.members[0](self.model.in_view(rows)[1], inside)
        if self.members:
            return _together(self.model, rows, [one(rows, inside) for one in self.members])
        if self.action_weight is not None:
            return _of_events(logged_log_prob(self.model.policy, rows), self.action_weight, rows)
        if self.states is None or self.matrices is None:
            return torch.zeros(rows.n_rows, dtype=torch.float64)
        weight = row_weights(rows) if inside else None
        own = self.matrices.of(self.states(rows), *_rows(rows), inside if weight is None else weight)
        share = self.model.softmax_share(rows)
        return own if share is None else own * share


def _all_matrices(data: LoggedData, states: States, engine: Engine | str | None) -> PerActionMatrices:
    if data.n_shards == 1:
        return _matrices(data, 0, states)
    groups = {group[0]: group for group in in_groups(range(data.n_shards))}
    with engine_of(engine) as working, working.over(data, list(groups.values())) as crew:
        matrices: PerActionMatrices = merged(crew.map(_of_group, states, groups, only=list(groups)))
    return matrices


def _of_group(shard: LoggedData, index: int, states: States, groups: Mapping[int, Sequence[int]]) -> PerActionMatrices:
    matrices: PerActionMatrices = merged(beside(number, _matrices, states) for number in groups[index])
    matrices.sort_pending()  # which is what is sent
    return matrices


def _matrices(shard: LoggedData, index: int, states: States) -> PerActionMatrices:
    """What the rows of a shard say about each action."""
    table = states(shard)
    matrices = PerActionMatrices(table.shape[1], shard.n_actions)
    matrices.add(table, *_rows(shard), row_weights(shard))
    return matrices


def _rows(log: LoggedData) -> tuple[Tensor, Tensor]:
    return tensor(log.context_index).long(), tensor(log.action).long()


def _shared(
    state: State,
    items: Tensor | None,
    data: LoggedData,
    rows: LoggedData,
    ridge: float | None,
    normalisation: Normalisation,
) -> Tensor:
    def gradients(log: LoggedData) -> Callable[[slice], Tensor]:
        states = state(log)
        context, action = _rows(log)
        if items is None:
            return lambda part: states[context[part]]
        return lambda part: states[context[part]] * items.detach()[action[part]]

    source, query = gradients(data), gradients(rows)
    matrix = SharedMatrix(source(slice(0, 1)).shape[1], normalisation)
    weight, itself = row_weights(data), _itself(data, rows)
    for part in pieces(data.n_rows, matrix.d):
        matrix.add(source(part), None if weight is None else weight[part])
    shared = matrix.finish(ridge)
    return torch.cat(
        [
            shared.of(query(part), itself if isinstance(itself, bool) else itself[part])
            for part in pieces(rows.n_rows, matrix.d)
        ]
    )


def _itself(data: LoggedData, rows: LoggedData) -> bool | Tensor:
    """With which weight each queried row is part of the data, so that it can be left out; False where it is not."""
    if not rows.same_as(data):
        return False
    weight = row_weights(data)
    return True if weight is None else weight


def _per_action(
    state: State, data: LoggedData, rows: LoggedData, ridge: float | None, normalisation: Normalisation
) -> Tensor:
    states = state(data)
    matrices = PerActionMatrices(states.shape[1], data.n_actions, normalisation)
    matrices.add(states, *_rows(data), row_weights(data))
    queried = states if rows is data else state(rows)
    return matrices.finish(ridge).of(queried, *_rows(rows), _itself(data, rows))


def _last_layer(
    softmax: ScorerPolicy, items: Tensor, data: LoggedData, rows: LoggedData, ridge: float | None
) -> Tensor:
    def head(log: LoggedData) -> LogProbs:
        if log.candidates is None:
            return softmax.weights, softmax.bias
        return lambda part: all_log_probs(softmax, log.contexts.take(part))

    states = softmax.states(data.contexts)
    matrix = LastLayerGaussNewton(states.shape[1])
    matrix.add(states, tensor(data.context_weight), items, head(data))
    queried = states if rows is data else softmax.states(rows.contexts)
    return matrix.finish(ridge).of(queried, items, head(rows), *_rows(rows))


def _linear(model: FittedModel, state: State, data: LoggedData, rows: LoggedData, ridge: float | None) -> Tensor:
    states = state(data)
    queried = states if rows is data else state(rows)
    width, n_actions = states.shape[1], data.n_actions
    if width * n_actions <= EXACT_LIMIT:
        whole = LinearGaussNewton(width, n_actions)
        whole.add(
            states, tensor(data.context_weight), lambda part: all_log_probs(model.policy, data.contexts.take(part))
        )
        return whole.finish(ridge).of(
            queried, lambda part: all_log_probs(model.policy, rows.contexts.take(part)), *_rows(rows)
        )
    blocks = BlockGaussNewton(width, n_actions)
    blocks.add(states, *_rows(data), logged_log_prob(model.policy, data), row_weights(data))
    asked = logged_log_prob(model.policy, rows)
    return blocks.finish(ridge).of(queried, *_rows(rows), asked, inside=_itself(data, rows))
