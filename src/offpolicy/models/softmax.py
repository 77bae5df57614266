"""The exact softmax head: log π(a|x) = h·w_a + b_a − log Σ_a' exp(h·w_a' + b_a'), and its gradients.

Contexts are stored once and rows point at them, so the full softmax is taken per context and a row costs one gather
and one scatter (see `tiles`).

Everywhere: states (contexts, d), weights (actions, d), bias (actions,) or None; a bias of −inf masks an action.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from offpolicy.errors import ParameterError
from offpolicy.models.choices import (
    Offered,
    candidate_likelihood,
    candidate_logits,
    log_softmax_of_some,
    sweep_choices,
)
from offpolicy.models.tiles import MAX_BYTES, Coefficients, Places, Rows, sweep, tile_size


def _check(states: Tensor, weights: Tensor, bias: Tensor | None, row_context: Tensor, row_action: Tensor) -> None:
    """Refuse shapes that do not fit together and rows that point outside."""
    if states.ndim != 2 or weights.ndim != 2 or states.shape[1] != weights.shape[1] or len(weights) == 0:
        raise ParameterError(
            f"states must be (contexts, d) and weights (actions, d) with at least one action, but they are "
            f"{tuple(states.shape)} and {tuple(weights.shape)}."
        )
    if bias is not None and bias.shape != weights.shape[:1]:
        raise ParameterError(
            f"bias must hold one number for each of {len(weights)} actions; it is {tuple(bias.shape)}."
        )
    if row_context.ndim != 1 or row_context.shape != row_action.shape:
        raise ParameterError(
            f"row_context and row_action must hold one number per row, but they are {tuple(row_context.shape)} and "
            f"{tuple(row_action.shape)}."
        )
    for name, rows, size in (("context", row_context, len(states)), ("action", row_action, len(weights))):
        if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < size):
            row = int(((rows < 0) | (rows >= size)).nonzero()[0])
            raise ParameterError(
                f"Row {row} points at {name} {int(rows[row])}, but there are {size} {name}s, numbered from 0. "
                f"Map {name}s to 0..{size - 1} first."
            )


class _Softmax(torch.autograd.Function):
    """log π of the rows and log Z of the contexts; the backward pass recomputes what the forward pass discarded."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weights: Tensor,
        bias: Tensor | None,
        row_context: Tensor,
        row_action: Tensor,
        max_bytes: int,
        all_contexts: bool,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(states, weights, bias, row_context, row_action)
        ctx.max_bytes = max_bytes
        rows = Rows(row_context, row_action)
        gradient, log_total = sweep(states, weights, bias, rows, max_bytes=max_bytes, all_contexts=all_contexts)
        return gradient.log_prob, log_total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, row_upstream: Tensor, context_upstream: Tensor) -> tuple[Tensor | None, ...]:
        states, weights, bias, row_context, row_action = ctx.saved_tensors
        kept = row_upstream.nonzero().squeeze(1)
        gradient, _ = sweep(
            states,
            weights,
            bias,
            Rows(row_context[kept], row_action[kept]),
            max_bytes=ctx.max_bytes,
            all_contexts=bool(context_upstream.any()),
            coefficients=row_upstream[kept],
            context_coefficients=context_upstream,
            needs=ctx.needs_input_grad[:3],
        )
        return gradient.states, gradient.weights, gradient.bias, None, None, None, None


class _WeightedLogLikelihood(torch.autograd.Function):
    """Σ c_n log π(a_n|x_n); its gradients are computed in the forward pass and returned in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weights: Tensor,
        bias: Tensor | None,
        rows: Rows,
        coefficients: Coefficients,
        max_bytes: int,
    ) -> Tensor:
        value = states.new_zeros(())

        def observed(log_prob: Tensor, numbers: Places) -> Tensor:
            row = coefficients(log_prob, numbers) if callable(coefficients) else coefficients[numbers]
            value.add_((row * log_prob.where(row != 0, 0.0)).sum().detach())
            return row

        needs = ctx.needs_input_grad[:3]
        gradient, _ = sweep(states, weights, bias, rows, max_bytes=max_bytes, coefficients=observed, needs=needs)
        ctx.gradients = gradient[1:]
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("weighted_log_likelihood supports one backward pass; compute it again for a second one.")
        gradients, ctx.gradients = ctx.gradients, None
        scale = upstream.item()
        for gradient in gradients:
            if gradient is not None and scale != 1.0:
                gradient *= scale
        return *gradients, None, None, None


def weighted(log_prob: Tensor, coefficients: Coefficients) -> Tensor:
    """Σ sg(c_n) log π_n, followed by autograd; a row that cannot have been drawn counts for nothing where c_n is 0."""
    row = coefficients(log_prob.detach(), slice(None)) if callable(coefficients) else coefficients
    row = row.detach().to(log_prob.dtype)
    return (row * log_prob.where(row != 0, 0.0)).sum()


def softmax_log_prob(
    states: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    row_context: Tensor,
    row_action: Tensor,
    *,
    offered: Offered | None = None,
    max_bytes: int = MAX_BYTES,
) -> Tensor:
    """log π(a_n|x_n) of each row; contexts whose rows all get a zero gradient cost nothing in the backward pass.

    With candidates the softmax is over those that each context offers.
    """
    _check(states, weights, bias, row_context, row_action)
    if offered is not None:
        log_probs = log_softmax_of_some(candidate_logits(states, weights, bias, offered))
        return log_probs[row_context, offered.place(row_context, row_action)]
    log_prob: Tensor = _Softmax.apply(states, weights, bias, row_context, row_action, max_bytes, False)[0]  # type: ignore[no-untyped-call]
    return log_prob


def weighted_log_likelihood(
    states: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    row_context: Tensor,
    row_action: Tensor,
    coefficients: Coefficients,
    *,
    whole_batch: bool = False,
    offered: Offered | None = None,
    max_bytes: int = MAX_BYTES,
) -> Tensor:
    """Σ sg(c_n) log π(a_n|x_n), with its gradient computed in the same pass as its value.

    Coefficients that depend on log π are given as a function, called once per tile; with `whole_batch` it is called
    once with all rows, which takes a second pass where they do not fit a tile. Rows whose number is zero cost nothing;
    leave out rows for which a function is known to return zero. With candidates the softmax is over those on offer.
    """
    _check(states, weights, bias, row_context, row_action)
    if offered is not None:
        rows = (row_context, row_action)
        if whole_batch and callable(coefficients):
            return weighted(softmax_log_prob(states, weights, bias, *rows, offered=offered), coefficients)
        return candidate_likelihood(states, weights, bias, offered, rows, coefficients)
    if whole_batch and callable(coefficients) and len(states) > tile_size(len(states), weights, max_bytes):
        log_prob = softmax_log_prob(states, weights, bias, row_context, row_action, max_bytes=max_bytes)
        return weighted(log_prob, coefficients)
    if isinstance(coefficients, Tensor):
        kept = coefficients.detach().nonzero().squeeze(1)
        row_context, row_action, coefficients = row_context[kept], row_action[kept], coefficients.detach()[kept]
    pairs = Rows(row_context, row_action)
    value: Tensor = _WeightedLogLikelihood.apply(states, weights, bias, pairs, coefficients, max_bytes)  # type: ignore[no-untyped-call]
    return value


def log_normaliser(states: Tensor, weights: Tensor, bias: Tensor | None, *, max_bytes: int = MAX_BYTES) -> Tensor:
    """log Σ_a exp(h·w_a + b_a) of each context."""
    nothing = torch.empty(0, dtype=torch.int64, device=states.device)
    _check(states, weights, bias, nothing, nothing)
    log_total: Tensor = _Softmax.apply(states, weights, bias, nothing, nothing, max_bytes, True)[1]  # type: ignore[no-untyped-call]
    return log_total


def log_normaliser_gradient(
    states: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    coefficients: Tensor,
    *,
    offered: Offered | None = None,
    max_bytes: int = MAX_BYTES,
) -> tuple[Tensor, Tensor, Tensor]:
    """log Z of each context and, in the same pass, the gradients of Σ_x e_x log Z_x in weights and bias."""
    if offered is not None:
        return _choice_normaliser_gradient(states, weights, bias, coefficients, offered)
    nothing = torch.empty(0, dtype=torch.int64, device=states.device)
    _check(states, weights, bias, nothing, nothing)
    gradient, log_total = sweep(
        states,
        weights,
        bias,
        Rows(nothing, nothing),
        max_bytes=max_bytes,
        all_contexts=True,
        context_coefficients=coefficients,
        needs=(False, True, True),
    )
    assert gradient.weights is not None
    none = weights.new_zeros(len(weights))
    return log_total, gradient.weights, none if gradient.bias is None else gradient.bias


def _choice_normaliser_gradient(
    states: Tensor, weights: Tensor, bias: Tensor | None, coefficients: Tensor, offered: Offered
) -> tuple[Tensor, Tensor, Tensor]:
    """As `log_normaliser_gradient`, Z summed over candidates; 0 in a context without any."""
    log_total = states.new_zeros(len(states))

    def visit(contexts: Tensor | slice, logits: Tensor) -> Tensor:
        log_prob = log_softmax_of_some(logits)
        log_total[contexts] = logits.logsumexp(1).nan_to_num(0.0, neginf=0.0)
        return log_prob.exp_().mul_(coefficients[contexts].unsqueeze(1))

    gradient = sweep_choices(states, weights, bias, offered, visit, (False, True, bias is not None))
    assert gradient.weights is not None
    none = weights.new_zeros(len(weights))
    return log_total, gradient.weights, none if gradient.bias is None else gradient.bias
