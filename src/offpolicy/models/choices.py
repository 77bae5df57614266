"""The softmax head among candidates: logits h·w_a + b_a + e_xa of the actions on offer in each context.

Arrays are (contexts, width): column j is the j-th candidate, beyond a set's end nothing. Two kernels give the same
numbers: one gathers the weights of the candidates (a few among many actions), the other multiplies with all weights
and picks (most of few actions). Contexts go through in tiles, and where a gradient is asked for together with the value
the gathered weights serve both.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.autograd.function import once_differentiable

from offpolicy.models.tiles import Coefficients

TILE_NUMBERS = 1 << 19
"""Numbers of a tile's buffer: small enough to stay near the cache."""
DENSE_WORTH = 16
"""All weights are multiplied where there are at most so many times more actions than candidates: products run that
much faster than gathers."""


@dataclass(frozen=True)
class Offered:
    """The actions on offer in some contexts."""

    actions: Tensor  # (contexts, width), 0 beyond a set's end
    real: Tensor  # (contexts, width) whether there is a candidate
    scores: Tensor | None = None
    """What is added to each logit, (contexts, width): the part of the score that features of candidates explain."""

    def take(self, contexts: Any) -> "Offered":
        """Those of some contexts."""
        scores = None if self.scores is None else self.scores[contexts]
        return Offered(self.actions[contexts], self.real[contexts], scores)

    def place(self, row_context: Tensor, row_action: Tensor) -> Tensor:
        """The column of each row's action."""
        return ((self.actions[row_context] == row_action[:, None]) & self.real[row_context]).int().argmax(1)

    def within(self, place: Tensor) -> "Offered":
        """The same sets of other numbers: `place` holds each action's, −1 for those to leave out."""
        actions = place[self.actions]
        return Offered(actions.clamp(min=0), self.real & (actions >= 0), self.scores)


class ChoiceGradient(NamedTuple):
    """Gradients on the parts of the head; one that is not needed is None."""

    states: Tensor | None
    weights: Tensor | None
    bias: Tensor | None
    slopes: Tensor | None  # (contexts, width) on the logits


Visit = Callable[[Tensor | slice, Tensor], Tensor | None]
"""Takes the numbers of some contexts and their logits; returns the gradient on the logits, where one is needed."""


def is_dense(states: Tensor, weights: Tensor, offered: Offered) -> bool:
    """Whether multiplying with all weights is the cheaper way."""
    return len(weights) <= DENSE_WORTH * max(1, int(offered.real.sum()) // max(1, len(states)))


def sweep_choices(
    states: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    offered: Offered,
    visit: Visit,
    needs: tuple[bool, bool, bool] = (False, False, False),
    dense: bool | None = None,
) -> ChoiceGradient:
    """Pass over tiles of contexts once: their logits to `visit`, and what it returns back onto the head."""
    dense = is_dense(states, weights, offered) if dense is None else dense
    kernel = _Dense(states, weights, needs) if dense else _Gathered(states, weights, needs)
    d_states = torch.zeros_like(states) if needs[0] else None
    slopes = states.new_zeros(offered.actions.shape) if any(needs) else None
    for contexts, width in _tiles(offered, len(weights) if dense else 0, weights.shape[1]):
        actions, real = offered.actions[contexts][:, :width], offered.real[contexts][:, :width]
        logits = kernel.logits(contexts, actions)
        if bias is not None:
            logits = logits + bias[actions]
        if offered.scores is not None:
            logits = logits + offered.scores[contexts][:, :width].to(logits)
        slope = visit(contexts, logits.masked_fill(~real, -torch.inf))
        if slope is None or slopes is None:
            continue
        slope = slope.masked_fill(~real, 0.0)
        slopes[contexts, :width] = slope
        if d_states is not None:
            d_states[contexts] = kernel.on_states(slope, actions)
        if needs[1]:
            kernel.on_weights(slope, contexts, actions)
    d_weights = kernel.weights_gradient(slopes, offered) if needs[1] and slopes is not None else None
    d_bias = None
    if needs[2] and bias is not None and slopes is not None:
        d_bias = torch.zeros_like(bias).index_add_(0, offered.actions.flatten(), slopes.flatten().to(bias))
    return ChoiceGradient(d_states, d_weights, d_bias, slopes)


def _tiles(offered: Offered, n_actions: int, d: int) -> Iterator[tuple[Tensor | slice, int]]:
    """Contexts with sets of about one size at a time, and the width of the largest among them."""
    n, width = offered.actions.shape
    if not n:
        return
    sizes = offered.real.int().sum(1)
    uneven = float(sizes.float().mean()) < 0.7 * width
    order = sizes.argsort(stable=True) if uneven else None
    start = 0
    while start < n:
        size = max(1, TILE_NUMBERS // max(n_actions, width * d))
        stop = min(n, start + size)
        if order is None:
            yield slice(start, stop), width
        else:
            contexts = order[start:stop]
            # Candidates left out leave holes, so that a set may reach further than its size.
            reach = int(offered.real[contexts].any(0).nonzero().amax()) + 1 if bool(sizes[contexts].any()) else 1
            yield contexts, reach
        start = stop


class _Dense:
    """All weights at once."""

    def __init__(self, states: Tensor, weights: Tensor, needs: tuple[bool, bool, bool]) -> None:
        self.states, self.weights = states, weights
        self.d_weights = torch.zeros_like(weights) if needs[1] else None
        self._full: Tensor | None = None

    def logits(self, contexts: Tensor | slice, actions: Tensor) -> Tensor:
        return (self.states[contexts] @ self.weights.t()).gather(1, actions)

    def on_states(self, slope: Tensor, actions: Tensor) -> Tensor:
        return self._spread(slope, actions) @ self.weights

    def on_weights(self, slope: Tensor, contexts: Tensor | slice, actions: Tensor) -> None:
        assert self.d_weights is not None
        self.d_weights.addmm_(self._spread(slope, actions).t(), self.states[contexts])

    def weights_gradient(self, slopes: Tensor, offered: Offered) -> Tensor | None:
        return self.d_weights

    def _spread(self, slope: Tensor, actions: Tensor) -> Tensor:
        return slope.new_zeros(len(slope), len(self.weights)).scatter_add_(1, actions, slope)


class _Gathered:
    """The weights of the candidates, gathered tile by tile into one buffer."""

    def __init__(self, states: Tensor, weights: Tensor, needs: tuple[bool, bool, bool]) -> None:
        self.states, self.weights = states, weights
        self._buffer = weights.new_empty(0)

    def logits(self, contexts: Tensor | slice, actions: Tensor) -> Tensor:
        size, d = actions.numel(), self.weights.shape[1]
        if self._buffer.numel() < size * d:
            self._buffer = self.weights.new_empty(size * d)
        out = self._buffer[: size * d].view(size, d)
        self._own = torch.index_select(self.weights, 0, actions.flatten(), out=out).view(*actions.shape, d)
        return torch.bmm(self._own, self.states[contexts].unsqueeze(2)).squeeze(2)

    def on_states(self, slope: Tensor, actions: Tensor) -> Tensor:
        return torch.bmm(slope.unsqueeze(1), self._own).squeeze(1)

    def on_weights(self, slope: Tensor, contexts: Tensor | slice, actions: Tensor) -> None:
        """Nothing yet: all slopes together are one sparse product."""

    def weights_gradient(self, slopes: Tensor, offered: Offered) -> Tensor:
        n, width = slopes.shape
        pairs = csr_matrix(
            (slopes.numpy().ravel(), offered.actions.numpy().ravel(), np.arange(0, n * width + 1, width)),
            shape=(n, len(self.weights)),
        )
        return torch.from_numpy(np.asarray(pairs.T.tocsr() @ self.states.numpy()))


class _Logits(torch.autograd.Function):
    """The logits of the candidates, (contexts, width); the backward pass gathers again."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weights: Tensor,
        bias: Tensor | None,
        scores: Tensor | None,
        actions: Tensor,
        real: Tensor,
        dense: bool,
    ) -> Tensor:
        ctx.save_for_backward(states, weights, bias, actions, real)
        ctx.dense = dense
        result = states.new_full(actions.shape, -torch.inf)

        def keep(contexts: Tensor | slice, logits: Tensor) -> None:
            result[contexts, : logits.shape[1]] = logits

        sweep_choices(states, weights, bias, Offered(actions, real, scores), keep, dense=dense)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        states, weights, bias, actions, real = ctx.saved_tensors
        needs = ctx.needs_input_grad

        def given(contexts: Tensor | slice, logits: Tensor) -> Tensor:
            return upstream[contexts][:, : logits.shape[1]]

        gradient = sweep_choices(states, weights, bias, Offered(actions, real), given, needs[:3], ctx.dense)
        d_scores = upstream.masked_fill(~real, 0.0) if needs[3] else None
        return gradient.states, gradient.weights, gradient.bias, d_scores, None, None, None


def candidate_logits(
    states: Tensor, weights: Tensor, bias: Tensor | None, offered: Offered, *, dense: bool | None = None
) -> Tensor:
    """h·w_a + b_a + e_xa of the candidates, (contexts, width), −inf beyond a set's end; differentiable."""
    dense = is_dense(states, weights, offered) if dense is None else dense
    scores = None if offered.scores is None else offered.scores.to(states)
    logits: Tensor = _Logits.apply(states, weights, bias, scores, offered.actions, offered.real, dense)  # type: ignore[no-untyped-call]
    return logits


def log_softmax_of_some(logits: Tensor) -> Tensor:
    """The log-softmax over columns; −inf throughout where no column is possible."""
    none = (logits == -torch.inf).all(1)
    if not bool(none.any()):
        return torch.log_softmax(logits, 1)
    return torch.log_softmax(logits.masked_fill(none.unsqueeze(1), 0.0), 1).masked_fill(none.unsqueeze(1), -torch.inf)


class _Likelihood(torch.autograd.Function):
    """Σ c_n log π(a_n|x_n) among candidates; gradients come with the value, in one pass over the tiles."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weights: Tensor,
        bias: Tensor | None,
        scores: Tensor | None,
        offered: Offered,
        rows: tuple[Tensor, Tensor],
        coefficients: Coefficients,
        dense: bool,
    ) -> Tensor:
        value = states.new_zeros(())
        row_context, row_place = rows
        order = row_context.argsort(stable=True)
        first = torch.searchsorted(row_context[order], torch.arange(len(states) + 1))

        def visit(contexts: Tensor | slice, logits: Tensor) -> Tensor:
            numbers = torch.arange(len(states))[contexts]
            counts = first[numbers + 1] - first[numbers]
            local = torch.arange(len(numbers)).repeat_interleave(counts)
            ahead = first[numbers] - (counts.cumsum(0) - counts)
            own = order[ahead[local] + torch.arange(len(local))]
            log_prob = log_softmax_of_some(logits)
            place = row_place[own]
            picked = log_prob[local, place]
            row = coefficients(picked, own) if callable(coefficients) else coefficients[own]
            row = row.detach().to(picked)
            value.add_((row * picked.where(row != 0, 0.0)).sum())
            share = torch.zeros(len(numbers), dtype=picked.dtype).index_add_(0, local, row)
            slope = log_prob.exp_().mul_(-share.unsqueeze(1))
            slope.view(-1).index_add_(0, local * slope.shape[1] + place, row)
            return slope

        needs = ctx.needs_input_grad[:4]
        asked = (needs[0], needs[1], needs[2])
        found = sweep_choices(
            states, weights, bias, Offered(offered.actions, offered.real, scores), visit, asked, dense
        )
        if needs[3] and found.slopes is None:
            raise RuntimeError("Scores of candidates are learned beside weights, never alone.")
        ctx.gradients = (found.states, found.weights, found.bias, found.slopes if needs[3] else None)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError("A weighted log-likelihood supports one backward pass; compute it again for a second.")
        return *(None if each is None else each * upstream for each in gradients), None, None, None, None


def candidate_likelihood(
    states: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    offered: Offered,
    rows: tuple[Tensor, Tensor],
    coefficients: Coefficients,
    *,
    dense: bool | None = None,
) -> Tensor:
    """Σ sg(c_n) log π(a_n|x_n, candidates), with its gradient computed in the same pass; rows are (context, action)."""
    dense = is_dense(states, weights, offered) if dense is None else dense
    place = offered.place(*rows)
    scores = None if offered.scores is None else offered.scores.to(states)
    value: Tensor = _Likelihood.apply(states, weights, bias, scores, offered, (rows[0], place), coefficients, dense)  # type: ignore[no-untyped-call]
    return value
