"""The one place that cuts a log into pieces that fit a budget."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from offpolicy.log.assignment import Rows
from offpolicy.log.ids import Codes

BATCH_BYTES = 4 * 2**20
"""Memory one (contexts × actions) piece may take unless the caller says otherwise; larger ones are slower, because
the system hands out and takes back every larger array anew."""

ROW_NUMBERS, ROW_BYTES = 64, 64 * 2**20
"""Numbers that row-wise work may hold for each row, and the memory that all of them may take."""


@dataclass(frozen=True)
class LogBatch:
    """Some contexts of a log and the rows that point at them."""

    contexts: slice
    rows: Rows
    """Positions of the rows in the log."""
    row_context: Rows
    """Which context of the slice each of them points at."""
    row_action: Rows
    """Their logged actions."""
    row_place: Rows
    """The column of each in an array of (contexts, width): the action, or its place among the candidates."""

    def moved(self, rows: int, contexts: int) -> "LogBatch":
        """The same batch of a log in which so many rows and contexts stand before it."""
        places = slice(self.contexts.start + contexts, self.contexts.stop + contexts)
        return replace(self, contexts=places, rows=self.rows + rows)


def pieces(n: int, width: int, budget: int | None = None) -> Iterator[slice]:
    """Slices of n entries of `width` numbers (8 bytes each) that fit a budget of bytes."""
    size = max(1, (BATCH_BYTES if budget is None else budget) // (8 * max(width, 1)))
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def row_pieces(n: int) -> Iterator[slice]:
    """Slices of n rows for work that holds a few dozen numbers per row at a time."""
    return pieces(n, ROW_NUMBERS, ROW_BYTES)


def batches_of(
    context_index: Codes, action: Codes, place: Codes | Rows, n_contexts: int, width: int, budget: int | None = None
) -> Iterator[LogBatch]:
    """Batches of contexts of `width` numbers, with the rows that point at them."""
    in_order = bool((context_index[1:] >= context_index[:-1]).all())
    order = None if in_order else np.argsort(context_index, kind="stable").astype(np.int32)
    starts = np.concatenate(([0], np.cumsum(np.bincount(context_index, minlength=n_contexts))))
    for contexts in pieces(n_contexts, width, budget):
        span = slice(int(starts[contexts.start]), int(starts[contexts.stop]))
        rows = np.arange(span.start, span.stop) if order is None else order[span].astype(np.int64)
        own = context_index[rows].astype(np.int64) - contexts.start
        chosen = action[rows].astype(np.int64)
        yield LogBatch(contexts, rows, own, chosen, chosen if place is action else place[rows].astype(np.int64))
