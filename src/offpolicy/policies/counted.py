"""Policies that are counted from a log: popularity, counts of contexts, and the back-off to popularity."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offpolicy.log import (
    ActionTable,
    Candidates,
    FeatureTable,
    LoggedData,
    table_hashes,
)
from offpolicy.models import log_softmax_of_some
from offpolicy.policies.policy import (
    Policy,
    choice_log_probs,
    logged_log_prob,
    over_candidates,
    rows_among,
    tensor,
)

LUCE_STEPS = 200
"""Most rounds in which shares of popularity are sought where sets of candidates vary."""


@dataclass(frozen=True)
class PopularityPolicy:
    """Each action as often as it was logged, whatever the context."""

    actions: ActionTable
    log_frequency: Tensor  # (actions,)

    @classmethod
    def fit(cls, log: LoggedData) -> "PopularityPolicy":
        """Frequencies of the logged actions; never-logged ones have none (see `WithBackoff`).

        With candidates, the shares that make the logged choices likeliest (Luce's): a rarely offered action may be
        popular.
        """
        if log.candidates is None:
            return cls(log.actions, (tensor(log.action_weight) / log.n_events).log())
        return cls(log.actions, torch.from_numpy(_luce_shares(log, log.candidates)).log())

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """The same row for every context."""
        return self.log_frequency.expand(contexts.n_rows, -1)

    def log_probs_among(self, contexts: FeatureTable) -> Tensor:
        """The shares of the candidates, renormalised."""
        assert contexts.candidates is not None
        actions = torch.from_numpy(contexts.candidates.padded(self.actions.vocabulary))
        scores = self.log_frequency[actions.clamp(min=0)].masked_fill(actions < 0, -torch.inf)
        return over_candidates(scores, contexts.candidates)

    def logged_log_prob(self, log: LoggedData) -> Tensor:
        """Logged rows, without a look at the other actions."""
        if log.candidates is not None:
            return rows_among(self, log)
        return self.log_frequency[tensor(log.action).long()].double()


def _luce_shares(log: LoggedData, candidates: Candidates) -> npt.NDArray[np.float64]:
    """p_a = n_a/Σ_{sets with a} 1/Σ_{b in the set} p_b, found by repeating it (minorisation–maximisation)."""
    count, codes, owner = log.action_weight, candidates.codes, candidates.owner
    share: npt.NDArray[np.float64] = count / count.sum()
    for _ in range(LUCE_STEPS):
        mass = np.bincount(owner, share[codes], len(candidates))
        rate = np.divide(log.context_weight, mass, out=np.zeros(len(mass)), where=mass > 0)
        chances = np.bincount(codes, rate[owner], log.n_actions)
        found = np.divide(count, chances, out=np.zeros(len(count)), where=(count > 0) & (chances > 0))
        found = np.asarray(found / found.sum())
        if np.abs(found - share).max() < 1e-9:
            return found
        share = found
    return share


class CountsPolicy:
    """Counts over identical contexts, N(x, a)/N(x), each smoothed by `prior` pseudo-counts of popularity.

    With `prior` = 0 it is the paper's DICE-S estimate, which knows nothing of actions a context was never shown.
    Contexts that were not in the log have popularity alone.
    """

    def __init__(self, log: LoggedData, prior: float = 1.0) -> None:
        """Count the log; contexts are known by their content."""
        self.prior = prior
        self.popularity = PopularityPolicy.fit(log)
        pair = log.context_index.astype(np.int64) * log.n_actions + log.action
        pairs, place = np.unique(pair, return_inverse=True)
        context, self._action = np.divmod(pairs, log.n_actions)
        self._counts = np.bincount(place, log.row_weight, len(pairs)).astype(np.float64)
        self._starts = np.searchsorted(context, np.arange(log.n_contexts + 1))
        self._total = log.context_weight
        self._order = np.argsort(log.context_hashes, kind="stable")
        self._known = log.context_hashes[self._order]

    @property
    def actions(self) -> ActionTable:
        """Those of the log."""
        return self.popularity.actions

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """Smoothed counts of the contexts that were in the log."""
        hashes = table_hashes(contexts, contexts.n_rows)
        nearest = np.searchsorted(self._known, hashes).clip(max=len(self._known) - 1)
        known = self._known[nearest] == hashes
        place = self._order[nearest][known]
        sizes = np.diff(self._starts)[place]
        entry = np.repeat(self._starts[place] - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
        counts = torch.zeros(contexts.n_rows, len(self.actions), dtype=torch.float64)
        counts[np.repeat(np.flatnonzero(known), sizes), self._action[entry]] = torch.from_numpy(self._counts[entry])
        total, pseudo = np.zeros(contexts.n_rows), np.where(known, self.prior, 1.0)
        total[known] = self._total[place]
        share = counts + torch.from_numpy(pseudo)[:, None] * self.popularity.log_frequency.exp()
        return (share / torch.from_numpy(total + pseudo)[:, None]).log()


@dataclass(frozen=True)
class WithBackoff:
    """A model over the logged actions, with an explicit share of mass for those never logged, spread evenly.

    The share is the Good–Turing estimate of what was not seen: actions logged exactly once, over rows.
    """

    base: Policy
    unseen: Tensor  # (actions,) bool
    mass: float

    @property
    def actions(self) -> ActionTable:
        """Those of the model."""
        return self.base.actions

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """The model's probabilities renormalised over seen actions, and the back-off elsewhere."""
        seen = self.base.log_probs(contexts).masked_fill(self.unseen, -torch.inf).log_softmax(1)
        return (seen + math.log1p(-self.mass)).masked_fill(self.unseen, self.log_backoff)

    def log_probs_among(self, contexts: FeatureTable) -> Tensor:
        """The same with the candidates that were seen and those that were not, renormalised."""
        assert contexts.candidates is not None
        actions = torch.from_numpy(contexts.candidates.padded(self.actions.vocabulary))
        unseen = self.unseen[actions.clamp(min=0)] & (actions >= 0)
        base = choice_log_probs(self.base, contexts).double().masked_fill(unseen | (actions < 0), -torch.inf)
        seen = log_softmax_of_some(base) + math.log1p(-self.mass)
        return over_candidates(seen.masked_fill(unseen, self.log_backoff), contexts.candidates)

    def logged_log_prob(self, log: LoggedData) -> Tensor:
        """Logged rows: the base already puts nothing on unseen actions where it was trained with them masked."""
        if log.candidates is not None:  # what is set aside depends on the candidates, never on the row alone
            return rows_among(self, log)
        action = tensor(log.action).long()
        log_prob = logged_log_prob(self.base, log) + math.log1p(-self.mass)
        return log_prob.masked_fill(self.unseen[action], self.log_backoff)

    @property
    def log_backoff(self) -> float:
        """log β̂ of one never-logged action."""
        return math.log(self.mass / int(self.unseen.sum()))


def with_backoff(policy: Policy, log: LoggedData) -> Policy:
    """The policy itself if every action was logged, else with some mass set aside for the others."""
    unseen = tensor(log.action_count) == 0
    if not bool(unseen.any()):
        return policy
    once = int((log.action_count == 1).sum())
    mass = min(max(once, 1) / (log.n_rows + 1), 0.5)
    return WithBackoff(policy, unseen, mass)
