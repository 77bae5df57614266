"""The exact softmax head: log π(a|x) = h·w_a + b_a − log Σ_a' exp(h·w_a' + b_a'), and its gradients.

Contexts are stored once and rows point at them, so the full softmax is taken per context and a row costs one gather
and one scatter. Contexts go through in tiles: one reused buffer of (actions, tile) numbers holds a tile's logits,
then its exponentials, then the gradient on its logits; nothing of size (rows, actions) exists. The buffer works in
base 2 with actions first: exp2 is the cheaper exponential, and all three matrix products then run near the machine's
rate. Where |h|·max|w| + max|b| proves the exponentials safe, no maximum is subtracted.

Everywhere: states (contexts, d), weights (actions, d), bias (actions,) or None; a bias of −inf masks an action.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from offpolicy.errors import ParameterError

TILE = 192
"""Contexts a tile: enough to keep the matrix products busy, few enough to stay near the cache."""

TILE_NUMBERS = 1 << 20
"""Where actions are few a tile takes more contexts, up to this many (actions × contexts) numbers."""

MIN_TILE = 64
"""Where a smaller tile would be needed to respect `max_bytes`, actions are chunked instead."""

ALIGNED = 16
"""Tiles are padded to a multiple of this many contexts: the matrix products run a third slower on odd widths."""

MAX_BYTES = 1 << 27
"""Largest buffer a tile may take unless the caller says otherwise."""

LOG2_E = math.log2(math.e)

Coefficients = Tensor | Callable[[Tensor, Tensor], Tensor]
"""One number a row, or a function of (log π of some rows, their row numbers) that returns them."""


class LikelihoodGradient(NamedTuple):
    """log π of every row, and the gradients of Σ c_n log π(a_n|x_n); one that nobody needs is None."""

    log_prob: Tensor  # (rows,)
    states: Tensor | None  # (contexts, d)
    weights: Tensor | None  # (actions, d)
    bias: Tensor | None  # (actions,)


@dataclass(frozen=True)
class _Tile:
    contexts: Tensor  # (tile,)
    rows: Tensor  # (n,) the rows that point at these contexts
    actions: Tensor  # (n,)
    local: Tensor  # (n,) place of each row's context within the tile

    @property
    def width(self) -> int:
        """Contexts of the tile with its padding."""
        return _padded(len(self.contexts))


def _padded(contexts: int) -> int:
    return contexts if contexts < ALIGNED else -(-contexts // ALIGNED) * ALIGNED


class _Rows:
    """Rows grouped by context. Contexts without rows are left out unless `every` one is wanted."""

    def __init__(self, row_context: Tensor, row_action: Tensor, every: int | None = None) -> None:
        in_order = bool((row_context[1:] >= row_context[:-1]).all())
        identity = torch.arange(len(row_context), device=row_context.device)
        self.order = identity if in_order else torch.argsort(row_context, stable=True)
        self.action = row_action
        counts = torch.bincount(row_context, minlength=every or 0)
        self.contexts = counts.nonzero().squeeze(1) if every is None else torch.arange(every, device=counts.device)
        self.counts = counts[self.contexts]
        self.ends = [0, *self.counts.cumsum(0).tolist()]

    def tiles(self, size: int) -> Iterator[_Tile]:
        for start in range(0, len(self.contexts), size):
            contexts = self.contexts[start : start + size]
            rows = self.order[self.ends[start] : self.ends[start + len(contexts)]]
            places = torch.arange(len(contexts), device=rows.device)
            local = places.repeat_interleave(self.counts[start : start + size], output_size=len(rows))
            yield _Tile(contexts, rows, self.action[rows], local)


class _Head:
    """The weights of one call, in base 2, and the buffer its tiles share."""

    def __init__(self, weights: Tensor, bias: Tensor | None, contexts: int, max_bytes: int) -> None:
        actions, size = len(weights), weights.element_size()
        self.weights = weights
        self.bias = None if bias is None else (bias * LOG2_E).unsqueeze(1)  # (actions, 1)
        affordable = max_bytes // (actions * size) // ALIGNED * ALIGNED
        self.tile = max(1, min(contexts, max(TILE, TILE_NUMBERS // actions), max(MIN_TILE, affordable)))
        self.chunk = max(1, min(actions, max_bytes // (_padded(self.tile) * size)))
        self.buffer = weights.new_empty(self.chunk * _padded(self.tile))
        self.longest = float(torch.linalg.vector_norm(weights, dim=1).amax())
        self.largest = 0.0 if self.bias is None else float(self.bias.abs().amax())
        self.safe = math.log2(torch.finfo(weights.dtype).max) / 2 - 4  # powers of two far from over- and underflow

    def chunks(self, tile: _Tile) -> Iterator[tuple[slice, Tensor | slice, Tensor]]:
        """Chunks of actions; for each, the tile's rows that took one of them and their places in the buffer."""
        for first in range(0, len(self.weights), self.chunk):
            place = (tile.actions - first) * tile.width + tile.local
            if self.chunk == len(self.weights):
                yield slice(None), slice(None), place
            else:
                inside = ((tile.actions >= first) & (tile.actions < first + self.chunk)).nonzero().squeeze(1)
                yield slice(first, first + self.chunk), inside, place[inside]

    def logits(self, chunk: slice, scaled: Tensor) -> Tensor:
        """Logits in base 2 of a chunk of actions, in the buffer."""
        weights = self.weights[chunk]
        out = self.buffer[: len(weights) * scaled.shape[1]].view(len(weights), -1)  # (chunk, tile)
        if self.bias is None:
            return torch.mm(weights, scaled, out=out)
        return torch.addmm(self.bias[chunk], weights, scaled, out=out)

    def normalise(self, tile: _Tile, scaled: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The rows' logits, a shift and Σ_a 2^(logit − shift); the buffer keeps the last chunk's exponentials."""
        bound = float(torch.linalg.vector_norm(scaled, dim=0).amax()) * self.longest + self.largest
        bounded = bound < self.safe
        shift = scaled.new_full(scaled.shape[1:], 0.0 if bounded else torch.finfo(scaled.dtype).min)
        total = torch.zeros_like(shift)
        picked = scaled.new_empty(len(tile.rows))
        for chunk, inside, place in self.chunks(tile):
            logits = self.logits(chunk, scaled)
            picked[inside] = logits.view(-1)[place]
            if not bounded:
                highest = torch.maximum(shift, logits.amax(0))
                total *= torch.exp2(shift - highest)
                shift = highest
                logits -= shift
            total += logits.exp2_().sum(0)
        return picked, shift, total

    def slopes(
        self, tile: _Tile, scaled: Tensor, shift: Tensor, total: Tensor, row: Tensor, context: Tensor
    ) -> Iterator[tuple[slice, Tensor]]:
        """Gradient on the logits, chunk by chunk: c_n at the logged actions and (e_x − Σ c_n)·π(·|x) everywhere."""
        share = torch.zeros_like(total)
        share[: len(context)] = context
        share.index_add_(0, tile.local, row, alpha=-1).div_(total)
        for chunk, inside, place in self.chunks(tile):
            if self.chunk == len(self.weights):
                slope = self.buffer[: len(self.weights) * len(share)].view(-1, len(share))
            else:
                slope = self.logits(chunk, scaled).sub_(shift).exp2_()
            slope *= share
            slope.view(-1).index_add_(0, place, row[inside])
            yield chunk, slope  # (chunk, tile)


def _sweep(
    states: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    rows: _Rows,
    *,
    max_bytes: int,
    coefficients: Coefficients | None = None,
    context_coefficients: Tensor | None = None,
    needs: tuple[bool, bool, bool] = (False, False, False),
) -> tuple[LikelihoodGradient, Tensor]:
    """One pass over the tiles: log π of the rows, log Z of the contexts, and the gradients that are needed."""
    head = _Head(weights, bias, len(rows.contexts), max_bytes)
    log_prob, log_total = states.new_empty(len(rows.order)), states.new_zeros(len(states))
    d_states = torch.zeros_like(states) if needs[0] else None
    d_weights = torch.zeros_like(weights) if needs[1] else None
    d_bias = torch.zeros_like(bias) if needs[2] and bias is not None else None
    for tile in rows.tiles(head.tile):
        present = len(tile.contexts)
        tile_states = states.new_zeros(tile.width, states.shape[1])
        tile_states[:present] = states[tile.contexts]
        scaled = (tile_states * LOG2_E).t().contiguous()  # (d, tile)
        picked, shift, total = head.normalise(tile, scaled)
        normaliser = shift + total.log2()
        log_prob[tile.rows] = row_log_prob = (picked - normaliser[tile.local]) / LOG2_E
        log_total[tile.contexts] = normaliser[:present] / LOG2_E
        row = torch.zeros_like(picked)
        if coefficients is not None:
            row = coefficients(row_log_prob, tile.rows) if callable(coefficients) else coefficients[tile.rows]
            row = row.detach().to(states.dtype)
        context = total.new_zeros(present) if context_coefficients is None else context_coefficients[tile.contexts]
        if not any(needs) or not (bool(row.any()) or bool(context.any())):
            continue
        for chunk, slope in head.slopes(tile, scaled, shift, total, row, context):
            if d_states is not None:
                d_states.index_add_(0, tile.contexts, (slope.t() @ weights[chunk])[:present])
            if d_weights is not None:
                d_weights[chunk].addmm_(slope, tile_states)
            if d_bias is not None:
                d_bias[chunk] += slope.sum(1)
    return LikelihoodGradient(log_prob, d_states, d_weights, d_bias), log_total


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
            f"row_context and row_action must hold one number a row, but they are {tuple(row_context.shape)} and "
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
    """log π of the rows and log Z of the contexts; the way back computes again what the way there threw away."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weights: Tensor,
        bias: Tensor | None,
        row_context: Tensor,
        row_action: Tensor,
        max_bytes: int,
        every: bool,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(states, weights, bias, row_context, row_action)
        ctx.max_bytes = max_bytes
        rows = _Rows(row_context, row_action, len(states) if every else None)
        found, log_total = _sweep(states, weights, bias, rows, max_bytes=max_bytes)
        return found.log_prob, log_total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, row_upstream: Tensor, context_upstream: Tensor) -> tuple[Tensor | None, ...]:
        states, weights, bias, row_context, row_action = ctx.saved_tensors
        kept = row_upstream.nonzero().squeeze(1)
        found, _ = _sweep(
            states,
            weights,
            bias,
            _Rows(row_context[kept], row_action[kept], len(states) if bool(context_upstream.any()) else None),
            max_bytes=ctx.max_bytes,
            coefficients=row_upstream[kept],
            context_coefficients=context_upstream,
            needs=ctx.needs_input_grad[:3],
        )
        return found.states, found.weights, found.bias, None, None, None, None


class _WeightedLogLikelihood(torch.autograd.Function):
    """Σ c_n log π(a_n|x_n); its gradients are found on the way there and handed over on the way back."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weights: Tensor,
        bias: Tensor | None,
        rows: _Rows,
        coefficients: Coefficients,
        max_bytes: int,
    ) -> Tensor:
        value = states.new_zeros(())

        def observed(log_prob: Tensor, numbers: Tensor) -> Tensor:
            row = coefficients(log_prob, numbers) if callable(coefficients) else coefficients[numbers]
            value.add_((row * log_prob.where(row != 0, 0.0)).sum().detach())
            return row

        needs = ctx.needs_input_grad[:3]
        found, _ = _sweep(states, weights, bias, rows, max_bytes=max_bytes, coefficients=observed, needs=needs)
        ctx.gradients = found[1:]
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError(
                "weighted_log_likelihood hands its gradients over once; compute it again to go back twice."
            )
        gradients, ctx.gradients = ctx.gradients, None
        scale = upstream.item()
        for gradient in gradients:
            if gradient is not None and scale != 1.0:
                gradient *= scale
        return *gradients, None, None, None


def logged_log_prob(
    states: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    row_context: Tensor,
    row_action: Tensor,
    *,
    max_bytes: int = MAX_BYTES,
) -> Tensor:
    """log π(a_n|x_n) of each row; contexts whose rows all get a zero gradient cost nothing on the way back."""
    _check(states, weights, bias, row_context, row_action)
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
    max_bytes: int = MAX_BYTES,
) -> Tensor:
    """Σ sg(c_n) log π(a_n|x_n), with its gradient found in the same pass as its value.

    Coefficients that depend on log π are given as a function, called once a tile. Rows whose number is zero cost
    nothing; leave out rows for which a function is known to return zero.
    """
    _check(states, weights, bias, row_context, row_action)
    if isinstance(coefficients, Tensor):
        kept = coefficients.detach().nonzero().squeeze(1)
        row_context, row_action, coefficients = row_context[kept], row_action[kept], coefficients.detach()[kept]
    rows = _Rows(row_context, row_action)
    value: Tensor = _WeightedLogLikelihood.apply(states, weights, bias, rows, coefficients, max_bytes)  # type: ignore[no-untyped-call]
    return value


@torch.no_grad()
def weighted_log_likelihood_grad(
    states: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    row_context: Tensor,
    row_action: Tensor,
    coefficients: Coefficients,
    *,
    max_bytes: int = MAX_BYTES,
) -> LikelihoodGradient:
    """log π of every row and the gradients of Σ sg(c_n) log π(a_n|x_n), in one pass and without autograd."""
    _check(states, weights, bias, row_context, row_action)
    rows = _Rows(row_context, row_action)
    needs = (True, True, True)
    return _sweep(states, weights, bias, rows, max_bytes=max_bytes, coefficients=coefficients, needs=needs)[0]


def log_normaliser(states: Tensor, weights: Tensor, bias: Tensor | None, *, max_bytes: int = MAX_BYTES) -> Tensor:
    """log Σ_a exp(h·w_a + b_a) of each context."""
    nothing = torch.empty(0, dtype=torch.int64, device=states.device)
    _check(states, weights, bias, nothing, nothing)
    log_total: Tensor = _Softmax.apply(states, weights, bias, nothing, nothing, max_bytes, True)[1]  # type: ignore[no-untyped-call]
    return log_total
