"""A quick reward model for evaluation: linear in the features, pooled over actions as far as the data ask.

q̂(x, a) = x·b + x·b_a, where b is fitted to all rows and b_a to what is left of the rows of action a, pulled to zero by
a ridge that leave-one-out chooses. Logged rows get the prediction of a model that did not see them, in closed form.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from offpolicy.log import FeatureTable, LoggedData
from offpolicy.models.encoders import DesignMatrix
from offpolicy.policies import tensor

RIDGES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 1e6)
"""Pulls towards the pooled model that are tried; the last is the pooled model alone."""


@dataclass(frozen=True)
class PooledRewardModel:
    """q̂ for every context and action, and leave-one-out predictions of the rows it was fitted to."""

    design: DesignMatrix
    pooled: Tensor  # (features,)
    own: Tensor  # (actions, features)
    imputed: Tensor  # (rows,)
    """q̂(x_n, a_n) of each row of its log, without the row itself in its action's part."""
    log: LoggedData
    ridge: float

    @classmethod
    def fit(cls, log: LoggedData, design: DesignMatrix | None = None) -> Self:
        """Closed-form ridge regressions; the pull is chosen by leave-one-out error over all rows."""
        design = design or DesignMatrix.fit(log.contexts)
        features = _with_intercept(design.encode(log.contexts))
        rows, action, reward = features[tensor(log.context_index).long()], tensor(log.action).long(), tensor(log.reward)
        pooled = _ridge_solution(rows.T @ rows, rows.T @ reward, 1.0)
        residual = reward - rows @ pooled
        order = action.argsort(stable=True)
        gram, moment = _per_action_sums(rows[order], residual[order], action[order], log.n_actions)
        best: tuple[float, float, Tensor, Tensor] | None = None
        for ridge in RIDGES:
            own, left = _own_parts(rows, residual, action, gram, moment, ridge)
            error = float(left.square().mean())
            if best is None or error < best[0]:
                best = (error, ridge, own, left)
        assert best is not None
        imputed = (reward - best[3]).clamp(0.0, 1.0)
        return cls(design, pooled, best[2], imputed, log, best[1])

    def rewards(self, contexts: FeatureTable) -> Tensor:
        """q̂(x, a), cut to [0, 1]."""
        features = _with_intercept(self.design.encode(contexts))
        return (features @ (self.own + self.pooled).T).clamp_(0.0, 1.0)


def _with_intercept(features: Tensor) -> Tensor:
    return torch.cat([features.double(), torch.ones(len(features), 1, dtype=torch.float64)], 1)


def _ridge_solution(gram: Tensor, moment: Tensor, ridge: float) -> Tensor:
    eye = torch.eye(gram.shape[-1], dtype=torch.float64)
    factor = torch.linalg.cholesky(gram + ridge * eye)
    return torch.cholesky_solve(moment.unsqueeze(-1), factor).squeeze(-1)


def _per_action_sums(rows: Tensor, residual: Tensor, action: Tensor, n_actions: int) -> tuple[Tensor, Tensor]:
    """Σ x xᵀ and Σ x·residual of each action; rows sorted by action, summed action by action."""
    width = rows.shape[1]
    gram = torch.zeros(n_actions, width, width, dtype=torch.float64)
    moment = torch.zeros(n_actions, width, dtype=torch.float64)
    ends = np.cumsum(np.bincount(action.numpy(), minlength=n_actions))
    for a in np.flatnonzero(np.diff(ends, prepend=0)):
        part = rows[(ends[a - 1] if a else 0) : ends[a]]
        gram[a] = part.T @ part
        moment[a] = part.T @ residual[(ends[a - 1] if a else 0) : ends[a]]
    return gram, moment


def _own_parts(
    rows: Tensor, residual: Tensor, action: Tensor, gram: Tensor, moment: Tensor, ridge: float
) -> tuple[Tensor, Tensor]:
    """Each action's own coefficients, and what they leave of each row when the row itself is left out."""
    width = rows.shape[1]
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram + ridge * torch.eye(width, dtype=torch.float64)))
    own = (inverse @ moment.unsqueeze(-1)).squeeze(-1)
    left = torch.empty_like(residual)
    for part in torch.split(torch.arange(len(rows)), max(1, (1 << 23) // width**2)):
        x, a = rows[part], action[part]
        leverage = torch.einsum("ni,nij,nj->n", x, inverse[a], x).clamp(max=1 - 1e-9)
        left[part] = (residual[part] - (x * own[a]).sum(1)) / (1 - leverage)
    return own, left
