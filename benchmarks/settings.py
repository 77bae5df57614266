"""The simulated settings on which intervals and estimators are judged: worlds with known truth, easy to hopeless.

Contexts are standard normal vectors the library sees. Logging and rewards are softmax and sigmoid of scores that are
either linear in them or a random two-layer network of them (then every model of the library is misspecified). The
target policy is softmax(5q).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from offpolicy.log import ActionTable, EmbeddingColumn, FeatureTable, LoggedData
from offpolicy.policies import Policy, tensor
from offpolicy.seeding import torch_generator


@dataclass(frozen=True)
class Setting:
    """One simulated setting."""

    name: str
    contexts: int
    actions: int
    strength: float
    """Scale of the logging scores: 0 is uniform, 3 nearly deterministic."""
    alignment: float
    """How far logging prefers what pays: 1 the same scores, −1 the opposite."""
    linear: bool
    rows_per_context: int = 1
    dimensions: int = 5
    popularity: float = 0.5
    """Spread of the actions' own scores."""
    hidden: bool = False
    repeated: bool = False


SETTINGS = (
    Setting("2k rows, K 10, mild, linear", 2_000, 10, 0.7, 0.5, True),
    Setting("3k rows, K 10, medium, linear", 3_000, 10, 1.2, 0.3, True),
    Setting("5k rows, K 20, mild, misspecified", 5_000, 20, 0.7, 0.5, False),
    Setting("5k rows, K 100, mild, misspecified", 5_000, 100, 0.7, 0.5, False),
    Setting("20k rows, K 50, skewed, misspecified", 20_000, 50, 1.0, 0.3, False, popularity=1.0),
    Setting("10k rows, K 30, reversed, linear", 10_000, 30, 1.0, -0.7, True),
    Setting("10k rows, K 200, mild, linear", 10_000, 200, 0.7, 0.5, True),
    Setting("5k rows, K 500, mild, linear", 5_000, 500, 0.5, 0.5, True),
    Setting("50k rows, K 20, medium, linear", 50_000, 20, 1.2, 0.3, True),
    Setting("50k rows, K 20, medium, misspecified", 50_000, 20, 1.2, 0.3, False),
    Setting("1k contexts × 10 rows, K 20, linear", 1_000, 20, 1.0, 0.3, True, rows_per_context=10),
    Setting("500 contexts × 20 rows, K 50, misspecified", 500, 50, 0.7, 0.3, False, rows_per_context=20),
    Setting("2k rows, K 50, uniform logging", 2_000, 50, 0.0, 0.0, True),
    Setting("5k rows, K 50, reversed, misspecified", 5_000, 50, 1.2, -0.9, False),
    Setting("5k rows, K 20, near-deterministic", 5_000, 20, 4.0, 0.3, False),
)


class World:
    """The truth of a setting: logging policy, rewards, target, all over contexts x."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting = setting
        random = torch_generator(seed, "setting", setting.name)
        d, actions, hidden = setting.dimensions, setting.actions, 16
        self._first = torch.randn(hidden, d, generator=random, dtype=torch.float64) * 1.5 / d**0.5
        self._offset = torch.randn(hidden, generator=random, dtype=torch.float64) * 0.5
        width = d if setting.linear else hidden
        scale = (1.0 if setting.linear else 1.3) / width**0.5
        self._rewarding = torch.randn(actions, width, generator=random, dtype=torch.float64) * scale
        noise = torch.randn(actions, width, generator=random, dtype=torch.float64) * scale
        a = setting.alignment
        self._shown = setting.strength * (a * self._rewarding + (1 - a * a) ** 0.5 * noise) * 1.5
        self._popularity = setting.popularity * torch.randn(actions, generator=random, dtype=torch.float64)
        self._popularity *= 1.0 if setting.strength else 0.0
        self._base = -1.0 + 0.5 * torch.randn(actions, generator=random, dtype=torch.float64)
        self.n_actions = actions
        self.actions = ActionTable.numbered(actions)

    def _features(self, x: Tensor) -> Tensor:
        return x if self.setting.linear else torch.tanh(x @ self._first.T + self._offset)

    def logging(self, x: Tensor) -> Tensor:
        """log β*(·|x)."""
        scores: Tensor = self._features(x) @ self._shown.T + self._popularity
        return scores.log_softmax(1)

    def rewards_of(self, x: Tensor) -> Tensor:
        """q(x, ·)."""
        return torch.sigmoid(1.5 * self._features(x) @ self._rewarding.T + self._base)

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """The target, softmax(5q)."""
        column = contexts["x"]
        assert isinstance(column, EmbeddingColumn)
        return (5 * self.rewards_of(tensor(column.values).double())).log_softmax(1)

    def contexts(self, n: int, random: torch.Generator) -> Tensor:
        return torch.randn(n, self.setting.dimensions, generator=random)

    def log(self, seed: int) -> LoggedData:
        """A log of the setting's size, true propensities recorded."""
        setting = self.setting
        random = torch_generator(seed, "log", setting.name)
        x = self.contexts(setting.contexts, random)
        log_probs = self.logging(x.double())
        action = torch.multinomial(log_probs.exp(), setting.rows_per_context, replacement=True, generator=random)
        chance = self.rewards_of(x.double()).gather(1, action)
        reward = torch.rand(action.shape, generator=random, dtype=torch.float64) < chance
        return LoggedData.from_arrays(
            contexts=FeatureTable({"x": EmbeddingColumn(x.numpy())}),
            context_index=np.repeat(np.arange(setting.contexts), setting.rows_per_context),
            action=action.flatten().numpy(),
            reward=reward.flatten().double().numpy(),
            actions=setting.actions,
            logging_prob=log_probs.gather(1, action).exp().flatten().numpy(),
        )

    def targets(self) -> "dict[str, Policy]":
        """The two targets."""
        return {"target": self, "rival": Rival(self)}

    def truths(self) -> dict[str, float]:
        """The values of target, rival and logging policy over the population of contexts, by a large fresh sample."""
        draws = min(200_000, max(40_000, 20_000_000 // self.n_actions))
        random = torch_generator(0, "truth", self.setting.name)
        rival = Rival(self)
        totals = {"target": 0.0, "rival": 0.0, "logging": 0.0}
        for _ in range(draws // 10_000):
            x = self.contexts(10_000, random).double()
            q = self.rewards_of(x)
            probs = {"target": (5 * q).softmax(1), "rival": rival.of(x).exp(), "logging": self.logging(x).exp()}
            for name, prob in probs.items():
                totals[name] += float((prob * q).sum())
        return {name: total / draws for name, total in totals.items()}


class Rival:
    """A second target: softmax(5q̃), where q̃ mixes the rewards with those of another world."""

    def __init__(self, world: World) -> None:
        self.world, self.other = world, World(world.setting, 100)
        self.actions = world.actions

    def of(self, x: Tensor) -> Tensor:
        """log π(·|x)."""
        return (5 * (0.6 * self.world.rewards_of(x) + 0.4 * self.other.rewards_of(x))).log_softmax(1)

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """log π of every context."""
        column = contexts["x"]
        assert isinstance(column, EmbeddingColumn)
        return self.of(tensor(column.values).double())
