"""A small problem in float64, dense enough to differentiate by hand."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offpolicy.estimators import ESTIMATORS, INPUTS
from offpolicy.evaluation.inputs import weight_inputs
from offpolicy.learning import Objective, prepare_training
from offpolicy.learning.rows import row_count
from offpolicy.log import FeatureTable, LoggedData
from offpolicy.models.epochs import Batch, ContextBatches
from offpolicy.models.scorers import LinearScorer, linear_scorer
from offpolicy.policies import LinearSoftmaxPolicy

CONTEXTS, ACTIONS, ROWS, D = 4, 5, 14, 3


@dataclass(frozen=True)
class TableRewards:
    """A fixed q̂: a linear function of the context, squashed."""

    weights: Tensor

    def rewards(self, contexts: FeatureTable) -> Tensor:
        return torch.sigmoid(features(contexts) @ self.weights.T)


def features(contexts: FeatureTable) -> Tensor:
    return torch.from_numpy(np.array(contexts["x"].values)).double()  # type: ignore[union-attr]


@dataclass(frozen=True)
class Small:
    """A log, its β̂, U, q̂, and a linear policy somewhere in the middle of learning."""

    log: LoggedData
    logging: LinearSoftmaxPolicy
    uncertainty: Tensor
    rewards: TableRewards
    scorer: LinearScorer

    @staticmethod
    def draw(seed: int = 0, rows: int = ROWS) -> "Small":
        random = np.random.default_rng(seed)

        def normal(*shape: int) -> Tensor:
            return torch.from_numpy(random.standard_normal(shape))

        log = LoggedData.from_arrays(
            contexts=random.standard_normal((CONTEXTS, D)).astype(np.float32),
            context_index=np.concatenate([np.arange(CONTEXTS), random.integers(CONTEXTS, size=rows - CONTEXTS)]),
            action=random.integers(ACTIONS, size=rows),
            reward=np.where(random.uniform(size=rows) < 0.3, 0.0, random.uniform(size=rows)),
            actions=ACTIONS,
            logging_prob=random.uniform(0.05, 0.6, size=rows),
        )
        name = next(iter(log.contexts))
        contexts = FeatureTable({"x": log.contexts[name]})
        log = LoggedData.from_arrays(
            contexts=contexts,
            context_index=log.context_index,
            action=log.action,
            reward=log.reward,
            actions=ACTIONS,
            logging_prob=log.logging_prob,
        )
        scorer = linear_scorer(log).double()
        with torch.no_grad():
            scorer.weights.copy_(normal(*scorer.weights.shape))
            scorer.bias.copy_(normal(ACTIONS) * 0.5)
        logging = LinearSoftmaxPolicy("x", normal(ACTIONS, D) * 0.7, normal(ACTIONS) * 0.3)
        uncertainty = torch.from_numpy(random.uniform(0, 1, size=rows))
        return Small(log, logging, uncertainty, TableRewards(normal(ACTIONS, D)), scorer)

    @property
    def context(self) -> Tensor:
        return torch.from_numpy(self.log.context_index.astype(np.int64))

    @property
    def action(self) -> Tensor:
        return torch.from_numpy(self.log.action.astype(np.int64))

    @property
    def reward(self) -> Tensor:
        return torch.from_numpy(np.array(self.log.reward))

    def log_probs(self) -> Tensor:
        """log π of every context and action, by the textbook, without gradient."""
        states = self.scorer.design.encode(self.log.contexts).double()
        return (states @ self.scorer.weights.detach().T + self.scorer.bias.detach()).log_softmax(1)

    def log_prob(self) -> Tensor:
        return self.log_probs()[self.context, self.action]

    def ratio(self) -> Tensor:
        return (self.log_prob() - self.log_logging()).exp()

    def log_logging(self) -> Tensor:
        return self.logging.log_probs(self.log.contexts)[self.context, self.action]

    def weights(self, estimator: str, hyper: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """w and z of the registry, from the evaluator's inputs."""
        row = ESTIMATORS[estimator]

        class Here:
            actions = self.log.actions

            def log_probs(here, contexts: FeatureTable) -> Tensor:  # noqa: N805
                picked = self.scorer.design.encode(contexts).double()
                return (picked @ self.scorer.weights.detach().T + self.scorer.bias.detach()).log_softmax(1)

        top_p = float(hyper.get("top_p", 100.0))
        inputs = weight_inputs(INPUTS, self.log, Here(), self.logging, uncertainty=self.uncertainty, top_p=top_p)
        return row.terms(inputs, **{name: hyper[name] for name in row.hyper})

    def objective(self, method: str, **changes: Any) -> Objective:
        """The objective of all rows, before equal ones are merged."""
        given: dict[str, Any] = {"logging_policy": self.logging, "uncertainty": self.uncertainty}
        given |= {"reward_model": self.rewards, "scorer": lambda log: linear_scorer(log).double()}
        in_batch = changes.pop("in_batch", False)
        found = prepare_training(self.log, method, **given, **changes).objective
        found.spec = replace(found.spec, in_batch=in_batch)
        found.count, found.events_a_batch = row_count(self.log, torch.float64), self.log.n_events
        return found

    def batch(self, objective: Objective) -> Batch:
        """All rows that count, as the trainer would deal them out."""
        kept = objective.counted().numpy().nonzero()[0]
        return next(ContextBatches(self.log, CONTEXTS, kept).epoch())

    def gradient(self, objective: Objective) -> Tensor:
        """Of the objective, by autograd."""
        self.scorer.zero_grad()
        objective.of(self.scorer, self.batch(objective)).backward()  # type: ignore[no-untyped-call]
        parts = [self.scorer.weights.grad, self.scorer.bias.grad]
        return torch.cat([part.flatten() for part in parts if part is not None])

    @torch.no_grad()
    def finite_difference(self, estimator: Callable[[], Any], step: float = 1e-5) -> Tensor:
        """Of a scalar function of the scorer's present weights."""
        slopes = []
        for parameter in (self.scorer.weights, self.scorer.bias):
            flat = parameter.view(-1)
            for i in range(len(flat)):
                kept = float(flat[i])
                flat[i] = kept + step
                above = float(estimator())
                flat[i] = kept - step
                below = float(estimator())
                flat[i] = kept
                slopes.append((above - below) / (2 * step))
        return torch.tensor(slopes, dtype=torch.float64)
