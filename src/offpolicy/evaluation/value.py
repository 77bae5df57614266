"""The one value formula:  V = mean q̂(x, π) + Σ w·(r − q̂(x, a)) / Σ z.

Every estimator is this, with its own weight w, normaliser z (1, w, or a row scale) and with or without a reward model
q̂. `evaluate` takes this path: terms of rows are summed per cluster (`clusters.py`), and `value_of` is taken of the
totals. Means and sums count a row as often as it stands for events (`row_weight`).
"""

from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt
from torch import Tensor

Array = npt.NDArray[np.float64]


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
    temperature: float = field(default=0.0, kw_only=True)
    """λ of a log-sum-exp in place of the mean of weighted rewards; 0 is the mean."""

    @classmethod
    def without_reward_model(
        cls, weight: Tensor, normaliser: Tensor, reward: Tensor, *, constant: float = 0.0, temperature: float = 0.0
    ) -> Self:
        """Terms of an estimator that has no q̂, or one constant in its place."""
        same = reward.new_tensor(constant).expand_as(reward)
        return cls(weight, normaliser, reward, same, same, temperature=temperature)


def value(terms: Terms) -> float:
    """The value of some rows, each standing for one event."""
    correction = terms.weight.double() * (terms.reward - terms.imputed).double()
    parts = (correction, terms.normaliser, terms.baseline, np.ones(len(correction)))
    sums = (np.asarray(part, dtype=np.float64).sum() for part in parts)
    return float(value_of(*sums, temperature=terms.temperature))


def value_of(
    correction: Array, normaliser: Array, baseline: Array, events: Array, *, temperature: float = 0.0
) -> Array:
    """ΣB/Σn + ΣA/ΣZ of sums A = Σ w·(r − q̂), Z = Σ z, B = Σ q̂(x, π), n; a part that would divide by zero is 0.

    With a temperature λ, −log(1 − λ·ΣA/ΣZ)/λ stands in for ΣA/ΣZ.
    """
    mean = ratio(correction, normaliser)
    return ratio(baseline, events) + (-np.log(room(mean, temperature)) / temperature if temperature else mean)


def room(mean: Array, temperature: float) -> Array:
    """1 − λ·mean, which is mean e^{−λρr} and so above 0 but for rounding."""
    return np.maximum(1 - temperature * mean, np.finfo(np.float64).tiny)


def ratio(top: Array, bottom: Array) -> Array:
    """top/bottom, and 0 where there is nothing to divide by."""
    return np.divide(top, bottom, out=np.zeros(np.shape(top)), where=np.asarray(bottom) > 0)
