"""Models without features: recorded propensities, uniform, popularity, counts of identical contexts."""

from collections.abc import Callable
from dataclasses import dataclass

from offpolicy.log import LoggedData
from offpolicy.policies import CountsPolicy, Policy, PopularityPolicy, RecordedPolicy, UniformPolicy, with_backoff
from offpolicy.propensity.config import FitConfig, FitOutcome
from offpolicy.propensity.model import FittedModel


@dataclass(frozen=True)
class Counted:
    """A policy that is read off the log."""

    name: str
    make: Callable[[LoggedData], Policy]

    def fit(
        self, log: LoggedData, held_out: LoggedData | None, chosen: FitOutcome | None, config: FitConfig
    ) -> tuple[FittedModel, FitOutcome]:
        """Read it off."""
        return FittedModel(self.make(log)), FitOutcome(1.0)


RECORDED = Counted("recorded", lambda log: RecordedPolicy(log.actions))
UNIFORM = Counted("uniform", lambda log: UniformPolicy(log.actions))
POPULARITY = Counted("popularity", lambda log: with_backoff(PopularityPolicy.fit(log), log))
COUNTS = Counted("counts", lambda log: with_backoff(CountsPolicy(log), log))
