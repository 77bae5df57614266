"""The lines of the learning tables: every method of the paper, and UIPS with what it claims to need taken away."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from offpolicy.experiments.learning_runs import ENTRIES, Entry
from offpolicy.learning import METHODS
from offpolicy.log import LoggedData
from offpolicy.logging_policy import FitConfig, LoggingPolicy, fit_logging_policy
from offpolicy.models.normalisers import Full
from offpolicy.models.reward_model import CrossFittedRewards, RewardFitConfig, fit_reward_model
from offpolicy.policies import tensor
from offpolicy.seeding import torch_generator
from offpolicy.tuning import Dial, Space, search_space
from offpolicy.uncertainty.factor import Normalisation
from offpolicy.uncertainty.rows import row_uncertainty

CAPS = Dial("weight_cap", 0.05, 100.0, log=True)
"""Where to look for the cap of IPS with true propensities, as for that of BIPS-Cap."""

LINES: Mapping[str, Entry] = {
    **ENTRIES,
    "uips_constant_phi": Entry("uips_constant_phi", METHODS["bips"], "UIPS, φ constant"),
}
"""A constant φ is a constant factor of every weight: BIPS, as far as Adam can tell."""


def space_of(line: Entry, learning_rates: tuple[float, float], n_actions: int) -> Space:
    """What tuning turns of a line; IPS with true propensities is capped like its estimated twin."""
    space = search_space(line.method, learning_rates=learning_rates, n_actions=n_actions)
    return (*space, CAPS) if line.method.name == "ips_gt" else space


@dataclass(frozen=True)
class Estimates:
    """β̂, U and q̂ of a log, each made when first asked for."""

    log: LoggedData
    seed: int
    fit: FitConfig
    rewards_fit: RewardFitConfig
    normalisation: Normalisation = "raw"

    @cached_property
    def logging(self) -> LoggingPolicy:
        """β̂: a linear softmax on the contexts as they are, by Adam over the exact softmax."""
        return fit_logging_policy(self.log, "linear", config=self.fit, normaliser=Full(), seed=self.seed)

    @cached_property
    def own(self) -> Tensor:
        """U of each row."""
        return row_uncertainty(self.logging, normalisation=self.normalisation)

    @cached_property
    def rewards(self) -> CrossFittedRewards:
        """q̂: linear and cross-fitted."""
        return fit_reward_model(self.log, "linear", config=self.rewards_fit)

    def uncertainty(self, kind: str) -> Tensor:
        """U; the same numbers in another order; or a function of the action's frequency alone."""
        if kind == "permuted":
            return self.own[torch.randperm(self.log.n_rows, generator=torch_generator(self.seed, "permuted U"))]
        if kind == "frequency":
            action = tensor(self.log.action).long()
            return torch.bincount(action, minlength=self.log.n_actions).double().rsqrt()[action]
        return self.own

    def given(self, line: Entry) -> dict[str, Any]:
        """What the line's method asks for."""
        method, found = line.method, dict[str, Any]()
        if method.needs_logging_policy:
            found["logging_policy"] = self.logging
        if method.needs_uncertainty:
            found["uncertainty"] = self.uncertainty(line.uncertainty)
        if method.uses_reward_model:
            found["reward_model"] = self.rewards
        return found
