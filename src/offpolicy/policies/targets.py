"""What may be evaluated besides policies: a column of probabilities, a function, a classifier, lists, "uniform"."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from offpolicy.errors import OffPolicyError, ParameterError
from offpolicy.log import ActionTable, EmbeddingColumn, FeatureTable, LoggedData, NumericColumn
from offpolicy.policies.policy import Policy, aligned
from offpolicy.policies.simple import UniformPolicy
from offpolicy.policies.sparse import RESIDUAL, joined_policy, listed_policy

SUM_TOLERANCE = 1e-4
"""How far the probabilities of a context may be from summing to 1."""


@dataclass(frozen=True)
class ColumnPolicy:
    """π(a_n|x_n) of the rows of one log and nothing else: no sum over other actions is possible."""

    actions: ActionTable
    rows: str
    """Fingerprint of the rows these belong to."""
    probs: Tensor  # (rows,)
    rows_only: ClassVar[bool] = True

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """Refuse: only the logged actions' probabilities are known."""
        raise ParameterError(
            "This policy is known by the probabilities of the logged actions only, but this estimator sums over all "
            "actions. Leave it out, or give the policy as a function of the context."
        )

    def logged_log_prob(self, log: LoggedData) -> Tensor:
        """The logarithm of the column."""
        if log.rows_fingerprint != self.rows:
            raise ParameterError("A column of probabilities belongs to the rows of the log it was given for.")
        return self.probs.log()


@dataclass(frozen=True)
class FunctionPolicy:
    """A function from a table of contexts to probabilities, (contexts, actions), asked tile by tile."""

    function: Callable[[FeatureTable], Any]
    actions: ActionTable

    @classmethod
    def tried(cls, function: Callable[[FeatureTable], Any], log: LoggedData) -> "FunctionPolicy":
        """The policy of a function that answers for the first contexts of a log: a wrong one is refused at once."""
        policy = cls(function, log.actions)
        few = 3 if len(log.contexts) == 2 else 2  # not as many as there are columns
        policy.log_probs(log.contexts.take(np.arange(min(few, log.n_contexts))))
        return policy

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return len(self.actions)

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """The function's answer, checked to be distributions."""
        try:
            output = self.function(contexts)
            probs = output.detach() if isinstance(output, Tensor) else torch.from_numpy(np.array(output, np.float64))
        except OffPolicyError:
            raise
        except Exception as error:  # whatever a user's own function does
            said = " ".join(str(error).split())[:200].rstrip(".")
            raise ParameterError(
                f"The policy function failed with {type(error).__name__}: {said}. It is given a table of "
                f"{contexts.n_rows} contexts (and, if it takes two arguments, the ids of the {self.n_actions} actions) "
                "and returns probabilities, one row per context and one column per action."
            ) from error
        if probs.shape != (contexts.n_rows, self.n_actions):
            raise ParameterError(
                f"The policy function must return probabilities of shape ({contexts.n_rows}, {self.n_actions}), one "
                f"row per context (`contexts.n_rows` counts them, len its columns) and one column per action, but it "
                f"returned {tuple(probs.shape)}."
            )
        _check_distributions(probs)
        return probs.double().log()


class ClassifierTarget:
    """A fitted scikit-learn classifier whose classes are actions: asked with the context columns it was fitted to.

    One that was fitted to a frame gets a frame with its columns; one that was fitted to a matrix gets the numeric
    columns and vectors of the contexts, side by side.
    """

    def __init__(self, classifier: Any, actions: ActionTable, name: str) -> None:
        """Match the classes to the log's actions by id."""
        self.classifier, self.name = classifier, name
        ids = np.asarray(classifier.classes_)
        self.codes = torch.from_numpy(actions.vocabulary.encode(ids.tolist()).astype(np.int64))
        self.n_actions = len(actions)
        unknown = np.flatnonzero(self.codes.numpy() < 0)
        if unknown.size:
            raise ParameterError(
                f"The classes of policy {name!r} must be actions of the log, but {ids[unknown[0]]!r} is none. Fit it "
                "to the ids of the actions, or give the log the full list of actions."
            )

    def __call__(self, contexts: FeatureTable) -> Tensor:
        """Probabilities, (contexts, actions); 0 for what is not a class."""
        names = getattr(self.classifier, "feature_names_in_", None)
        predicted = self.classifier.predict_proba(self._matrix(contexts) if names is None else _frame(contexts, names))
        probs = torch.zeros(contexts.n_rows, self.n_actions, dtype=torch.float64)
        probs[:, self.codes] = torch.from_numpy(np.asarray(predicted, dtype=np.float64))
        return probs

    def _matrix(self, contexts: FeatureTable) -> Any:
        parts = [one.values for one in contexts.values() if isinstance(one, NumericColumn | EmbeddingColumn)]
        matrix = np.column_stack(parts) if parts else np.empty((contexts.n_rows, 0))
        wanted = getattr(self.classifier, "n_features_in_", matrix.shape[1])
        if matrix.shape[1] != wanted or len(parts) != len(contexts):
            raise ParameterError(
                f"Policy {self.name!r} was fitted to a matrix of {wanted} columns, which cannot be told from the "
                f"contexts ({', '.join(contexts)}). Fit it to a frame with the names of the log's columns."
            )
        return matrix


def _frame(contexts: FeatureTable, names: Any) -> Any:
    """The named columns as a pandas frame where pandas is installed, else as a polars frame."""
    missing = next((str(name) for name in names if name not in contexts), None)
    if missing is not None:
        raise ParameterError(f"The classifier was fitted with a column {missing!r} that is no context of the log.")
    frame = contexts.to_frame().select([str(name) for name in names])
    try:
        return frame.to_pandas()
    except ImportError:
        return frame


def as_policy(target: Any, log: LoggedData, name: str = "policy") -> Policy:
    """The target as a policy over the log's actions, or a ParameterError that says what may be given.

    A policy with an action table is aligned by id, and so are the classes of a scikit-learn classifier. A function, or
    an object with `log_probs` and no table, answers in the order of the log's own actions; a function of two arguments
    is given their ids as the second. A name is that of a column the log keeps. A frame holds lists, or rows of (key,
    action, probability), joined by what it shares with the log; a mapping with "rows" may name "key" and "action".
    """
    if isinstance(target, str) and target == "uniform":
        return UniformPolicy(log.actions)
    if isinstance(target, Policy):
        return aligned(target, log.actions, name)
    if isinstance(target, str):
        return _column(log.kept_column(target), log, name)
    if isinstance(target, Mapping):
        return _from_mapping(target, log, name)
    if hasattr(target, "log_probs"):
        return FunctionPolicy.tried(lambda contexts: target.log_probs(contexts).exp(), log)
    if hasattr(target, "predict_proba") and hasattr(target, "classes_"):
        return FunctionPolicy.tried(ClassifierTarget(target, log.actions, name), log)
    if callable(target):
        return FunctionPolicy.tried(_with_ids(target, log.actions), log)
    if hasattr(target, "columns") and not isinstance(target, np.ndarray):  # a frame of any library
        return joined_policy(target, log, name)
    if isinstance(target, Sequence) or hasattr(target, "__array__"):
        return _column(target, log, name)
    raise ParameterError(
        f"Policy {name!r} must be a policy, a column with π(a|x) of each logged row, a function of the contexts, a "
        f"fitted classifier, a frame, a mapping with 'lists' or 'rows', or 'uniform', but it is "
        f"{type(target).__name__}."
    )


def _from_mapping(target: Mapping[Any, Any], log: LoggedData, name: str) -> Policy:
    """{"lists": ids per context or row} or {"rows": frame or file, "key": ..., "action": ...}, with a "residual"."""
    residual = float(target.get("residual", RESIDUAL))
    if "rows" in target:
        key = target.get("key") or ()
        names = (key,) if isinstance(key, str) else tuple(key)
        return joined_policy(target["rows"], log, name, key=names, action=target.get("action"), residual=residual)
    return listed_policy(target.get("lists", ()), log, name, residual)


def _with_ids(function: Callable[..., Any], actions: ActionTable) -> Callable[[FeatureTable], Any]:
    """The function itself, or with the ids of the actions for its second argument where it must have one."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return function
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in by_place if p.default is p.empty]
    return (lambda contexts: function(contexts, actions.vocabulary.to_list())) if len(required) == 2 else function


def _column(target: Any, log: LoggedData, name: str) -> ColumnPolicy:
    try:
        column = np.array(target, dtype=np.float64)
    except (TypeError, ValueError):
        raise ParameterError(f"Policy {name!r} must hold numbers, one probability for each row.") from None
    if column.shape != (log.n_rows,):
        raise ParameterError(
            f"Policy {name!r} must give one probability for each of the {log.n_rows} logged rows, but its shape is "
            f"{column.shape}. Never pass a rows × actions array: pass a function of the contexts instead."
        )
    bad = np.flatnonzero(~((column >= 0) & (column <= 1)))
    if bad.size:
        raise ParameterError(
            f"Policy {name!r} must hold probabilities in [0, 1], but row {bad[0] + 1} (counted from 1) holds "
            f"{column[bad[0]]}. Fix it."
        )
    return ColumnPolicy(log.actions, log.rows_fingerprint, torch.from_numpy(column))


def _check_distributions(probs: Tensor) -> None:
    total = probs.double().sum(1)
    off = ~((total - 1).abs() <= SUM_TOLERANCE) | (probs < 0).any(1)
    if bool(off.any()):
        place = int(off.nonzero()[0])
        raise ParameterError(
            f"A policy's probabilities must be non-negative and sum to 1 in every context, but those of one context "
            f"(number {place} of those asked for) sum to {float(total[place]):.6g}. Normalise them."
        )
