"""Seeded worlds with known β*, q and V(π): a linear-softmax one, an extreme-label one."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offpolicy.log import EmbeddingColumn, FeatureTable, LoggedData, pieces
from offpolicy.policies import LinearSoftmaxPolicy, Policy, tensor
from offpolicy.seeding import generator, torch_generator


@dataclass(frozen=True)
class LinearSoftmaxWorld:
    """β* = softmax((x·θ + c)/τ), q = sigmoid(x·ω + b), x standard normal: linear β̂ is well specified here."""

    theta: Tensor  # (actions, dimensions)
    popularity: Tensor  # (actions,), c
    omega: Tensor  # (actions, dimensions)
    reward_bias: Tensor  # (actions,)
    temperature: float

    @classmethod
    def draw(
        cls,
        seed: int,
        n_actions: int = 20,
        dimensions: int = 5,
        temperature: float = 1.0,
        *,
        alignment: float = 0.5,
        base_rate: float = 0.2,
    ) -> "LinearSoftmaxWorld":
        """A random world; `alignment` in [−1, 1] is how far logging already prefers rewarding actions."""
        random = torch_generator(seed, "linear-softmax")

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=random, dtype=torch.float64)

        scale = dimensions**-0.5
        omega = 1.5 * scale * normal(n_actions, dimensions)
        noise = 1.5 * scale * normal(n_actions, dimensions)
        theta = alignment * omega + (1 - alignment**2) ** 0.5 * noise
        bias = np.log(base_rate / (1 - base_rate)) + 0.5 * normal(n_actions)
        return cls(theta, 0.5 * normal(n_actions), omega, bias, temperature)

    @property
    def logging_policy(self) -> LinearSoftmaxPolicy:
        """β*."""
        return LinearSoftmaxPolicy("x", self.theta, self.popularity, self.temperature)

    def target_policy(self, sharpness: float = 2.0) -> LinearSoftmaxPolicy:
        """A good policy to evaluate: softmax of the rewards' logits."""
        return LinearSoftmaxPolicy("x", self.omega, self.reward_bias, 1 / sharpness)

    def rewards(self, contexts: FeatureTable) -> Tensor:
        """q(x, a), shape (contexts, actions)."""
        column = contexts["x"]
        assert isinstance(column, EmbeddingColumn)
        return torch.sigmoid(tensor(column.values).double() @ self.omega.T + self.reward_bias)

    def contexts(self, seed: int, n: int) -> FeatureTable:
        """Fresh contexts."""
        x = generator(seed, "contexts").standard_normal((n, self.theta.shape[1]))
        return FeatureTable({"x": EmbeddingColumn(x.astype(np.float32))})

    def log(self, seed: int, n_contexts: int, rows_per_context: int = 1) -> LoggedData:
        """A log drawn from β*, its propensities recorded (drop them with `without_propensities`)."""
        contexts = self.contexts(seed, n_contexts)
        random = torch_generator(seed, "log")
        log_probs, rewards = self.logging_policy.log_probs(contexts), self.rewards(contexts)
        action = torch.multinomial(log_probs.exp(), rows_per_context, replacement=True, generator=random)
        hit = torch.rand(action.shape, generator=random, dtype=torch.float64) < rewards.gather(1, action)
        return LoggedData.from_arrays(
            contexts=contexts,
            context_index=np.repeat(np.arange(n_contexts), rows_per_context),
            action=action.flatten().numpy(),
            reward=hit.flatten().double().numpy(),
            actions=self.theta.shape[0],
            logging_prob=log_probs.gather(1, action).exp().flatten().numpy(),
        )

    def value(self, policy: Policy, contexts: FeatureTable) -> float:
        """V(π) over these contexts, exactly."""
        total = 0.0
        for tile in pieces(contexts.n_rows, len(policy.actions)):
            part = contexts.take(tile)
            total += float((policy.log_probs(part).exp() * self.rewards(part)).sum())
        return total / contexts.n_rows


@dataclass(frozen=True)
class ExtremeShape:
    """Size of the world; the defaults are those of the paper's synthetic experiment."""

    n_contexts: int = 11_146
    n_actions: int = 30_938
    dimensions: int = 64
    positives: float = 19.0
    """Mean number of positive labels per context."""
    frequency_exponent: float = 1.0
    """Label frequency falls like rank^−exponent."""
    topics: int = 64


@dataclass(frozen=True)
class ExtremeWorld:
    """Contexts, their positive labels (sparse) and the softmax that logs them.

    Labels have power-law frequencies and cluster by topic. Logging is the softmax of the scores that make labels
    positive, sharpened or flattened by a temperature τ; the reward of an action is 1 if it is a positive label.
    """

    contexts: FeatureTable  # one embedding column "x"
    labels: Tensor  # (actions, dimensions)
    popularity: Tensor  # (actions,), log-frequency
    positive_offsets: npt.NDArray[np.int64]  # (contexts + 1,)
    positive_actions: npt.NDArray[np.int32]  # sorted within a context
    temperature: float

    @classmethod
    def draw(cls, seed: int, shape: ExtremeShape | None = None, temperature: float = 1.0) -> "ExtremeWorld":
        """A seeded world; at no time is more than a tile of (contexts × actions) in memory."""
        shape = shape or ExtremeShape()
        random = torch_generator(seed, "extreme")

        def normal(*size: int) -> Tensor:
            return torch.randn(*size, generator=random)

        topics = normal(shape.topics, shape.dimensions)
        label_topic = torch.randint(shape.topics, (shape.n_actions,), generator=random)
        labels = (topics[label_topic] + normal(shape.n_actions, shape.dimensions)) * shape.dimensions**-0.5
        rank = 1 + torch.randperm(shape.n_actions, generator=random).float()
        popularity = -shape.frequency_exponent * rank.log()
        context_topic = torch.randint(shape.topics, (shape.n_contexts,), generator=random)
        states = topics[context_topic] + normal(shape.n_contexts, shape.dimensions)
        contexts = FeatureTable({"x": EmbeddingColumn((states * 0.5).numpy())})
        counts = 1 + generator(seed, "positives").poisson(shape.positives - 1, size=shape.n_contexts)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        world = cls(contexts, labels, popularity, offsets, np.empty(0, np.int32), temperature)
        positives = world._draw_positives(counts, random)
        return cls(contexts, labels, popularity, offsets, positives, temperature)

    def _draw_positives(self, counts: npt.NDArray[np.int64], random: torch.Generator) -> npt.NDArray[np.int32]:
        """Labels without replacement in proportion to e^score: the top of scores plus Gumbel noise."""
        most = int(counts.max())
        parts: list[Tensor] = []
        unit = LinearSoftmaxPolicy("x", self.labels, self.popularity)
        for tile in pieces(self.contexts.n_rows, len(self.labels)):
            scores = unit.log_probs(self.contexts.take(tile))
            scores -= torch.empty_like(scores).exponential_(generator=random).log_()
            top = scores.topk(most, dim=1).indices
            keep = torch.arange(most)[None, :] < torch.from_numpy(counts[tile])[:, None]
            top[~keep] = len(self.labels)
            parts.append(top.sort(dim=1).values[keep].int())
        return torch.cat(parts).numpy()

    @property
    def logging_policy(self) -> LinearSoftmaxPolicy:
        """β*."""
        return LinearSoftmaxPolicy("x", self.labels, self.popularity, self.temperature)

    def is_positive(self, context: Tensor, action: Tensor) -> Tensor:
        """Whether each action is a positive label of its context, by binary search in the sparse label lists."""
        n_actions = len(self.labels)
        owner = np.repeat(np.arange(self.contexts.n_rows), np.diff(self.positive_offsets))
        known = torch.from_numpy(owner * n_actions + self.positive_actions)
        asked = context.long() * n_actions + action.long()
        place = torch.searchsorted(known, asked).clamp(max=len(known) - 1)
        return known[place] == asked

    def log(self, seed: int, rows_per_context: int = 100) -> LoggedData:
        """Actions drawn with replacement from β*, tile by tile, propensities recorded."""
        random = torch_generator(seed, "extreme-log")
        actions: list[Tensor] = []
        probs: list[Tensor] = []
        for tile in pieces(self.contexts.n_rows, len(self.labels)):
            log_probs = self.logging_policy.log_probs(self.contexts.take(tile))
            cumulative = log_probs.exp().cumsum(1)
            draw = torch.rand(len(log_probs), rows_per_context, generator=random) * cumulative[:, -1:]
            action = torch.searchsorted(cumulative, draw, right=True).clamp(max=len(self.labels) - 1)
            actions.append(action.int())
            probs.append(log_probs.gather(1, action).exp())
        action = torch.cat(actions)
        context = torch.arange(self.contexts.n_rows).repeat_interleave(rows_per_context)
        return LoggedData.from_arrays(
            contexts=self.contexts,
            context_index=context.numpy(),
            action=action.flatten().numpy(),
            reward=self.is_positive(context, action.flatten()).double().numpy(),
            actions=len(self.labels),
            logging_prob=torch.cat(probs).flatten().double().numpy(),
        )

    def value(self, policy: Policy) -> float:
        """V(π) over all contexts: π's mass on positive labels."""
        total = 0.0
        starts = torch.from_numpy(self.positive_offsets)
        positives = tensor(self.positive_actions).long()
        for tile in pieces(self.contexts.n_rows, len(self.labels)):
            log_probs = policy.log_probs(self.contexts.take(tile))
            counts = (starts[1:] - starts[:-1])[tile]
            owner = torch.arange(len(counts)).repeat_interleave(counts)
            mine = positives[int(starts[tile.start]) : int(starts[tile.stop])]
            total += float(log_probs[owner, mine].double().exp().sum())
        return total / self.contexts.n_rows
