"""Settings whose constants nobody tuned: loggers as production has them, and rewards as production pays them.

They are the worlds of `loggers`, with what else goes wrong: tastes that move both the logger and the rewards and are in
no column, rewards with heavy tails on a declared range, users who come 20 times, a Zipf catalogue, rare clicks.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from loggers import DAY, DAYS, SEGMENTS, LoggerWorld, Requests
from offpolicy.log import CategoricalColumn, EmbeddingColumn, FeatureTable, LoggedData
from offpolicy.policies import Policy, tensor
from offpolicy.seeding import torch_generator

LARGEST = 100.0
"""Top of the declared range of heavy-tailed rewards."""
PIECE = 5_000


@dataclass(frozen=True)
class Production:
    """One setting."""

    name: str
    logger: str
    rows: int
    actions: int
    rows_a_user: int = 35
    confounding: float = 0.0
    """How strongly the taste that the logger knows moves the rewards too."""
    user_effect: float = 0.0
    """Spread of the users' own readiness to click, whatever is shown."""
    shift: float = 0.0
    """Added to the log odds of a click."""
    heavy: bool = False
    """Whether a click pays a log-normal sum rather than 1."""
    zipf: bool = False

    @property
    def hidden(self) -> bool:
        """Whether the logger used something about rewards that no column holds."""
        return self.confounding > 0 and self.logger.endswith("hidden")

    @property
    def repeated(self) -> bool:
        """Whether users come again, so that hidden information shows."""
        return self.rows_a_user > 1


PRODUCTION = (
    Production("ε-greedy tree, 10k rows, K 20", "ε-greedy on a tree", 10_000, 20),
    Production("ε-greedy linear model, 10k rows, K 20", "ε-greedy on a linear model", 10_000, 20),
    Production("mixture, 10k rows, K 20", "mixture of two policies", 10_000, 20),
    Production("drift, 10k rows, K 20", "drift", 10_000, 20),
    Production("taste given by id, 10k rows, K 20", "knows the user, id given", 10_000, 20, confounding=1.0),
    Production("taste hidden, 35 rows a user, K 20", "knows the user, id hidden", 10_000, 20, confounding=1.0),
    Production("taste hidden, 10 rows a user, K 20", "knows the user, id hidden", 10_000, 20, 10, confounding=1.0),
    Production("taste hidden, users once, K 20", "knows the user, id hidden", 10_000, 20, 1, confounding=1.0),
    Production("heavy tails on [0, 100], 10k rows, K 20", "linear softmax", 10_000, 20, heavy=True),
    Production("20 rows a user of own readiness, K 20", "linear softmax", 10_000, 20, 20, user_effect=1.5),
    Production("Zipf, 20k rows, K 2,000", "linear softmax", 20_000, 2_000, zipf=True),
    Production("1 % clicks, 100k rows, K 20", "linear softmax", 100_000, 20, shift=-3.5),
)


class ProductionWorld:
    """The truth of a setting, with two targets."""

    def __init__(self, setting: Production, seed: int) -> None:
        self.setting = setting
        self.world = LoggerWorld(setting.logger, setting.actions, setting.rows, seed, setting.rows_a_user)
        if setting.zipf:
            self.world.make_zipf()
        self.actions = self.world.actions
        self._other = LoggerWorld(setting.logger, setting.actions, setting.rows, seed + 100, setting.rows_a_user)
        random = torch_generator(seed, "production", setting.name)
        self._effect = setting.user_effect * torch.randn(self.world.n_users, generator=random, dtype=torch.float64)

    def targets(self) -> dict[str, Policy]:
        """Two policies: softmax of the mean rewards, and of a mix of them with another world's."""
        return {"target": Softmax(self, 0.0), "rival": Softmax(self, 0.4)}

    def scores(self, x: Tensor, mixed: float) -> Tensor:
        """Logits of a target."""
        reward = (1 - mixed) * self.world.rewards_of(x) + (mixed * self._other.rewards_of(x) if mixed else 0.0)
        return 3 * reward + (0.7 * self.world.popularity if self.setting.zipf else 0.0)

    def requests(self, n: int, key: str) -> Requests:
        """Requests; where users come once, each has its own."""
        r = self.world.requests(n, key)
        return r if self.setting.repeated else replace(r, user=torch.arange(n) % self.world.n_users)

    def chances(self, r: Requests) -> Tensor:
        """The chance of a click on every action."""
        logits: Tensor = self.world.rewards_of(r.x).logit() + self.setting.shift + self._effect[r.user][:, None]
        if self.setting.confounding:
            logits = logits + self.setting.confounding * self.world.taste_of(r.user)
        return logits.sigmoid()

    def paid(self, clicks: Tensor, random: torch.Generator) -> Tensor:
        """What clicks pay, within the range."""
        if not self.setting.heavy:
            return clicks
        sums = torch.exp(1.0 + 1.2 * torch.randn(len(clicks), generator=random, dtype=torch.float64))
        return clicks * sums.clamp(max=LARGEST)

    @property
    def mean_payment(self) -> float:
        """Of a click, in shares of the range: E min(X, 100)/100 with log X normal."""
        if not self.setting.heavy:
            return 1.0
        mu, sigma = 1.0, 1.2
        top = (math.log(LARGEST) - mu) / sigma
        below = math.exp(mu + sigma**2 / 2) * _normal(top - sigma)
        return (below + LARGEST * (1 - _normal(top))) / LARGEST

    def log(self, seed: int) -> LoggedData:
        """A log of the setting's size, true propensities recorded; users are clusters."""
        setting, n = self.setting, self.setting.rows
        r = self.requests(n, f"log {seed}")
        random = torch_generator(seed, "production log", setting.name)
        action, prob, reward = torch.empty(n, dtype=torch.int64), *torch.empty(2, n, dtype=torch.float64)
        for start in range(0, n, PIECE):
            part = slice(start, start + PIECE)
            beta = self.world.probabilities(r.take(part))
            action[part] = torch.multinomial(beta, 1, generator=random).squeeze(1)
            prob[part] = beta.gather(1, action[part, None]).squeeze(1)
            chance = self.chances(r.take(part)).gather(1, action[part, None]).squeeze(1)
            clicks = (torch.rand(len(chance), generator=random, dtype=torch.float64) < chance).double()
            reward[part] = self.paid(clicks, random)
        return LoggedData.from_arrays(
            contexts=self.world.contexts(r),
            action=action.numpy(),
            reward=reward.numpy(),
            actions=setting.actions,
            logging_prob=prob.numpy(),
            cluster=r.user.numpy(),
            timestamp=(r.time * DAYS * DAY).long().numpy(),
            reward_range=(0.0, LARGEST) if setting.heavy else (0.0, 1.0),
        )

    def truths(self, draws: int = 100_000) -> dict[str, float]:
        """Values of targets and logging in shares of the range, by a large sample of requests."""
        r = self.requests(draws, "truth")
        totals = {"target": 0.0, "rival": 0.0, "logging": 0.0}
        for start in range(0, draws, PIECE):
            part = r.take(slice(start, start + PIECE))
            q = self.chances(part)
            probs = {"target": self.scores(part.x, 0.0).softmax(1), "rival": self.scores(part.x, 0.4).softmax(1)}
            for name, prob in (probs | {"logging": self.world.probabilities(part)}).items():
                totals[name] += float((prob * q).sum())
        return {name: total / draws * self.mean_payment for name, total in totals.items()}


class Softmax:
    """A target as a policy."""

    def __init__(self, world: ProductionWorld, mixed: float) -> None:
        self.world, self.mixed, self.actions = world, mixed, world.actions

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return len(self.actions)

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """log π of every context."""
        numbers, segment = contexts["x"], contexts["segment"]
        assert isinstance(numbers, EmbeddingColumn)
        assert isinstance(segment, CategoricalColumn)
        one_hot = torch.nn.functional.one_hot(tensor(segment.codes).long(), SEGMENTS).double()
        return self.world.scores(torch.cat([tensor(numbers.values).double(), one_hot], 1), self.mixed).log_softmax(1)


def _normal(z: float) -> float:
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))
