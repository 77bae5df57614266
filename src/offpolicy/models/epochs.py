"""One pass over a log in batches of contexts: what fitting β̂ and learning π have in common."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from offpolicy.log import FeatureTable, LoggedData
from offpolicy.models.normalisers import Normaliser
from offpolicy.models.scorers import Scorer
from offpolicy.models.softmax import Coefficients

MAX_GRADIENT_NORM = 5.0
"""Global gradient norm above which a step is scaled down, as in the released code."""


@dataclass(frozen=True)
class Batch:
    """Some contexts and every row that points at them."""

    contexts: FeatureTable
    rows: Tensor  # (n,) row numbers in the log
    row_context: Tensor  # (n,) position among these contexts
    row_action: Tensor  # (n,)


class ContextBatches:
    """The rows of a log grouped by context, dealt out in batches of whole contexts."""

    def __init__(self, log: LoggedData, batch_contexts: int) -> None:
        """Group the rows once; every epoch reuses the grouping."""
        self._contexts = log.contexts
        index = np.asarray(log.context_index)
        self._order = torch.from_numpy(np.argsort(index, kind="stable"))
        counts = np.bincount(index, minlength=log.n_contexts)
        self._counts = torch.from_numpy(counts)
        self._starts = torch.from_numpy(np.cumsum(counts) - counts)
        self._action = torch.from_numpy(log.action.astype(np.int64))
        self._size = batch_contexts
        self._used = torch.from_numpy(np.flatnonzero(counts))

    def __len__(self) -> int:
        """Batches an epoch."""
        return -(-len(self._used) // self._size)

    def epoch(self, generator: torch.Generator | None = None) -> Iterator[Batch]:
        """Every row once; contexts in random order if a generator is given."""
        shuffled = generator is not None
        order = self._used[torch.randperm(len(self._used), generator=generator)] if shuffled else self._used
        for start in range(0, len(order), self._size):
            contexts = order[start : start + self._size]
            counts = self._counts[contexts]
            row_context = torch.repeat_interleave(torch.arange(len(contexts)), counts)
            first = torch.repeat_interleave(self._starts[contexts] - (counts.cumsum(0) - counts), counts)
            rows = self._order[first + torch.arange(len(row_context))]
            yield Batch(self._contexts.take(contexts.numpy()), rows, row_context, self._action[rows])


def ascend(
    scorer: Scorer, optimiser: torch.optim.Optimizer, batch: Batch, coefficients: Coefficients, normaliser: Normaliser
) -> float:
    """One step up the gradient of the mean of c_n log p(a_n|x_n); returns that mean before the step."""
    optimiser.zero_grad(set_to_none=True)
    weights, bias = scorer.actions()
    states = scorer.states(batch.contexts)
    total = normaliser.surrogate(states, weights, bias, batch.row_context, batch.row_action, coefficients)
    loss = -total / max(len(batch.rows), 1)
    loss.backward()  # type: ignore[no-untyped-call]
    parameters = [p for group in optimiser.param_groups for p in group["params"] if p.grad is not None]
    torch.nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT_NORM)
    optimiser.step()
    return -float(loss.detach())
