"""One pass of the exact softmax over tiles of contexts: log π of rows, log Z of contexts, and gradients.

Contexts go through in tiles: one reused buffer of (actions, tile) numbers holds a tile's logits, then its
exponentials, then the gradient on its logits; nothing of size (rows, actions) exists. The buffer works in base 2 with
actions first: exp2 is the cheaper exponential, and all three matrix products then run near the machine's rate. Where
|h|·max|w| + max|b| proves the exponentials safe, no maximum is subtracted.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

TILE = 192
"""Contexts per tile: enough to keep the matrix products busy, few enough to stay near the cache."""

TILE_NUMBERS = 1 << 20
"""Where actions are few a tile takes more contexts, up to this many (actions × contexts) numbers."""

MIN_TILE = 64
"""Where a smaller tile would be needed to respect `max_bytes`, actions are chunked instead."""

ALIGNED = 16
"""Tiles are padded to a multiple of this many contexts: the matrix products run a third slower on odd widths."""

MAX_BYTES = 1 << 27
"""Largest buffer a tile may take unless the caller says otherwise."""

LOG2_E = math.log2(math.e)

Places = Tensor | slice
"""Numbers of some contexts or rows; a slice costs no gather."""

Coefficients = Tensor | Callable[[Tensor, Places], Tensor]
"""One number per row, or a function of (log π of some rows, their row numbers) that returns them."""


class LikelihoodGradient(NamedTuple):
    """log π of every row, and the gradients of Σ c_n log π(a_n|x_n); one that is not needed is None."""

    log_prob: Tensor  # (rows,)
    states: Tensor | None  # (contexts, d)
    weights: Tensor | None  # (actions, d)
    bias: Tensor | None  # (actions,)


@dataclass(frozen=True)
class Tile:
    """Some contexts and the rows that point at them."""

    contexts: Places
    size: int
    """How many contexts."""
    rows: Places
    actions: Tensor  # (n,)
    local: Tensor  # (n,) place of each row's context within the tile

    @property
    def width(self) -> int:
        """Contexts of the tile with its padding."""
        return _padded(self.size)

    @cached_property
    def place(self) -> Tensor:
        """Where each row's action stands in a buffer of (actions, width) numbers."""
        return self.actions * self.width + self.local

    def states(self, states: Tensor) -> Tensor:
        """h(x) of its contexts, (width, d), zero in the padding."""
        own = states[self.contexts]
        if self.width == self.size:
            return own
        padded = own.new_zeros(self.width, own.shape[1])
        padded[: self.size] = own
        return padded


def _padded(contexts: int) -> int:
    return contexts if contexts < ALIGNED else -(-contexts // ALIGNED) * ALIGNED


@dataclass(frozen=True)
class Rows:
    """Rows that point at contexts."""

    context: Tensor  # (n,)
    action: Tensor  # (n,)

    def tiles(self, contexts: int, size: int, *, all_contexts: bool = False) -> Iterator[Tile]:
        """So many contexts at a time; those without rows are left out, unless `all_contexts` is set.

        A tile that holds all of them may keep some without rows: to look for them takes longer.
        """
        if contexts <= size and (all_contexts or contexts <= len(self.context)):
            yield Tile(slice(None), contexts, slice(None), self.action, self.context)
            return
        in_order = bool((self.context[1:] >= self.context[:-1]).all())
        order = None if in_order else torch.argsort(self.context, stable=True)
        counts = torch.bincount(self.context, minlength=contexts)
        chosen = torch.arange(contexts, device=counts.device) if all_contexts else counts.nonzero().squeeze(1)
        counts = counts[chosen]
        ends = [0, *counts.cumsum(0).tolist()]
        for start in range(0, len(chosen), size):
            stop = min(start + size, len(chosen))
            span = slice(ends[start], ends[stop])
            rows = span if order is None else order[span]
            places = torch.arange(stop - start, device=counts.device)
            local = places.repeat_interleave(counts[start:stop], output_size=span.stop - span.start)
            yield Tile(chosen[start:stop], stop - start, rows, self.action[rows], local)


class Head:
    """The weights of one call, in base 2, and the buffer its tiles share."""

    def __init__(self, weights: Tensor, bias: Tensor | None, contexts: int, max_bytes: int) -> None:
        """Choose the size of tiles, and of chunks of actions where even the smallest tile needs too much."""
        actions, size = len(weights), weights.element_size()
        self.weights = weights
        self.bias = None if bias is None else (bias * LOG2_E).unsqueeze(1)  # (actions, 1)
        self.tile = tile_size(contexts, weights, max_bytes)
        self.chunk = max(1, min(actions, max_bytes // (_padded(self.tile) * size)))
        self.buffer = weights.new_empty(self.chunk * _padded(self.tile))
        self.safe = math.log2(torch.finfo(weights.dtype).max) / 2 - 4  # powers of two far from over- and underflow
        self.reach: tuple[float, float] | None = None
        """The longest weight vector and the largest bias, where there are numbers enough for the question to pay."""
        if contexts * actions > TILE_NUMBERS:
            longest = float(torch.linalg.vector_norm(weights, dim=1).amax())
            self.reach = longest, 0.0 if self.bias is None else float(self.bias.abs().amax())

    def chunks(self, tile: Tile) -> Iterator[tuple[slice, Places, Tensor]]:
        """Chunks of actions; for each, the tile's rows that took one of them and their places in the buffer."""
        if self.chunk == len(self.weights):
            yield slice(None), slice(None), tile.place
            return
        for first in range(0, len(self.weights), self.chunk):
            inside = ((tile.actions >= first) & (tile.actions < first + self.chunk)).nonzero().squeeze(1)
            yield slice(first, first + self.chunk), inside, tile.place[inside] - first * tile.width

    def logits(self, chunk: slice, scaled: Tensor) -> Tensor:
        """Logits in base 2 of a chunk of actions, in the buffer."""
        weights = self.weights[chunk]
        out = self.buffer[: len(weights) * scaled.shape[1]].view(len(weights), -1)  # (chunk, tile)
        if self.bias is None:
            return torch.mm(weights, scaled, out=out)
        return torch.addmm(self.bias[chunk], weights, scaled, out=out)

    def is_safe(self, scaled: Tensor) -> bool:
        """Whether no exponential of the tile can overflow, nor all of a context's underflow."""
        if self.reach is None:  # to find out would take longer than to subtract the maximum
            return False
        longest, largest = self.reach
        return float(torch.linalg.vector_norm(scaled, dim=0).amax()) * longest + largest < self.safe

    def normalise(self, tile: Tile, scaled: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """The rows' logits, a shift and Σ_a 2^(logit − shift); the buffer keeps the last chunk's exponentials."""
        safe, shift, total = self.is_safe(scaled), None, None
        picked = scaled.new_empty(len(tile.actions))
        for chunk, inside, place in self.chunks(tile):
            logits = self.logits(chunk, scaled)
            picked[inside] = logits.view(-1)[place]
            if not safe:
                highest = logits.amax(0).clamp_(min=torch.finfo(logits.dtype).min)  # all actions may be masked
                if shift is not None and total is not None:
                    highest = torch.maximum(shift, highest)
                    total = total * torch.exp2(shift - highest)
                shift = highest
                logits -= shift
            part = logits.exp2_().sum(0)
            total = part if total is None else total + part
        assert total is not None
        return picked, shift, total

    def slopes(
        self, tile: Tile, scaled: Tensor, shift: Tensor | None, total: Tensor, row: Tensor, context: Tensor | None
    ) -> Iterator[tuple[slice, Tensor]]:
        """Gradient on the logits, chunk by chunk: c_n at the logged actions and (e_x − Σ c_n)·π(·|x) everywhere."""
        share = torch.zeros_like(total)
        if context is not None:
            share[: tile.size] = context
        share.index_add_(0, tile.local, row, alpha=-1).div_(total)
        for chunk, inside, place in self.chunks(tile):
            if self.chunk == len(self.weights):
                slope = self.buffer[: len(self.weights) * len(share)].view(-1, len(share))
            else:
                slope = self.logits(chunk, scaled)
                slope = (slope if shift is None else slope.sub_(shift)).exp2_()
            slope *= share
            slope.view(-1).index_add_(0, place, row[inside])
            yield chunk, slope  # (chunk, tile)


def tile_size(contexts: int, weights: Tensor, max_bytes: int) -> int:
    """Contexts per tile: all, or as many as the buffer may hold."""
    actions = len(weights)
    affordable = max_bytes // (actions * weights.element_size()) // ALIGNED * ALIGNED
    return max(1, min(contexts, max(TILE, TILE_NUMBERS // actions), max(MIN_TILE, affordable)))


def sweep(
    states: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    rows: Rows,
    *,
    max_bytes: int,
    all_contexts: bool = False,
    coefficients: Coefficients | None = None,
    context_coefficients: Tensor | None = None,
    needs: tuple[bool, bool, bool] = (False, False, False),
) -> tuple[LikelihoodGradient, Tensor]:
    """One pass over the tiles: log π of the rows, log Z of the contexts, and the gradients that are needed."""
    head = Head(weights, bias, len(states), max_bytes)
    log_prob, log_total = states.new_empty(len(rows.action)), states.new_zeros(len(states))
    d_states = torch.zeros_like(states) if needs[0] else None
    d_weights = torch.zeros_like(weights) if needs[1] else None
    d_bias = torch.zeros_like(bias) if needs[2] and bias is not None else None
    for tile in rows.tiles(len(states), head.tile, all_contexts=all_contexts):
        tile_states = tile.states(states)
        scaled = (tile_states * LOG2_E).t().contiguous()  # (d, tile)
        picked, shift, total = head.normalise(tile, scaled)
        normaliser = total.log2() if shift is None else total.log2() + shift
        log_prob[tile.rows] = row_log_prob = (picked - normaliser[tile.local]) / LOG2_E
        log_total[tile.contexts] = normaliser[: tile.size] / LOG2_E
        if not any(needs):
            continue
        row = torch.zeros_like(picked)
        if coefficients is not None:
            row = coefficients(row_log_prob, tile.rows) if callable(coefficients) else coefficients[tile.rows]
            row = row.detach().to(states.dtype)
        context = None if context_coefficients is None else context_coefficients[tile.contexts]
        if not bool(row.any()) and (context is None or not bool(context.any())):
            continue
        for chunk, slope in head.slopes(tile, scaled, shift, total, row, context):
            if d_states is not None:
                own = (slope.t() @ weights[chunk])[: tile.size]
                d_states[tile.contexts] += own
            if d_weights is not None:
                d_weights[chunk].addmm_(slope, tile_states)
            if d_bias is not None:
                d_bias[chunk] += slope.sum(1)
    return LikelihoodGradient(log_prob, d_states, d_weights, d_bias), log_total
