"""U of every row of a log, from the logging policy that was fitted to it, each row left out of its own U."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offpolicy.checks import check_choice
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
from offpolicy.uncertainty.per_action import PerActionMatrices
from offpolicy.uncertainty.shared import SharedMatrix

Mask = npt.NDArray[np.bool_]
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
    return of_events(log_prob, tensor(data.action_weight), rows)


def of_events(log_prob: Tensor, action_weight: Tensor, rows: LoggedData) -> Tensor:
    """Of the popularity of actions; among candidates an action's share rests on the events in which it was taken."""
    if rows.candidates is None:
        return _of_frequencies(log_prob, float(action_weight.sum()))
    taken = action_weight[tensor(rows.action).long()]
    return (-torch.expm1(log_prob).clamp(max=0.0) / taken.clamp(min=1.0)).sqrt()


def _of_counts(logging_policy: LoggingPolicy) -> Tensor:
    prob, log = logging_policy.row_log_prob.exp(), logging_policy.log
    rows = tensor(log.context_weight)[tensor(log.context_index).long()]
    return ((1 - prob) / (rows * prob)).sqrt()


def where_chosen(rows: LoggedData, of_some: Callable[[Mask], Tensor]) -> Tensor | None:
    """U of rows of which some had no choice, where nothing is uncertain; None where all had one."""
    if rows.candidates is None:
        return None
    choice: Mask = rows.candidates.sizes[rows.context_index] > 1
    if choice.all():
        return None
    result = torch.zeros(rows.n_rows, dtype=torch.float64)
    if choice.any():
        result[torch.from_numpy(choice)] = of_some(choice)
    return result


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

    def of_some(choice: Mask) -> Tensor:
        source = data if rows is not data else data.take(choice)
        return uncertainty_of(model, source, rows.take(choice), form, ridge=ridge, normalisation=normalisation)

    found = where_chosen(rows, of_some)
    if found is not None:
        return found
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
    return together(model, rows, own)


def together(model: FittedModel, rows: LoggedData, own: list[Tensor]) -> Tensor:
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


def codes_of_rows(log: LoggedData) -> tuple[Tensor, Tensor]:
    """The context and the action of every row."""
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
        context, action = codes_of_rows(log)
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
    matrices.add(states, *codes_of_rows(data), row_weights(data))
    queried = states if rows is data else state(rows)
    return matrices.finish(ridge).of(queried, *codes_of_rows(rows), _itself(data, rows))


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
    return matrix.finish(ridge).of(queried, items, head(rows), *codes_of_rows(rows))


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
            queried, lambda part: all_log_probs(model.policy, rows.contexts.take(part)), *codes_of_rows(rows)
        )
    blocks = BlockGaussNewton(width, n_actions)
    blocks.add(states, *codes_of_rows(data), logged_log_prob(model.policy, data), row_weights(data))
    asked = logged_log_prob(model.policy, rows)
    return blocks.finish(ridge).of(queried, *codes_of_rows(rows), asked, inside=_itself(data, rows))
