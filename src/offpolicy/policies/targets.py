"""What may be evaluated besides policies: a column of probabilities, a function, top-k lists, "uniform"."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.log import ActionTable, FeatureTable, LoggedData, digest, table_hashes
from offpolicy.policies.policy import Policy, aligned, batch_log_probs, tensor
from offpolicy.policies.simple import UniformPolicy

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

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return len(self.actions)

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """The function's answer, checked to be distributions."""
        output = self.function(contexts)
        probs = output.detach() if isinstance(output, Tensor) else torch.from_numpy(np.array(output, dtype=np.float64))
        if probs.shape != (contexts.n_rows, self.n_actions):
            raise ParameterError(
                f"The policy function must return probabilities of shape ({contexts.n_rows}, {self.n_actions}), one "
                f"row per context and one column per action, but it returned {tuple(probs.shape)}."
            )
        _check_distributions(probs)
        return probs.double().log()


@dataclass(frozen=True)
class TopKPolicy:
    """Lists of actions per context that share most of the mass; the rest is spread evenly over all actions.

    A context with an empty list chooses among all actions alike.

    `lists` are the actions' codes per context of one log, (contexts, k), each at most once; −1 pads a shorter list.
    """

    actions: ActionTable
    contexts: str
    """Fingerprint of the contexts the lists were given for."""
    lists: Tensor  # (contexts, k)
    residual: float = 0.05

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return len(self.actions)

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """Probabilities of all actions for all contexts of the log."""
        self._check(digest(table_hashes(contexts, contexts.n_rows)))
        return self.log_probs_at(slice(None))

    def log_probs_at(self, contexts: slice) -> Tensor:
        """Probabilities of all actions for some contexts of the log."""
        lists = self.lists[contexts]
        share, rest = self._shares(lists)
        probs = rest[:, None].repeat(1, self.n_actions + 1)  # the last column takes the padding
        probs.scatter_add_(1, torch.where(lists >= 0, lists, self.n_actions), share[:, None].repeat(1, lists.shape[1]))
        return probs[:, :-1].log()

    def _shares(self, lists: Tensor) -> tuple[Tensor, Tensor]:
        """What each listed action gets, and each action besides; without a list all actions are alike."""
        listed = (lists >= 0).sum(1)
        rest = torch.where(listed > 0, self.residual, 1.0).double()
        return (1 - rest) / listed.clamp(min=1), rest / self.n_actions

    def logged_log_prob(self, log: LoggedData) -> Tensor:
        """π of the logged actions, without looking at the others."""
        self._check(digest(log.context_hashes))
        if log.candidates is not None:
            rows, result = tensor(log.row_place).long(), torch.empty(log.n_rows, dtype=torch.float64)
            for batch in log.batches(width=self.n_actions):
                result[batch.rows] = batch_log_probs(self, log, batch)[batch.row_context, rows[batch.rows]]
            return result
        lists = self.lists[tensor(log.context_index).long()]
        share, rest = self._shares(lists)
        member = (lists == tensor(log.action).long()[:, None]).any(1)
        return (share * member + rest).log()

    def _check(self, contexts: str) -> None:
        if contexts != self.contexts:
            raise ParameterError("Top-k lists belong to the contexts of the log they were given for.")


def as_policy(target: Any, log: LoggedData, name: str = "policy") -> Policy:
    """The target as a policy over the log's actions, or a ParameterError that says what may be given.

    A policy with an action table is aligned by id. A function, or an object with `log_probs` and no table, answers in
    the order of the log's own actions.
    """
    if isinstance(target, str) and target == "uniform":
        return UniformPolicy(log.actions)
    if isinstance(target, Policy):
        return aligned(target, log.actions, name)
    if isinstance(target, Mapping):
        return _top_k(target, log, name)
    if hasattr(target, "log_probs"):
        return FunctionPolicy(lambda contexts: target.log_probs(contexts).exp(), log.actions)
    if callable(target):
        return FunctionPolicy(target, log.actions)
    if isinstance(target, Sequence | np.ndarray | Tensor) and not isinstance(target, str):
        return _column(target, log, name)
    raise ParameterError(
        f"Policy {name!r} must be a policy, a column with π(a|x) of each logged row, a function of the contexts, a "
        f"mapping from action lists, or 'uniform', but it is {type(target).__name__}."
    )


def _column(target: Any, log: LoggedData, name: str) -> ColumnPolicy:
    column = np.array(target, dtype=np.float64)
    if column.shape != (log.n_rows,):
        raise ParameterError(
            f"Policy {name!r} must give one probability for each of the {log.n_rows} logged rows, but its shape is "
            f"{column.shape}. Never pass a rows × actions array: pass a function of the contexts instead."
        )
    bad = np.flatnonzero(~((column >= 0) & (column <= 1)))
    if bad.size:
        raise ParameterError(
            f"Policy {name!r} must hold probabilities in [0, 1], but row {bad[0]} holds {column[bad[0]]}. Fix it."
        )
    return ColumnPolicy(log.actions, log.rows_fingerprint, torch.from_numpy(column))


def _top_k(target: Mapping[Any, Any], log: LoggedData, name: str) -> TopKPolicy:
    """{"lists": one list of the user's action ids per context of the log, "residual": mass spread evenly}."""
    if "lists" not in target or len(target["lists"]) != log.n_contexts:
        raise ParameterError(
            f"Policy {name!r} must give 'lists', one list of action ids for each of the {log.n_contexts} contexts of "
            "the log."
        )
    longest = max(map(len, target["lists"]))
    codes = torch.full((log.n_contexts, max(longest, 1)), -1, dtype=torch.int64)
    for place, actions in enumerate(target["lists"]):
        encoded = log.actions.vocabulary.encode(list(actions)) if len(actions) else np.empty(0, np.int32)
        if (encoded < 0).any():
            unknown = list(actions)[int(np.argmax(encoded < 0))]
            raise ParameterError(
                f"Policy {name!r} lists action {unknown!r} for context {place}, but the log has no such action. "
                "Give the log the full list of actions."
            )
        distinct = encoded[np.sort(np.unique(encoded, return_index=True)[1])]  # an id that is listed twice counts once
        codes[place, : len(distinct)] = torch.from_numpy(distinct.astype(np.int64))
    return TopKPolicy(log.actions, digest(log.context_hashes), codes, float(target.get("residual", 0.05)))


def _check_distributions(probs: Tensor) -> None:
    total = probs.double().sum(1)
    off = ~((total - 1).abs() <= SUM_TOLERANCE) | (probs < 0).any(1)
    if bool(off.any()):
        place = int(off.nonzero()[0])
        raise ParameterError(
            f"A policy's probabilities must be non-negative and sum to 1 in every context, but those of one context "
            f"(number {place} of those asked for) sum to {float(total[place]):.6g}. Normalise them."
        )
