"""Simple policies: uniform, tables, linear softmax, ε-greedy, classifiers, recorded."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.log import (
    ActionTable,
    CategoricalColumn,
    EmbeddingColumn,
    FeatureTable,
    LoggedData,
)
from offpolicy.models import DesignMatrix
from offpolicy.policies.policy import (
    Policy,
    action_table,
    choice_log_probs,
    over_candidates,
    rows_among,
    tensor,
)


@dataclass(frozen=True)
class UniformPolicy:
    """Every action alike."""

    actions: ActionTable

    def __init__(self, actions: ActionTable | int) -> None:
        """A table, or a number K for actions called 0..K−1."""
        object.__setattr__(self, "actions", action_table(actions))

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return len(self.actions)

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """−log K everywhere."""
        return torch.full((contexts.n_rows, self.n_actions), -np.log(self.n_actions), dtype=torch.float64)

    def log_probs_among(self, contexts: FeatureTable) -> Tensor:
        """Every candidate alike."""
        assert contexts.candidates is not None
        actions = torch.from_numpy(contexts.candidates.padded(self.actions.vocabulary))
        scores = torch.where(actions >= 0, 0.0, -torch.inf).double()
        return over_candidates(scores, contexts.candidates)

    def logged_log_prob(self, log: LoggedData) -> Tensor:
        """Logged rows, without a look at the other actions."""
        if log.candidates is not None:
            return rows_among(self, log)
        return torch.full((log.n_rows,), -np.log(self.n_actions), dtype=torch.float64)


@dataclass(frozen=True)
class TabularPolicy:
    """A table of probabilities, one row per category of a context column."""

    column: str
    probs: Tensor  # (categories, actions)
    actions: ActionTable

    def __init__(self, column: str, probs: Tensor, actions: ActionTable | None = None) -> None:
        """Refuse a table whose rows are not distributions; without `actions`, they are called 0..K−1."""
        off = (probs.sum(1) - 1).abs().max().item()
        if bool((probs < 0).any()) or off > 1e-6:
            raise ParameterError(
                f"Each row of a table policy must hold probabilities that sum to 1, but one is off by {off:.3g}."
            )
        table = action_table(probs.shape[1] if actions is None else actions)
        for name, value in (("column", column), ("probs", probs), ("actions", table)):
            object.__setattr__(self, name, value)

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return self.probs.shape[1]

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """Rows of the table, looked up by the category's code."""
        column = contexts[self.column]
        if not isinstance(column, CategoricalColumn):
            raise ParameterError(f"Column {self.column!r} must be categorical to look a table policy up in it.")
        return self.probs[tensor(column.codes).long()].log()


@dataclass(frozen=True)
class LinearSoftmaxPolicy:
    """softmax((x·weightsᵀ + bias)/temperature) over an embedding column x."""

    column: str
    weights: Tensor  # (actions, dimensions)
    bias: Tensor  # (actions,)
    temperature: float = 1.0
    table: ActionTable | None = None
    """The actions; None calls them 0..K−1."""

    @property
    def actions(self) -> ActionTable:
        """The actions it chooses among."""
        return action_table(len(self.weights)) if self.table is None else self.table

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return self.weights.shape[0]

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """Normalised logits, in the precision of the weights."""
        column = contexts[self.column]
        if not isinstance(column, EmbeddingColumn):
            raise ParameterError(f"Column {self.column!r} must be an embedding for a linear softmax policy.")
        states = tensor(column.values).to(self.weights.dtype)
        return ((states @ self.weights.T + self.bias) / self.temperature).log_softmax(1)


@dataclass(frozen=True)
class EpsilonGreedyPolicy:
    """The base policy's favourite with probability 1 − ε, any action otherwise."""

    base: Policy
    epsilon: float

    @property
    def actions(self) -> ActionTable:
        """Those of the base policy."""
        return self.base.actions

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return len(self.actions)

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """(1 − ε)·1{a is the favourite} + ε/K."""
        favourite = self.base.log_probs(contexts).argmax(1)
        probs = torch.full((contexts.n_rows, self.n_actions), self.epsilon / self.n_actions, dtype=torch.float64)
        probs[torch.arange(len(favourite)), favourite] += 1 - self.epsilon
        return probs.log()

    def log_probs_among(self, contexts: FeatureTable) -> Tensor:
        """(1 − ε)·1{a is the favourite among the candidates} + ε/their number."""
        favourite = choice_log_probs(self.base, contexts).argmax(1)
        probs = UniformPolicy(self.actions).log_probs_among(contexts).exp() * self.epsilon
        probs[torch.arange(len(favourite)), favourite] += 1 - self.epsilon
        return probs.log()


@dataclass(frozen=True)
class RecordedPolicy:
    """The propensities the log recorded; it knows those of the logged actions and no others."""

    actions: ActionTable
    rows_only: ClassVar[bool] = True

    def __init__(self, actions: ActionTable | int) -> None:
        """A table, or a number K for actions called 0..K−1."""
        object.__setattr__(self, "actions", action_table(actions))

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """Refuse: probabilities of actions that were not taken are not in the log."""
        raise ParameterError(
            "Recorded propensities are known for the logged actions only, but this needs those of every action. "
            "Choose an estimator without sums over actions, or fit a model (model='linear')."
        )

    def logged_log_prob(self, log: LoggedData) -> Tensor:
        """The logarithm of the recorded propensities."""
        if log.logging_prob is None:
            raise ParameterError(
                "This log records no propensities. Name their column with `propensity`, or fit a model instead."
            )
        return tensor(log.logging_prob).log()


class ClassifierPolicy:
    """Any scikit-learn classifier with `predict_proba`, its columns mapped to actions by its own `classes_`."""

    def __init__(self, classifier: Any, design: DesignMatrix, log: LoggedData) -> None:
        """Wrap a classifier that was fitted to the log."""
        self.classifier, self.design, self.actions = classifier, design, log.actions
        self._seen, self._events = tensor(log.action_count) > 0, log.n_events
        self._classes = torch.from_numpy(np.asarray(classifier.classes_, dtype=np.int64).copy())

    @classmethod
    def fit(cls, classifier: Any, log: LoggedData, design: DesignMatrix) -> "ClassifierPolicy":
        """Fit a copy of the classifier: features of the row's context, the logged action as the class."""
        if not (hasattr(classifier, "fit") and hasattr(classifier, "predict_proba")):
            raise ParameterError(
                f"A classifier needs fit and predict_proba, but {type(classifier).__name__} lacks one. "
                "Pass a probabilistic scikit-learn classifier."
            )
        from sklearn.base import clone

        features = design.encode(log.contexts).numpy()[log.context_index]
        weights = {} if log.row_weight is None else {"sample_weight": log.row_weight}
        return cls(clone(classifier).fit(features, log.action, **weights), design, log)

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """The classifier's probabilities, with a pseudo-count shared by the seen actions so that none is zero."""
        predicted = torch.from_numpy(np.asarray(self.classifier.predict_proba(self.design.encode(contexts).numpy())))
        probs = torch.zeros(contexts.n_rows, len(self.actions), dtype=torch.float64)
        probs[:, self._classes] = predicted.double()
        pseudo = self._seen.double() / self._seen.sum()
        return ((probs * self._events + pseudo) / (self._events + 1)).log()
