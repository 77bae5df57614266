"""Small logs of loggers as production has them, with the probabilities they really used."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from offpolicy.log import LoggedData
from offpolicy.policies import Policy, PopularityPolicy, logged_log_prob

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Logged:
    """A log, and β*(·|x) of each of its rows."""

    log: LoggedData
    probs: Array  # (rows, actions)

    @property
    def true_log_prob(self) -> Array:
        """log β* of each row."""
        return np.log(self.probs[np.arange(self.log.n_rows), self.log.action])

    def gap_closed(self, policy: Policy, fitted_to: LoggedData) -> float:
        """(ℓ − ℓ_pop)/(ℓ* − ℓ_pop) on these rows, popularity taken from the log that the policy was fitted to."""
        popular = float(logged_log_prob(PopularityPolicy.fit(fitted_to), self.log).mean())
        return (float(logged_log_prob(policy, self.log).mean()) - popular) / (
            float(self.true_log_prob.mean()) - popular
        )


def drawn(probs: Array, columns: dict[str, Any], seed: int, **extra: Any) -> Logged:
    """One action a row from these probabilities; rewards at random."""
    random = np.random.default_rng(seed + 1000)
    action = (probs.cumsum(1) < random.random(len(probs))[:, None]).sum(1).clip(max=probs.shape[1] - 1)
    reward = random.random(len(probs)).round(3)
    return Logged(LoggedData.from_arrays(columns, action, reward, actions=probs.shape[1], **extra), probs)


def greedy(scores: Array, epsilon: float) -> Array:
    """ε-greedy on scores."""
    probs = np.full(scores.shape, epsilon / scores.shape[1])
    probs[np.arange(len(scores)), scores.argmax(1)] += 1 - epsilon
    return probs


def linear_scores(x: Array, actions: int, scale: float = 1.5) -> Array:
    """The scores of one fixed linear model."""
    return np.asarray(x @ (np.random.default_rng(7).normal(size=(x.shape[1], actions)) * scale))


def softmax_linear(rows: int, actions: int = 5, seed: int = 0, **extra: Any) -> Logged:
    """A linear softmax over three numbers."""
    x = np.random.default_rng(seed).normal(size=(rows, 3))
    return drawn(softmax(linear_scores(x, actions, 1.0), 1), {"x": x}, seed, **extra)


def greedy_linear(rows: int, actions: int = 5, epsilon: float = 0.2, seed: int = 0) -> Logged:
    """ε-greedy on a linear model."""
    x = np.random.default_rng(seed).normal(size=(rows, 3))
    return drawn(greedy(linear_scores(x, actions), epsilon), {"x": x}, seed)


def greedy_tree(rows: int, actions: int = 6, epsilon: float = 0.2, seed: int = 0) -> Logged:
    """ε-greedy on a tree of three thresholds: the leaf decides the favourite."""
    x = np.random.default_rng(seed).normal(size=(rows, 4))
    leaf = 4 * (x[:, 0] > 0) + 2 * (x[:, 1] > 0) + (x[:, 2] > 0)
    favourite = np.array([0, 3, 4, 1, 2, 5, 3, 0])[leaf] % actions
    return drawn(greedy(np.eye(actions)[favourite], epsilon), {"x": x}, seed)


def random_top(rows: int, actions: int = 10, k: int = 3, seed: int = 0) -> Logged:
    """One of the k best of a linear model at random."""
    x = np.random.default_rng(seed).normal(size=(rows, 3))
    scores = linear_scores(x, actions)
    best = (scores >= np.sort(scores, 1)[:, -k, None]).astype(float)
    return drawn(best / k, {"x": x}, seed)


def drifting(rows: int, actions: int = 5, seed: int = 0, timed: bool = True) -> Logged:
    """A linear softmax whose weights turn half a circle over the log's time."""
    random = np.random.default_rng(seed)
    x, time = random.normal(size=(rows, 2)), np.sort(random.random(rows))
    first, second = np.random.default_rng(7).normal(size=(2, 2, actions)) * 2
    angle = np.pi * time[:, None]
    scores = np.cos(angle) * (x @ first) + np.sin(angle) * (x @ second)
    return drawn(softmax(scores, 1), {"x": x}, seed, timestamp=(time * 1e6).astype(int) if timed else None)


def knowing_users(users: int, rows_each: int, actions: int = 6, seed: int = 0, shown: bool = True) -> Logged:
    """A softmax of a number and of the user's own taste, of rank 2; the user's id is a column or only the cluster."""
    random = np.random.default_rng(seed)
    user = np.repeat(np.arange(users), rows_each)
    x = random.normal(size=len(user))
    taste = (random.normal(size=(users, 2)) @ random.normal(size=(2, actions))) * 1.2
    probs = softmax(taste[user] + x[:, None] * np.linspace(-0.5, 0.5, actions), 1)
    columns: dict[str, Any] = {"x": x}
    if shown:
        columns["user"] = np.array([f"u{i}" for i in range(users)])[user]
    return drawn(probs, columns, seed, cluster=user)
