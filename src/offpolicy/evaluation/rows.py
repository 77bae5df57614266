"""Everything the estimators need to know about one policy on one log, row by row."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.estimators import Estimator, bounded_exp
from offpolicy.evaluation.balance import BALANCED_INPUT, balanced_log_ratio, can_balance
from offpolicy.evaluation.clusters import ClusteredTerms, ClusterSums
from offpolicy.evaluation.inputs import BASELINE, other_baseline, policy_inputs
from offpolicy.evaluation.value import Terms
from offpolicy.log import LoggedData, row_pieces
from offpolicy.policies import Policy, aligned, row_weights, tensor
from offpolicy.rewards import RewardModel, row_rewards

BASIC = ("log_ratio", "log_logging", "uncertainty", "sample_size")
PERIODS = 20
"""Consecutive periods that are units of independence for errors over time."""
LEAST_IN_PERIOD = 50
"""Rows below which a period tells nothing."""
INDEX_INPUTS = ("action", "context_index")
"""Inputs that are the log's own arrays, widened only for the rows at hand."""


@dataclass(frozen=True)
class PolicyRows:
    """Per-row inputs of one target policy: O(rows) numbers, whatever the number of actions."""

    log: LoggedData
    inputs: Mapping[str, Tensor]
    unsupported: Tensor | None = field(default=None, repr=False)
    """Per context, the policy's mass on actions that logging hardly ever shows there."""

    @classmethod
    def of_all(
        cls,
        log: LoggedData,
        targets: Mapping[str, Policy],
        logging_policy: Policy,
        *,
        uncertainty: Tensor | None = None,
        reward_model: RewardModel | None = None,
        estimators: Iterable[Estimator] = (),
        support: bool = False,
        groups: Tensor | None = None,
        other_rewards: Mapping[str, RewardModel] | None = None,
    ) -> dict[str, "PolicyRows"]:
        """Compute the inputs these estimators ask for, in one pass over the log for all targets."""
        asked = {name for row in estimators for name in (*row.inputs, *row.optional_inputs)}
        names = {*BASIC, *asked}.difference(INDEX_INPUTS)
        inputs = policy_inputs(
            names,
            log,
            targets,
            logging_policy,
            uncertainty=uncertainty,
            reward_model=reward_model,
            support=support,
            groups=groups,
            other_rewards=other_rewards,
        )
        if BALANCED_INPUT in asked:
            for name, target in targets.items():
                own = aligned(target, log.actions, name)
                if can_balance(own):
                    inputs[name].rows[BALANCED_INPUT] = balanced_log_ratio(log, own)
        return {name: cls(log, one.rows, one.unsupported) for name, one in inputs.items()}

    @classmethod
    def of(cls, log: LoggedData, target: Policy, logging_policy: Policy, **given: Any) -> "PolicyRows":
        """The same for one target."""
        return cls.of_all(log, {"target": target}, logging_policy, **given)["target"]

    def take(self, kept: npt.NDArray[np.bool_]) -> "PolicyRows":
        """Some of the rows, as if the log held no others; which contexts lack support is not carried along."""
        index = torch.from_numpy(np.flatnonzero(kept))
        inputs = {name: values[index] if values.ndim else values for name, values in self.inputs.items()}
        return PolicyRows(self.log.take(kept), inputs)

    def under(self, log: LoggedData, reward_model: RewardModel | None) -> "PolicyRows":
        """The same policy and rows under another reward: those of `log`, with the model of it."""
        own = {name: values for name, values in self.inputs.items() if not name.startswith((BASELINE, "imputed"))}
        own["reward"] = tensor(log.reward)
        baseline = self.inputs.get(other_baseline(log.reward_name))
        if baseline is not None and reward_model is not None:
            own |= {BASELINE: baseline, "imputed": row_rewards(reward_model, log)}
        return PolicyRows(log, own, self.unsupported)

    @property
    def has_reward_model(self) -> bool:
        """Whether q̂ of the policy is known."""
        return "baseline" in self.inputs

    @property
    def cluster(self) -> Tensor:
        """The unit of independence of each row."""
        return tensor(self.log.cluster_index)

    @property
    def n_clusters(self) -> int:
        """Number of units."""
        return int(self.log.cluster_index.max()) + 1

    @property
    def row_weight(self) -> Tensor | None:
        """How many events each row stands for; None where each stands for one."""
        return row_weights(self.log)

    def part(self, rows: slice, names: Iterable[str] = INDEX_INPUTS) -> dict[str, Tensor]:
        """The inputs of some rows, with those of the log's own arrays that are named."""
        inputs = {name: values[rows] if values.ndim else values for name, values in self.inputs.items()}
        for name in INDEX_INPUTS:
            if name in names:
                inputs[name] = tensor(getattr(self.log, name))[rows].long()
        return inputs

    def parts(self) -> Iterator[slice]:
        """Slices that cover the rows."""
        return row_pieces(self.log.n_rows)

    @property
    def log_ratio(self) -> Tensor:
        """log π − log β̂ of each row."""
        return self.inputs["log_ratio"]

    @property
    def log_mass(self) -> Tensor:
        """log of the events that each row stands for times π/β̂."""
        return self.log_ratio if self.row_weight is None else self.log_ratio + self.row_weight.log()

    @property
    def reward(self) -> Tensor:
        """r in [0, 1]."""
        return self.inputs["reward"]

    @cached_property
    def ratio(self) -> Tensor:
        """π/β̂ of each row."""
        return bounded_exp(self.log_ratio)

    @cached_property
    def mean_ratio(self) -> float:
        """The mean of π/β̂ over events: 1 where β̂ is right."""
        return self.mean(self.ratio.double())

    @cached_property
    def reward_deviation(self) -> float:
        """The standard deviation of the rewards over events."""
        reward = self.reward.double()
        return float(np.sqrt(self.mean((reward - self.mean(reward)).square())))

    @cached_property
    def best_constant(self) -> float:
        """b of least variance in b + mean ρ(r − b): mean r(ρ² − ρ)/mean(ρ² − ρ), within what rewards can be."""
        ratio = self.ratio.double()
        spread = ratio * (ratio - 1)
        below = self.mean(spread)
        constant = self.mean(spread * self.reward) / below if below > 0 else self.mean(self.reward)
        return min(max(constant, 0.0), 1.0)

    def mean(self, values: Tensor) -> float:
        """The mean over events of one number per row."""
        return float(np.average(values.numpy(), weights=self.log.row_weight))

    def unavailable(self, row: Estimator) -> str:
        """Why this estimator is unavailable for this policy; empty where it is available."""
        missing = [name for name in row.inputs if name not in self.inputs and name not in INDEX_INPUTS]
        if missing:
            return f"it needs {missing[0]}, which is not known here"
        if row.uses_reward_model and not self.has_reward_model:
            return "it needs a reward model and the policy's probabilities of all actions"
        return ""

    def terms(self, row: Estimator, rows: slice = slice(None), **hyper: Any) -> Terms:
        """The estimator's terms of the one value formula, for all rows or some."""
        if self.unavailable(row):
            raise ParameterError(f"Estimator {row.name!r} cannot be used: {self.unavailable(row)}.")
        inputs = self.part(rows, (*row.inputs, *row.optional_inputs))
        weight, normaliser = row.terms(inputs, **hyper)
        if row.uses_reward_model:
            return Terms(weight, normaliser, inputs["reward"], inputs["imputed"], inputs["baseline"])
        return Terms.without_reward_model(
            weight,
            normaliser,
            inputs["reward"],
            constant=self.best_constant if row.constant_baseline else 0.0,
            temperature=float(row.check_hyper(hyper).get("temperature", 0.0)),
        )

    def clustered(self, row: Estimator, **hyper: Any) -> ClusteredTerms:
        """The estimator's sums per cluster: value, error and what intervals need."""
        parts = [slice(None)] if row.whole_log else self.parts()
        return self._summed((part, self.terms(row, part, **hyper)) for part in parts)

    def on_policy(self) -> ClusteredTerms:
        """The logging policy's own value: the mean reward."""
        one = torch.ones((), dtype=torch.float64)
        rewards = ((part, self.reward[part]) for part in self.parts())
        return self._summed((p, Terms.without_reward_model(one.expand_as(r), one.expand_as(r), r)) for p, r in rewards)

    def _summed(self, terms: Iterable[tuple[slice, Terms]]) -> ClusteredTerms:
        sums = ClusterSums()
        for part, batch in terms:
            weight = None if self.row_weight is None else self.row_weight[part]
            sums.add(batch, self.cluster[part].long(), weight)
        return sums.finish()

    @cached_property
    def by_period(self) -> "PolicyRows | None":
        """The same rows with 20 consecutive periods of about equal size as clusters; None without enough times."""
        times = self.log.timestamp
        if times is None or len(times) < PERIODS * LEAST_IN_PERIOD:
            return None
        edges = np.quantile(times, np.linspace(0, 1, PERIODS + 1)[1:-1])
        if len(np.unique(edges)) < len(edges) or edges[-1] == times.max():
            return None  # too few distinct times
        period = np.searchsorted(edges, times, side="left").astype(np.int32)
        return replace(self, log=replace(self.log, cluster=period, cluster_vocabulary=None))
