"""Worlds for the paper's evaluation experiment: documents with labels, a softmax that logs them, a target over labels.

x = W·words and β*(a|x) = softmax((x·θ + b)/τ) are fitted to the labels of training documents. The target is ε-greedy
over each document's own labels, so that its value is known.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from offpolicy.datasets import Csr, ExtremeShape, ExtremeWorld, XmcData
from offpolicy.log import ActionTable, EmbeddingColumn, FeatureTable, digest, table_hashes
from offpolicy.models import weighted_log_likelihood
from offpolicy.policies import SparsePolicy
from offpolicy.progress import progress
from offpolicy.seeding import generator, torch_generator


@dataclass(frozen=True)
class OpeDesign:
    """Sizes of the experiment; the defaults are the paper's where it states them."""

    validation: int = 3_000
    """Training documents set aside."""
    tuning: int = 1_000
    """Of these, how many the search over hyper-parameters sees."""
    rows_per_context: int = 100
    epsilon: float = 0.05
    dimensions: int = 64
    embedding_epochs: int = 15
    logging_epochs: int = 15
    reward_rows: int = 5
    """Logged rows per training document from which q̂ is fitted."""
    budget: int = 512
    """Points of each estimator's grid that the search on the truth looks at, at random."""


QUICK = OpeDesign(60, 60, 20, dimensions=8, embedding_epochs=3, logging_epochs=3, reward_rows=5, budget=6)
"""Sizes for a run of a few seconds."""


@dataclass(frozen=True)
class OpeSplits:
    """The same β* over training, validation and test contexts, at temperature 1."""

    train: ExtremeWorld
    validation: ExtremeWorld
    test: ExtremeWorld


def xmc_splits(data: XmcData, design: OpeDesign | None = None, seed: int = 0) -> OpeSplits:
    """Embed documents and fit β* on the training part; documents without a label have no target and are left out."""
    design = design or OpeDesign()
    labelled = np.flatnonzero(np.diff(data.train_labels.indptr))
    order = generator(seed, "ope-validation").permutation(labelled)
    aside, fitted = np.sort(order[: design.validation]), np.sort(order[design.validation :])
    embedding, theta, bias = _embed(data.train_features[fitted], data.train_labels[fitted], design, seed)

    def world(features: Csr, labels: Csr) -> ExtremeWorld:
        labels = labels.tocsr()
        labels.sort_indices()
        states = np.asarray(features @ embedding.double().numpy(), dtype=np.float32)
        contexts = FeatureTable({"x": EmbeddingColumn(states)})
        offsets, actions = labels.indptr.astype(np.int64), labels.indices.astype(np.int32)
        return ExtremeWorld(contexts, theta, bias, offsets, actions, 1.0)

    tested = np.flatnonzero(np.diff(data.test_labels.indptr))
    return OpeSplits(
        world(data.train_features[fitted], data.train_labels[fitted]),
        world(data.train_features[aside], data.train_labels[aside]),
        world(data.test_features[tested], data.test_labels[tested]),
    )


def synthetic_splits(shape: ExtremeShape, seed: int = 0) -> OpeSplits:
    """The same from a synthetic world: half its contexts to train, a quarter each to validate and test."""
    world = ExtremeWorld.draw(seed, shape)
    cuts = [0, shape.n_contexts // 2, 3 * shape.n_contexts // 4, shape.n_contexts]
    return OpeSplits(*(contexts_of(world, np.arange(a, b)) for a, b in pairwise(cuts)))


def contexts_of(world: ExtremeWorld, kept: npt.NDArray[np.int64]) -> ExtremeWorld:
    """The same world with some of its contexts."""
    lists = [world.positive_actions[world.positive_offsets[i] : world.positive_offsets[i + 1]] for i in kept]
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in lists])]).astype(np.int64)
    contexts = world.contexts.take(kept)
    return replace(world, contexts=contexts, positive_offsets=offsets, positive_actions=np.concatenate(lists))


def _embed(features: Csr, labels: Csr, design: OpeDesign, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """W, θ* and b: softmax regression on labels that sum to 1 a document, through x = W·words without bias."""
    random = torch_generator(seed, "ope-embedding")
    width = design.dimensions
    words = (torch.randn(features.shape[1], width, generator=random) * width**-0.5).requires_grad_()
    theta = (torch.randn(labels.shape[1], width, generator=random) * width**-0.5).requires_grad_()
    bias = torch.zeros(labels.shape[1], requires_grad=True)
    optimiser = torch.optim.Adam([words, theta, bias], lr=0.01)
    with progress("embedding", design.embedding_epochs) as advance:
        for _ in range(design.embedding_epochs):
            total = 0.0
            for part in torch.split(torch.randperm(features.shape[0], generator=random), 256):
                x, y = features[part.numpy()], labels[part.numpy()]
                places, starts = torch.from_numpy(x.indices).long(), torch.from_numpy(x.indptr[:-1]).long()
                values = torch.from_numpy(x.data).float()
                states = F.embedding_bag(places, words, starts, mode="sum", per_sample_weights=values)
                count = torch.from_numpy(np.diff(y.indptr)).long()
                owner = torch.arange(len(part)).repeat_interleave(count)
                share = (1 / count.float()).repeat_interleave(count)
                action = torch.from_numpy(y.indices).long()
                fit = weighted_log_likelihood(states, theta, bias, owner, action, share) / len(part)
                optimiser.zero_grad()
                (-fit).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                total += float(fit.detach()) * len(part)
            advance(f"log-likelihood {total / features.shape[0]:.3f}")
    return words.detach(), theta.detach(), bias.detach()


def epsilon_greedy(world: ExtremeWorld, epsilon: float) -> tuple[SparsePolicy, float]:
    """The target over a world's contexts, and its true value."""
    counts = np.diff(world.positive_offsets)
    place = np.repeat(np.arange(len(counts)), counts)
    lists = np.full((len(counts), int(counts.max())), -1, dtype=np.int64)
    lists[place, np.arange(len(place)) - world.positive_offsets[place]] = world.positive_actions
    k = len(world.labels)
    value = float((1 - epsilon) + epsilon * counts.mean() / k)
    contexts = digest(table_hashes(world.contexts, world.contexts.n_rows))
    return SparsePolicy.of_lists(ActionTable.numbered(k), contexts, torch.from_numpy(lists), epsilon), value
