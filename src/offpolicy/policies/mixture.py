"""Mixtures of policies, and policies that choose at random among the best of a linear model."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from offpolicy.errors import ParameterError
from offpolicy.log import ActionTable, BagColumn, CategoricalColumn, FeatureTable, LoggedData
from offpolicy.models import IdColumn, Scorer, candidate_logits, offered_in
from offpolicy.policies.policy import Policy, choice_log_probs, logged_log_prob, possible, tensor

STEPS = 24
"""Halvings that find the threshold of a soft top-k."""


@dataclass(frozen=True)
class NewIds:
    """Other weights for contexts that hold an id the members never saw."""

    columns: tuple[IdColumn, ...]
    weights: Tensor  # (members,)

    def are_new(self, contexts: FeatureTable) -> Tensor:
        """Whether each context holds such an id."""
        new = torch.zeros(contexts.n_rows, dtype=torch.bool)
        for column in self.columns:
            own = contexts[column.name]
            assert isinstance(own, CategoricalColumn | BagColumn)
            unknown = column.ids.table(own.vocabulary)[own.codes] >= len(column.ids)
            if isinstance(own, BagColumn):
                owner = np.repeat(np.arange(len(own)), np.diff(own.offsets))
                new[owner[unknown]] = True
            else:
                new |= torch.from_numpy(unknown)
        return new


class MixturePolicy:
    """β(a|x) = Σ_m w_m β_m(a|x)."""

    def __init__(self, members: Sequence[Policy], weights: Tensor, new_ids: NewIds | None = None) -> None:
        """Members over one action table with weights that sum to 1."""
        total = float(weights.sum())
        if len(members) != len(weights) or bool((weights < 0).any()) or not abs(total - 1) <= 1e-6:
            raise ParameterError(f"A mixture needs one weight a member, summing to 1; they sum to {total:g}.")
        self.members, self.weights, self.new_ids = tuple(members), weights.double(), new_ids

    @property
    def actions(self) -> ActionTable:
        """Those of its members."""
        return self.members[0].actions

    def log_weights(self, contexts: FeatureTable) -> Tensor:
        """log w_m of each context, (contexts or 1, members)."""
        known = self.weights.log()[None]
        if self.new_ids is None:
            return known
        return torch.where(self.new_ids.are_new(contexts)[:, None], self.new_ids.weights.double().log(), known)

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """The logarithm of the weighted sum."""
        log_weights = self.log_weights(contexts)
        total = torch.full((), -torch.inf, dtype=torch.float64)
        for m, member in enumerate(self.members):
            total = torch.logaddexp(total, member.log_probs(contexts).double() + log_weights[:, m, None])
        return total

    def log_probs_among(self, contexts: FeatureTable) -> Tensor:
        """The weighted sum of what each member would choose among the candidates."""
        log_weights = self.log_weights(contexts)
        total = torch.full((), -torch.inf, dtype=torch.float64)
        for m, member in enumerate(self.members):
            total = torch.logaddexp(total, choice_log_probs(member, contexts).double() + log_weights[:, m, None])
        return total

    def member_log_probs(self, log: LoggedData) -> Tensor:
        """log w_m β_m of every logged row, (rows, members)."""
        own = torch.stack([logged_log_prob(member, log) for member in self.members], 1)
        return own + self.row_log_weights(log)

    def row_log_weights(self, log: LoggedData) -> Tensor:
        """log w_m of each logged row, (rows or 1, members)."""
        log_weights = self.log_weights(log.contexts)
        return log_weights if len(log_weights) == 1 else log_weights[tensor(log.context_index).long()]

    def logged_log_prob(self, log: LoggedData) -> Tensor:
        """Logged rows, through each member's own quick way."""
        return self.member_log_probs(log).logsumexp(1)


class RandomTopK:
    """One of about the k best actions of a linear model, each alike: β(a|x) = σ(f(x, a) − τ(x))/k with Σ β = 1."""

    def __init__(self, scorer: Scorer, k: float, actions: ActionTable, excluded: Tensor | None = None) -> None:
        """Take the scorer as it is now, without the excluded actions (a mask)."""
        self.scorer, self.k, self.actions = scorer, k, actions
        weights, bias = scorer.actions()
        self.weights, self.bias = weights.detach().clone(), bias.detach().clone()
        if excluded is not None:
            self.bias.masked_fill_(excluded, -torch.inf)

    @torch.no_grad()
    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """The soft top-k of the linear scores."""
        scores = torch.addmm(self.bias, self.scorer.states(contexts), self.weights.T)
        return soft_top_k(scores, torch.tensor(self.k)).double()

    @torch.no_grad()
    def log_probs_among(self, contexts: FeatureTable) -> Tensor:
        """The soft top-k of the candidates' scores."""
        assert contexts.candidates is not None
        offered = offered_in(contexts.candidates, self.scorer, self.actions.vocabulary)
        scores = candidate_logits(self.scorer.states(contexts), self.weights, self.bias, offered)
        return soft_top_k(possible(scores, contexts.candidates), torch.tensor(self.k)).double()


def soft_top_k(scores: Tensor, k: Tensor) -> Tensor:
    """log σ(f − τ) − log k with τ such that the chances sum to 1; differentiable in scores and k.

    τ is found by halving; its gradient is that of the implicit function Σ σ(f − τ) = k.
    """
    limit = k.detach()
    with torch.no_grad():
        finite = scores.isfinite()
        low = scores.masked_fill(~finite, torch.inf).amin(1, keepdim=True) - 10
        high = scores.amax(1, keepdim=True) + 10
        for _ in range(STEPS):
            middle = (low + high) / 2
            above = torch.sigmoid(scores - middle).sum(1, keepdim=True) > limit
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        threshold = (low + high) / 2
    if torch.is_grad_enabled() and (scores.requires_grad or k.requires_grad):
        chance = torch.sigmoid(scores - threshold)
        slope = (chance * (1 - chance)).sum(1, keepdim=True).detach().clamp(min=1e-6)
        off = chance.sum(1, keepdim=True) - k
        threshold = threshold + (off - off.detach()) / slope
    result = logsigmoid(scores - threshold)
    return result - result.logsumexp(1, keepdim=True)
