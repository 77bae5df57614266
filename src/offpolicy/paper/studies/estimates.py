"""What the lines of a table are given about a log, estimated once for all of them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from offpolicy.log import LoggedData
from offpolicy.models import Normaliser
from offpolicy.paper.studies.lines import Entry, uninformed
from offpolicy.propensity import FitConfig, LoggingPolicy, fit_logging_policy
from offpolicy.rewards import CrossFittedRewards, RewardFitConfig, fit_reward_model
from offpolicy.seeding import torch_generator
from offpolicy.uncertainty import Normalisation, row_uncertainty


@dataclass(frozen=True)
class Estimates:
    """β̂, U and q̂ of a log, each made when first asked for."""

    log: LoggedData
    seed: int
    fit: FitConfig | None = None
    rewards_fit: RewardFitConfig | None = None
    normaliser: Normaliser | None = None
    normalisation: Normalisation = "raw"

    @cached_property
    def logging(self) -> LoggingPolicy:
        """β̂, linear."""
        return fit_logging_policy(self.log, "linear", config=self.fit, normaliser=self.normaliser, seed=self.seed)

    @cached_property
    def own(self) -> Tensor:
        """U of each row."""
        return row_uncertainty(self.logging, normalisation=self.normalisation)

    @cached_property
    def rewards(self) -> CrossFittedRewards:
        """q̂, linear and cross-fitted."""
        config = self.rewards_fit or RewardFitConfig(seed=self.seed, show_progress=False)
        return fit_reward_model(self.log, "linear", config=config)

    def uncertainty(self, kind: str) -> Tensor:
        """U, or an uninformative one."""
        return uninformed(kind, self.own, self.log, torch_generator(self.seed, "permuted U"))

    def given(self, entry: Entry) -> dict[str, Any]:
        """What the entry's method asks for."""
        method, found = entry.method, dict[str, Any]()
        if method.needs_logging_policy:
            found["logging_policy"] = self.logging
        if method.needs_uncertainty:
            found["uncertainty"] = self.uncertainty(entry.uncertainty)
        if method.uses_reward_model and entry.searched:  # else it is the library's own, pessimistic about rare actions
            found["reward_model"] = self.rewards
        return found
