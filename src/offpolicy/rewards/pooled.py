"""A quick reward model for evaluation: linear in the features, pooled over actions as far as the data ask.

q̂(x, a) = x·b + x·b_a, where b is fitted to all rows and b_a to what is left of the rows of action a, shrunk to zero by
a ridge chosen by leave-one-out. Logged rows get the prediction of a model that did not see them, in closed form; rows
of one context and action are left out together, since what one of them earned may be what all of them earn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offpolicy.log import FeatureTable, LoggedData
from offpolicy.models import DesignMatrix, candidate_logits, offered_of
from offpolicy.rewards.model import rewards_of_rows

Floats = npt.NDArray[np.float64]
RIDGES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 1e6)
"""Penalties towards the pooled model that are tried; the last is the pooled model alone."""
RANK = 1e-12
"""Squared singular values below this share of the largest are rounding."""


@dataclass(frozen=True)
class PooledRewardModel:
    """q̂ for every context and action, and predictions of the rows it was fitted to that did not see them."""

    design: DesignMatrix
    pooled: Tensor  # (features,)
    own: Tensor  # (actions, features)
    imputed: Tensor  # (rows,)
    """q̂(x_n, a_n) of each row of its log, without the rows of the same context in its action's part."""
    fingerprint: str
    """Of the log it was fitted to."""
    ridge: float

    @classmethod
    def fit(cls, log: LoggedData, design: DesignMatrix | None = None) -> Self:
        """Closed-form ridge regressions; the penalty is chosen by leave-one-out error over all rows."""
        design = design or DesignMatrix.fit(log.contexts)
        features = _with_intercept(design.encode(log.contexts)).numpy()
        pooled = _pooled(features, log)
        outcome = log.outcome
        residual = outcome - (features @ pooled)[log.context_index]
        weight = np.ones(log.n_rows) if log.row_weight is None else np.asarray(log.row_weight, dtype=np.float64)
        groups = _rows_by_action(log)
        errors = np.zeros(len(RIDGES))
        for _, rows in groups:
            _, left = _of_pairs(features, log.context_index[rows], residual[rows], RIDGES, weight[rows])
            errors += np.square(left) @ weight[rows]
        ridge = RIDGES[int(errors.argmin())]
        own = np.zeros((log.n_actions, features.shape[1]))
        for action, rows in groups:
            found, left = _of_pairs(features, log.context_index[rows], residual[rows], (ridge,), weight[rows])
            own[action], residual[rows] = found[0], left[0]
        imputed = torch.from_numpy((outcome - residual).clip(0.0, 1.0))
        return cls(design, torch.from_numpy(pooled), torch.from_numpy(own), imputed, log.fingerprint, ridge)

    def packed(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Plain values and tensors, from which `unpacked` restores it."""
        facts = {"design": self.design.to_json(), "fingerprint": self.fingerprint, "ridge": self.ridge}
        return facts, {"pooled": self.pooled, "own": self.own, "imputed": self.imputed}

    @classmethod
    def unpacked(cls, facts: Mapping[str, Any], tensors: Mapping[str, Tensor], design: DesignMatrix) -> Self:
        """The inverse of `packed`."""
        parts = (tensors["pooled"], tensors["own"], tensors["imputed"])
        return cls(design, *parts, facts["fingerprint"], facts["ridge"])

    def rewards(self, contexts: FeatureTable) -> Tensor:
        """q̂(x, a), cut to [0, 1]."""
        features = _with_intercept(self.design.encode(contexts))
        return (features @ (self.own + self.pooled).T).clamp_(0.0, 1.0)

    def rewards_among(self, contexts: FeatureTable) -> Tensor:
        """q̂ of the candidates, (contexts, width), cut to [0, 1]."""
        assert contexts.candidates is not None
        features = _with_intercept(self.design.encode(contexts))
        found = candidate_logits(features, self.own + self.pooled, None, offered_of(contexts.candidates))
        return found.clamp_(0.0, 1.0)  # beyond a set's end 0

    def row_rewards(self, log: LoggedData) -> Tensor:
        """q̂(x_n, a_n) of logged rows; for the log it was fitted to, as `imputed` says."""
        return self.imputed if log.fingerprint == self.fingerprint else rewards_of_rows(self, log)


def _with_intercept(features: Tensor) -> Tensor:
    return torch.cat([features.double(), torch.ones(len(features), 1, dtype=torch.float64)], 1)


def _pooled(features: Floats, log: LoggedData) -> Floats:
    """The ridge regression of all rows, from the sums of each context."""
    weighted = log.outcome if log.row_weight is None else log.outcome * log.row_weight
    reward = np.bincount(log.context_index, weighted, log.n_contexts)
    gram = (features * log.context_weight[:, None]).T @ features + np.eye(features.shape[1])
    return np.asarray(np.linalg.solve(gram, features.T @ reward))


def _rows_by_action(log: LoggedData) -> list[tuple[int, npt.NDArray[np.int64]]]:
    order = np.argsort(log.action, kind="stable")
    counts = np.bincount(log.action, minlength=log.n_actions)
    ends = np.cumsum(counts)
    return [(int(a), order[ends[a] - counts[a] : ends[a]]) for a in np.flatnonzero(counts)]


def _of_pairs(
    features: Floats, context: npt.NDArray[Any], residual: Floats, ridges: Sequence[float], weight: Floats
) -> tuple[Floats, Floats]:
    """One action's coefficients under each ridge, and what they leave of its rows without those of the same context."""
    contexts, pair = np.unique(context, return_inverse=True)
    if len(contexts) == len(context):
        return _own_part(features[context], residual, ridges, weight)
    total = np.bincount(pair, weight).astype(np.float64)
    mean = np.bincount(pair, weight * residual) / np.maximum(total, np.finfo(float).tiny)
    coefficients, left = _own_part(features[contexts], mean, ridges, total)
    return coefficients, residual - (mean - left)[:, pair]


def _own_part(x: Floats, residual: Floats, ridges: Sequence[float], weight: Floats) -> tuple[Floats, Floats]:
    """The ridge regressions of rows, and what they leave of each row without the row itself.

    All ridges share one decomposition √w·x = P·S·Qᵀ, taken from the smaller of xᵀwx and √w·xxᵀ·√w.
    """
    pull, root = np.asarray(ridges)[:, None], np.sqrt(weight)
    plain, x = x, x * root[:, None]
    if len(x) >= x.shape[1]:
        squares, q = np.linalg.eigh(x.T @ x)
        scores = x @ q  # P·S
    else:
        squares, p = np.linalg.eigh(x @ x.T)
        scale = np.sqrt(squares.clip(min=np.finfo(float).tiny))
        scores, q = p * scale, x.T @ (p / scale) * (squares > squares[-1] * RANK)
    damped = 1 / (squares.clip(min=0.0) + pull)  # (ridges, directions)
    coefficients = (scores.T @ (residual * root) * damped) @ q.T
    leverage = (damped @ np.square(scores).T).clip(max=1 - 1e-9)
    return coefficients, (residual - coefficients @ plain.T) / (1 - leverage)
