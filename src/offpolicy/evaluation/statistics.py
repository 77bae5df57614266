"""What is asked of a policy's rows as a whole: maps over the shards of the log, summed in their order.

A statistic is a function of the rows of one shard (`PolicyRows`) whose results add up. Rows in memory are one shard, so
that the map is the function itself; the rows of a log of many shards (`ShardedRows`) are asked one after the other, or
by as many workers as there are, and the sums do not depend on which.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from offpolicy.errors import ParameterError
from offpolicy.estimators import ESTIMATORS, Estimator
from offpolicy.evaluation.clusters import ClusteredTerms
from offpolicy.log import LoggedData
from offpolicy.models import DesignMatrix

if TYPE_CHECKING:
    from offpolicy.evaluation.rows import PolicyRows

Array: TypeAlias = npt.NDArray[np.float64]
Statistic: TypeAlias = Callable[..., Any]
"""A function of the rows of one shard that can be imported by its name, and further arguments."""

PERIODS = 20
"""Consecutive periods that are units of independence for errors over time."""
LEAST_IN_PERIOD = 50
"""Rows below which a period tells nothing."""
INDEX_INPUTS = ("action", "context_index")
"""Inputs that are the log's own arrays, widened only for the rows at hand."""
BASELINE = "baseline"


@dataclass(frozen=True)
class Asked:
    """An estimator with its hyper-parameters, by name; without a name, the mean reward of the rows."""

    name: str = ""
    hyper: Mapping[str, Any] | None = None


class RowStatistics(ABC):
    """The rows of one policy, whole or in shards."""

    log: LoggedData

    @property
    @abstractmethod
    def known(self) -> frozenset[str]:
        """The names of the inputs."""

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """Number of rows."""

    @property
    @abstractmethod
    def in_shards(self) -> bool:
        """Whether there is more than one shard, so that no estimator can see all rows at once."""

    @abstractmethod
    def map(self, statistic: Statistic, *arguments: Any) -> Iterator[Any]:
        """The statistic of every shard, in their order; arguments that are rows come as those of the same shard."""

    @abstractmethod
    def quantiles(self, values: Statistic, shares: Sequence[float]) -> Array:
        """Quantiles over all rows of one number a row (between neighbours by a straight line)."""

    @abstractmethod
    def design(self, categories: int) -> DesignMatrix:
        """The features of the contexts, with at most so many places for the values of a category."""

    @abstractmethod
    def segment(self, part: Any) -> "RowStatistics":
        """The rows of a segment (`segments.Part`), as if the log held no others."""

    def total(self, statistic: Statistic, *arguments: Any) -> Any:
        """The sum of the statistic over the shards."""
        found = self.map(statistic, *arguments)
        first = next(found)
        return sum(found, start=first)

    def mean_of(self, values: Statistic, *arguments: Any) -> float:
        """The mean over events of one number a row."""
        total, events = self.total(_sums, values, *arguments)
        return float(total / events)

    @property
    def has_reward_model(self) -> bool:
        """Whether q̂ of the policy is known."""
        return BASELINE in self.known

    @cached_property
    def n_clusters(self) -> int:
        """Number of units."""
        return int(self.total(_clusters))

    @cached_property
    def mean_ratio(self) -> float:
        """The mean of π/β̂ over events: 1 where β̂ is right."""
        return self.mean_of(_ratio)

    @cached_property
    def reward_deviation(self) -> float:
        """The standard deviation of the rewards over events."""
        return float(np.sqrt(self.mean_of(_squared_distance, self.mean_of(_reward))))

    @cached_property
    def best_constant(self) -> float:
        """b of least variance in b + mean ρ(r − b): mean r(ρ² − ρ)/mean(ρ² − ρ), within what rewards can be."""
        below = self.mean_of(_spread)
        constant = self.mean_of(_rewarded_spread) / below if below > 0 else self.mean_of(_reward)
        return min(max(constant, 0.0), 1.0)

    def unavailable(self, row: Estimator) -> str:
        """Why this estimator is unavailable for this policy; empty where it is available."""
        missing = [name for name in row.inputs if name not in self.known and name not in INDEX_INPUTS]
        if missing:
            return f"it needs {missing[0]}, which is not known here"
        if row.uses_reward_model and not self.has_reward_model:
            return "it needs a reward model and the policy's probabilities of all actions"
        if row.whole_log and self.in_shards:
            return "its weights depend on all rows at once, but this log is read shard by shard"
        return ""

    def clustered(self, row: Estimator, **hyper: Any) -> ClusteredTerms:
        """The estimator's sums per cluster: value, error and what intervals need."""
        return self.clustered_all([Asked(row.name, hyper)])[0]

    def clustered_each(self, asked: Sequence[Asked]) -> Iterator[ClusteredTerms]:
        """The same of several, one after the other: of rows in memory, only one is held at a time."""
        if self.in_shards:
            yield from self.clustered_all(asked)
            return
        for one, alike in groupby(asked):
            found = self.clustered_all([one])
            yield from found * len(list(alike))
            del found  # before the next is computed

    def on_policy(self) -> ClusteredTerms:
        """The logging policy's own value: the mean reward."""
        return self.clustered_all([Asked()])[0]

    def clustered_all(self, asked: Sequence[Asked], edges: Array | None = None) -> list[ClusteredTerms]:
        """The sums per cluster of several estimators, in one pass; with `edges`, periods of time are the clusters."""
        for one in asked:
            if one.name and (reason := self.unavailable(ESTIMATORS[one.name])):
                raise ParameterError(f"Estimator {one.name!r} cannot be used: {reason}.")
        constant = any(one.name and ESTIMATORS[one.name].constant_baseline for one in asked)
        shards = self.map(_clustered, list(asked), edges, self.best_constant if constant else 0.0)
        return [ClusteredTerms.joined(parts) for parts in zip(*shards, strict=True)]

    @cached_property
    def period_edges(self) -> Array | None:
        """The ends of 20 consecutive periods of about equal size; None without enough times."""
        if self.log.timestamp is None or self.n_rows < PERIODS * LEAST_IN_PERIOD:
            return None
        edges = self.quantiles(_times, np.linspace(0, 1, PERIODS + 1)[1:-1].tolist())
        if len(np.unique(edges)) < len(edges) or edges[-1] == max(self.map(_latest)):
            return None  # too few distinct times
        return edges

    def clustered_by_period(self, asked: Asked) -> ClusteredTerms | None:
        """The same sums with periods of time as clusters; None without enough times."""
        return None if self.period_edges is None else self.clustered_all([asked], self.period_edges)[0]


def _sums(rows: "PolicyRows", values: Statistic, *arguments: Any) -> Array:
    """Σ of one number a row over events, and the events."""
    found, weight = np.asarray(values(rows, *arguments)), rows.log.row_weight
    if weight is None:
        return np.array([found.sum(), float(len(found))])
    return np.array([np.multiply(found, weight).sum(), weight.sum()])


def _clusters(rows: "PolicyRows") -> int:
    return int(rows.log.cluster_index.max()) + 1


def _clustered(rows: "PolicyRows", asked: list[Asked], edges: Array | None, constant: float) -> list[ClusteredTerms]:
    timed = rows if edges is None else rows.in_periods(edges)
    return [timed.sums_of(one, constant) for one in asked]


def _times(rows: "PolicyRows") -> Array:
    assert rows.log.timestamp is not None
    return rows.log.timestamp.astype(np.float64)


def _latest(rows: "PolicyRows") -> int:
    assert rows.log.timestamp is not None
    return int(rows.log.timestamp.max())


def _ratio(rows: "PolicyRows") -> Array:
    return np.asarray(rows.ratio.double())


def _reward(rows: "PolicyRows") -> Array:
    return np.asarray(rows.reward.double())


def _squared_distance(rows: "PolicyRows", centre: float) -> Array:
    return np.square(_reward(rows) - centre)


def _spread(rows: "PolicyRows") -> Array:
    ratio = rows.ratio.double()
    return np.asarray(ratio * (ratio - 1))


def _rewarded_spread(rows: "PolicyRows") -> Array:
    return np.asarray(torch.from_numpy(_spread(rows)) * rows.reward)
