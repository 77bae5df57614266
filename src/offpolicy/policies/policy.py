"""What a policy is: probabilities over the actions of its own table, for a table of contexts.

A policy carries its action table. Where it meets a log it is aligned to the log's table by id, once (`aligned`); after
that, codes agree.
"""

import warnings
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.log import ActionTable, Candidates, FeatureTable, LogBatch, LoggedData, pieces
from offpolicy.models import offered_of

NAMED = 5  # actions that a message names


@runtime_checkable
class Policy(Protocol):
    """Anything with log-probabilities over the actions of a table."""

    @property
    def actions(self) -> ActionTable:
        """The actions it chooses among; the columns of `log_probs` follow their codes."""
        ...

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """log π(a|x), shape (contexts, actions); each row's probabilities sum to 1."""
        ...


@runtime_checkable
class RowPolicy(Protocol):
    """A policy with a quicker way to the logged rows than through all actions of their contexts."""

    def logged_log_prob(self, log: LoggedData) -> Tensor:
        """log π(a_n|x_n) of every logged row, float64."""
        ...


@runtime_checkable
class PlacedPolicy(Protocol):
    """A policy that knows its contexts by their place in the log rather than by their features."""

    def log_probs_at(self, contexts: slice) -> Tensor:
        """log π(·|x) of the contexts at these places."""
        ...


def tensor(array: Any) -> Tensor:
    """A torch view of a (possibly read-only) NumPy array, without a copy; callers never write to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(np.asarray(array))


def row_weights(log: LoggedData) -> Tensor | None:
    """How many events each row of a log stands for; None where each stands for one."""
    return None if log.row_weight is None else tensor(log.row_weight)


def rows_only(policy: Policy) -> bool:
    """Whether a policy is known by the probabilities of logged actions alone, without those of the others."""
    return bool(getattr(policy, "rows_only", False))


@runtime_checkable
class ChoosingPolicy(Protocol):
    """A policy that knows how it chooses among the candidates of a context."""

    def log_probs_among(self, contexts: FeatureTable) -> Tensor:
        """log π(a|x, candidates), shape (contexts, width); −inf beyond a set's end."""
        ...


def choice_log_probs(policy: Policy, contexts: FeatureTable) -> Tensor:
    """log π of what each context offers: of all actions, (contexts, actions), or of its candidates, (contexts, width).

    A policy that was not made for candidates keeps to its probabilities, renormalised over those on offer.
    """
    candidates = contexts.candidates
    if candidates is None:
        return policy.log_probs(contexts)
    if isinstance(policy, ChoosingPolicy):
        return policy.log_probs_among(contexts)
    parts = []
    for part in pieces(contexts.n_rows, len(policy.actions)):
        some = contexts.take(part)
        assert some.candidates is not None
        found = among(policy.log_probs(some), some.candidates, policy.actions)
        parts.append(torch.nn.functional.pad(found, (0, candidates.width - found.shape[1]), value=-torch.inf))
    return torch.cat(parts)


def among(log_probs: Tensor, candidates: Candidates, actions: ActionTable) -> Tensor:
    """log π of all actions of a table as log π of the candidates, renormalised; (contexts, width)."""
    offered = offered_of(candidates, actions.vocabulary)
    return over_candidates(log_probs.gather(1, offered.actions).masked_fill(~offered.real, -torch.inf), candidates)


def over_candidates(scores: Tensor, candidates: Candidates) -> Tensor:
    """The log-softmax of scores (contexts, width); all candidates alike where none of them is possible."""
    return possible(scores, candidates).log_softmax(1)


def possible(scores: Tensor, candidates: Candidates) -> Tensor:
    """The scores, with all candidates of a context alike where none of them is possible."""
    none = (scores == -torch.inf).all(1)
    if not bool(none.any()):
        return scores
    real = torch.from_numpy(candidates.padded() >= 0)
    return scores.where(~none.unsqueeze(1) | ~real, 0.0)


def all_log_probs(policy: Policy, contexts: FeatureTable) -> Tensor:
    """log π as (contexts, actions) whatever is on offer: −inf for actions that are not."""
    found = choice_log_probs(policy, contexts)
    if contexts.candidates is None:
        return found
    actions = torch.from_numpy(contexts.candidates.padded(policy.actions.vocabulary))
    result = found.new_full((len(found), len(policy.actions) + 1), -torch.inf)
    return result.scatter_(1, actions.where(actions >= 0, len(policy.actions)), found)[:, :-1]


def batch_log_probs(policy: Policy, log: LoggedData, batch: LogBatch) -> Tensor:
    """log π of what a batch's contexts offer, (contexts, width); rows point at `batch.row_place`."""
    if isinstance(policy, PlacedPolicy):
        found = policy.log_probs_at(batch.contexts)
        return found if log.candidates is None else among(found, log.candidates.take(batch.contexts), policy.actions)
    return choice_log_probs(policy, log.contexts.take(batch.contexts))


def logged_log_prob(policy: Policy, log: LoggedData) -> Tensor:
    """log π(a_n|x_n) of every logged row, float64, one batch of contexts at a time."""
    policy = aligned(policy, log.actions)
    if isinstance(policy, RowPolicy):
        return policy.logged_log_prob(log)
    result = torch.empty(log.n_rows, dtype=torch.float64)
    for batch in log.batches():
        log_probs = batch_log_probs(policy, log, batch)
        result[batch.rows] = log_probs[batch.row_context, batch.row_place].double()
    return result


def drawn_actions(log_probs: Tensor, row: Tensor, uniform: Tensor) -> Tensor:
    """An action for each row from the distribution of its context, by inverting its CDF at a uniform number.

    `log_probs` is (contexts, actions), `row` the context of each row. Rows are taken in pieces, so that no more than
    the size of a few million numbers is made of them.
    """
    below = log_probs.double().exp().cumsum(1)
    last = below.shape[1] - 1
    drawn = torch.empty(len(row), dtype=torch.int64)
    for part in torch.split(torch.arange(len(row)), max(1, (1 << 22) // below.shape[1])):
        own = below[row[part]]
        drawn[part] = torch.searchsorted(own, (uniform[part] * own[:, -1])[:, None], right=True).squeeze(1)
    return drawn.clamp(max=last)


def aligned(policy: Policy, actions: ActionTable, name: str = "policy") -> Policy:
    """The policy with its actions in the order of another table, matched by id.

    An action that the policy does not know has probability 0; one that the table does not hold is an error, because
    the policy's mass on it would be lost.
    """
    own = policy.actions
    if own is actions or own.vocabulary == actions.vocabulary:
        return policy
    check_holds(actions, own, name)
    if isinstance(policy, _Realigned):
        return policy.aligned(actions)
    return AlignedPolicy(policy, actions)


def check_holds(actions: ActionTable, own: ActionTable, name: str = "policy") -> None:
    """Refuse a table that lacks actions of a policy."""
    missing = np.flatnonzero(actions.vocabulary.encode(own.vocabulary.ids) < 0)
    if missing.size:
        raise ParameterError(
            f"The policy {name!r} also chooses actions that are not in the log's table: {named(own, missing)}. "
            "Read the log with actions=policy.actions, or with the full list of actions."
        )


@runtime_checkable
class _Realigned(Protocol):
    def aligned(self, actions: ActionTable) -> Policy:
        """Itself over another table that holds all its actions."""
        ...


@dataclass(frozen=True)
class AlignedPolicy:
    """A policy whose columns follow another action table."""

    base: Policy
    actions: ActionTable

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """The base's columns in the table's order; −inf for actions the base does not know."""
        log_probs = self.base.log_probs(contexts)
        impossible = log_probs.new_full((len(log_probs), 1), -torch.inf)
        codes = torch.from_numpy(self.base.actions.vocabulary.encode(self.actions.vocabulary.ids).astype(np.int64))
        return torch.cat([log_probs, impossible], 1)[:, codes]

    def log_probs_among(self, contexts: FeatureTable) -> Tensor:
        """Candidates carry their ids, so that the base knows its own."""
        return choice_log_probs(self.base, contexts)


def named(actions: ActionTable, codes: Any) -> str:
    """A few actions by the user's own ids."""
    listed = [int(code) for code in codes]
    shown = ", ".join(map(repr, actions.vocabulary.decode(listed[:NAMED])))
    return shown if len(listed) <= NAMED else f"{shown} and {len(listed) - NAMED} more"


def action_table(actions: ActionTable | int) -> ActionTable:
    """A table as it is; a number K stands for actions called 0..K−1, as in `LoggedData.from_arrays`."""
    return actions if isinstance(actions, ActionTable) else ActionTable.numbered(actions)


def rows_among(policy: Policy, log: LoggedData) -> Tensor:
    """log π of logged rows by what each context offers."""
    result = torch.empty(log.n_rows, dtype=torch.float64)
    for batch in log.batches():
        found = choice_log_probs(policy, log.contexts.take(batch.contexts))
        result[batch.rows] = found[batch.row_context, batch.row_place].double()
    return result
