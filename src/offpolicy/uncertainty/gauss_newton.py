"""Centred Gauss–Newton: H = κI + Σ_x n_x Σ_a β̂(a|x)(g_a − ḡ)(g_a − ḡ)ᵀ, ḡ = Σ_a β̂ g_a; U² = (g_a − ḡ)ᵀH⁻¹(g_a − ḡ).

This is the Laplace variance of log β̂ itself, the same for f(x, a) and f(x, a) + c(x). Two last layers: one vector
shared by all actions over g(x, a) = state ∗ embedding_a (d×d), and one vector per action over the state (dK×dK).

No row is left out of H here. A context's curvature holds its number of rows and all its actions, not the one that
was logged, so a row does not add information about its own action; without it only n_x falls by one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.models import iterate_log_probs
from offpolicy.uncertainty.factor import (
    CHUNK_BYTES,
    check_features,
    check_mergeable,
    check_rows,
    check_weights,
    cholesky,
    quadratic_form,
    ridge_of,
)

EXACT_LIMIT = 2000
"""Most weights d·K for which the whole dK×dK matrix of a linear softmax is kept."""

TILE = 512
"""Most contexts whose probabilities are held at a time."""

LogProbs = Callable[[slice], Tensor] | tuple[Tensor, Tensor | None]
"""log β̂(·|x) of a slice of the contexts, (tile, actions); or the (weights, bias) of a softmax head over the states."""


def probability_tiles(states: Tensor, log_probs: LogProbs, n_actions: int) -> Iterator[tuple[slice, Tensor]]:
    """β̂ of tile after tile of contexts in float64, rows summing to 1."""
    size = max(1, min(TILE, CHUNK_BYTES // (8 * n_actions)))
    if isinstance(log_probs, tuple):
        weights, bias = (None if part is None else part.detach().cpu() for part in log_probs)
        assert weights is not None
        tiles = iterate_log_probs(states.to(weights.dtype), weights, bias, size)
    else:
        slices = (slice(start, min(start + size, len(states))) for start in range(0, len(states), size))
        tiles = ((part, log_probs(part).detach().cpu()) for part in slices)
    for part, tile in tiles:
        if tile.shape != (part.stop - part.start, n_actions):
            raise ParameterError(
                f"log_probs must give ({part.stop - part.start}, {n_actions}) numbers for contexts {part.start} to "
                f"{part.stop - 1}, but it gives {tuple(tile.shape)}."
            )
        prob = tile.double().exp()
        total = prob.sum(1, keepdim=True)
        if not bool(((total - 1).abs() < 1e-3).all()):
            raise ParameterError(
                f"log_probs must be normalised, but the probabilities of one context sum to "
                f"{float(total[(total - 1).abs().argmax()]):.6g}. Take the log-softmax over all {n_actions} actions."
            )
        yield part, prob / total


def rows_of_tiles(row_context: Tensor, n_contexts: int) -> Callable[[slice], Tensor]:
    """A function that gives the rows that point into a slice of contexts."""
    order = row_context.argsort(stable=True)
    starts = torch.searchsorted(row_context[order], torch.arange(n_contexts + 1)).tolist()
    return lambda part: order[starts[part.start] : starts[part.stop]]


class LastLayerGaussNewton:
    """H of a last layer shared by all actions: f(x, a) = v·(state ∗ embedding_a) + c_a."""

    def __init__(self, d: int) -> None:
        """Start with no contexts of d features."""
        self.d = d
        self.n_rows = 0.0
        self._matrix = torch.zeros(d, d, dtype=torch.float64)  # its lower triangle

    def add(
        self,
        states: Tensor,
        counts: Tensor,
        embeddings: Tensor,
        log_probs: LogProbs,
        *,
        samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        """Add contexts (G, d) with n_x rows each; all actions (K, d), or so many drawn from β̂ a context.

        Exact: G·K·d² multiplications. Sampled: G·K·d for ḡ, which stays exact, so the estimate of H is unbiased.
        """
        states = check_features("states", states, self.d)
        counts = check_weights("counts", counts, len(states))
        embeddings = centred(check_features("embeddings", embeddings, self.d))
        for part, prob in probability_tiles(states, log_probs, len(embeddings)):
            state, count = states[part].double(), counts[part]
            mean = prob @ embeddings
            if samples is None:
                self._add_exactly(state, count, embeddings, prob, mean)
            else:
                drawn = torch.multinomial(prob, samples, replacement=True, generator=generator)
                off = (embeddings[drawn] - mean.unsqueeze(1)) * state.unsqueeze(1)  # (tile, samples, d)
                off *= (count / samples).sqrt()[:, None, None]
                self._matrix += (off.flatten(0, 1).T @ off.flatten(0, 1)).tril()
        self.n_rows += float(counts.sum())

    def _add_exactly(self, state: Tensor, count: Tensor, embeddings: Tensor, prob: Tensor, mean: Tensor) -> None:
        """n_x h_i h_j (Σ_a β̂ e_i e_j − ē_i ē_j) summed over contexts, one i and all j ≤ i at a time by a product."""
        columns = embeddings.T.contiguous()  # (d, actions)
        weighted = state * count.unsqueeze(1)
        size = max(1, CHUNK_BYTES // (8 * len(embeddings)))
        for i in range(self.d):
            for start in range(0, i + 1, size):
                j = slice(start, min(start + size, i + 1))
                covariance = prob @ (columns[j] * columns[i]).T - mean[:, i : i + 1] * mean[:, j]  # (tile, j)
                entries = (covariance.mul_(state[:, j]) * weighted[:, i : i + 1]).sum(0)
                self._matrix[i, j] += entries

    def merge(self, other: Self) -> None:
        """Add all contexts of another one."""
        check_mergeable((self.d,), (other.d,))
        self._matrix += other._matrix
        self.n_rows += other.n_rows

    def finish(self, ridge: float | None = None) -> "LastLayerUncertainty":
        """U over all contexts seen; the ridge κ is 1 unless given."""
        matrix = self._matrix.clone()
        matrix.diagonal().add_(ridge_of(ridge, "raw", self.d))
        return LastLayerUncertainty(cholesky(matrix))


def centred(embeddings: Tensor) -> Tensor:
    """Embeddings in float64 less their mean, which does not change g − ḡ but saves precision."""
    embeddings = embeddings.double()
    return embeddings - embeddings.mean(0)


@dataclass(frozen=True)
class LastLayerUncertainty:
    """U of any rows, given the same states, embeddings and probabilities as the matrix (or new contexts')."""

    factor: Tensor  # (d, d), lower

    def of(
        self, states: Tensor, embeddings: Tensor, log_probs: LogProbs, row_context: Tensor, row_action: Tensor
    ) -> Tensor:
        """Standard deviation of log β̂(a|x) of each row (n,), float64."""
        states = check_features("states", states, len(self.factor))
        embeddings = centred(check_features("embeddings", embeddings, len(self.factor)))
        row_context, row_action = check_rows(row_context, row_action, len(states), len(embeddings))
        result = torch.empty(len(row_context), dtype=torch.float64)
        rows_of = rows_of_tiles(row_context, len(states))
        for part, prob in probability_tiles(states, log_probs, len(embeddings)):
            mean, state = prob @ embeddings, states[part].double()
            for rows in torch.split(rows_of(part), max(1, CHUNK_BYTES // (8 * max(1, len(self.factor))))):
                local = row_context[rows] - part.start
                off = (embeddings[row_action[rows]] - mean[local]) * state[local]
                result[rows] = quadratic_form(self.factor, off).sqrt()
        return result


class LinearGaussNewton:
    """H of a linear softmax, f(x, a) = x·θ_a, over all d·K weights; H = κI + Σ n_x (diag β̂ − β̂β̂ᵀ) ⊗ xxᵀ.

    An intercept is a constant column of the states. Beyond `EXACT_LIMIT` weights use `BlockGaussNewton`.
    """

    def __init__(self, d: int, n_actions: int) -> None:
        """Start with no contexts of d features."""
        if d * n_actions > EXACT_LIMIT:
            raise ParameterError(
                f"The exact matrix of {d} features × {n_actions} actions has {d * n_actions} rows, more than "
                f"{EXACT_LIMIT}. Use BlockGaussNewton."
            )
        self.d = d
        self.n_actions = n_actions
        self.n_rows = 0.0
        self._matrix = torch.zeros(n_actions * d, n_actions * d, dtype=torch.float64)

    def add(self, states: Tensor, counts: Tensor, log_probs: LogProbs) -> None:
        """Add contexts (G, d) with n_x rows each."""
        states = check_features("states", states, self.d)
        counts = check_weights("counts", counts, len(states))
        blocks = torch.zeros(self.n_actions, self.d * self.d, dtype=torch.float64)
        for part, prob in probability_tiles(states, log_probs, self.n_actions):
            state = states[part].double() * counts[part].sqrt().unsqueeze(1)
            blocks += prob.T @ (state.unsqueeze(2) * state.unsqueeze(1)).flatten(1)
            mean = (prob.unsqueeze(2) * state.unsqueeze(1)).flatten(1)  # (tile, actions·d)
            self._matrix.addmm_(mean.T, mean, alpha=-1)
        own = torch.arange(self.n_actions)
        whole = self._matrix.view(self.n_actions, self.d, self.n_actions, self.d)
        whole[own, :, own, :] += blocks.view(self.n_actions, self.d, self.d)
        self.n_rows += float(counts.sum())

    def merge(self, other: Self) -> None:
        """Add all contexts of another one."""
        check_mergeable((self.d, self.n_actions), (other.d, other.n_actions))
        self._matrix += other._matrix
        self.n_rows += other.n_rows

    def finish(self, ridge: float | None = None) -> "LinearUncertainty":
        """U over all contexts seen; the ridge κ is 1 unless given, and is that of the fit of θ."""
        matrix = self._matrix.clone()
        matrix.diagonal().add_(ridge_of(ridge, "raw", self.d))
        return LinearUncertainty(cholesky(matrix), self.d)


@dataclass(frozen=True)
class LinearUncertainty:
    """U of any rows, given the same model of β̂ as the matrix."""

    factor: Tensor  # (actions·d, actions·d), lower
    d: int

    def of(self, states: Tensor, log_probs: LogProbs, row_context: Tensor, row_action: Tensor) -> Tensor:
        """Standard deviation of log β̂(a|x) of each row (n,), float64."""
        n_actions = len(self.factor) // self.d
        states = check_features("states", states, self.d)
        row_context, row_action = check_rows(row_context, row_action, len(states), n_actions)
        result = torch.empty(len(row_context), dtype=torch.float64)
        rows_of = rows_of_tiles(row_context, len(states))
        for part, prob in probability_tiles(states, log_probs, n_actions):
            for rows in torch.split(rows_of(part), max(1, CHUNK_BYTES // (8 * len(self.factor)))):
                local = row_context[rows] - part.start
                slope = -prob[local]  # of log β̂ on the logits: e_a − β̂
                slope[torch.arange(len(rows)), row_action[rows]] += 1
                off = slope.unsqueeze(2) * states[part].double()[local].unsqueeze(1)
                result[rows] = quadratic_form(self.factor, off.flatten(1)).sqrt()
        return result
