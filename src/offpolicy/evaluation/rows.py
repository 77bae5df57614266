"""Everything the estimators need to know about one policy on one log, row by row."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.estimators import Estimator, bounded_exp
from offpolicy.evaluation.clusters import ClusteredTerms, ClusterSums
from offpolicy.evaluation.inputs import weight_inputs
from offpolicy.evaluation.value import Terms
from offpolicy.log import LoggedData
from offpolicy.policies import ColumnPolicy, Policy, tensor
from offpolicy.rewards import PooledRewardModel

BASIC = ("log_ratio", "log_logging", "uncertainty")
INDEX_INPUTS = ("action", "context_index")
"""Inputs that are the log's own arrays, widened only for the rows at hand."""
CHUNK = 1 << 17
"""Rows weighed at a time: what an estimator needs beyond its inputs stays small, whatever the log's size."""


@dataclass(frozen=True)
class PolicyRows:
    """Per-row inputs of one target policy: O(rows) numbers, whatever the number of actions."""

    log: LoggedData
    inputs: Mapping[str, Tensor]
    has_reward_model: bool

    @classmethod
    def of(
        cls,
        log: LoggedData,
        target: Policy,
        logging_policy: Policy,
        *,
        uncertainty: Tensor | None = None,
        reward_model: PooledRewardModel | None = None,
        estimators: Iterable[Estimator] = (),
    ) -> "PolicyRows":
        """Supply what these estimators ask for; a policy known by a column has no sums over actions."""
        asked = {name for row in estimators for name in (*row.inputs, *row.optional_inputs)}
        model = None if isinstance(target, ColumnPolicy) else reward_model
        names = {*BASIC, "sample_size", *asked}.difference(INDEX_INPUTS)
        found = weight_inputs(names, log, target, logging_policy, uncertainty=uncertainty, reward_model=model)
        if model is not None and model.fingerprint == log.fingerprint:
            found["imputed"] = model.imputed  # leave-one-out
        return cls(log, found, model is not None)

    @property
    def cluster(self) -> Tensor:
        """The unit of independence of each row."""
        return tensor(self.log.cluster_index)

    @property
    def n_clusters(self) -> int:
        """Number of units."""
        return int(self.log.cluster_index.max()) + 1

    def part(self, rows: slice, names: Iterable[str] = INDEX_INPUTS) -> dict[str, Tensor]:
        """The inputs of some rows, with those of the log's own arrays that are named."""
        found = {name: values[rows] if values.ndim else values for name, values in self.inputs.items()}
        for name in INDEX_INPUTS:
            if name in names:
                found[name] = tensor(getattr(self.log, name))[rows].long()
        return found

    def parts(self) -> Iterator[slice]:
        """Slices that cover the rows."""
        for start in range(0, self.log.n_rows, CHUNK):
            yield slice(start, min(start + CHUNK, self.log.n_rows))

    @property
    def log_ratio(self) -> Tensor:
        """log π − log β̂ of each row."""
        return self.inputs["log_ratio"]

    @property
    def reward(self) -> Tensor:
        """r in [0, 1]."""
        return self.inputs["reward"]

    @cached_property
    def ratio(self) -> Tensor:
        """π/β̂ of each row."""
        return bounded_exp(self.log_ratio)

    def can(self, row: Estimator) -> str:
        """Why this estimator cannot be had for this policy; empty where it can."""
        missing = [name for name in row.inputs if name not in self.inputs and name not in INDEX_INPUTS]
        if missing:
            return f"it needs {missing[0]}, which is not known here"
        if row.uses_reward_model and not self.has_reward_model:
            return "it needs a reward model and the policy's probabilities of all actions"
        return ""

    def terms(self, row: Estimator, rows: slice = slice(None), **hyper: Any) -> Terms:
        """The estimator's terms of the one value formula, for all rows or some."""
        if self.can(row):
            raise ParameterError(f"Estimator {row.name!r} cannot be used: {self.can(row)}.")
        inputs = self.part(rows, (*row.inputs, *row.optional_inputs))
        weight, normaliser = row.terms(inputs, **hyper)
        if row.uses_reward_model:
            return Terms(weight, normaliser, inputs["reward"], inputs["imputed"], inputs["baseline"])
        return Terms.without_reward_model(weight, normaliser, inputs["reward"])

    def clustered(self, row: Estimator, **hyper: Any) -> ClusteredTerms:
        """The estimator's sums per cluster: value, error and what intervals need."""
        sums = ClusterSums()
        for part in [slice(None)] if row.whole_log else self.parts():
            sums.add(self.terms(row, part, **hyper), self.cluster[part].long())
        return sums.finish()

    def on_policy(self) -> ClusteredTerms:
        """The logging policy's own value: the mean reward."""
        sums = ClusterSums()
        for part in self.parts():
            reward = self.reward[part]
            one = torch.ones_like(reward)
            sums.add(Terms.without_reward_model(one, one, reward), self.cluster[part].long())
        return sums.finish()
