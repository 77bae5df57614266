"""Simulated loggers as production makes them, with their true probabilities.

A request has six numbers, a segment of five, a user and a time; the logger may look at any of them. Rewards are
clicks whose chance is a small network of the request; the target is softmax(3q), restricted to what the logger can
show at all.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from offpolicy.log import (
    ActionTable,
    CategoricalColumn,
    Column,
    EmbeddingColumn,
    FeatureTable,
    LoggedData,
    Vocabulary,
)
from offpolicy.policies import tensor
from offpolicy.seeding import torch_generator

LOGGERS = (
    "linear softmax",
    "non-linear softmax",
    "ε-greedy on a tree",
    "ε-greedy on a linear model",
    "Thompson sampling, refreshed daily",
    "top-3 at random",
    "mixture of two policies",
    "drift",
    "knows the user, id given",
    "knows the user, id hidden",
)
HIDDEN = "knows the user, id hidden"
NUMBERS, SEGMENTS, DAYS, TASTES, HIDDEN_UNITS = 6, 5, 14, 8, 16
EPSILON = 0.2
ROWS_A_USER = 35
NODES = 24
"""Points of the quadrature over the highest score."""
DAY = 86_400


@dataclass(frozen=True)
class Requests:
    """What the loggers look at."""

    x: Tensor  # (n, features) numbers and one-hot segment
    segment: Tensor  # (n,)
    user: Tensor  # (n,)
    time: Tensor  # (n,) in [0, 1)

    def take(self, part: slice) -> "Requests":
        return Requests(self.x[part], self.segment[part], self.user[part], self.time[part])


class LoggerWorld:
    """One logger over K actions."""

    def __init__(self, logger: str, n_actions: int, rows: int, seed: int, rows_a_user: int = ROWS_A_USER) -> None:
        self.logger, self.n_actions, self.rows, self.seed = logger, n_actions, rows, seed
        self.actions = ActionTable.numbered(n_actions)
        self.n_users = rows // rows_a_user
        random = torch_generator(seed, "logger", logger, n_actions)
        width = NUMBERS + SEGMENTS

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=random, dtype=torch.float64)

        self._weights, self._later = normal(2, n_actions, width) / math.sqrt(NUMBERS)
        self._popularity = 0.7 * normal(n_actions)
        self._zipf = -torch.log1p(torch.randperm(n_actions, generator=random).double())
        self._first, self._offset = 1.5 * normal(HIDDEN_UNITS, width) / math.sqrt(NUMBERS), 0.5 * normal(HIDDEN_UNITS)
        self._second = 1.5 * normal(n_actions, HIDDEN_UNITS) / math.sqrt(HIDDEN_UNITS)
        self._paying = normal(n_actions, HIDDEN_UNITS) / math.sqrt(HIDDEN_UNITS)
        self._paying_base = -1.5 + 0.5 * normal(n_actions)
        self._users, self._items = normal(self.n_users, TASTES), normal(n_actions, TASTES)
        depth = 4 if n_actions <= 50 else 5
        self._tree_feature = torch.randint(NUMBERS, (2**depth - 1,), generator=random)
        self._tree_threshold = 0.7 * normal(2**depth - 1)
        self._tree_leaf = torch.randint(n_actions, (2**depth,), generator=random)
        self._depth = depth

    def requests(self, n: int, key: str) -> Requests:
        random = torch_generator(self.seed, "requests", self.logger, self.n_actions, key)
        numbers = torch.randn(n, NUMBERS, generator=random, dtype=torch.float64).float().double()
        segment = torch.randint(SEGMENTS, (n,), generator=random)
        x = torch.cat([numbers, torch.nn.functional.one_hot(segment, SEGMENTS).double()], 1)
        user = torch.randint(self.n_users, (n,), generator=random)
        return Requests(x, segment, user, torch.rand(n, generator=random, dtype=torch.float64).sort().values)

    def probabilities(self, r: Requests) -> Tensor:
        """β*(·|request), (n, K)."""
        linear: Tensor = r.x @ self._weights.T + self._popularity
        match self.logger:
            case "linear softmax":
                return linear.softmax(1)
            case "non-linear softmax":
                scores: Tensor = self._network(r.x) @ self._second.T + self._popularity
                return scores.softmax(1)
            case "ε-greedy on a tree":
                return _greedy(self._leaf_action(r.x), self.n_actions)
            case "ε-greedy on a linear model":
                return _greedy(linear.argmax(1), self.n_actions)
            case "Thompson sampling, refreshed daily":
                return EPSILON / 2 / self.n_actions + (1 - EPSILON / 2) * self._thompson(r)
            case "top-3 at random":
                return torch.zeros_like(linear).scatter_(1, linear.topk(3).indices, 1 / 3)
            case "mixture of two policies":
                mixed: Tensor = 0.5 * self._zipf.softmax(0) + 0.5 * (1.5 * linear).softmax(1)
                return mixed
            case "drift":
                angle = 0.5 * math.pi * r.time[:, None]
                turned: Tensor = torch.cos(angle) * linear + torch.sin(angle) * (r.x @ self._later.T)
                return turned.softmax(1)
            case _:
                known: Tensor = 0.7 * linear + 1.3 * self.taste_of(r.user)
                return known.softmax(1)

    def taste_of(self, user: Tensor) -> Tensor:
        """What each user thinks of every action, (n, K)."""
        return self._users[user] @ self._items.T / math.sqrt(TASTES)

    @property
    def popularity(self) -> Tensor:
        """The actions' own scores, (K,)."""
        return self._popularity

    def make_zipf(self) -> None:
        """Let the actions' own scores follow Zipf's law."""
        self._popularity = self._zipf

    def _network(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self._first.T + self._offset)

    def _leaf_action(self, x: Tensor) -> Tensor:
        node = torch.zeros(len(x), dtype=torch.int64)
        for _ in range(self._depth):
            right = x.gather(1, self._tree_feature[node][:, None]).squeeze(1) > self._tree_threshold[node]
            node = 2 * node + 1 + right.long()
        return self._tree_leaf[node - (2**self._depth - 1)]

    def _thompson(self, r: Requests) -> Tensor:
        """The chance that each action's score, drawn from the day's posterior, is the highest: by quadrature."""
        result = torch.empty(len(r.x), self.n_actions, dtype=torch.float64)
        day = (r.time * DAYS).long()
        for number in range(DAYS):
            for mine in torch.split((day == number).nonzero().squeeze(1), 1_000):
                result[mine] = _highest(r.x[mine], *self._posterior[number])
        return result

    @cached_property
    def _posterior(self) -> list[tuple[Tensor, Tensor]]:
        """Mean and covariance of each day: Bayesian regression an action, on the rewards of the days before."""
        random = torch_generator(self.seed, "thompson", self.n_actions)
        width = NUMBERS + SEGMENTS
        precision = torch.eye(width, dtype=torch.float64).expand(self.n_actions, -1, -1).clone()
        moment = torch.zeros(self.n_actions, width, dtype=torch.float64)
        days: list[tuple[Tensor, Tensor]] = []
        for number in range(DAYS):
            days.append((torch.linalg.solve(precision, moment), 0.25 * torch.linalg.inv(precision)))
            r = self.requests(self.rows // DAYS, f"day {number}")
            chances = torch.cat([_highest(part, *days[-1]) for part in torch.split(r.x, 1_000)])
            action = torch.multinomial(chances, 1, generator=random).squeeze(1)
            chance = self.rewards_of(r.x).gather(1, action[:, None]).squeeze(1)
            reward = (torch.rand(len(chance), generator=random, dtype=torch.float64) < chance).double()
            moment.index_add_(0, action, r.x * reward[:, None])
            precision.index_add_(0, action, r.x[:, :, None] * r.x[:, None, :])
        return days

    def rewards_of(self, x: Tensor) -> Tensor:
        """The chance of a click on every action."""
        return torch.sigmoid(2.0 * self._network(x) @ self._paying.T + self._paying_base)

    def target_of(self, x: Tensor) -> Tensor:
        """log π of the target."""
        logits = 3 * self.rewards_of(x)
        if self.logger == "top-3 at random":
            shown = (x @ self._weights.T + self._popularity).topk(3).indices
            logits = torch.full_like(logits, -torch.inf).scatter_(1, shown, logits.gather(1, shown))
        return logits.log_softmax(1)

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """The target, as a policy."""
        numbers, segment = contexts["x"], contexts["segment"]
        assert isinstance(numbers, EmbeddingColumn)
        assert isinstance(segment, CategoricalColumn)
        one_hot = torch.nn.functional.one_hot(tensor(segment.codes).long(), SEGMENTS).double()
        return self.target_of(torch.cat([tensor(numbers.values).double(), one_hot], 1))

    def log(self, n: int, key: str) -> LoggedData:
        """A log with the true propensities recorded; users are clusters, and a column where the id is given."""
        r = self.requests(n, key)
        random = torch_generator(self.seed, "log", self.logger, self.n_actions, key)
        action, prob, reward = (torch.empty(n, dtype=kind) for kind in (torch.int64, torch.float64, torch.float64))
        for start in range(0, n, 5_000):
            part = slice(start, start + 5_000)
            beta = self.probabilities(r.take(part))
            action[part] = torch.multinomial(beta, 1, generator=random).squeeze(1)
            prob[part] = beta.gather(1, action[part, None]).squeeze(1)
            chance = self.rewards_of(r.x[part]).gather(1, action[part, None]).squeeze(1)
            reward[part] = (torch.rand(len(chance), generator=random, dtype=torch.float64) < chance).double()
        return LoggedData.from_arrays(
            contexts=self.contexts(r),
            action=action.numpy(),
            reward=reward.numpy(),
            actions=self.n_actions,
            logging_prob=prob.numpy(),
            cluster=r.user.numpy(),
            timestamp=(r.time * DAYS * DAY).long().numpy(),
        )

    def contexts(self, r: Requests) -> FeatureTable:
        """The columns that the library sees of requests; the user's id only where the logger's is given."""
        columns: dict[str, Column] = {
            "x": EmbeddingColumn(r.x[:, :NUMBERS].float().numpy()),
            "segment": CategoricalColumn(r.segment.numpy(), Vocabulary([f"s{i}" for i in range(SEGMENTS)])),
        }
        if self.logger == "knows the user, id given":
            ids = Vocabulary([f"u{i}" for i in range(self.n_users)])
            columns["user"] = CategoricalColumn(r.user.numpy(), ids)
        return FeatureTable(columns)

    def truth(self, draws: int = 40_000) -> float:
        """The target's value, by a large sample of requests."""
        x = self.requests(draws, "truth").x
        parts = (x[start : start + 5_000] for start in range(0, draws, 5_000))
        return float(sum((self.target_of(p).exp() * self.rewards_of(p)).sum() for p in parts)) / draws


def _greedy(favourite: Tensor, n_actions: int) -> Tensor:
    probs = torch.full((len(favourite), n_actions), EPSILON / n_actions, dtype=torch.float64)
    probs[torch.arange(len(favourite)), favourite] += 1 - EPSILON
    return probs


def _highest(x: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """P(action's score is the highest), scores normal with mean x·m and variance xᵀCx; (n, K)."""
    centre = (x @ mean.T).float()
    spread = torch.einsum("nd,kde,ne->nk", x, covariance, x).sqrt().float()
    low, high = (centre - 3 * spread).amax(1), (centre + 4 * spread).amax(1)
    total = torch.zeros_like(centre)
    for place in torch.linspace(0, 1, NODES):
        z = ((low + place * (high - low))[:, None] - centre) / spread
        below = torch.special.ndtr(z).clamp(min=1e-30).log()
        total += torch.exp(below.sum(1, keepdim=True) - below - 0.5 * z.square()) / spread
    chances = total.double() + 1e-12
    return chances / chances.sum(1, keepdim=True)
