"""The one value formula:  V = mean q̂(x, π) + Σ w·(r − q̂(x, a)) / Σ z.

Every estimator is this, with its own weight w, normaliser z (1, w, or a row scale) and with or without a reward model
q̂. The sums merge, so a log may arrive in batches of any size and order.
"""

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from offpolicy.accumulate import ExactSum


@dataclass(frozen=True)
class Terms:
    """Per-row terms of the formula, all of one length."""

    weight: Tensor
    normaliser: Tensor
    reward: Tensor
    imputed: Tensor
    """q̂(x, a) of the logged action; 0 without a reward model."""
    baseline: Tensor
    """q̂(x, π) of the row's context; 0 without a reward model."""

    @classmethod
    def without_reward_model(cls, weight: Tensor, normaliser: Tensor, reward: Tensor) -> Self:
        """Terms of an estimator that has no q̂."""
        zero = reward.new_zeros(()).expand_as(reward)
        return cls(weight, normaliser, reward, zero, zero)


@dataclass(frozen=True)
class PointEstimate:
    """A value and what it rests on."""

    value: float
    mean_weight: float
    """Mean of w; about 1 where w is an unbounded ratio and β̂ is right."""
    rows: int
    no_weight: bool
    """All weights are zero: the log says nothing about the policy, and the value is the reward model's or 0."""


class ValueSums:
    """Accumulates terms; `finish` is the value over all rows seen."""

    def __init__(self) -> None:
        """Nothing seen yet."""
        self._sums = tuple(ExactSum() for _ in range(4))
        self._rows = 0

    def add(self, batch: Terms) -> None:
        """Take in a batch of rows."""
        weight = batch.weight.double()
        correction = weight * (batch.reward - batch.imputed).double()
        parts = (correction, batch.normaliser.double(), batch.baseline.double(), weight)
        for total, part in zip(self._sums, parts, strict=True):
            total.add(float(part.sum()))
        self._rows += len(weight)

    def merge(self, other: Self) -> None:
        """Take in the rows another accumulator has seen."""
        for total, more in zip(self._sums, other._sums, strict=True):
            total.merge(more)
        self._rows += other._rows

    def finish(self) -> PointEstimate:
        """The value over everything seen."""
        correction, normaliser, baseline, weight = (total.finish() for total in self._sums)
        rows = max(self._rows, 1)
        ratio = correction / normaliser if normaliser > 0 else 0.0
        return PointEstimate(baseline / rows + ratio, weight / rows, self._rows, no_weight=weight == 0)


def value(terms: Terms) -> PointEstimate:
    """The value of one batch of rows."""
    sums = ValueSums()
    sums.add(terms)
    return sums.finish()
