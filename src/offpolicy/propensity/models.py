"""The plain rungs of the ladder of logging models: known, uniform, popular, counted, or any classifier."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.log import BagColumn, CategoricalColumn, FeatureTable, LoggedData
from offpolicy.models import DesignMatrix
from offpolicy.policies import Policy, logged_log_prob, tensor


@dataclass(frozen=True)
class RecordedPolicy:
    """The propensities the log recorded; it knows those of the logged actions and no others."""

    n_actions: int

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


@dataclass(frozen=True)
class PopularityPolicy:
    """Each action as often as it was logged, whatever the context."""

    log_frequency: Tensor  # (actions,)

    @classmethod
    def fit(cls, log: LoggedData) -> "PopularityPolicy":
        """Frequencies of the logged actions; never-logged ones have none (see `WithBackoff`)."""
        return cls((tensor(log.action_count).double() / log.n_rows).log())

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return len(self.log_frequency)

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """The same row for every context."""
        return self.log_frequency.expand(contexts.n_rows, -1)


class CountsPolicy:
    """Counts over identical contexts, N(x, a)/N(x), each context lent `prior` rows of popularity.

    With `prior` = 0 it is the paper's DICE-S estimate, which knows nothing of actions a context was never shown.
    Contexts that were not in the log have popularity alone.
    """

    def __init__(self, log: LoggedData, prior: float = 1.0) -> None:
        """Count the log."""
        self.prior = prior
        self.popularity = PopularityPolicy.fit(log)
        pair = log.context_index.astype(np.int64) * log.n_actions + log.action
        pairs, counts = np.unique(pair, return_counts=True)
        self._context, self._action = np.divmod(pairs, log.n_actions)
        self._counts = counts
        self._rows_of = np.bincount(log.context_index, minlength=log.n_contexts)
        self._vocabularies = {
            name: column.vocabulary
            for name, column in log.contexts.items()
            if isinstance(column, CategoricalColumn | BagColumn)
        }
        keys = self._keys(log.contexts)
        self._sorted = np.argsort(keys, kind="stable")
        self._known = keys[self._sorted]

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return self.popularity.n_actions

    def _keys(self, contexts: FeatureTable) -> npt.NDArray[np.bytes_]:
        """One byte string per context, equal exactly where the contexts are."""
        parts = []
        for name, column in contexts.items():
            if isinstance(column, BagColumn):
                fitted = self._vocabularies[name]
                codes = fitted.encode(column.vocabulary.ids)[column.codes]
                bags = np.split(codes, column.offsets[1:-1])
                longest = max(map(len, bags), default=0)
                padded = np.full((len(bags), longest + 1), -2, np.int32)
                for place, bag in enumerate(bags):
                    padded[place, : len(bag)] = bag
                parts.append(padded.view(np.uint8))
            elif isinstance(column, CategoricalColumn):
                codes = self._vocabularies[name].encode(column.vocabulary.ids)[column.codes]
                parts.append(np.ascontiguousarray(codes)[:, None].view(np.uint8))
            else:
                values = np.ascontiguousarray(column.values).reshape(contexts.n_rows, -1)
                parts.append(values.view(np.uint8))
        joined = np.ascontiguousarray(np.concatenate(parts, axis=1))
        # A closing byte keeps NumPy from dropping trailing zeros when it compares byte strings.
        closed = np.concatenate([joined, np.ones((len(joined), 1), np.uint8)], axis=1)
        return np.ascontiguousarray(closed).view(f"S{closed.shape[1]}").ravel()

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """Smoothed counts of the contexts that were in the log."""
        keys = self._keys(contexts)
        if keys.dtype.itemsize != self._known.dtype.itemsize:  # bags longer than any seen: no context can match
            place = np.full(len(keys), -1)
        else:
            found = np.searchsorted(self._known, keys).clip(max=len(self._known) - 1)
            place = np.where(self._known[found] == keys, self._sorted[found], -1)
        counts = torch.zeros(contexts.n_rows, self.n_actions, dtype=torch.float64)
        rows = np.where(place >= 0, self._rows_of[place.clip(min=0)], 0)
        for i in np.flatnonzero(place >= 0):
            mine = slice(*np.searchsorted(self._context, [place[i], place[i] + 1]))
            counts[i, self._action[mine]] = torch.from_numpy(self._counts[mine]).double()
        lent = np.where(place >= 0, self.prior, 1.0)
        share = counts + torch.from_numpy(lent)[:, None] * self.popularity.log_frequency.exp()
        return (share / torch.from_numpy(rows + lent)[:, None]).log()


class ClassifierPolicy:
    """Any scikit-learn classifier with `predict_proba`, its columns mapped to actions by its own `classes_`."""

    def __init__(self, classifier: Any, design: DesignMatrix, n_actions: int, seen: Tensor, rows: int) -> None:
        """Wrap a fitted classifier."""
        self.classifier, self.design = classifier, design
        self._n_actions, self._seen, self._rows = n_actions, seen, rows
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
        fitted = clone(classifier).fit(features, log.action)
        return cls(fitted, design, log.n_actions, tensor(log.action_count) > 0, log.n_rows)

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return self._n_actions

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """The classifier's probabilities, each seen action lent one row in N so that no leaf answers zero."""
        found = torch.from_numpy(np.asarray(self.classifier.predict_proba(self.design.encode(contexts).numpy())))
        probs = torch.zeros(contexts.n_rows, self._n_actions, dtype=torch.float64)
        probs[:, self._classes] = found.double()
        lent = self._seen.double() / self._seen.sum()
        return ((probs * self._rows + lent) / (self._rows + 1)).log()


@dataclass(frozen=True)
class WithBackoff:
    """A model over the logged actions, with an explicit share of mass for those never logged, spread evenly.

    The share is the Good–Turing estimate of what was not seen: actions logged exactly once, over rows.
    """

    base: Policy
    unseen: Tensor  # (actions,) bool
    mass: float

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return self.base.n_actions

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """The model's probabilities renormalised over seen actions, and the back-off elsewhere."""
        seen = self.base.log_probs(contexts).masked_fill(self.unseen, -torch.inf).log_softmax(1)
        return (seen + math.log1p(-self.mass)).masked_fill(self.unseen, self.log_backoff)

    def logged_log_prob(self, log: LoggedData) -> Tensor:
        """Logged rows: the base already puts nothing on unseen actions where it was trained with them masked."""
        action = tensor(log.action).long()
        found = logged_log_prob(self.base, log) + math.log1p(-self.mass)
        return found.masked_fill(self.unseen[action], self.log_backoff)

    @property
    def log_backoff(self) -> float:
        """log β̂ of one never-logged action."""
        return math.log(self.mass / int(self.unseen.sum()))


def with_backoff(policy: Policy, log: LoggedData) -> Policy:
    """The policy itself if every action was logged, else with the missing mass lent to the others."""
    unseen = tensor(log.action_count) == 0
    if not bool(unseen.any()):
        return policy
    once = int((log.action_count == 1).sum())
    mass = min(max(once, 1) / (log.n_rows + 1), 0.5)
    return WithBackoff(policy, unseen, mass)
