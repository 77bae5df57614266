"""Jester: 1,473 users rated all of 100 jokes, so the value of any policy over jokes is known."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from offpolicy.checks import NON_NEGATIVE, POSITIVE, check_number
from offpolicy.datasets.location import check_known_counts, find_data
from offpolicy.datasets.number_file import read_numbers
from offpolicy.errors import ParameterError
from offpolicy.log import EmbeddingColumn, FeatureTable, LoggedData, pieces
from offpolicy.policies import LinearSoftmaxPolicy, Policy
from offpolicy.seeding import generator, torch_generator

COUNTS = {"users": 1_473, "jokes": 100}
LOW, HIGH = -10.0, 10.0


def load_jester(data: str | Path | None = None, *, check_counts: bool = True) -> npt.NDArray[np.float64]:
    """Every user's rating of every joke, (users, jokes), rescaled from −10..10 to [0, 1]."""
    (path,) = find_data("Jester", ("ratings_full.csv",), data)
    table = read_numbers(path, ",", [(LOW, HIGH)], integer=False)
    if check_counts:
        check_known_counts(path, {"users": len(table), "jokes": table.shape[1]}, COUNTS)
    return (table - LOW) / (HIGH - LOW)


@dataclass(frozen=True)
class JesterDesign:
    """How a log is made out of full ratings."""

    gauge_jokes: int = 30
    """Jokes whose ratings describe a user; the others are the actions."""
    dimensions: int = 8
    """Numbers kept of that description."""
    rows_per_user: int = 1
    temperature: float = 1.0
    """Of the logging softmax over scores of unit spread."""
    noise: float = 1.0
    """Spread of the error in the logging scores, relative to that of the fitted scores."""
    binary: bool = True
    """Reward 1 for a rating above the middle of the scale; otherwise the rescaled rating."""


@dataclass(frozen=True)
class JesterWorld:
    """A simulated log, and its ground truth."""

    log: LoggedData
    rewards: npt.NDArray[np.float64]  # (users, actions)
    logging_policy: LinearSoftmaxPolicy
    actions: npt.NDArray[np.int64]
    """Which joke each action is."""

    def value(self, policy: Policy) -> float:
        """V(π) over all users, exactly."""
        total = 0.0
        for tile in pieces(self.log.n_contexts, self.log.n_actions):
            probs = policy.log_probs(self.log.contexts.take(tile)).double().exp()
            total += float((probs * torch.from_numpy(self.rewards[tile])).sum())
        return total / self.log.n_contexts


def simulate_log(ratings: npt.NDArray[np.float64], seed: int, design: JesterDesign | None = None) -> JesterWorld:
    """A log of jokes shown by a softmax over noisy linear scores, its propensities recorded.

    Contexts are the users, described by a truncated SVD of their ratings of some gauge jokes; which jokes those are,
    the noise and the draws all follow from the seed.
    """
    design = design or JesterDesign()
    _check(design, ratings.shape[1])
    jokes = generator(seed, "jester-jokes").permutation(ratings.shape[1])
    gauge, actions = np.sort(jokes[: design.gauge_jokes]), np.sort(jokes[design.gauge_jokes :])
    shown = ratings[:, actions]
    rewards = (shown > 0.5).astype(np.float64) if design.binary else shown.copy()
    states = _states(ratings[:, gauge], design.dimensions)
    contexts = FeatureTable({"x": EmbeddingColumn(states)})
    policy = _logging_policy(states.astype(np.float64), rewards, design, seed)
    probs = policy.log_probs(contexts).exp()
    random = torch_generator(seed, "jester-draws")
    drawn = torch.multinomial(probs, design.rows_per_user, replacement=True, generator=random)  # (users, rows)
    user, action = np.repeat(np.arange(len(ratings)), design.rows_per_user), drawn.flatten().numpy()
    log = LoggedData.from_arrays(
        contexts,
        action,
        rewards[user, action],
        context_index=user,
        actions=len(actions),
        logging_prob=probs.numpy()[user, action],
    )
    return JesterWorld(log, rewards, policy, actions)


def _check(design: JesterDesign, n_jokes: int) -> None:
    check_number("temperature", design.temperature, POSITIVE)
    check_number("noise", design.noise, NON_NEGATIVE)
    if not (1 <= design.dimensions <= design.gauge_jokes <= n_jokes - 2 and design.rows_per_user >= 1):
        raise ParameterError(
            f"A design needs 1 ≤ dimensions ≤ gauge_jokes ≤ {n_jokes - 2} and rows_per_user ≥ 1, but it is {design}."
        )


def _states(gauge: npt.NDArray[np.float64], dimensions: int) -> npt.NDArray[np.float32]:
    """The leading left singular vectors of the centred ratings, scaled to unit variance, signs fixed."""
    left, _, right = np.linalg.svd(gauge - gauge.mean(0), full_matrices=False)
    sign = np.sign(right[np.arange(len(right)), np.abs(right).argmax(1)])
    scaled: npt.NDArray[np.float32] = (left * sign * np.sqrt(len(gauge)))[:, :dimensions].astype(np.float32)
    return scaled


def _logging_policy(
    states: npt.NDArray[np.float64], rewards: npt.NDArray[np.float64], design: JesterDesign, seed: int
) -> LinearSoftmaxPolicy:
    """Least squares of the rewards on the states, its coefficients blurred, its scores scaled to unit spread."""
    design_matrix = np.column_stack([states, np.ones(len(states))])
    fitted = np.linalg.lstsq(design_matrix, rewards, rcond=None)[0].T  # (actions, dimensions + 1)
    blur = generator(seed, "jester-noise").standard_normal(fitted.shape)

    def spread(coefficients: npt.NDArray[np.floating[Any]]) -> float:
        scores = design_matrix @ coefficients.T
        return float((scores - scores.mean(1, keepdims=True)).std()) or 1.0

    blurred = fitted / spread(fitted) + design.noise * blur / spread(blur)
    blurred /= spread(blurred)
    return LinearSoftmaxPolicy(
        "x", torch.from_numpy(blurred[:, :-1].copy()), torch.from_numpy(blurred[:, -1].copy()), design.temperature
    )
