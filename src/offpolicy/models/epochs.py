"""One pass over a log in batches of contexts: what fitting β̂ and learning π have in common."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offpolicy.log import FeatureTable, LoggedData
from offpolicy.models.choices import Offered
from offpolicy.models.normalisers import Normaliser
from offpolicy.models.offers import offered_in
from offpolicy.models.scorer import Scorer
from offpolicy.models.tiles import Coefficients

MAX_GRADIENT_NORM = 5.0
"""Global gradient norm above which a step is scaled down, as in the released code."""
ROWS_AT_ONCE = 1 << 18
"""Rows that are gathered at once and then split into batches."""


@dataclass(frozen=True)
class Batch:
    """Some contexts and every row that points at them."""

    table: FeatureTable
    """All contexts of the log."""
    numbers: Tensor  # (contexts,) those of this batch
    rows: Tensor  # (n,) row numbers in the log
    row_context: Tensor  # (n,) position among these contexts
    row_action: Tensor  # (n,)

    @cached_property
    def contexts(self) -> FeatureTable:
        """Their features."""
        return self.table.take(self.numbers.numpy())

    def states(self, scorer: Scorer) -> Tensor:
        """h(x) of the contexts, differentiable."""
        return scorer.states_at(self.table, self.numbers)

    def offered(self, scorer: Scorer) -> Offered | None:
        """The candidates of the contexts with their own scores, differentiable; None where all actions are."""
        candidates = self.table.candidates
        return None if candidates is None else offered_in(candidates.take(self.numbers.numpy()), scorer)


class Batches(Protocol):
    """The rows of a log in batches."""

    def __len__(self) -> int:
        """Batches per epoch."""
        ...

    def epoch(self, generator: torch.Generator | None = None) -> Iterator[Batch]:
        """Every row once; in random order if a generator is given."""
        ...


class ContextBatches:
    """The rows of a log grouped by context, in batches of whole contexts."""

    def __init__(self, log: LoggedData, batch_contexts: int, rows: npt.NDArray[np.int64] | None = None) -> None:
        """Group the rows (all, or these) once; every epoch reuses the grouping."""
        self._contexts = log.contexts
        index = np.asarray(log.context_index) if rows is None else log.context_index[rows]
        order = np.argsort(index, kind="stable")
        self._order = torch.from_numpy(order if rows is None else rows[order])
        counts = np.bincount(index, minlength=log.n_contexts)
        self._counts = torch.from_numpy(counts)
        self._starts = torch.from_numpy(np.cumsum(counts) - counts)
        self._action = torch.from_numpy(log.action.astype(np.int64))
        self._size = batch_contexts
        self._used = torch.from_numpy(np.flatnonzero(counts))

    def __len__(self) -> int:
        """Batches per epoch."""
        return -(-len(self._used) // self._size)

    def epoch(self, generator: torch.Generator | None = None) -> Iterator[Batch]:
        """Every row once; contexts in random order if a generator is given."""
        shuffled = generator is not None
        order = self._used[torch.randperm(len(self._used), generator=generator)] if shuffled else self._used
        rows_a_batch = max(1, len(self._order) // max(1, len(self)))
        for run in torch.split(order, self._size * max(1, ROWS_AT_ONCE // rows_a_batch)):
            yield from self._batches(run)

    def _batches(self, contexts: Tensor) -> Iterator[Batch]:
        """Batch after batch of these contexts, gathered at once: many small gathers take longer than one."""
        counts = self._counts[contexts]
        ends = counts.cumsum(0)
        owner = torch.arange(len(contexts)).repeat_interleave(counts)
        ahead = self._starts[contexts] - (ends - counts)  # from a place among these rows to that in the log
        rows = self._order[ahead[owner] + torch.arange(len(owner))]
        action, local = self._action[rows], owner % self._size
        start = 0
        for first in range(0, len(contexts), self._size):
            own = contexts[first : first + self._size]
            stop = int(ends[first + len(own) - 1])
            yield Batch(self._contexts, own, rows[start:stop], local[start:stop], action[start:stop])
            start = stop


class RowBatches:
    """The rows of a log in batches of rows, each with the contexts it needs."""

    def __init__(self, log: LoggedData, batch_rows: int, rows: npt.NDArray[np.int64] | None = None) -> None:
        """Batch all rows, or these."""
        self._contexts = log.contexts
        self._index = np.asarray(log.context_index)
        self._action = torch.from_numpy(log.action.astype(np.int64))
        self._rows = torch.arange(log.n_rows) if rows is None else torch.from_numpy(rows)
        self._size = batch_rows

    def __len__(self) -> int:
        """Batches per epoch."""
        return -(-len(self._rows) // self._size)

    def epoch(self, generator: torch.Generator | None = None) -> Iterator[Batch]:
        """Every row once; in random order if a generator is given."""
        shuffled = generator is not None
        order = self._rows[torch.randperm(len(self._rows), generator=generator)] if shuffled else self._rows
        for start in range(0, len(order), self._size):
            rows = order[start : start + self._size]
            contexts, place = np.unique(self._index[rows.numpy()], return_inverse=True)
            numbers, row_context = torch.from_numpy(contexts).long(), torch.from_numpy(place).long()
            yield Batch(self._contexts, numbers, rows, row_context, self._action[rows])


def gradient_step(optimiser: torch.optim.Optimizer, objective: Tensor, max_norm: float = MAX_GRADIENT_NORM) -> float:
    """One step up the gradient of a scalar; returns the gradient's norm, and does not move where that is not finite."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    for parameter in parameters:  # torch's own helpers for this and for the norm take longer than a small step
        parameter.grad = None
    (-objective).backward()  # type: ignore[no-untyped-call]
    return clipped_step(optimiser, max_norm)


def clipped_step(optimiser: torch.optim.Optimizer, max_norm: float = MAX_GRADIENT_NORM) -> float:
    """One step along the gradients that the parameters hold, which are scaled down to a norm; returns the norm before.

    There is no step where that is not finite.
    """
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = math.hypot(*(float(torch.linalg.vector_norm(gradient)) for gradient in gradients))
    if not math.isfinite(norm):
        return norm
    if norm > max_norm:
        for gradient in gradients:
            gradient *= max_norm / norm
    optimiser.step()
    return norm


def ascend(
    scorer: Scorer,
    optimiser: torch.optim.Optimizer,
    batch: Batch,
    coefficients: Coefficients,
    normaliser: Normaliser,
    *,
    events: float | None = None,
) -> float:
    """One step up the gradient of the mean of c_n log p(a_n|x_n), over rows or so many events; returns the mean."""
    weights, bias = scorer.actions()
    states = batch.states(scorer)
    rows, offered = (batch.row_context, batch.row_action), batch.offered(scorer)
    total = normaliser.surrogate(states, weights, bias, *rows, coefficients, offered=offered)
    mean = total / (max(len(batch.rows), 1) if events is None else events)
    gradient_step(optimiser, mean)
    return float(mean.detach())
