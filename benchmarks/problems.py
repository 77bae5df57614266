"""Logs to learn from whose truth is known: draws of worlds, of their own shapes and of public data."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offpolicy.datasets import ExtremeShape, ExtremeWorld, JesterDesign, load_jester, load_xmc, simulate_log
from offpolicy.log import CategoricalColumn, EmbeddingColumn, FeatureTable, LoggedData, Vocabulary
from offpolicy.seeding import generator, torch_generator
from settings import Setting, World

FRESH = 4000
"""Contexts over which true values are taken."""


@dataclass(frozen=True)
class Ids:
    """Users known by an id alone, with tastes of low rank."""

    name: str
    users: int
    actions: int
    rows: int
    alignment: float
    strength: float = 1.0


SETTINGS: tuple[Setting | Ids | str, ...] = (
    Setting("5k rows, K 20, linear", 5_000, 20, 1.0, 0.5, True),
    Setting("5k rows, K 20, misspecified", 5_000, 20, 0.8, 0.5, False),
    Setting("10k rows, K 50, reversed, linear", 10_000, 50, 1.0, -0.7, True, dimensions=8),
    Setting("10k rows, K 50, reversed, misspecified", 10_000, 50, 1.2, -0.9, False),
    Setting("10k rows, K 200, linear", 10_000, 200, 0.7, 0.5, True),
    Setting("20k rows, K 100, misspecified", 20_000, 100, 0.8, 0.3, False, dimensions=8),
    Setting("20k rows, K 50, sharp and aligned, misspecified", 20_000, 50, 2.0, 0.7, False),
    Setting("5k rows, K 500, linear", 5_000, 500, 0.5, 0.5, True, dimensions=10),
    Setting("1k contexts × 10 rows, K 20, linear", 1_000, 20, 1.0, 0.3, True, rows_per_context=10),
    Setting("30k rows, K 1000, linear", 30_000, 1_000, 0.7, 0.3, True, dimensions=10),
    Setting("10k rows, K 50, uniform logging", 10_000, 50, 0.0, 0.0, True),
    Setting("100k rows, K 20, misspecified", 100_000, 20, 1.0, 0.3, False),
    Ids("1k users, K 200, 30k rows, ids only", 1_000, 200, 30_000, 0.5),
    Ids("500 users, K 100, 20k rows, reversed, ids only", 500, 100, 20_000, -0.5),
    "documents, K 500",
    "Jester",
    "Delicious",
    Setting("50k rows, K 3000, misspecified", 50_000, 3_000, 0.7, 0.3, False, dimensions=8),
)


@dataclass(frozen=True)
class Problem:
    """A log without propensities, true values, and that of logging."""

    log: LoggedData
    value: Callable[[Any], float]
    logging: float


def name_of(number: int) -> str:
    """What tables call a setting."""
    setting = SETTINGS[number]
    return setting if isinstance(setting, str) else setting.name


@lru_cache(maxsize=1)
def problem(number: int, seed: int) -> Problem:
    """One draw of a setting; the truth never reaches what learns."""
    setting = SETTINGS[number]
    if isinstance(setting, Setting):
        return _softmax_world(setting, seed)
    if isinstance(setting, Ids):
        return _ids_world(setting, seed)
    if setting == "Delicious":
        return _delicious(seed)
    if setting == "Jester":
        world = simulate_log(load_jester(None), seed, JesterDesign())
        logging = world.log.logging_prob
        assert logging is not None
        return Problem(world.log.without_propensities(), world.value, float(world.log.reward.mean()))
    shape = ExtremeShape(n_contexts=2_000, n_actions=500, dimensions=16, positives=8.0, topics=16)
    extreme = ExtremeWorld.draw(seed, shape)
    log = extreme.log(seed, 10).without_propensities()
    return Problem(log, extreme.value, extreme.value(extreme.logging_policy))


def _softmax_world(setting: Setting, seed: int) -> Problem:
    world = World(setting, seed)
    x = world.contexts(FRESH, torch_generator(seed, "fresh", setting.name))
    rewards, logging = world.rewards_of(x.double()), world.logging(x.double()).exp()
    fresh = FeatureTable({"x": EmbeddingColumn(x.numpy())})

    def value(policy: Any) -> float:
        return float((policy.log_probs(fresh).double().exp() * rewards).sum(1).mean())

    return Problem(world.log(seed).without_propensities(), value, float((logging * rewards).sum(1).mean()))


def _ids_world(setting: Ids, seed: int, rank: int = 8) -> Problem:
    random = generator(seed, "ids", setting.name)
    users, actions, a = setting.users, setting.actions, setting.alignment
    taste, item, noise = (random.standard_normal((n, rank)) for n in (users, actions, actions))
    popularity = random.standard_normal(actions)
    base = -1.5 + 0.5 * random.standard_normal(actions) + 0.3 * popularity
    rewards = torch.sigmoid(torch.from_numpy(base + 1.5 * taste @ item.T / rank**0.5))
    shown = setting.strength * taste @ (a * item + (1 - a * a) ** 0.5 * noise).T / rank**0.5 + popularity
    logging = torch.from_numpy(shown).softmax(1)
    user = random.integers(users, size=setting.rows)
    action = (logging.cumsum(1).numpy()[user] < random.random(setting.rows)[:, None]).sum(1).clip(max=actions - 1)
    reward = random.random(setting.rows) < rewards.numpy()[user, action]
    ids = Vocabulary(np.array([f"u{i:05d}" for i in range(users)]))
    contexts = FeatureTable({"user": CategoricalColumn(np.arange(users, dtype=np.int32), ids)})
    log = LoggedData.from_arrays(contexts, action, reward.astype(float), context_index=user, actions=actions)

    def value(policy: Any) -> float:
        return float((policy.log_probs(contexts).double().exp() * rewards).sum(1).mean())

    return Problem(log, value, float((logging * rewards).sum(1).mean()))


def _delicious(seed: int, dimensions: int = 32, rows: int = 4) -> Problem:
    """Bookmarks and their labels: showing one of a document's labels pays. The logger learned from a tenth of them."""
    data = load_xmc("Delicious", None)
    words = np.asarray(data.train_features.todense(), dtype=np.float64)
    fresh_words = np.asarray(data.test_features.todense(), dtype=np.float64)
    mean, (_, values, axes) = words.mean(0), np.linalg.svd(words - words.mean(0), full_matrices=False)
    scale = len(words) ** 0.5 * axes[:dimensions].T / values[:dimensions]
    x, fresh_x = (((each - mean) @ scale).astype(np.float32) for each in (words, fresh_words))
    labels = torch.from_numpy(np.asarray(data.train_labels.todense(), dtype=np.float64))
    fresh_labels = torch.from_numpy(np.asarray(data.test_labels.todense(), dtype=np.float64))
    random = generator(seed, "delicious")
    seen = random.permutation(len(words))[: len(words) // 10]
    design = np.column_stack([x, np.ones(len(x))]).astype(np.float64)
    gram = design[seen].T @ design[seen] + 10 * np.eye(dimensions + 1)
    weights = np.linalg.solve(gram, design[seen].T @ labels.numpy()[seen])

    def logging(states: np.ndarray) -> Tensor:
        return torch.from_numpy(8 * (states @ weights[:-1] + weights[-1])).log_softmax(1).exp()

    user = np.repeat(np.arange(len(x)), rows)
    shown = logging(x).cumsum(1).numpy()[user]
    action = (shown < random.random(len(user))[:, None]).sum(1).clip(max=labels.shape[1] - 1)
    contexts, fresh = (FeatureTable({"x": EmbeddingColumn(each)}) for each in (x, fresh_x))
    reward = labels.numpy()[user, action]
    log = LoggedData.from_arrays(contexts, action, reward, context_index=user, actions=labels.shape[1])

    def value(policy: Any) -> float:
        return float((policy.log_probs(fresh).double().exp() * fresh_labels).sum(1).mean())

    return Problem(log, value, float((logging(fresh_x) * fresh_labels).sum(1).mean()))
