"""What a policy is: probabilities over all actions for a table of contexts. Callers go through contexts in tiles."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.log import CategoricalColumn, EmbeddingColumn, FeatureTable, LoggedData
from offpolicy.models import Scorer, softmax

TILE_BYTES = 64 * 2**20
"""Memory one (contexts × actions) tile may take; larger tiles are no faster and crowd the caches."""


@runtime_checkable
class Policy(Protocol):
    """Anything with log-probabilities over a fixed set of actions."""

    @property
    def n_actions(self) -> int:
        """Number of actions it chooses among."""
        ...

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """log π(a|x), shape (contexts, actions); each row's probabilities sum to 1."""
        ...


def tensor(array: Any) -> Tensor:
    """A torch view of a (possibly read-only) NumPy array, without a copy; callers never write to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(np.asarray(array))


def context_tiles(n_contexts: int, n_actions: int, bytes_per_value: int = 8) -> Iterator[slice]:
    """Slices of contexts whose (contexts × actions) tile fits the memory of a tile."""
    size = max(1, TILE_BYTES // (n_actions * bytes_per_value))
    for start in range(0, n_contexts, size):
        yield slice(start, min(start + size, n_contexts))


@dataclass(frozen=True)
class UniformPolicy:
    """Every action alike."""

    n_actions: int

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """−log K everywhere."""
        return torch.full((contexts.n_rows, self.n_actions), -np.log(self.n_actions), dtype=torch.float64)


@dataclass(frozen=True)
class TabularPolicy:
    """A table of probabilities, one row per category of a context column."""

    column: str
    probs: Tensor  # (categories, actions)

    def __post_init__(self) -> None:
        """Refuse a table whose rows are not distributions."""
        off = (self.probs.sum(1) - 1).abs().max().item()
        if bool((self.probs < 0).any()) or off > 1e-6:
            raise ParameterError(
                f"Each row of a table policy must hold probabilities that sum to 1, but one is off by {off:.3g}."
            )

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return self.probs.shape[1]

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """Rows of the table, looked up by the category's code."""
        column = contexts[self.column]
        if not isinstance(column, CategoricalColumn):
            raise ParameterError(f"Column {self.column!r} must be categorical to look a table policy up in it.")
        return self.probs[tensor(column.codes).long()].log()


@dataclass(frozen=True)
class LinearSoftmaxPolicy:
    """softmax((x·weightsᵀ + bias)/temperature) over an embedding column x."""

    column: str
    weights: Tensor  # (actions, dimensions)
    bias: Tensor  # (actions,)
    temperature: float = 1.0

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return self.weights.shape[0]

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """Normalised logits, in the precision of the weights."""
        column = contexts[self.column]
        if not isinstance(column, EmbeddingColumn):
            raise ParameterError(f"Column {self.column!r} must be an embedding for a linear softmax policy.")
        states = tensor(column.values).to(self.weights.dtype)
        return ((states @ self.weights.T + self.bias) / self.temperature).log_softmax(1)


class ScorerPolicy:
    """The softmax of a scorer as it is now: later training does not change it."""

    def __init__(self, scorer: Scorer, excluded: Tensor | None = None) -> None:
        """Take the actions' side of the scorer once, without the excluded actions (a mask)."""
        self.scorer = scorer
        self.scorer.eval()
        with torch.no_grad():
            weights, bias = scorer.actions()
        self.weights, self.bias = weights.detach().clone(), bias.detach().clone()
        if excluded is not None:
            self.bias.masked_fill_(excluded, -torch.inf)

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return len(self.weights)

    @torch.no_grad()
    def states(self, contexts: FeatureTable) -> Tensor:
        """The scorer's state of each context, in evaluation mode."""
        self.scorer.eval()
        return self.scorer.states(contexts)

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """log π(·|x) by the full softmax."""
        return torch.addmm(self.bias, self.states(contexts), self.weights.T).log_softmax(1)

    def logged_log_prob(self, log: LoggedData) -> Tensor:
        """log π(a_n|x_n) through the exact head: contexts in tiles, rows by gathering."""
        result = torch.empty(log.n_rows, dtype=torch.float64)
        for tile in row_tiles(log, self.weights.shape[1]):
            states = self.states(log.contexts.take(tile.contexts))
            found = softmax.logged_log_prob(states, self.weights, self.bias, tile.row_context, tile.row_action)
            result[tile.rows] = found.double()
        return result


@runtime_checkable
class RowPolicy(Protocol):
    """A policy with a quicker way to the logged rows than through all actions of their contexts."""

    def logged_log_prob(self, log: LoggedData) -> Tensor:
        """log π(a_n|x_n) of every logged row, float64."""
        ...


@runtime_checkable
class PlacedPolicy(Protocol):
    """A policy that knows its contexts by their place in the log rather than by their features."""

    def log_probs_at(self, contexts: slice) -> Tensor:
        """log π(·|x) of the contexts at these places."""
        ...


def tile_log_probs(policy: Policy, log: LoggedData, contexts: slice) -> Tensor:
    """log π(·|x) of a slice of the log's contexts."""
    if isinstance(policy, PlacedPolicy):
        return policy.log_probs_at(contexts)
    return policy.log_probs(log.contexts.take(contexts))


def logged_log_prob(policy: Policy, log: LoggedData) -> Tensor:
    """log π(a_n|x_n) of every logged row, float64, one tile of contexts at a time."""
    if isinstance(policy, RowPolicy):
        return policy.logged_log_prob(log)
    result = torch.empty(log.n_rows, dtype=torch.float64)
    for tile in row_tiles(log):
        log_probs = tile_log_probs(policy, log, tile.contexts)
        result[tile.rows] = log_probs[tile.row_context, tile.row_action].double()
    return result


@dataclass(frozen=True)
class RowTile:
    """A slice of contexts and the rows that point into it."""

    contexts: slice
    rows: Tensor
    """Indices of the rows in the log."""
    row_context: Tensor
    """Which context of the slice each of them points at."""
    row_action: Tensor
    """Their logged actions."""


def row_tiles(log: LoggedData, width: int | None = None) -> Iterator[RowTile]:
    """The log as slices of contexts with the rows of each; a context takes `width` numbers (the actions) in a tile."""
    index, action = tensor(log.context_index), tensor(log.action)
    order = index.argsort(stable=True)
    starts = torch.searchsorted(index[order], torch.arange(log.n_contexts + 1, dtype=index.dtype))
    for contexts in context_tiles(log.n_contexts, width or log.n_actions):
        rows = order[int(starts[contexts.start]) : int(starts[contexts.stop])]
        yield RowTile(contexts, rows, index[rows].long() - contexts.start, action[rows].long())
