"""Greedy plus exploration: β = (1 − ε)·softmax + ε₁·uniform + ε₂·popularity, sharpness and ε learned together.

The gradient of log β is that of the softmax times the chance that the row came from it, so the exact head does the
work; ε follows from the same chances once a pass (expectation–maximisation).
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from offpolicy.log import LoggedData
from offpolicy.models import (
    Batch,
    CandidateScorer,
    NetworkScorer,
    Scorer,
    linear_scorer,
    network_scorer,
    weighted_log_likelihood,
    with_candidate_features,
)
from offpolicy.policies import (
    MixturePolicy,
    Policy,
    PopularityPolicy,
    ScorerPolicy,
    logged_log_prob,
    tensor,
    with_backoff,
)
from offpolicy.propensity.config import FitConfig, FitOutcome
from offpolicy.propensity.likelihood import start_at_popularity
from offpolicy.propensity.model import FittedModel
from offpolicy.propensity.training import quick, train

START = (0.9, 0.05, 0.05)
"""Shares of softmax, uniform and popularity before the first pass."""
LEAST = 1e-5
"""The least share of each."""
POOLING = 30.0
"""Pull of an id's embedding towards zero, as the precision of a normal prior."""
NETWORK_STEP, LINEAR_STEP, TOWERS_STEP = 4e-3, 3e-2, 1e-2


@dataclass
class ExploringSoftmax:
    """A scorer's softmax with exploration beside it, as `train` takes it."""

    scorer: Scorer
    log: LoggedData
    step: float
    shares: Tensor = field(default_factory=lambda: torch.tensor(START, dtype=torch.float64))

    def __post_init__(self) -> None:
        """Exploration covers the actions this log shows."""
        seen = tensor(self.log.action_count) > 0
        uniform = torch.where(seen, -math.log(int(seen.sum())), -math.inf).double()
        self._explored = torch.stack([uniform, PopularityPolicy.fit(self.log).log_frequency])
        self._explored_rows: Tensor | None = None
        if self.log.candidates is not None:
            beside = [logged_log_prob(PopularityPolicy(self.log.actions, each), self.log) for each in self._explored]
            self._explored_rows = torch.stack(beside)
        self._sums = torch.zeros(3, dtype=torch.float64)
        self._events = tensor(self.log.context_weight).float()

    def optimiser(self) -> torch.optim.Optimizer:
        """Adam over the scorer."""
        return torch.optim.Adam(self.scorer.parameters(), lr=self.step)

    def total(self, batch: Batch, weight: Tensor) -> Tensor:
        """Σ of the rows' log β̂ in gradient."""
        log_shares = self.shares.log()
        rows = self._explored_rows
        beside = self._explored[:, batch.row_action] if rows is None else rows[:, batch.rows]
        explored = (beside + log_shares[1:, None]).float()

        def from_softmax(log_prob: Tensor, numbers: Any) -> Tensor:
            parts = torch.stack([log_prob + float(log_shares[0]), *explored[:, numbers]])
            shares = parts.softmax(0)
            self._sums += (shares * weight[numbers]).sum(1).double()
            return shares[0] * weight[numbers]

        weights, bias = self.scorer.actions()
        states, offered = batch.states(self.scorer), batch.offered(self.scorer)
        taken = (batch.row_context, batch.row_action)
        value = weighted_log_likelihood(states, weights, bias, *taken, from_softmax, offered=offered)
        network = self.scorer.base if isinstance(self.scorer, CandidateScorer) else self.scorer
        if isinstance(network, NetworkScorer) and network.ids:
            events = self._events[batch.numbers]
            value = value - POOLING * network.pooling(batch.table, batch.numbers, events)
        return value

    def end_epoch(self) -> None:
        """The shares that this pass found."""
        shares = (self._sums / self._sums.sum()).clamp(min=LEAST)
        self.shares = shares / shares.sum()
        self._sums = torch.zeros(3, dtype=torch.float64)

    def policy(self, log: LoggedData) -> Policy:
        """The mixture as it is now."""
        softmax = ScorerPolicy(self.scorer, log.actions, tensor(log.action_count) == 0)
        explored = [PopularityPolicy(log.actions, each) for each in self._explored]
        return with_backoff(MixturePolicy([softmax, *explored], self.shares), log)

    def state(self) -> Any:
        """Weights and shares."""
        return copy.deepcopy(self.scorer.state_dict()), self.shares

    def restore(self, state: Any) -> None:
        """Go back."""
        self.scorer.load_state_dict(state[0])
        self.shares = state[1]


@dataclass(frozen=True)
class Exploring:
    """The softmax of a scorer with exploration beside it."""

    name: str
    make: Callable[[LoggedData, int], Scorer]
    step: float

    def fit(
        self, log: LoggedData, held_out: LoggedData | None, chosen: FitOutcome | None, config: FitConfig
    ) -> tuple[FittedModel, FitOutcome]:
        """Minibatches until held-out rows get no more likely."""
        model = ExploringSoftmax(with_candidate_features(self.make(log, config.seed), log), log, self.step)
        outcome = train(model, log, held_out, quick(config), chosen)
        return FittedModel(model.policy(log), model.scorer), outcome


def _linear(log: LoggedData, seed: int) -> Scorer:
    scorer = linear_scorer(log)
    start_at_popularity(scorer, log)
    return scorer


GREEDY_LINEAR = Exploring("greedy_linear", _linear, LINEAR_STEP)
NETWORK = Exploring("network", network_scorer, NETWORK_STEP)
TOWERS = Exploring("towers", lambda log, seed: network_scorer(log, seed, hidden=0), TOWERS_STEP)
"""Features as they are beside embeddings of ids, so that tastes of many users or items are pooled towards features."""
