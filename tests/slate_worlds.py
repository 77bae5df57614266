"""Worlds of slates with known truth: users who look at positions by themselves, from the top, or at the whole slate."""

from dataclasses import dataclass
from functools import cached_property
from itertools import permutations, product
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from offpolicy.log import ActionTable, LoggedData
from offpolicy.policies import LinearSoftmaxPolicy

Users = Literal["independent", "cascade", "any", "additive"]
USERS: tuple[Users, ...] = ("independent", "cascade", "any", "additive")
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SlateWorld:
    """Contexts x ~ N(0, 1); slates drawn from linear softmaxes, without repetition but for additive users; clicks.

    The log-odds of a click are the taste for the action, less the further down it stands, plus an interaction with
    every other position that the user looks at: none, those above, or all; "additive" users click with a chance that is
    a sum over positions instead.
    """

    users: Users
    length: int
    logging: LinearSoftmaxPolicy
    target: LinearSoftmaxPolicy
    taste: Floats  # (actions, d)
    interaction: Floats  # (actions, actions), [other, own]
    repeats: bool = False
    """Whether positions are filled independently of each other, so that an action may be shown twice."""

    @classmethod
    def make(
        cls, users: Users, seed: int = 0, n_actions: int = 10, length: int = 4, d: int = 3, strength: float = 0.8
    ) -> "SlateWorld":
        """Weights drawn from the seed; the target prefers every other action, and those spoil each other's chances."""
        random = np.random.default_rng(seed)
        table, kind = ActionTable.numbered(n_actions), np.where(np.arange(n_actions) % 2, -1.0, 1.0)
        weights, bias = 0.2 * random.normal(size=(n_actions, d)), 0.2 * random.normal(size=n_actions)
        moved = weights + 0.2 * random.normal(size=(n_actions, d)), bias + 0.4 * kind
        logging, target = (
            LinearSoftmaxPolicy("x", torch.from_numpy(w), torch.from_numpy(b), table=table)
            for w, b in ((weights, bias), moved)
        )
        taste = 0.7 * random.normal(size=(n_actions, d))
        interaction = -strength * kind[:, None] * kind
        return cls(users, length, logging, target, taste, interaction, repeats=users == "additive")

    @cached_property
    def slates(self) -> Ints:
        """Every slate there is, (slates, positions)."""
        every = range(len(self.logging.actions))
        return np.array(list(product(every, repeat=self.length) if self.repeats else permutations(every, self.length)))

    def base(self, policy: LinearSoftmaxPolicy, x: Floats) -> Floats:
        """π(a|x) over all actions."""
        logits = x @ policy.weights.numpy().T + policy.bias.numpy()
        prob = np.exp(logits - logits.max(1, keepdims=True))
        return np.asarray(prob / prob.sum(1, keepdims=True))

    def conditional(self, policy: LinearSoftmaxPolicy, x: Floats, slate: Ints) -> Floats:
        """π of each position's action given those above, (slates, positions); one slate a row of x."""
        own = np.take_along_axis(self.base(policy, x), slate, 1)
        if self.repeats:
            return np.asarray(own)
        above = np.concatenate([np.zeros((len(own), 1)), own.cumsum(1)[:, :-1]], 1)
        return np.asarray(own / (1 - above))

    def chances(self, x: Floats, slate: Ints) -> Floats:
        """P(click) in each position, (slates, positions)."""
        if self.users == "additive":
            own = 0.1 * np.tanh(np.take_along_axis(x @ self.taste.T, slate, 1))
            effect = -0.06 * np.sign(self.interaction[0])[slate]
            return np.asarray(0.5 + own + effect.sum(1, keepdims=True) - effect)
        logit = np.take_along_axis(x @ self.taste.T, slate, 1) - 0.3 * np.arange(self.length) - 0.5
        for place in range(self.length):
            for other in range(self.length):
                if other != place and (self.users == "any" or (self.users == "cascade" and other < place)):
                    logit[:, place] += self.interaction[slate[:, other], slate[:, place]]
        return np.asarray(1 / (1 + np.exp(-logit)))

    def draw(self, policy: LinearSoftmaxPolicy, x: Floats, random: np.random.Generator) -> Ints:
        """A slate for every context: the softmax, by Gumbel noise."""
        if self.repeats:
            noise = random.gumbel(size=(len(x), self.length, len(policy.actions)))
            return np.asarray((np.log(self.base(policy, x))[:, None] + noise).argmax(2))
        noise = random.gumbel(size=(len(x), len(policy.actions)))
        return np.argsort(-(np.log(self.base(policy, x)) + noise), axis=1)[:, : self.length]

    def log(self, n: int, seed: int, *, recorded: bool = False) -> LoggedData:
        """A log of n requests, without propensities unless they are to be recorded."""
        random = np.random.default_rng((seed, 1))
        x = random.normal(size=(n, self.taste.shape[1])).astype(np.float32).astype(np.float64)
        slate = self.draw(self.logging, x, random)
        click = random.random(slate.shape) < self.chances(x, slate)
        return LoggedData.from_arrays(
            {"x": np.repeat(x, self.length, 0)},
            slate.ravel(),
            click.ravel().astype(float),
            actions=self.logging.actions,
            request=np.repeat(np.arange(n), self.length),
            position=np.tile(np.arange(self.length), n),
            logging_prob=self.conditional(self.logging, x, slate).ravel() if recorded else None,
        )

    def value(self, policy: LinearSoftmaxPolicy, n: int = 400_000, seed: int = 10**6) -> float:
        """The mean reward of a position under a policy, over fresh contexts."""
        random = np.random.default_rng(seed)
        x = random.normal(size=(n, self.taste.shape[1]))
        return float(self.chances(x, self.draw(policy, x, random)).mean())
