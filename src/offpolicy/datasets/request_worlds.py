"""Worlds with candidates and known truth: varying sets, eligibility by context, retrieval by a model."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offpolicy.log import ActionTable, Candidates, EmbeddingColumn, FeatureTable, LoggedData
from offpolicy.policies import LinearSoftmaxPolicy, choice_log_probs

Kind = Literal["varying", "eligible", "retrieved"]
KINDS: tuple[Kind, ...] = ("varying", "eligible", "retrieved")
Floats = npt.NDArray[np.float64]


def without_sets(contexts: FeatureTable) -> FeatureTable:
    """The same contexts, with nothing said of what they offer."""
    return FeatureTable(dict(contexts))


@dataclass(frozen=True)
class RequestWorld:
    """Contexts x ~ N(0, 1), a linear softmax that chose among the candidates, and binary rewards."""

    kind: Kind
    logging: LinearSoftmaxPolicy
    target: LinearSoftmaxPolicy
    taste: Floats  # (actions, d)

    @staticmethod
    def make(kind: Kind, seed: int, n_actions: int = 30, d: int = 4) -> "RequestWorld":
        """Weights drawn from the seed."""
        random = np.random.default_rng(seed)
        actions = ActionTable.numbered(n_actions)

        def policy(scale: float) -> LinearSoftmaxPolicy:
            weights = torch.from_numpy(random.normal(size=(n_actions, d)) * scale)
            bias = torch.from_numpy(random.normal(size=n_actions) * scale)
            return LinearSoftmaxPolicy("x", weights, bias, table=actions)

        return RequestWorld(kind, policy(0.5), policy(0.5), random.normal(size=(n_actions, d)))

    def contexts(self, x: Floats, random: np.random.Generator) -> FeatureTable:
        """The contexts with what each offers."""
        n, n_actions = len(x), len(self.logging.actions)
        if self.kind == "varying":  # a random handful, some actions far more often in stock than others
            score = random.random((n, n_actions)) / np.linspace(0.3, 1.0, n_actions)
            sizes = random.integers(2, 12, n)
        elif self.kind == "eligible":  # who may see an action depends on the context
            score = (x[:, :1] * np.sign(self.taste[:, 0]) + 0.5 * random.normal(size=(n, n_actions))) * -1
            sizes = random.integers(3, 12, n)
        else:  # a model of the taste retrieves the best ten, with noise
            score = -(x @ self.taste.T + random.normal(size=(n, n_actions)))
            sizes = np.full(n, 10)
        order = np.argsort(score, axis=1)
        lists = [order[i, : sizes[i]].tolist() for i in range(n)]
        sets = Candidates.of_lists(lists, self.logging.actions.vocabulary)
        return FeatureTable({"x": EmbeddingColumn(x.astype(np.float32))}, sets)

    def chances(self, contexts: FeatureTable) -> Tensor:
        """P(r = 1) of every candidate, (contexts, width); of every action where none are named."""
        x = torch.from_numpy(np.array(contexts["x"].values)).double()  # type: ignore[union-attr]
        every = torch.sigmoid(0.6 * x @ torch.from_numpy(self.taste).T - 0.5)
        if contexts.candidates is None:
            return every
        return every.gather(1, torch.from_numpy(contexts.candidates.padded()).clamp(min=0))

    def log(self, n: int, seed: int) -> LoggedData:
        """A log without propensities."""
        random = np.random.default_rng(seed)
        contexts = self.contexts(random.normal(size=(n, self.taste.shape[1])), random)
        assert contexts.candidates is not None
        prob = choice_log_probs(self.logging, contexts).double().exp()
        place = (prob.cumsum(1) < torch.from_numpy(random.random((n, 1)))).sum(1).clamp(max=prob.shape[1] - 1)
        chance = self.chances(contexts)[torch.arange(n), place].numpy()
        return LoggedData(
            contexts=contexts,
            context_index=np.arange(n, dtype=np.int32),
            action=contexts.candidates.padded()[np.arange(n), place.numpy()].astype(np.int32),
            reward=(random.random(n) < chance).astype(np.float64),
            actions=self.logging.actions,
        )

    def value(self, policy: object, n: int = 100_000, seed: int = 10**6, *, everything: bool = False) -> float:
        """The true value of a policy, over fresh contexts: among their candidates, or with everything on offer."""
        random = np.random.default_rng(seed)
        contexts = self.contexts(random.normal(size=(n, self.taste.shape[1])), random)
        if everything:
            contexts = without_sets(contexts)
        return float((choice_log_probs(policy, contexts).double().exp() * self.chances(contexts)).sum(1).mean())  # type: ignore[arg-type]
