"""Quantities of the softmax head that need every action of a context: expectations, rankings, draws.

Contexts go through in tiles of one reused (tile, actions) buffer; nothing of size (contexts, actions) exists.
Everywhere: states (contexts, d), weights (actions, d), bias (actions,) or None; a bias of −inf masks an action.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from offpolicy.errors import ParameterError
from offpolicy.log import pieces
from offpolicy.models.choices import Offered, candidate_logits, log_softmax_of_some

TILE = 128
"""Most contexts per tile."""

MAX_BYTES = 1 << 27
"""Largest buffer a tile may take unless the caller names a tile."""

Values = Callable[[slice], Tensor]
"""g(x, a) for some contexts and all actions (or candidates), (tile, actions), asked for tile by tile; `expectation`
asks twice."""


def iterate_logits(
    states: Tensor, weights: Tensor, bias: Tensor | None, tile: int | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """Logits of tile after tile of contexts (no gradient). The buffer is the caller's until the next step."""
    states, weights = states.detach(), weights.detach()
    tile = tile or max(1, min(TILE, len(states), MAX_BYTES // (len(weights) * weights.element_size())))
    buffer = weights.new_empty(tile, len(weights))
    for start in range(0, len(states), tile):
        part = slice(start, min(start + tile, len(states)))
        out = buffer[: part.stop - start]
        if bias is None:
            torch.mm(states[part], weights.t(), out=out)
        else:
            torch.addmm(bias.detach(), states[part], weights.t(), out=out)
        yield part, out


def iterate_log_probs(
    states: Tensor, weights: Tensor, bias: Tensor | None, tile: int | None = None, offered: Offered | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """log π(·|x) of tile after tile of contexts (no gradient), with candidates those of the actions on offer.

    The buffer is the caller's until the next step.
    """
    if offered is not None:
        for part in pieces(len(states), 2 * offered.actions.shape[1], MAX_BYTES):
            logits = candidate_logits(states[part].detach(), weights.detach(), bias, offered.take(part)).detach()
            yield part, log_softmax_of_some(logits)
        return
    for part, logits in iterate_logits(states, weights, bias, tile):
        yield part, torch.log_softmax(logits, 1, out=logits)


def linear_values(
    states: Tensor, weights: Tensor, bias: Tensor | None, link: Callable[[Tensor], Tensor] = torch.sigmoid
) -> Values:
    """Values from a second linear head over the same contexts: g(x, a) = link(h·w_a + b_a), without gradient."""
    states, weights = states.detach(), weights.detach()

    def values(part: slice) -> Tensor:
        logits = states[part] @ weights.t()
        return link(logits if bias is None else logits.add_(bias.detach()))

    return values


class _Expectation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weights: Tensor, bias: Tensor | None, values: Values) -> Tensor:
        mean = states.new_empty(len(states))
        for part, log_prob in iterate_log_probs(states, weights, bias):
            mean[part] = log_prob.exp_().mul_(values(part)).sum(1)
        ctx.save_for_backward(states, weights, bias, mean)
        ctx.values = values
        return mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        states, weights, bias, mean = ctx.saved_tensors
        needs = ctx.needs_input_grad
        d_states = torch.zeros_like(states) if needs[0] else None
        d_weights = torch.zeros_like(weights) if needs[1] else None
        d_bias = torch.zeros_like(bias) if needs[2] else None
        for part, log_prob in iterate_log_probs(states, weights, bias):
            slope = log_prob.exp_().mul_(ctx.values(part) - mean[part].unsqueeze(1))
            slope *= upstream[part].unsqueeze(1)  # (tile, actions), on the logits
            if d_states is not None:
                torch.mm(slope, weights, out=d_states[part])
            if d_weights is not None:
                d_weights.addmm_(slope.t(), states[part])
            if d_bias is not None:
                d_bias += slope.sum(0)
        return d_states, d_weights, d_bias, None


def expectation(
    states: Tensor, weights: Tensor, bias: Tensor | None, values: Values, offered: Offered | None = None
) -> Tensor:
    """Σ_a π(a|x) g(x, a) of each context; differentiable in π: ∇ = Σ_a π (g − mean) ∇logit_a."""
    if offered is not None:
        prob = log_softmax_of_some(candidate_logits(states, weights, bias, offered)).exp()
        return (prob * values(slice(0, len(states))).to(prob)).sum(1)
    mean: Tensor = _Expectation.apply(states, weights, bias, values)  # type: ignore[no-untyped-call]
    return mean


class _TotalExpectation(torch.autograd.Function):
    """Σ_x n_x Σ_a π(a|x) g(x, a); values are asked for once, the gradients are computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weights: Tensor, bias: Tensor | None, values: Values, counts: Tensor
    ) -> Tensor:
        needs, total = ctx.needs_input_grad, states.new_zeros(())
        d_states = torch.zeros_like(states) if needs[0] else None
        d_weights = torch.zeros_like(weights) if needs[1] else None
        d_bias = torch.zeros_like(bias) if needs[2] and bias is not None else None
        for part, logits in iterate_logits(states, weights, bias):
            prob, reward = torch.softmax(logits, 1, out=logits), values(part)
            mean = torch.linalg.vecdot(prob, reward)
            total += mean @ counts[part]
            slope = prob.mul_(reward.sub(mean.unsqueeze(1)).mul_(counts[part].unsqueeze(1)))  # (tile, actions)
            if d_states is not None:
                torch.mm(slope, weights, out=d_states[part])
            if d_weights is not None:
                d_weights.addmm_(slope.t(), states[part])
            if d_bias is not None:
                d_bias += slope.sum(0)
        ctx.gradients = d_states, d_weights, d_bias
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        return *(None if each is None else each.mul_(upstream) for each in gradients), None, None


def total_expectation(
    states: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    values: Values,
    counts: Tensor,
    offered: Offered | None = None,
) -> Tensor:
    """Σ_x n_x Σ_a π(a|x) g(x, a), with its gradient computed in the same pass as its value; one backward pass only."""
    if offered is not None:
        return expectation(states, weights, bias, values, offered) @ counts
    total: Tensor = _TotalExpectation.apply(states, weights, bias, values, counts)  # type: ignore[no-untyped-call]
    return total


def top_k(states: Tensor, weights: Tensor, bias: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """The k most probable actions of each context, best first, and their logits, both (contexts, k).

    Equal logits are ordered by action number, lowest first, whatever the machine.
    """
    if not 1 <= k <= len(weights):
        raise ParameterError(f"k must lie in 1..{len(weights)}, the number of actions, but it is {k}.")
    actions = torch.empty(len(states), k, dtype=torch.int64, device=states.device)
    scores = states.new_empty(len(states), k)
    for part, logits in iterate_logits(states, weights, bias):
        actions[part], scores[part] = best_first(logits, k)
    return actions, scores


def best_first(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best actions of each row of scores, and their scores; of equal scores the lowest action, exactly."""
    top = scores.topk(min(k + 1, scores.shape[1]), dim=1)
    best, last = top.indices[:, :k].clone(), top.values[:, k - 1 : k]
    crowded = (top.values[:, k:] == last).any(1).nonzero().squeeze(1)  # more share the last place than fit
    if len(crowded):
        best[crowded] = _lowest_of_equals(scores[crowded], last[crowded], k)
    best = best.sort(1).values
    ordered = scores.gather(1, best).sort(dim=1, descending=True, stable=True)
    return best.gather(1, ordered.indices), ordered.values


def _lowest_of_equals(scores: Tensor, last: Tensor, k: int) -> Tensor:
    """The k best actions of each row where several share the k-th score: the lowest of those."""
    above, equal = scores > last, scores == last
    room = k - above.sum(1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(1, dtype=torch.int32) <= room))
    return chosen.nonzero()[:, 1].view(-1, k)


def sample(
    states: Tensor, weights: Tensor, bias: Tensor | None, n: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """n independent draws a ~ π(·|x) for each context and their log π, both (contexts, n)."""
    actions = torch.empty(len(states), n, dtype=torch.int64, device=states.device)
    log_probs = states.new_empty(len(states), n)
    for part, log_prob in iterate_log_probs(states, weights, bias):
        mass = log_prob.exp().cumsum(1, dtype=torch.float64)
        uniform = torch.rand(len(mass), n, dtype=torch.float64, generator=generator, device=mass.device)
        drawn = torch.searchsorted(mass, uniform * mass[:, -1:], right=True)
        actions[part], log_probs[part] = drawn, log_prob.gather(1, drawn)
    return actions, log_probs
