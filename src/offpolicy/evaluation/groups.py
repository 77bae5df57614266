"""Groups of actions that are alike: given by the user, or learned from what a reward model predicts of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.log import CategoricalColumn, LoggedData
from offpolicy.rewards import RewardModel
from offpolicy.seeding import generator

Array = npt.NDArray[np.float64]
CONTEXTS = 64
"""Contexts whose predicted rewards describe an action."""
ROUNDS = 50
"""Rounds of k-means, at most."""


def action_groups(given: Any, log: LoggedData) -> Tensor:
    """The group of each action, numbered from 0.

    `given` is the name of a categorical column of the action table, a mapping from action id to group, or one label
    for each action in the order of the table.
    """
    if isinstance(given, str):
        labels: Any = _column(given, log)
    elif isinstance(given, Mapping):
        ids = log.actions.vocabulary.to_list()
        missing = next((action for action in ids if action not in given), None)
        if missing is not None:
            raise ParameterError(f"action_groups has no group for action {missing!r}. Give every action a group.")
        labels = [given[action] for action in ids]
    else:
        labels = given
    _, group = np.unique(np.asarray(labels), return_inverse=True)
    if group.shape != (log.n_actions,):
        raise ParameterError(
            f"action_groups must name one group for each of the {log.n_actions} actions, but it has {group.size}."
        )
    return torch.from_numpy(group.astype(np.int64))


def _column(name: str, log: LoggedData) -> npt.NDArray[np.int32]:
    table = log.actions.features
    known = [] if table is None else [key for key in table if isinstance(table[key], CategoricalColumn)]
    if table is None or name not in known:
        shown = ", ".join(known) or "none"
        raise ParameterError(
            f"action_groups names no categorical column of the action table: {name!r}. There are: {shown}."
        )
    column = table[name]
    assert isinstance(column, CategoricalColumn)
    return column.codes


def learned_groups(log: LoggedData, model: RewardModel, seed: int = 0) -> Tensor:
    """√K groups of actions with like predicted rewards, by k-means over a sample of contexts."""
    random = generator(seed, "action-groups")
    sample = np.sort(random.choice(log.n_contexts, min(CONTEXTS, log.n_contexts), replace=False))
    vectors = model.rewards(log.contexts.take(sample)).double().numpy().T
    return torch.from_numpy(k_means(vectors, max(2, round(log.n_actions**0.5)), random))


def k_means(points: Array, count: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """Lloyd's rounds from spread-out centres (k-means++), until nothing moves."""
    centres = points[[int(random.integers(len(points)))]]
    while len(centres) < min(count, len(points)):
        nearest = _distances(points, centres).min(1)
        chance = nearest / nearest.sum() if nearest.sum() > 0 else np.full(len(points), 1 / len(points))
        centres = np.concatenate([centres, points[[int(random.choice(len(points), p=chance))]]])
    group = np.zeros(len(points), dtype=np.int64)
    for turn in range(ROUNDS):
        nearest_centre = _distances(points, centres).argmin(1)
        if turn and np.array_equal(nearest_centre, group):
            break
        group = nearest_centre
        size = np.bincount(group, minlength=len(centres))
        sums = np.zeros_like(centres)
        np.add.at(sums, group, points)
        centres = np.where(size[:, None] > 0, sums / np.maximum(size, 1)[:, None], centres)
    return group


def _distances(points: Array, centres: Array) -> Array:
    square = np.square(points).sum(1)[:, None] - 2 * points @ centres.T + np.square(centres).sum(1)
    return np.asarray(np.maximum(square, 0.0))
