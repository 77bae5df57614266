"""One matrix per action: M_a = κI + Σ x xᵀ over the rows that logged it, U(x, a) = √(xᵀM_a⁻¹x).

Contexts are given once, rows point at them. An action seen in fewer than d distinct pairs keeps these, and its U
comes from their n×n Gram matrix; others keep the lower triangle of a d×d sum. An unseen action keeps nothing: its U
is |x|/√κ. Factors exist only while the batch of actions they belong to is processed.
"""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from offpolicy.threads import threads
from offpolicy.uncertainty.factor import (
    CHUNK_BYTES,
    Normalisation,
    check_features,
    check_mergeable,
    check_normalisation,
    check_rows,
    check_weights,
    cholesky,
    directions,
    ridge_of,
    squared_lengths,
    without_itself,
)
from offpolicy.uncertainty.ragged import batches, padded, runs_of

WAITING = 1 << 18
"""Pairs that may be pending before they are sorted into rows and triangles."""


class Pairs(NamedTuple):
    """Distinct (context, action) pairs with their summed weights; contexts point into a table stored once."""

    table: Tensor  # (contexts, d)
    context: Tensor  # (pairs,)
    action: Tensor  # (pairs,)
    weight: Tensor  # (pairs,)

    def take(self, keep: Tensor) -> "Pairs":
        """Some of the pairs, and only the contexts they point at."""
        used, context = torch.unique(self.context[keep], return_inverse=True)
        return Pairs(self.table[used], context, self.action[keep], self.weight[keep])


def distinct_pairs(row_context: Tensor, row_action: Tensor, contexts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Context and action of each distinct pair, sorted by action, and which pair each row is."""
    pair, row_pair = torch.unique(row_action * contexts + row_context, return_inverse=True)
    return pair % max(1, contexts), pair // max(1, contexts), row_pair


def joined(parts: list[Pairs]) -> Pairs:
    """All pairs, sorted by action (those of one action in the order they came)."""
    offsets = torch.tensor([0, *(len(part.table) for part in parts)]).cumsum(0).tolist()
    action = torch.cat([part.action for part in parts])
    order = action.argsort(stable=True)
    context = torch.cat([part.context + offset for part, offset in zip(parts, offsets, strict=False)])
    weight = torch.cat([part.weight for part in parts])
    return Pairs(torch.cat([part.table for part in parts]), context[order], action[order], weight[order])


class Triangles(NamedTuple):
    """Σ weight·x xᵀ of often-seen actions: lower triangles, row by row."""

    action: Tensor  # (actions,), sorted
    values: Tensor  # (actions, d(d+1)/2)

    def matrices(self, places: Tensor, d: int) -> Tensor:
        """Some of them as symmetric matrices whose upper part is not filled."""
        row, column = torch.tril_indices(d, d)
        matrices = self.values.new_zeros(len(places), d, d)
        matrices[:, row, column] = self.values[places]
        return matrices

    def placed(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Where each action's triangle is, and whether it has one."""
        return position(self.action, action)

    @threads(1)  # thousands of small factorisations and solves
    def with_pairs(self, pairs: Pairs, normalisation: str) -> "Triangles":
        """These sums plus those of more pairs, sorted by action."""
        d = pairs.table.shape[1]
        ids, lengths = torch.unique_consecutive(pairs.action, return_counts=True)
        action = torch.unique(torch.cat([self.action, ids]))
        values = self.values.new_zeros(len(action), self.values.shape[1])
        values[torch.searchsorted(action, self.action)] = self.values
        slot = torch.searchsorted(action, ids)
        row, column = torch.tril_indices(d, d)
        runs = runs_of(lengths)
        for items, (width,) in batches(runs.length.unsqueeze(1), lambda n: 8 * d * (3 * n + 2 * d), CHUNK_BYTES):
            rows = scaled_rows(pairs, runs.start[items], runs.length[items], width, normalisation)
            values.index_add_(0, slot[runs.group[items]], (rows.mT @ rows)[:, row, column])
        return Triangles(action, values)


def position(sorted_ids: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Where each id stands in a sorted list, and whether it is there."""
    if len(sorted_ids) == 0:
        return torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
    place = torch.searchsorted(sorted_ids, ids).clamp(max=len(sorted_ids) - 1)
    return place, sorted_ids[place] == ids


def scaled_rows(pairs: Pairs, start: Tensor, length: Tensor, width: int, normalisation: str) -> Tensor:
    """√weight·x of runs of pairs, padded with zeros: (runs, width, d)."""
    index, real = padded(start, length, width)
    scale = pairs.weight[index].sqrt().mul_(real)
    return directions(pairs.table[pairs.context[index]], normalisation) * scale.unsqueeze(-1)


class PerActionMatrices:
    """What the rows seen so far say about each action. Memory is at most about a d×d triangle per action seen."""

    def __init__(self, d: int, n_actions: int, normalisation: Normalisation = "raw") -> None:
        """Start with no rows over contexts of d features."""
        check_normalisation(normalisation)
        self.d = d
        self.n_actions = n_actions
        self.normalisation = normalisation
        self.n_rows = 0
        self.n_zero = 0
        """Rows whose context is the zero vector: their U is 0, whatever the data."""
        none = torch.zeros(0, dtype=torch.int64)
        self._kept = Pairs(torch.zeros(0, d), none, none, torch.zeros(0, dtype=torch.float64))
        self._sums = Triangles(none, torch.zeros(0, d * (d + 1) // 2, dtype=torch.float64))
        self._waiting: list[Pairs] = []

    def add(self, states: Tensor, row_context: Tensor, row_action: Tensor, weight: Tensor | None = None) -> None:
        """Add rows (n,) that point at contexts (G, d) and actions, each with a weight; 1 unless given."""
        states = check_features("states", states, self.d)
        row_context, row_action = check_rows(row_context, row_action, len(states), self.n_actions)
        weight = check_weights("weight", weight, len(row_context))
        context, action, row_pair = distinct_pairs(row_context, row_action, len(states))
        total = torch.zeros(len(context), dtype=torch.float64).index_add_(0, row_pair, weight)
        self._wait(Pairs(states, context, action, total).take((total > 0).nonzero().squeeze(1)))
        self.n_rows += len(row_context)
        self.n_zero += int((states == 0).all(1)[row_context].sum())

    def merge(self, other: Self) -> None:
        """Add everything another one has seen."""
        check_mergeable((self.d, self.n_actions, self.normalisation), (other.d, other.n_actions, other.normalisation))
        if len(other._sums.action):
            self._sums = added(self._sums, other._sums)
        self._wait(other._kept, *other._waiting)
        self.n_rows += other.n_rows
        self.n_zero += other.n_zero

    def finish(self, ridge: float | None = None) -> "PerActionUncertainty":
        """U over all rows seen. The ridge κ is 1, or d in the official form, unless given."""
        kappa = ridge_of(ridge, self.normalisation, self.d)
        self.sort_pending()
        return PerActionUncertainty(self._kept, self._sums, self.n_actions, kappa, self.normalisation)

    def _wait(self, *pairs: Pairs) -> None:
        """Take in pairs, to be sorted when they are many."""
        self._waiting += pairs
        if sum(len(part.context) for part in self._waiting) > max(WAITING, len(self._kept.context)):
            self.sort_pending()

    def sort_pending(self) -> None:
        """Sort pending pairs: those of actions seen d times or more into triangles, others among the kept."""
        if not self._waiting:
            return
        pairs = joined([self._kept, *self._waiting])
        self._waiting = []
        ids, action, lengths = torch.unique_consecutive(pairs.action, return_inverse=True, return_counts=True)
        often = (lengths >= self.d) | self._sums.placed(ids)[1]
        summed = often[action]
        if bool(summed.any()):
            self._sums = self._sums.with_pairs(pairs.take(summed.nonzero().squeeze(1)), self.normalisation)
        self._kept = pairs.take((~summed).nonzero().squeeze(1))


def added(one: Triangles, other: Triangles) -> Triangles:
    """Sums over both."""
    action = torch.unique(torch.cat([one.action, other.action]))
    values = one.values.new_zeros(len(action), one.values.shape[1])
    for part in (one, other):
        values.index_add_(0, torch.searchsorted(action, part.action), part.values)
    return Triangles(action, values)


class PerActionUncertainty:
    """U of any (context, action) pairs."""

    def __init__(self, kept: Pairs, sums: Triangles, n_actions: int, ridge: float, normalisation: str) -> None:
        """`kept` is sorted by action."""
        self.ridge = ridge
        self.normalisation = normalisation
        self.n_actions = n_actions
        self._kept, self._sums = kept, sums
        self._few, self._lengths = torch.unique_consecutive(kept.action, return_counts=True)
        self._starts = self._lengths.cumsum(0) - self._lengths

    def of(self, states: Tensor, row_context: Tensor, row_action: Tensor, inside: bool | Tensor = False) -> Tensor:
        """U of each row (n,), float64. `inside`: leave the row itself out, which was added with weight 1 or this one.

        Of a pair that was logged several times one row leaves.
        """
        states = check_features("states", states, self._kept.table.shape[1])
        row_context, row_action = check_rows(row_context, row_action, len(states), self.n_actions)
        length = torch.linalg.vector_norm(directions(states, self.normalisation), dim=1)
        context, action, row_pair = distinct_pairs(row_context, row_action, len(states))
        bound = length[context] / self.ridge**0.5
        u = torch.minimum(self._squares(states, context, action).sqrt(), bound)
        return without_itself(u[row_pair], bound[row_pair], inside)

    @threads(1)  # thousands of small factorisations and solves
    def _squares(self, states: Tensor, context: Tensor, action: Tensor) -> Tensor:
        """U² of distinct pairs sorted by action; ∞ (the caller's bound cuts it) where the action is unseen."""
        result = torch.full((len(context),), torch.inf, dtype=torch.float64)
        d = states.shape[1]
        ids, lengths = torch.unique_consecutive(action, return_counts=True)
        runs = runs_of(lengths)
        asked = Pairs(states, context, action, torch.ones(len(context), dtype=torch.float64))

        def answer(items: Tensor, width: int, squares: Tensor) -> None:
            index, real = padded(runs.start[items], runs.length[items], width)
            result[index[real]] = squares[real]

        place, there = self._sums.placed(ids[runs.group])
        often = there.nonzero().squeeze(1)
        for pick, (width,) in batches(runs.length[often].unsqueeze(1), lambda q: 8 * d * (3 * d + 4 * q), CHUNK_BYTES):
            items = often[pick]
            queries = scaled_rows(asked, runs.start[items], runs.length[items], width, self.normalisation)
            matrices = self._sums.matrices(place[items], d)
            matrices.diagonal(dim1=-2, dim2=-1).add_(self.ridge)
            answer(items, width, squared_lengths(cholesky(matrices), queries))

        place, there = position(self._few, ids[runs.group])
        few = there.nonzero().squeeze(1)
        sizes = torch.stack([self._lengths[place[few]], runs.length[few]], 1)
        for pick, (n, width) in batches(sizes, lambda n, q: 8 * (2 * n * (d + n) + q * (4 * d + 3 * n)), CHUNK_BYTES):
            items = few[pick]
            queries = scaled_rows(asked, runs.start[items], runs.length[items], width, self.normalisation)
            own = place[items]
            rows = scaled_rows(self._kept, self._starts[own], self._lengths[own], n, self.normalisation)
            answer(items, width, squares_by_rows(rows, queries, self.ridge))
        return result


def squares_by_rows(rows: Tensor, queries: Tensor, ridge: float) -> Tensor:
    """xᵀ(κI + RᵀR)⁻¹x from the Gram matrix of few rows R (batch, n, d), for queries x (batch, q, d).

    With t = (κI + RRᵀ)⁻¹Rx and y = (x − Rᵀt)/κ = (κI + RᵀR)⁻¹x, it is κ|y|² + |t|²: the same number as
    (x·x − (Rx)·t)/κ, but a sum of squares, which cancels nothing where x lies among the rows.
    """
    gram = rows @ rows.mT
    gram.diagonal(dim1=-2, dim2=-1).add_(ridge)
    factor = cholesky(gram)
    half = torch.linalg.solve_triangular(factor, rows @ queries.mT, upper=False)
    t = torch.linalg.solve_triangular(factor.mT, half, upper=True)  # (batch, n, q)
    rest = queries - t.mT @ rows
    squares: Tensor = rest.square_().sum(-1) / ridge + t.square_().sum(-2)
    return squares
