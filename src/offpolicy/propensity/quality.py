"""How good β̂ is on rows it did not see: likelihood, calibration, and whether weights average to one."""

from typing import Self

import numpy as np
import torch
from torch import Tensor

from offpolicy.engine import map_merge
from offpolicy.log import LogBatch, LoggedData
from offpolicy.policies import (
    Policy,
    PopularityPolicy,
    UniformPolicy,
    choice_log_probs,
    logged_log_prob,
    tensor,
)
from offpolicy.propensity.config import event_weights, some_contexts, weighted_mean
from offpolicy.results import CalibrationBin, Quality

BIN_EDGES = torch.linspace(-12, 0, 25, dtype=torch.float64)[:-1]
"""Lower edges of the calibration bins in log β̂; the first bin also takes everything below."""
CALIBRATION_NUMBERS = 8_000_000
"""What β̂ predicts for all actions is summed over as many held-out contexts, drawn at random, as have this many
(contexts × actions) numbers; what was taken, over all rows."""


class CalibrationSums:
    """Over all actions of held-out contexts: how much mass β̂ predicted in each bin, to compare with what was taken."""

    def __init__(self) -> None:
        """Nothing seen yet."""
        self.predicted = torch.zeros(len(BIN_EDGES), dtype=torch.float64)
        self.pairs = torch.zeros_like(self.predicted)
        self.events = 0.0

    def add(self, log_probs: Tensor, events: Tensor, real: Tensor | None = None) -> None:
        """Take in contexts: log β̂ over all actions, events; `real` says where there is an action, if not everywhere."""
        cell, bins = _bin(log_probs.flatten()), len(BIN_EDGES)
        count = events.double()[:, None].expand_as(log_probs)
        count = (count if real is None else count * real).flatten()
        self.predicted += torch.bincount(cell, log_probs.flatten().double().exp() * count, bins)
        self.pairs += torch.bincount(cell, count, bins)
        self.events += float(events.sum())

    def merge(self, other: Self) -> None:
        """Take in what another has seen."""
        self.predicted += other.predicted
        self.pairs += other.pairs
        self.events += other.events

    def finish(self, logged: Tensor, weight: Tensor) -> tuple[float, list[CalibrationBin]]:
        """Expected calibration error (share of mass in the wrong bin) and the bins that hold anything.

        `logged` is log β̂ of the action that was taken in every row, whether or not its context was among those seen.
        """
        observed = torch.bincount(_bin(logged), weight.double(), len(BIN_EDGES))
        rows = float(weight.sum())
        scale = rows / max(self.events, 1e-300)
        predicted, pairs = self.predicted * scale, self.pairs * scale
        error = float((predicted - observed).abs().sum() / max(rows, 1.0)) / 2
        bins = [
            CalibrationBin(
                low=float(edge), predicted=float(p) / max(rows, 1.0), observed=float(o) / max(rows, 1.0), pairs=float(n)
            )
            for edge, p, o, n in zip(BIN_EDGES, predicted, observed, pairs, strict=True)
            if n > 0
        ]
        return error, bins


def _bin(log_prob: Tensor) -> Tensor:
    """The last edge at or below each; edges are half a unit apart, so doubling and rounding down is exact."""
    return (2 * log_prob).floor_().add_(len(BIN_EDGES)).clamp_(0, len(BIN_EDGES) - 1).long()


def measure(policy: Policy, held_out: LoggedData, training: LoggedData, *, all_actions: bool = True) -> Quality:
    """Quality of a policy on rows it was not fitted to."""
    logged = logged_log_prob(policy, held_out)
    popularity, uniform = _simple_log_probs(held_out, training)
    weight = (popularity - logged).exp()
    mean = weighted_mean(weight, held_out)
    error, bins = _calibration(policy, held_out, logged) if all_actions else (None, [])
    return Quality(
        log_likelihood=weighted_mean(logged, held_out),
        uniform_log_likelihood=uniform,
        popularity_log_likelihood=weighted_mean(popularity, held_out),
        calibration_error=error,
        mean_weight=mean,
        mean_weight_error=_error_of_mean(weight, mean, held_out),
        rows=held_out.n_rows,
        bins=bins,
    )


def _simple_log_probs(held_out: LoggedData, training: LoggedData) -> tuple[Tensor, float]:
    """log of the training rows' popularity of each held-out row's action, and the mean of that of uniform choice."""
    popularity = smoothed_popularity(training)
    if held_out.candidates is None:
        return popularity[tensor(held_out.action).long()], -float(np.log(held_out.n_actions))
    among = logged_log_prob(PopularityPolicy(held_out.actions, popularity), held_out)
    return among, weighted_mean(logged_log_prob(UniformPolicy(held_out.actions), held_out), held_out)


def smoothed_popularity(log: LoggedData) -> Tensor:
    """log of add-one frequencies, a proper distribution over all actions."""
    return ((tensor(log.action_weight) + 1) / (log.n_events + log.n_actions)).log()


def _error_of_mean(values: Tensor, mean: float, log: LoggedData) -> float:
    """The standard error of a mean over events, its rows taken for independent."""
    weight = torch.ones_like(values) if log.row_weight is None else tensor(log.row_weight)
    return float((weight * (values - mean)).square().sum().sqrt()) / log.n_events


def _calibration(policy: Policy, log: LoggedData, logged: Tensor) -> tuple[float, list[CalibrationBin]]:
    some = some_contexts(log, CALIBRATION_NUMBERS, 0, "calibration")
    part = log if some is None else log.take(np.isin(log.context_index, some))
    events = tensor(part.context_weight)

    def of_batch(batch: LogBatch) -> CalibrationSums:
        sums = CalibrationSums()
        contexts = part.contexts.take(batch.contexts)
        real = None if contexts.candidates is None else torch.from_numpy(contexts.candidates.padded() >= 0)
        sums.add(choice_log_probs(policy, contexts), events[batch.contexts], real)
        return sums

    return map_merge(of_batch, part.batches()).finish(logged, event_weights(log, torch.arange(log.n_rows)))
