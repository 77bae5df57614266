"""The nuisance quantities of a log, estimated once: β̂, its uncertainty U, γ, and the reward model q̂.

Each is fitted on first use and kept, so that learning, evaluation, comparison, tuning and report share one set. A set
can be saved beside a run and loaded again for the same log, identified by its fingerprint.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from offpolicy.atomic import write_atomic
from offpolicy.engine import Engine
from offpolicy.errors import OffPolicyError, ParameterError
from offpolicy.json_writer import json_text
from offpolicy.log import LoggedData
from offpolicy.memory import give_back
from offpolicy.models import DesignMatrix
from offpolicy.policies import Policy, logged_log_prob, tensor
from offpolicy.progress import progress
from offpolicy.propensity import OVER_SHARDS, FitConfig, LoggingPolicy, fit_logging_policy, packed, unpacked
from offpolicy.rewards import (
    CrossFittedRewards,
    PooledRewardModel,
    RewardFitConfig,
    RewardModel,
    fit_reward_model,
    row_rewards,
)
from offpolicy.uncertainty import (
    Form,
    Normalisation,
    UncertaintyModel,
    calibrate_gamma,
    row_uncertainty,
    uncertainty_of,
)

SAMPLE_ROWS = 500_000
"""Rows that nuisances of a log in many shards are fitted to: a sample of whole units, or all where there are fewer."""
FOLDER = "nuisances"
UNFINISHED = "unfinished"
FORMAT = 1
SAMPLE = "nuisances"


class Nuisances:
    """β̂, U, γ and q̂ of one log; what is given is taken, the rest is fitted when first asked for."""

    def __init__(
        self,
        log: LoggedData,
        *,
        model: Any = "auto",
        logging_policy: Policy | None = None,
        uncertainty: Tensor | None = None,
        reward_model: RewardModel | None = None,
        seed: int = 0,
        folder: str | Path | None = None,
        sample_rows: int = SAMPLE_ROWS,
        engine: Engine | str | None = None,
    ) -> None:
        """`model` names the model of β̂ to fit where no `logging_policy` is given.

        A β̂ that is given decides how actions are coded: the log's are matched to it by id. With the `folder` of a run,
        what is finished of a fit is kept there until all of it is saved, so that a killed run resumes within the fit.
        What is fitted to a log of many shards is fitted to a sample of about `sample_rows` rows, units being whole; but
        a linear β̂ is fitted to all of them, by the workers of an `engine`.
        """
        self._keep = None if folder is None else Path(folder).expanduser() / FOLDER / UNFINISHED
        self.log = log
        if logging_policy is not None and (
            log.n_shards == 1 or logging_policy.actions.vocabulary != log.actions.vocabulary
        ):  # the arrays of a long log stay where they are
            self.log = log.with_actions(logging_policy.actions)
        self.model, self.seed, self.sample_rows = model, seed, sample_rows
        self.engine = engine
        self._logging, self._given_rewards, self._given_uncertainty = logging_policy, reward_model, uncertainty
        self._pooled: PooledRewardModel | None = None
        self._others: dict[str, PooledRewardModel] = {}
        self._cross_fitted: dict[Any, CrossFittedRewards] = {}
        self._uncertainty: dict[tuple[Form, Normalisation], Tensor] = {}

    @property
    def sample_share(self) -> float:
        """The share of units that nuisances are fitted to: 1 for a log in memory, or of few enough rows."""
        return 1.0 if self.log.n_shards == 1 else min(self.sample_rows / self.log.n_rows, 1.0)

    @cached_property
    def fitted_log(self) -> LoggedData:
        """The rows that nuisances are fitted to: all, or of a long log in many shards a sample of whole units."""
        if self.sample_share == 1.0:
            return self.log.undivided
        return self.log.take(self.log.of_share(self.sample_share, SAMPLE)).undivided

    @property
    def logging_policy(self) -> Policy:
        """β̂: the one given, or fitted to the log."""
        if self._logging is None:
            config = FitConfig(seed=self.seed, keep=self._keep)
            with progress("estimating the logging policy", None):
                every = self.log.n_shards > 1 and self.model in OVER_SHARDS
                log = self.log if every else self.fitted_log
                self._logging = fit_logging_policy(
                    log, self.model, config=config, seed=self.seed, engine=self.engine if every else None
                )
            give_back()
        return self._logging

    @property
    def log_logging(self) -> Tensor:
        """log β̂(a_n|x_n) of every row of the fitted log, float64."""
        return logged_log_prob(self.logging_policy, self.fitted_log)

    def uncertainty(self, form: Form = "per_action", normalisation: Normalisation = "raw") -> Tensor:
        """U of every row of the fitted log: the one given, or that of a β̂ in this form, wherever β̂ was fitted."""
        if self._given_uncertainty is not None:
            return self._given_uncertainty
        beta = self.logging_policy
        if not isinstance(beta, LoggingPolicy):
            raise ParameterError(
                "The uncertainty of β̂ can be computed for a policy fitted by fit_logging_policy only. Pass one, or "
                "pass `uncertainty` with one number per row."
            )
        key = (form, normalisation)
        if key not in self._uncertainty:
            with progress("estimating its uncertainty", None):
                own = (
                    row_uncertainty(beta, form, normalisation=normalisation)
                    if beta.is_own(self.fitted_log)
                    else self._uncertainty_elsewhere(*key)
                )
            assert own is not None
            self._uncertainty[key] = own
            give_back()
        return self._uncertainty[key]

    def _uncertainty_elsewhere(self, form: Form, normalisation: Normalisation) -> Tensor | None:
        """U of the fitted log under a β̂ that was fitted to other rows, or to those of all shards."""
        if self.log.n_shards > 1 and (form, normalisation) == ("per_action", "raw"):
            return self._uncertainty_model(self.fitted_log, inside=self._of_all_shards)
        return self.uncertainty_of(self.fitted_log, form, normalisation)

    @cached_property
    def _uncertainty_model(self) -> UncertaintyModel:
        assert isinstance(self.logging_policy, LoggingPolicy)
        return UncertaintyModel.of(self.logging_policy, self.engine)

    @property
    def _of_all_shards(self) -> bool:
        """Whether β̂ was fitted to every row of a log in many shards."""
        beta = self.logging_policy
        return isinstance(beta, LoggingPolicy) and self.log.n_shards > 1 and beta.log.same_as(self.log)

    def uncertainty_of(
        self, log: LoggedData, form: Form = "per_action", normalisation: Normalisation = "raw"
    ) -> Tensor | None:
        """U of the rows of another log under a fitted β̂; None where U was given row by row or β̂ was not fitted."""
        beta = self.logging_policy
        if self._given_uncertainty is not None or not isinstance(beta, LoggingPolicy):
            return None
        return uncertainty_of(beta.whole, beta.log, log, form, normalisation=normalisation)

    @property
    def known_uncertainty(self) -> Tensor | None:
        """U of every row of the fitted log; None where β̂ is a policy whose uncertainty is unknown."""
        known = self._given_uncertainty is not None or isinstance(self.logging_policy, LoggingPolicy)
        return self.uncertainty() if known else None

    @cached_property
    def gamma(self) -> float:
        """γ calibrated on the log β̂ was fitted to."""
        beta = self.logging_policy
        if not isinstance(beta, LoggingPolicy):
            raise ParameterError("γ can be calibrated for a policy fitted by fit_logging_policy only. Give a number.")
        own = self.uncertainty() if beta.is_own(self.fitted_log) else None
        return calibrate_gamma(beta, uncertainty=own, seed=self.seed).gamma

    @property
    def reward_model(self) -> RewardModel:
        """q̂ for evaluation: the one given, or the pooled linear model."""
        if self._given_rewards is not None:
            return self._given_rewards
        if self._pooled is None:
            design = self.logging_policy.whole.design if isinstance(self.logging_policy, LoggingPolicy) else None
            self._pooled = PooledRewardModel.fit(self.fitted_log, design)
            give_back()
        return self._pooled

    def reward_model_of(self, log: LoggedData) -> RewardModel:
        """q̂ of the same rows under another of their rewards, over the features of the first."""
        if log.reward_name not in self._others:
            first = self.reward_model
            design = first.design if isinstance(first, PooledRewardModel) else None
            self._others[log.reward_name] = PooledRewardModel.fit(log, design)
        return self._others[log.reward_name]

    def cross_fitted_rewards(self, scorer: Any, config: RewardFitConfig | None = None) -> RewardModel:
        """q̂ for learning: the one given, or cross-fitted with the policy's architecture."""
        if self._given_rewards is not None:
            return self._given_rewards
        if scorer not in self._cross_fitted:
            fitted = fit_reward_model(self.fitted_log, scorer, config=config or RewardFitConfig(seed=self.seed))
            self._cross_fitted[scorer] = fitted
        return self._cross_fitted[scorer]

    def save(self, folder: str | Path) -> Path | None:
        """Save what has been fitted in a run's folder, atomically; None where the model cannot be saved."""
        if not isinstance(self._logging, LoggingPolicy) or not isinstance(self.model, str):
            return None
        if self._logging.log.n_shards > 1 and not self._of_all_shards:  # another log's
            return None
        saved = packed(self._logging)
        if saved is None:
            return None
        facts, tensors = saved
        about = {"format": FORMAT, "fingerprint": self.fitted_log.fingerprint, "seed": self.seed}
        facts = {**about, "of_all_shards": self._of_all_shards, "propensity": facts}
        tensors |= {f"uncertainty/{form}/{kind}": values for (form, kind), values in self._uncertainty.items()}
        if self._pooled is not None:
            facts["rewards"], own = self._pooled.packed()
            tensors |= {f"rewards/{name}": values for name, values in own.items()}
        if "gamma" in self.__dict__:
            facts["gamma"] = self.gamma
        path = _path(folder, self.log, self.model, self.seed)
        content = {name: values.detach().contiguous().clone() for name, values in tensors.items()}
        write_atomic(path, save(content, metadata={"offpolicy": json_text(facts, "nuisances")}))
        if self._keep is not None:
            shutil.rmtree(self._keep, ignore_errors=True)
        return path

    @classmethod
    def load(
        cls,
        folder: str | Path,
        log: LoggedData,
        model: str = "auto",
        seed: int = 0,
        sample_rows: int = SAMPLE_ROWS,
        engine: Engine | str | None = None,
    ) -> "Nuisances | None":
        """What was saved in a run's folder for this log, model and seed; None where nothing usable is."""
        nuisances = cls(log, model=model, seed=seed, sample_rows=sample_rows, engine=engine)
        path = _path(folder, log, model, seed)
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                facts = json.loads((file.metadata() or {}).get("offpolicy", "null"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            return nuisances._restored(facts, tensors)
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError, OffPolicyError):
            return None  # it is fitted again

    def _restored(self, facts: Any, tensors: Mapping[str, Tensor]) -> "Nuisances | None":
        if facts["format"] != FORMAT or facts["fingerprint"] != self.fitted_log.fingerprint:
            return None
        log = self.log if facts.get("of_all_shards") else self.fitted_log
        self._logging = unpacked(facts["propensity"], tensors, log, self.seed)
        for name, values in tensors.items():
            if name.startswith("uncertainty/"):
                _, form, kind = name.split("/")
                self._uncertainty[form, kind] = values  # type: ignore[index]
        if "gamma" in facts:
            self.__dict__["gamma"] = facts["gamma"]
        if "rewards" in facts:
            own = {n.removeprefix("rewards/"): v for n, v in tensors.items() if n.startswith("rewards/")}
            design = DesignMatrix.from_json(facts["rewards"]["design"])
            self._pooled = PooledRewardModel.unpacked(facts["rewards"], own, design)
        return self

    def for_shards(self, reward_model: bool, others: Mapping[str, LoggedData]) -> "ShardNuisances":
        """The same for the rows of any shard, as it can be sent to whoever works on it.

        `others` are the fitted rows under further rewards, of which there are models too.
        """
        beta = self.logging_policy
        if self._given_uncertainty is not None:
            raise ParameterError("U given row by row cannot be divided into shards. Give the fitted logging policy.")
        own: dict[str, Tensor] = {}
        if isinstance(beta, LoggingPolicy) and beta.is_own(self.fitted_log):
            own |= {"log_logging": beta.row_log_prob, "uncertainty": self.uncertainty()}
        rewards = self.reward_model if reward_model else None
        give_back()
        if isinstance(rewards, PooledRewardModel) and rewards.fingerprint == self.fitted_log.fingerprint:
            own["imputed"] = rewards.imputed
            rewards = replace(rewards, imputed=torch.empty(0))
        further: dict[str, RewardModel] = {}
        for name, log in others.items():
            model = self.reward_model_of(log)
            assert isinstance(model, PooledRewardModel)
            own[f"imputed of {name}"] = model.imputed
            further[name] = replace(model, imputed=torch.empty(0))
        ends = np.zeros(1, dtype=np.int64)
        if own:
            inside = [int(shard.of_share(self.sample_share, SAMPLE).sum()) for shard in self.log.shards]
            ends = np.concatenate([ends, np.cumsum(inside)])
        return ShardNuisances(
            beta.whole.policy if isinstance(beta, LoggingPolicy) else beta,
            self._uncertainty_model if isinstance(beta, LoggingPolicy) else None,
            rewards,
            self.sample_share if own else 0.0,
            ends.tolist(),
            own,
            self._of_all_shards,
            further,
        )


@dataclass(frozen=True)
class ShardNuisances:
    """β̂, U and q̂ for the rows of any shard; of rows they were fitted to, what models say that did not see them."""

    logging: Policy
    uncertainty: UncertaintyModel | None
    reward_model: RewardModel | None
    share: float
    """Of the units that they were fitted to."""
    ends: list[int]
    """Where the fitted rows of each shard begin among all of them."""
    own: Mapping[str, Tensor]
    """log β̂, U and q̂ of the fitted rows."""
    of_all: bool = False
    """Whether β̂ was fitted to the rows of all shards."""
    others: Mapping[str, RewardModel] = field(default_factory=dict)
    """q̂ of further rewards."""

    def values(self, shard: LoggedData, index: int) -> dict[str, Tensor]:
        """log β̂ and U of every row of a shard, and q̂ of the fitted ones, the others being 0."""
        inside = tensor(shard.of_share(self.share, SAMPLE))
        given: dict[str, Callable[[], Tensor]] = {"log_logging": lambda: logged_log_prob(self.logging, shard)}
        if (uncertainty := self.uncertainty) is not None:
            given["uncertainty"] = lambda: uncertainty(shard, self.of_all)
        if (rewards := self.reward_model) is not None:
            given["imputed"] = lambda: row_rewards(rewards, shard)
        given |= {f"imputed of {name}": partial(row_rewards, model, shard) for name, model in self.others.items()}
        found = {}
        for name, work in given.items():
            own = self.own.get(name)
            all_own = own is not None and bool(inside.all())
            found[name] = torch.empty(shard.n_rows, dtype=torch.float64) if all_own else work().double()
            if own is not None:
                found[name][inside] = own[self.ends[index] : self.ends[index + 1]].double()
        return found


def _path(folder: str | Path, log: LoggedData, model: str, seed: int) -> Path:
    return Path(folder).expanduser() / FOLDER / f"{log.fingerprint[:24]}-{model}-{seed}.safetensors"
