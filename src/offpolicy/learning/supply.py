"""What a method needs and nobody gave: β̂, U and q̂ are fitted here, once, before learning."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.estimators import Hyper
from offpolicy.learning.config import LearnerConfig
from offpolicy.learning.methods import LOGGING_INPUTS, METHODS, Method
from offpolicy.learning.monitors import check_rows
from offpolicy.learning.rows import RowInputs, is_kept, row_inputs
from offpolicy.learning.surrogate import BatchValues, Plan
from offpolicy.log import LoggedData
from offpolicy.models import Batch, Scorer, Values
from offpolicy.policies import Policy, logged_log_prob
from offpolicy.propensity import LoggingPolicy, fit_logging_policy
from offpolicy.rewards import CrossFittedRewards, RewardFitConfig, RewardModel, fit_reward_model, row_rewards
from offpolicy.uncertainty import row_uncertainty, uncertainty_of


@dataclass(frozen=True)
class Supply:
    """The nuisances of one training."""

    log: LoggedData
    method: Method
    config: LearnerConfig
    hyper: Mapping[str, Hyper]
    given_logging: Policy | str | None = None
    given_uncertainty: Tensor | str | None = None
    given_rewards: RewardModel | None = None

    @property
    def _alternates(self) -> bool:
        return self.config.schedule == "alternate"

    @cached_property
    def logging(self) -> Policy | None:
        """β̂: the one given, one fitted with the policy's architecture, or None where nobody asks."""
        if isinstance(self.given_logging, str):
            return fit_logging_policy(self.log, self.given_logging, seed=self.config.seed)
        if self.given_logging is not None:
            return self.given_logging
        if self._alternates or not asks_for_logging(self.method, self.config):
            return None
        return fit_logging_policy(self.log, self.config.scorer, seed=self.config.seed)

    @cached_property
    def uncertainty(self) -> Tensor | None:
        """U of every row: given, or of a fitted β̂ in the form asked for."""
        if not self.method.needs_uncertainty or self._alternates:
            return None
        given = self.given_uncertainty
        if given is not None and not isinstance(given, str):
            return check_rows("uncertainty", given, self.log.n_rows)
        if not isinstance(self.logging, LoggingPolicy):
            raise ParameterError(
                f"Method {self.method.name!r} needs the uncertainty of β̂, which can be computed for a policy fitted by "
                "fit_logging_policy only. Pass one, or pass `uncertainty` with one number a row."
            )
        return row_uncertainty(self.logging, **self._form())

    def _form(self) -> dict[str, Any]:
        form = self.given_uncertainty if isinstance(self.given_uncertainty, str) else self.config.uncertainty_form
        options: dict[str, Any] = {"normalisation": "official" if self.config.unit_gradients else "raw"}
        return options if form is None else options | {"form": form}

    @cached_property
    def rewards(self) -> RewardModel | None:
        """q̂: given, or fitted with the policy's architecture and cross-fitted."""
        if not self.method.uses_reward_model:
            return None
        if self.given_rewards is not None:
            return self.given_rewards
        fit = RewardFitConfig(seed=self.config.seed, show_progress=self.config.show_progress)
        return fit_reward_model(self.log, self.config.scorer, config=fit)

    def inputs(self, dtype: torch.dtype) -> RowInputs:
        """The fixed quantities of every row of the log; β̂ and U follow later where they alternate."""
        wanted = self.method.inputs
        if self._alternates and "log_target_top" in wanted:
            raise ParameterError(
                f"{self.method.name!r} chooses actions by β̂ once, before learning. Use schedule='pretrained'."
            )
        logging = None if self._alternates else self.logging
        rows = row_inputs(
            wanted,
            self.log,
            dtype,
            log_logging=None if logging is None else logged_log_prob(logging, self.log),
            logging=logging,
            uncertainty=self.uncertainty,
            top_p=float(self.hyper.get("top_p", 100.0)),
            sample_size=self.config.sample_size,
        )
        model = self.rewards
        if model is not None:
            rows.put("imputed", row_rewards(model, self.log))
            if isinstance(model, CrossFittedRewards) and model.row_fold is not None and model.log.same_as(self.log):
                rows.put("fold", torch.from_numpy(model.row_fold))
                if is_kept(self.log) and model.context_rewards is not None:
                    rows.by_context["rewards"] = model.context_rewards
        return rows

    def other_inputs(self, log: LoggedData, dtype: torch.dtype, plan: Plan) -> tuple[RowInputs, Plan]:
        """The same for a validation log, and the plan that judges it: SNIPS where U of its rows is not known."""
        logging = self.logging
        if logging is None and self.method.inputs & LOGGING_INPUTS:
            raise ParameterError(
                "With schedule='alternate' a validation log has no β̂ of its own. Set metric='value' instead, which "
                "holds out a share of the log."
            )
        uncertainty = None
        if (
            self.method.needs_uncertainty
            and isinstance(logging, LoggingPolicy)
            and isinstance(self.given_uncertainty, str | None)
        ):
            form = {"form": "per_action"} | self._form()
            uncertainty = uncertainty_of(logging.whole, logging.log, log, **form)
        if (plan.method.weight is None and logging is not None) or (
            self.method.needs_uncertainty and uncertainty is None
        ):
            plan = Plan(METHODS["snips"], {})
        rows = row_inputs(
            plan.method.inputs,
            log,
            dtype,
            log_logging=None if logging is None else logged_log_prob(logging, log),
            logging=logging,
            uncertainty=uncertainty,
            top_p=float(self.hyper.get("top_p", 100.0)),
            sample_size=self.config.sample_size,
        )
        if self.rewards is not None:
            rows.put("imputed", row_rewards(self.rewards, log))
        return rows, plan

    def values(self) -> BatchValues | None:
        """q̂ of a batch's contexts; for rows of the log it was fitted to, by models that did not see them."""
        model = self.rewards
        if model is None:
            return None

        def values(batch: Batch, fold: Tensor | None) -> Values:
            if not isinstance(model, CrossFittedRewards):
                return lambda part: model.rewards(batch.contexts.take(part))
            if fold is None:
                return model.values(batch.contexts)
            share = torch.zeros(len(batch.numbers), len(model.folds))
            share.index_put_((batch.row_context, fold), torch.ones(len(fold)), accumulate=True)
            return model.values(batch.contexts, share)

        return values

    def live(self) -> Scorer:
        """The scorer of β̂, for probabilities within a batch."""
        if self._alternates:
            raise ParameterError("The scorer of β̂ belongs to the schedule where it alternates.")
        scorer = self.logging.whole.scorer if isinstance(self.logging, LoggingPolicy) else None
        if scorer is None:
            raise ParameterError(
                "in_batch=True takes β̂ as a softmax over the batch, so it needs a scorer: fit the logging policy with "
                "model='linear' or 'two_tower', or set schedule='alternate'."
            )
        return scorer


def asks_for_logging(method: Method, config: LearnerConfig) -> bool:
    """Whether β̂ is needed: by the method, or by the capped ratio that stands for its weight in the first epoch."""
    return method.needs_logging_policy or (config.first_epoch_cap is not None and method.weighs)
