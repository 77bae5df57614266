"""Everything the estimators need to know about one policy on one shard of a log, row by row."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.estimators import ESTIMATORS, Estimator, bounded_exp
from offpolicy.evaluation.balance import BALANCED_INPUT, balanced_log_ratio, can_balance
from offpolicy.evaluation.clusters import ClusteredTerms, ClusterSums
from offpolicy.evaluation.inputs import BASELINE, other_baseline, policy_inputs
from offpolicy.evaluation.statistics import INDEX_INPUTS, Array, Asked, RowStatistics, Statistic
from offpolicy.evaluation.value import Terms
from offpolicy.log import LoggedData, row_pieces
from offpolicy.models import DesignMatrix
from offpolicy.policies import Policy, aligned, row_weights, tensor
from offpolicy.rewards import RewardModel, row_rewards

BASIC = ("log_ratio", "log_logging", "uncertainty", "sample_size")


@dataclass(frozen=True)
class PolicyRows(RowStatistics):
    """Per-row inputs of one target policy: O(rows) numbers, whatever the number of actions."""

    log: LoggedData
    inputs: Mapping[str, Tensor]
    unsupported: Tensor | None = field(default=None, repr=False)
    """Per context, the policy's mass on actions that logging hardly ever shows there."""
    units: Tensor | None = field(default=None, repr=False)
    """The unit of independence of each row where it is not its cluster: clusters of a long log are summed in groups."""
    first_unit: int = 0
    """How many units the shards before this one have room for."""

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
        known: Mapping[str, Tensor] | None = None,
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
            known=known,
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
        return PolicyRows(
            self.log.take(kept),
            inputs,
            units=None if self.units is None else self.units[index],
            first_unit=self.first_unit,
        )

    def segment(self, part: Any) -> "PolicyRows":
        """The rows of a segment, as if the log held no others."""
        return self.take(part.mask(self.log))

    def selected(self, kept: npt.NDArray[np.bool_]) -> "PolicyRows":
        """Some of the rows or none, codes of contexts and clusters staying what they are: quick, for sums alone."""
        index = torch.from_numpy(np.flatnonzero(kept))
        inputs = {name: values[index] if values.ndim else values for name, values in self.inputs.items()}
        units = None if self.units is None else self.units[index]
        return PolicyRows(self.log.selected(kept), inputs, units=units, first_unit=self.first_unit)

    def under(self, log: LoggedData, reward_model: RewardModel | None) -> "PolicyRows":
        """The same policy and rows under another reward: those of `log`, with the model of it."""
        own = {name: values for name, values in self.inputs.items() if not name.startswith((BASELINE, "imputed"))}
        own["reward"] = tensor(log.reward)
        baseline = self.inputs.get(other_baseline(log.reward_name))
        if baseline is not None and reward_model is not None:
            own |= {BASELINE: baseline, "imputed": row_rewards(reward_model, log)}
        return replace(self, log=log, inputs=own)

    @property
    def known(self) -> frozenset[str]:
        """The names of the inputs."""
        return frozenset(self.inputs)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.log.n_rows

    @property
    def in_shards(self) -> bool:
        """These are all rows there are."""
        return False

    def map(self, statistic: Statistic, *arguments: Any) -> Iterator[Any]:
        """The statistic of these rows, the only shard."""
        yield statistic(self, *arguments)

    def quantiles(self, values: Statistic, shares: Sequence[float]) -> Array:
        """Quantiles over these rows."""
        return np.asarray(np.quantile(values(self), shares))

    def design(self, categories: int) -> DesignMatrix:
        """The features of these rows' contexts."""
        return DesignMatrix.fit(self.log.contexts, max_categories=categories)

    @property
    def cluster(self) -> Tensor:
        """The cluster of each row."""
        return tensor(self.log.cluster_index)

    @property
    def unit(self) -> Tensor:
        """The unit of independence of each row."""
        return self.cluster if self.units is None else self.units

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

    @property
    def ratio(self) -> Tensor:
        """π/β̂ of each row."""
        return bounded_exp(self.log_ratio)

    def mean(self, values: Tensor) -> float:
        """The mean over events of one number per row."""
        return float(np.average(values.numpy(), weights=self.log.row_weight))

    def terms(self, row: Estimator, rows: slice = slice(None), constant: float | None = None, **hyper: Any) -> Terms:
        """The estimator's terms of the one value formula, for all rows or some.

        `constant` stands in for a reward model where the estimator wants one; by default the best for these rows.
        """
        if self.unavailable(row):
            raise ParameterError(f"Estimator {row.name!r} cannot be used: {self.unavailable(row)}.")
        inputs = self.part(rows, (*row.inputs, *row.optional_inputs))
        weight, normaliser = row.terms(inputs, **hyper)
        if row.uses_reward_model:
            return Terms(weight, normaliser, inputs["reward"], inputs["imputed"], inputs["baseline"])
        if row.constant_baseline and constant is None:
            constant = self.best_constant
        return Terms.without_reward_model(
            weight,
            normaliser,
            inputs["reward"],
            constant=constant or 0.0 if row.constant_baseline else 0.0,
            temperature=float(row.check_hyper(hyper).get("temperature", 0.0)),
        )

    def sums_of(self, asked: Asked, constant: float = 0.0, unit: Tensor | None = None) -> ClusteredTerms:
        """The sums per unit of one estimator, or of the mean reward, over these rows."""
        unit = self.unit if unit is None else unit
        row, sums = ESTIMATORS[asked.name] if asked.name else None, ClusterSums(int(unit.max()) + 1)
        for part in [slice(None)] if row is not None and row.whole_log else self.parts():
            if row is None:
                reward = self.reward[part]
                one = torch.ones((), dtype=torch.float64).expand_as(reward)
                batch = Terms.without_reward_model(one, one, reward)
            else:
                batch = self.terms(row, part, constant, **(asked.hyper or {}))
            sums.add(batch, unit[part].long(), None if self.row_weight is None else self.row_weight[part])
        return sums.finish(self.first_unit)

    def in_periods(self, edges: Array) -> "PolicyRows":
        """The same rows with periods of time between these edges for units."""
        assert self.log.timestamp is not None
        period = np.searchsorted(edges, self.log.timestamp, side="left")
        return replace(self, units=torch.from_numpy(period), first_unit=0)


def with_logging(rows: PolicyRows, log_logging: Tensor) -> PolicyRows:
    """The same policy on the same rows with another log β̂, of which no U is known; π is not computed again."""
    log_target = rows.log_ratio + rows.inputs["log_logging"]
    kept = {name: rows.inputs[name] for name in ("reward", "imputed", "baseline", "sample_size") if name in rows.inputs}
    inputs = kept | {"log_logging": log_logging, "log_ratio": log_target - log_logging}
    return replace(rows, inputs=inputs, unsupported=None)
