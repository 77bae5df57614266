"""Boosted trees, and any scikit-learn classifier."""

from dataclasses import dataclass
from typing import Any

import torch

from offpolicy.errors import ParameterError
from offpolicy.log import LoggedData
from offpolicy.models import DesignMatrix
from offpolicy.policies import (
    ClassifierPolicy,
    MixturePolicy,
    PopularityPolicy,
    TreesPolicy,
    missing_trees,
    tree_columns,
    with_backoff,
)
from offpolicy.propensity.config import FitConfig, FitOutcome
from offpolicy.propensity.model import FittedModel

ROUNDS, PATIENCE = 60, 5
MOST_ROWS = 200_000
"""Rows the trees are grown on; of a longer log, a share of its groups."""
MOST_ACTIONS = 1_000
"""Each round grows a tree for every action; beyond so many actions the family is refused."""


@dataclass(frozen=True)
class Trees:
    """LightGBM's multi-class boosting, with a pseudo-count of popularity so that no logged action has probability 0."""

    name: str = "trees"

    def fit(
        self, log: LoggedData, held_out: LoggedData | None, chosen: FitOutcome | None, config: FitConfig
    ) -> tuple[FittedModel, FitOutcome]:
        """As many rounds as held-out rows gain from."""
        if missing := missing_trees():
            raise ParameterError(missing)
        actions = int((log.action_count > 0).sum())
        if actions > MOST_ACTIONS:
            raise ParameterError(
                f"Boosted trees grow one tree a round for each of {actions:,} actions, which takes hours beyond "
                f"{MOST_ACTIONS:,}. Take 'network', which learns thresholds too, or 'greedy_linear'."
            )
        if actions < 2 or not tree_columns(log.contexts):
            return FittedModel(with_backoff(PopularityPolicy.fit(log), log)), FitOutcome(1.0)
        if log.n_rows > MOST_ROWS:
            log = log.split((MOST_ROWS / log.n_rows, 1 - MOST_ROWS / log.n_rows), seed=config.seed)[0]
        rounds = ROUNDS if chosen is None else max(1, chosen.epochs)
        policy, kept = TreesPolicy.fit(log, held_out, rounds, PATIENCE, config.seed)
        return FittedModel(with_backoff(_never_zero(policy, log), log)), FitOutcome(1.0, kept)


def _never_zero(policy: TreesPolicy, log: LoggedData) -> MixturePolicy:
    share = 1 / (log.n_events + 1)
    return MixturePolicy([policy, PopularityPolicy.fit(log)], torch.tensor([1 - share, share], dtype=torch.float64))


@dataclass(frozen=True)
class Classifier:
    """A scikit-learn classifier given by the user."""

    classifier: Any

    @property
    def name(self) -> str:
        """Its class."""
        return type(self.classifier).__name__

    def fit(
        self, log: LoggedData, held_out: LoggedData | None, chosen: FitOutcome | None, config: FitConfig
    ) -> tuple[FittedModel, FitOutcome]:
        """Fit a copy of it."""
        design = DesignMatrix.fit(log.contexts)
        return FittedModel(with_backoff(ClassifierPolicy.fit(self.classifier, log, design), log)), FitOutcome(1.0)


TREES = Trees()
