"""λ from the log alone: its definition under the current policy, on a sample of rows, refreshed every epoch."""

from collections.abc import Iterable

import torch

from offpolicy.learning.objective import Objective
from offpolicy.models import Batch, Scorer

ROWS, WINSOR, LARGEST_LOG_RATIO = 8192, 0.99, 40.0
"""Rows that are looked at, the quantile at which they are cut, and the largest log-ratio that counts."""
PROPENSITIES = ("log_logging", "log_recorded", "log_count_prob")


@torch.no_grad()
def second_moment(objective: Objective, scorer: Scorer, batches: Iterable[Batch], events: float) -> float | None:
    """E_β̂[(gain·ρ)²] over all events of the log, winsorised so that one row does not decide it.

    Rows that are not in the batches have no gain. None where no propensity of the rows is known (yet).
    """
    fixed = objective.rows.fixed
    known = next((name for name in PROPENSITIES if name in fixed), None)
    if known is None:
        return None
    scorer.eval()
    weights, bias = scorer.actions()
    squares, counts = [], []
    for batch in batches:
        states = batch.states(scorer)
        log_prob = objective.head(batch).log_prob(states, weights, bias, batch.row_context, batch.row_action)
        rows = batch.rows
        baseline = fixed["imputed"][rows] if "imputed" in fixed else objective.spec.reward_baseline
        gain = fixed["reward"][rows] - baseline
        ratio = (log_prob - fixed[known][rows]).clamp(max=LARGEST_LOG_RATIO).exp()
        squares.append((gain * ratio).square().double())
        counts.append(torch.ones(len(rows)) if objective.count is None else objective.count[rows])
        if sum(map(len, squares)) >= ROWS:
            break
    counted = objective.counted()
    kept = counted.double() if objective.count is None else objective.count.double() * counted
    share = float(kept.sum()) / events  # of the events that are in the batches
    square, order = torch.cat(squares).sort(descending=True)
    count = torch.cat(counts).double()[order]
    largest = int((count.cumsum(0) <= (1 - WINSOR) * count.sum() / share).sum())
    cut = square[min(largest, len(square) - 1)]
    return float((square.clamp(max=cut) * count).sum() / count.sum()) * share
