"""The Gauss–Newton matrix of a linear softmax with many actions: its diagonal blocks, estimated from the logged rows.

H_a = κI + Σ_x n_x β̂(1 − β̂) xxᵀ is, in expectation over the logged actions, κI + Σ_{n: a_n = a} (1 − β̂(a|x_n)) x_n x_nᵀ:
the per-action matrix with row weights 1 − β̂. U² ≈ (1 − β̂(a|x))² xᵀH_a⁻¹x leaves out the blocks of other actions.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.uncertainty.per_action import PerActionMatrices, PerActionUncertainty


class BlockGaussNewton:
    """Diagonal blocks of H from the rows seen so far."""

    def __init__(self, d: int, n_actions: int) -> None:
        """Start with no rows over contexts of d features."""
        self._matrices = PerActionMatrices(d, n_actions)

    def add(
        self,
        states: Tensor,
        row_context: Tensor,
        row_action: Tensor,
        log_prob: Tensor,
        weight: Tensor | None = None,
    ) -> None:
        """Add rows (n,) that point at contexts (G, d) and actions, with log β̂(a|x) and weights; 1 unless given."""
        other = not_taken(log_prob, len(row_context))
        self._matrices.add(states, row_context, row_action, other if weight is None else other * weight)

    def merge(self, other: Self) -> None:
        """Add everything another one has seen."""
        self._matrices.merge(other._matrices)

    def finish(self, ridge: float | None = None) -> "BlockUncertainty":
        """U over all rows seen; the ridge κ is 1 unless given, and is that of the fit."""
        return BlockUncertainty(self._matrices.finish(ridge))


@dataclass(frozen=True)
class BlockUncertainty:
    """U of any rows, given their log β̂."""

    blocks: PerActionUncertainty

    def of(
        self, states: Tensor, row_context: Tensor, row_action: Tensor, log_prob: Tensor, inside: bool | Tensor = False
    ) -> Tensor:
        """About the standard deviation of log β̂(a|x) of each row (n,), float64.

        `inside` leaves the row itself out, which was added with weight 1 or this one.
        """
        other = not_taken(log_prob, len(row_context))
        own = inside if inside is False else other * inside
        return other * self.blocks.of(states, row_context, row_action, own)


def not_taken(log_prob: Tensor, n: int) -> Tensor:
    """1 − β̂ of each row, exact where β̂ is close to 1; rounding above log β̂ = 0 is cut."""
    if log_prob.shape != (n,):
        raise ParameterError(f"log_prob must hold one number for each of {n} rows, but it is {tuple(log_prob.shape)}.")
    log_prob = log_prob.detach().cpu().double()
    if not bool((log_prob <= 1e-3).all()):
        raise ParameterError(f"log_prob must not exceed 0, but one is {float(log_prob.max())}. Give log-probabilities.")
    return -torch.expm1(log_prob.clamp(max=0.0))
