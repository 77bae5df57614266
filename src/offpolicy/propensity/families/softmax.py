"""The softmax of a scorer: linear, with products of features, two towers, or a scorer of one's own."""

from collections.abc import Callable
from dataclasses import dataclass

from offpolicy.log import LoggedData
from offpolicy.models import Normaliser, Scorer, linear_scorer, two_tower_scorer, with_candidate_features
from offpolicy.propensity.config import FitConfig, FitOutcome
from offpolicy.propensity.likelihood import fit_softmax, softmax_policy
from offpolicy.propensity.model import FittedModel

ScorerMaker = Callable[[LoggedData, int], Scorer]
"""Makes a fresh, untrained scorer for a log from a seed."""


@dataclass(frozen=True)
class Softmax:
    """A scorer's softmax, fitted by likelihood."""

    name: str
    make: ScorerMaker
    normaliser: Normaliser | None = None

    def fit(
        self, log: LoggedData, held_out: LoggedData | None, chosen: FitOutcome | None, config: FitConfig
    ) -> tuple[FittedModel, FitOutcome]:
        """Maximum likelihood with a ridge, or as many epochs as held-out rows gain from."""
        scorer = with_candidate_features(self.make(log, config.seed), log)
        outcome = fit_softmax(scorer, log, held_out, config, self.normaliser, chosen)
        ridge = outcome.ridge if outcome.ridge > 0 else 1.0
        return FittedModel(softmax_policy(scorer, log), scorer, ridge), outcome


LINEAR = Softmax("linear", lambda log, seed: linear_scorer(log))
QUADRATIC = Softmax("quadratic", lambda log, seed: linear_scorer(log, quadratic=True))
TWO_TOWER = Softmax("two_tower", lambda log, seed: two_tower_scorer(log, seed=seed))
