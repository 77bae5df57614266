"""A scorer whose free part is shared by the actions of a group: what two-stage policies learn."""

from typing import Any

import torch
from torch import Tensor, nn

from offpolicy.log import FeatureTable
from offpolicy.models.columns import FittedColumn
from offpolicy.models.scorer import Scorer, set_actions, sharpen


class GroupedScorer(nn.Module, Scorer):
    """f(x, a) = f₀(x, a) + h(x)·v_g + d_g, g the group of action a, with f₀ fixed.

    Its softmax has two stages, π(a|x) = π₁(g|x)·π₂(a|x, g). π₂ is the softmax of f₀ within the group, whatever (v, d)
    are, so that ∇log π(a|x) = ∇log π₁(g|x).
    """

    groups: Tensor

    def __init__(self, fixed: Scorer, groups: Tensor) -> None:
        """Start at the fixed scorer; `groups` numbers each action's group from 0."""
        super().__init__()
        self.fixed, self.dim, self.n_actions = fixed, fixed.dim, fixed.n_actions
        for parameter in fixed.parameters():
            parameter.requires_grad_(False)
        self.register_buffer("groups", groups, persistent=False)
        like = fixed.actions()[0]
        self.weights = nn.Parameter(like.new_zeros(int(groups.max()) + 1, fixed.dim))
        self.bias = nn.Parameter(like.new_zeros(int(groups.max()) + 1))

    @property
    def columns(self) -> tuple[FittedColumn, ...]:
        """Those of the fixed scorer."""
        return self.fixed.columns

    def states(self, contexts: FeatureTable) -> Tensor:
        """h(x) of the fixed scorer."""
        return self.fixed.states(contexts)

    def states_at(self, contexts: FeatureTable, numbers: Tensor) -> Tensor:
        """h(x) of some entries of a table."""
        return self.fixed.states_at(contexts, numbers)

    def actions(self) -> tuple[Tensor, Tensor]:
        """Weights and bias of every action: its own, fixed, and its group's."""
        weights, bias = self.fixed.actions()
        return weights + self.weights[self.groups], bias + self.bias[self.groups]

    @torch.no_grad()
    def sharpen(self, factor: float) -> None:
        """Multiply all scores by a factor."""
        sharpen(self.fixed, factor)
        self.weights.mul_(factor)
        self.bias.mul_(factor)

    def specification(self) -> dict[str, Any]:
        """That of the merged scorer, whose weights it is saved with."""
        return self.fixed.specification()

    @torch.no_grad()
    def merged(self) -> Scorer:
        """The same scores as a scorer of the fixed one's kind."""
        weights, bias = self.actions()
        set_actions(self.fixed, weights, bias)
        for parameter in self.fixed.parameters():
            parameter.requires_grad_(True)
        return self.fixed
