"""Batches deal every row out once, with its context and action; steps ascend, and no further than they may."""

import math

import numpy as np
import pytest
import torch

from offpolicy.log import LoggedData
from offpolicy.models import epochs
from offpolicy.models.epochs import Batches, ContextBatches, RowBatches, gradient_step
from offpolicy.models.scorers import linear_scorer, two_tower_scorer

RANDOM = np.random.default_rng(0)
LOG = LoggedData.from_arrays(
    contexts=RANDOM.standard_normal((7, 2)),
    context_index=RANDOM.permutation(np.concatenate([np.arange(7), RANDOM.integers(7, size=23)])),
    action=RANDOM.integers(5, size=30),
    reward=RANDOM.uniform(size=30),
)


@pytest.mark.parametrize("kind", [ContextBatches, RowBatches])
@pytest.mark.parametrize("rows", [None, np.array([3, 4, 11, 29])])
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("at_once", [1, epochs.ROWS_AT_ONCE])
def test_every_row_is_dealt_out_once(
    kind: type[ContextBatches | RowBatches], rows: object, shuffled: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochs, "ROWS_AT_ONCE", at_once)
    batches: Batches = kind(LOG, 3, rows)  # type: ignore[arg-type]
    dealt = list(batches.epoch(torch.Generator().manual_seed(1) if shuffled else None))
    assert len(dealt) == len(batches)
    seen = torch.cat([batch.rows for batch in dealt]).sort().values
    assert seen.tolist() == (list(range(30)) if rows is None else [3, 4, 11, 29])
    for batch in dealt:
        numbers = batch.numbers[batch.row_context].numpy()
        np.testing.assert_array_equal(numbers, LOG.context_index[batch.rows.numpy()])
        np.testing.assert_array_equal(batch.row_action.numpy(), LOG.action[batch.rows.numpy()])
        assert batch.contexts == LOG.contexts.take(batch.numbers.numpy())


def test_a_batch_knows_its_states() -> None:
    linear, towers = linear_scorer(LOG), two_tower_scorer(LOG, dim=4)
    towers.eval()
    for batch in ContextBatches(LOG, 3).epoch(torch.Generator().manual_seed(1)):
        for scorer in (linear, towers):
            torch.testing.assert_close(batch.states(scorer), scorer.states(batch.contexts))


@pytest.mark.parametrize(("limit", "step"), [(10.0, (3.0, 4.0)), (1.0, (0.6, 0.8))])
def test_a_step_is_scaled_down_to_the_largest_norm(limit: float, step: tuple[float, float]) -> None:
    x, y, idle = (torch.nn.Parameter(torch.zeros(1)) for _ in range(3))
    optimiser = torch.optim.SGD([x, y, idle], lr=1.0)
    assert gradient_step(optimiser, (3 * x + 4 * y).sum(), limit) == pytest.approx(5.0)
    assert (x.item(), y.item(), idle.item()) == pytest.approx((*step, 0.0))


def test_a_step_to_nowhere_is_not_taken() -> None:
    x = torch.nn.Parameter(torch.ones(1))
    assert not math.isfinite(gradient_step(torch.optim.SGD([x], lr=1.0), (x * math.inf).sum()))
    assert x.item() == 1.0
