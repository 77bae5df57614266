"""What has to be estimated of a log, estimated once: β̂, its uncertainty U, and the reward model q̂.

Each is fitted on first use and kept, so that learning, evaluation, comparison, tuning and report share one set.
"""

from typing import Any

from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.log import LoggedData
from offpolicy.policies import Policy, logged_log_prob
from offpolicy.propensity import LoggingPolicy, fit_logging_policy
from offpolicy.rewards import PooledRewardModel, RewardFitConfig, RewardModel, fit_reward_model
from offpolicy.uncertainty import Form, Normalisation, row_uncertainty, uncertainty_of


class Nuisances:
    """β̂, U and q̂ of one log; what is given is taken, the rest is fitted when first asked for."""

    def __init__(
        self,
        log: LoggedData,
        *,
        model: Any = "auto",
        logging_policy: Policy | None = None,
        uncertainty: Tensor | None = None,
        reward_model: RewardModel | None = None,
        seed: int = 0,
    ) -> None:
        """`model` names the model of β̂ to fit where no `logging_policy` is given."""
        self.log, self.model, self.seed = log, model, seed
        self._logging, self._reward_model = logging_policy, reward_model
        self._given_uncertainty = uncertainty
        self._uncertainty: dict[tuple[Form, Normalisation], Tensor] = {}

    @property
    def logging_policy(self) -> Policy:
        """β̂: the one given, or fitted to the log."""
        if self._logging is None:
            self._logging = fit_logging_policy(self.log, self.model, seed=self.seed)
        return self._logging

    @property
    def log_logging(self) -> Tensor:
        """log β̂(a_n|x_n) of every row, float64."""
        return logged_log_prob(self.logging_policy, self.log)

    def uncertainty(self, form: Form = "per_action", normalisation: Normalisation = "raw") -> Tensor:
        """U of every row: the one given, or that of a fitted β̂ in this form."""
        if self._given_uncertainty is not None:
            return self._given_uncertainty
        beta = self.logging_policy
        if not isinstance(beta, LoggingPolicy):
            raise ParameterError(
                "The uncertainty of β̂ can be computed for a policy fitted by fit_logging_policy only. Pass one, or "
                "pass `uncertainty` with one number a row."
            )
        key = (form, normalisation)
        if key not in self._uncertainty:
            self._uncertainty[key] = row_uncertainty(beta, form, normalisation=normalisation)
        return self._uncertainty[key]

    def uncertainty_of(
        self, log: LoggedData, form: Form = "per_action", normalisation: Normalisation = "raw"
    ) -> Tensor | None:
        """U of the rows of another log under a fitted β̂; None where U was given row by row or β̂ was not fitted."""
        beta = self.logging_policy
        if self._given_uncertainty is not None or not isinstance(beta, LoggingPolicy):
            return None
        return uncertainty_of(beta.whole, beta.log, log, form, normalisation=normalisation)

    @property
    def reward_model(self) -> RewardModel:
        """q̂ for evaluation: the one given, or the pooled linear model."""
        if self._reward_model is None:
            design = self.logging_policy.whole.design if isinstance(self.logging_policy, LoggingPolicy) else None
            self._reward_model = PooledRewardModel.fit(self.log, design)
        return self._reward_model

    def cross_fitted_rewards(self, scorer: Any, config: RewardFitConfig | None = None) -> RewardModel:
        """q̂ for learning: the one given, or cross-fitted with the policy's architecture."""
        if self._reward_model is None:
            self._reward_model = fit_reward_model(self.log, scorer, config=config or RewardFitConfig(seed=self.seed))
        return self._reward_model
