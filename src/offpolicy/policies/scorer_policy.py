"""The softmax of a scorer, as learned and saved policies are."""

import numpy as np
import torch
from torch import Tensor

from offpolicy.log import ActionTable, FeatureTable, LoggedData
from offpolicy.models import Scorer, candidate_logits, offered_in, softmax_log_prob
from offpolicy.policies.policy import check_holds, over_candidates


class ScorerPolicy:
    """The softmax of a scorer as it is now: later training does not change it."""

    def __init__(self, scorer: Scorer, actions: ActionTable, excluded: Tensor | None = None) -> None:
        """Take the actions' side of the scorer once, without the excluded actions (a mask)."""
        self.scorer, self.actions = scorer, actions
        self.scorer.eval()
        with torch.no_grad():
            weights, bias = scorer.actions()
        self.weights, self.bias = weights.detach().clone(), bias.detach().clone()
        if excluded is not None:
            self.bias.masked_fill_(excluded, -torch.inf)

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return len(self.weights)

    def aligned(self, actions: ActionTable) -> "ScorerPolicy":
        """The same policy over another table that holds all its actions; those it does not know are excluded."""
        check_holds(actions, self.actions)
        codes = torch.from_numpy(self.actions.vocabulary.encode(actions.vocabulary.ids).astype(np.int64))
        other = ScorerPolicy(self.scorer, actions)
        other.weights = self.weights[codes.clamp(min=0)]
        other.bias = self.bias[codes.clamp(min=0)].masked_fill(codes < 0, -torch.inf)
        return other

    @torch.no_grad()
    def states(self, contexts: FeatureTable) -> Tensor:
        """The scorer's state of each context, in evaluation mode."""
        self.scorer.eval()
        return self.scorer.states(contexts)

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """log π(·|x) by the full softmax."""
        return torch.addmm(self.bias, self.states(contexts), self.weights.T).log_softmax(1)

    @torch.no_grad()
    def candidate_logits(self, contexts: FeatureTable) -> Tensor:
        """The logits of the candidates, (contexts, width); −inf for those it does not know or excludes."""
        assert contexts.candidates is not None
        offered = offered_in(contexts.candidates, self.scorer, self.actions.vocabulary)
        return candidate_logits(self.states(contexts), self.weights, self.bias, offered)

    def log_probs_among(self, contexts: FeatureTable) -> Tensor:
        """log π over the candidates, by the ragged softmax."""
        assert contexts.candidates is not None
        return over_candidates(self.candidate_logits(contexts), contexts.candidates)

    def logged_log_prob(self, log: LoggedData) -> Tensor:
        """log π(a_n|x_n) through the exact head: contexts in batches, rows by gathering."""
        result = torch.empty(log.n_rows, dtype=torch.float64)
        if log.candidates is not None:
            for batch in log.batches(width=self.weights.shape[1] + log.width):
                found = self.log_probs_among(log.contexts.take(batch.contexts))
                result[batch.rows] = found[batch.row_context, batch.row_place].double()
            return result
        for batch in log.batches(width=self.weights.shape[1]):
            states = self.states(log.contexts.take(batch.contexts))
            rows = (torch.from_numpy(batch.row_context), torch.from_numpy(batch.row_action))
            result[batch.rows] = softmax_log_prob(states, self.weights, self.bias, *rows).double()
        return result
