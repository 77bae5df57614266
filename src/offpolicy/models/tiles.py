"""One pass of the exact softmax over tiles of contexts: log π of rows, log Z of contexts, and gradients.

Contexts go through in tiles: one reused buffer of (actions, tile) numbers holds a tile's logits, then its
exponentials, then the gradient on its logits; nothing of size (rows, actions) exists. The buffer works in base 2 with
actions first: exp2 is the cheaper exponential, and all three matrix products then run near the machine's rate. Where
|h|·max|w| + max|b| proves the exponentials safe, no maximum is subtracted.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

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
class Tile:
    """Some contexts and the rows that point at them."""

    contexts: Tensor  # (tile,)
    rows: Tensor  # (n,)
    actions: Tensor  # (n,)
    local: Tensor  # (n,) place of each row's context within the tile

    @property
    def width(self) -> int:
        """Contexts of the tile with its padding."""
        return _padded(len(self.contexts))


def _padded(contexts: int) -> int:
    return contexts if contexts < ALIGNED else -(-contexts // ALIGNED) * ALIGNED


class Rows:
    """Rows grouped by context. Contexts without rows are left out unless `every` one is wanted."""

    def __init__(self, row_context: Tensor, row_action: Tensor, every: int | None = None) -> None:
        """Group the rows; they are sorted only if they are not in order."""
        in_order = bool((row_context[1:] >= row_context[:-1]).all())
        identity = torch.arange(len(row_context), device=row_context.device)
        self.order = identity if in_order else torch.argsort(row_context, stable=True)
        self.action = row_action
        counts = torch.bincount(row_context, minlength=every or 0)
        self.contexts = counts.nonzero().squeeze(1) if every is None else torch.arange(every, device=counts.device)
        self.counts = counts[self.contexts]
        self.ends = [0, *self.counts.cumsum(0).tolist()]

    def tiles(self, size: int) -> Iterator[Tile]:
        """So many contexts at a time."""
        for start in range(0, len(self.contexts), size):
            contexts = self.contexts[start : start + size]
            rows = self.order[self.ends[start] : self.ends[start + len(contexts)]]
            places = torch.arange(len(contexts), device=rows.device)
            local = places.repeat_interleave(self.counts[start : start + size], output_size=len(rows))
            yield Tile(contexts, rows, self.action[rows], local)


class Head:
    """The weights of one call, in base 2, and the buffer its tiles share."""

    def __init__(self, weights: Tensor, bias: Tensor | None, contexts: int, max_bytes: int) -> None:
        """Choose the size of tiles, and of chunks of actions where even the smallest tile needs too much."""
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

    def chunks(self, tile: Tile) -> Iterator[tuple[slice, Tensor | slice, Tensor]]:
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

    def normalise(self, tile: Tile, scaled: Tensor) -> tuple[Tensor, Tensor, Tensor]:
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
        self, tile: Tile, scaled: Tensor, shift: Tensor, total: Tensor, row: Tensor, context: Tensor
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


def sweep(
    states: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    rows: Rows,
    *,
    max_bytes: int,
    coefficients: Coefficients | None = None,
    context_coefficients: Tensor | None = None,
    needs: tuple[bool, bool, bool] = (False, False, False),
) -> tuple[LikelihoodGradient, Tensor]:
    """One pass over the tiles: log π of the rows, log Z of the contexts, and the gradients that are needed."""
    head = Head(weights, bias, len(rows.contexts), max_bytes)
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
