"""Jester as a setting: real tastes, a logger that knows them from jokes that are not in the log.

Users rated all jokes, so that the value of any policy is known. A context holds eight numbers about a user's ratings
of 50 gauge jokes; the logger is a softmax of a ridge regression on all 50, and so knows somewhat more than the
columns. The other 50 jokes are the actions. A log draws users with replacement.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from offpolicy.datasets import load_jester
from offpolicy.log import ActionTable, EmbeddingColumn, FeatureTable, LoggedData
from offpolicy.policies import Policy, tensor
from offpolicy.seeding import generator


@dataclass(frozen=True)
class Jester:
    """The setting."""

    name: str = "Jester, 10k rows, K 50, logger knows more"
    rows: int = 10_000
    gauge_jokes: int = 50
    dimensions: int = 8
    sharpness: float = 6.0
    hidden: bool = False
    repeated: bool = True


class JesterSetting:
    """The truth of the setting, with two targets."""

    def __init__(self, setting: Jester, seed: int) -> None:
        self.setting = setting
        ratings = load_jester()
        jokes = generator(seed, "jester setting").permutation(ratings.shape[1])
        gauge, shown = ratings[:, jokes[: setting.gauge_jokes]], ratings[:, jokes[setting.gauge_jokes :]]
        centred = gauge - gauge.mean(0)
        self.rewards = torch.from_numpy((shown > 0.5).astype(np.float64))
        self.x = _leading(centred, setting.dimensions)
        half = generator(seed, "jester setting", "halves").permutation(len(ratings)) % 2 == 0
        self.logging = (setting.sharpness * tensor(_ridge(centred, shown, half))).log_softmax(1)
        self.scores = [8 * tensor(_ridge(self.x, 1.0 * (shown > 0.5), rows)) for rows in (half, ~half)]
        self.actions = ActionTable.numbered(shown.shape[1])

    def targets(self) -> dict[str, Policy]:
        """Softmaxes of two regressions of the rewards on the columns, each on one half of the users."""
        names = ("target", "rival")
        return {name: Known(self, scores) for name, scores in zip(names, self.scores, strict=True)}

    def truths(self) -> dict[str, float]:
        """Over all users, exactly."""
        policies = {"logging": self.logging}
        policies |= dict(zip(("target", "rival"), (s.log_softmax(1) for s in self.scores), strict=True))
        return {name: float((log_prob.exp() * self.rewards).sum(1).mean()) for name, log_prob in policies.items()}

    def log(self, seed: int) -> LoggedData:
        """A log of users drawn with replacement, true propensities recorded."""
        random = generator(seed, "jester log")
        user = random.integers(0, len(self.x), self.setting.rows)
        prob = self.logging.exp().numpy()[user]
        action = (prob.cumsum(1) < random.random(len(user))[:, None]).sum(1).clip(max=prob.shape[1] - 1)
        return LoggedData.from_arrays(
            contexts=FeatureTable({"x": EmbeddingColumn(self.x.astype(np.float32))}),
            context_index=user,
            action=action,
            reward=self.rewards.numpy()[user, action],
            actions=prob.shape[1],
            logging_prob=prob[np.arange(len(user)), action],
            cluster=user,
        )


class Known:
    """A softmax of scores linear in the columns, found again by the columns' values."""

    def __init__(self, world: JesterSetting, scores: Tensor) -> None:
        self.actions = world.actions
        design = np.column_stack([world.x.astype(np.float32).astype(np.float64), np.ones(len(world.x))])
        self._weights = torch.from_numpy(np.linalg.lstsq(design, scores.numpy(), rcond=None)[0])

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """log π of every context."""
        column = contexts["x"]
        assert isinstance(column, EmbeddingColumn)
        x = tensor(column.values).double()
        return (torch.cat([x, x.new_ones(len(x), 1)], 1) @ self._weights).log_softmax(1)


def _leading(centred: np.ndarray, dimensions: int) -> np.ndarray:
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    scores = left[:, :dimensions] * values[:dimensions]
    return np.asarray(scores / scores.std(0))


def _ridge(x: np.ndarray, y: np.ndarray, rows: np.ndarray, penalty: float = 30.0) -> np.ndarray:
    """Predictions for all users of a regression on some of them."""
    mean = y[rows].mean(0)
    gram = x[rows].T @ x[rows] + penalty * np.eye(x.shape[1])
    return np.asarray(mean + x @ np.linalg.solve(gram, x[rows].T @ (y[rows] - mean)))
