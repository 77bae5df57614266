"""One of the k best actions of a linear model at random, k learned."""

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from offpolicy.errors import ParameterError
from offpolicy.log import LoggedData
from offpolicy.models import Batch, Scorer, candidate_logits, linear_scorer, with_candidate_features
from offpolicy.policies import Policy, RandomTopK, soft_top_k, tensor, with_backoff
from offpolicy.propensity.config import FitConfig, FitOutcome
from offpolicy.propensity.likelihood import start_at_popularity
from offpolicy.propensity.model import FittedModel
from offpolicy.propensity.training import quick, train

MOST_NUMBERS = 40_000_000
"""Contexts × actions beyond which this family, which takes all actions at once, is refused."""
START, STEP = 3.0, 1e-1


class TopKModel:
    """A linear scorer under a soft top-k, as `train` takes it."""

    def __init__(self, scorer: Scorer, log: LoggedData) -> None:
        """Start from popularity and k = 3."""
        self.scorer = scorer
        self.log_k = nn.Parameter(torch.tensor(math.log(min(START, max(1.5, log.n_actions / 2)))))
        self._most = math.log(max(2.0, 0.9 * int((log.action_count > 0).sum())))
        self._unseen = tensor(log.action_count) == 0
        start_at_popularity(scorer, log)

    def optimiser(self) -> torch.optim.Optimizer:
        """Adam over the scorer and k."""
        return torch.optim.Adam([*self.scorer.parameters(), self.log_k], lr=STEP)

    @property
    def k(self) -> Tensor:
        """How many actions are alike."""
        return self.log_k.exp()

    def total(self, batch: Batch, weight: Tensor) -> Tensor:
        """Σ of the rows' log β̂."""
        self._keep_k_within_limits()
        weights, bias = self.scorer.actions()
        states, offered = batch.states(self.scorer), batch.offered(self.scorer)
        if offered is not None:
            place = torch.arange(len(bias)).masked_fill(self._unseen, -1)
            column = offered.place(batch.row_context, batch.row_action)
            scores = candidate_logits(states, weights, bias, offered.within(place))[batch.row_context]
            return (soft_top_k(scores, self.k)[torch.arange(len(column)), column] * weight).sum()
        scores = torch.addmm(bias, states, weights.T).masked_fill(self._unseen, -torch.inf)
        return (soft_top_k(scores, self.k)[batch.row_context, batch.row_action] * weight).sum()

    def end_epoch(self) -> None:
        """k stays within its limits."""
        self._keep_k_within_limits()

    @torch.no_grad()
    def _keep_k_within_limits(self) -> None:
        """Put k back after a step; were it cut in `k` instead, it would have no gradient to come back by."""
        self.log_k.clamp_(0.05, self._most)

    def policy(self, log: LoggedData) -> Policy:
        """The soft top-k as it is now."""
        return with_backoff(RandomTopK(self.scorer, float(self.k.detach()), log.actions, self._unseen), log)

    def state(self) -> Any:
        """Weights and k."""
        return copy.deepcopy(self.scorer.state_dict()), self.log_k.detach().clone()

    def restore(self, state: Any) -> None:
        """Go back."""
        self.scorer.load_state_dict(state[0])
        with torch.no_grad():
            self.log_k.copy_(state[1])


@dataclass(frozen=True)
class TopK:
    """The family."""

    name: str = "top_k"

    def fit(
        self, log: LoggedData, held_out: LoggedData | None, chosen: FitOutcome | None, config: FitConfig
    ) -> tuple[FittedModel, FitOutcome]:
        """Minibatches until held-out rows get no more likely."""
        if log.n_contexts * log.width > MOST_NUMBERS:
            raise ParameterError(
                f"The top_k model takes all actions of every context at once: {log.n_contexts:,} contexts × "
                f"{log.n_actions:,} actions are more than {MOST_NUMBERS:,}. Take 'greedy_linear' or 'network' instead."
            )
        model = TopKModel(with_candidate_features(linear_scorer(log), log), log)
        outcome = train(model, log, held_out, quick(config), chosen)
        return FittedModel(model.policy(log)), outcome


TOP_K = TopK()
