"""Rows of one context or user are not independent: sums per cluster, and what a value's error is across clusters.

Five sums per cluster are enough for every interval. With S = Σ_c S_c the value is a smooth function of the totals,

    V(S) = ΣB/Σn + ΣA/ΣZ,      A_c = Σ w·(r − q̂),  Z_c = Σ z,  B_c = Σ q̂(x, π),  n_c = rows,

(with −log(1 − λ·ΣA/ΣZ)/λ in place of ΣA/ΣZ where there is a temperature λ), so its linearisation ψ_c = S_c·∇V(S) is
each cluster's influence: Σ ψ_c = 0, and the standard error is
√(C/(C − 1)·Σ ψ_c²). Random cluster sizes are part of it, because n and Z are sums like the others.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.evaluation.value import Array, Terms, ratio, room, value_of
from offpolicy.log import row_pieces

CORRECTION, NORMALISER, BASELINE, WEIGHT, ROWS = range(5)
"""The sums of a cluster, as columns."""

ROUNDING = 1e-12
"""A spread this small relative to the value is rounding, not variation."""


class ClusterStatistic(ABC):
    """A smooth function of sums over independent clusters, with its error."""

    columns: Array  # (clusters, sums)
    limits: ClassVar[tuple[float, float]]
    """The least and greatest value that rewards in [0, 1] allow."""

    @abstractmethod
    def values(self, totals: Array) -> Array:
        """The statistic of totals (..., sums)."""

    @abstractmethod
    def gradient(self, totals: Array) -> Array:
        """Its derivative with respect to the totals, of the same shape."""

    @property
    @abstractmethod
    def refusal(self) -> str:
        """Why no error can be estimated from these clusters; empty where one can."""

    @property
    @abstractmethod
    def note(self) -> str:
        """A caveat on the error; usually empty."""

    @property
    def clusters(self) -> int:
        """Number of clusters with rows."""
        return len(self.columns)

    @cached_property
    def totals(self) -> Array:
        """Sums over all clusters."""
        return np.asarray(self.columns.sum(0))

    @cached_property
    def value(self) -> float:
        """The estimate."""
        return float(self.values(self.totals))

    @property
    def influence(self) -> Array:
        """ψ_c: what each cluster adds to the estimate, linearised; they sum to zero."""
        return np.asarray(self.columns @ self.gradient(self.totals))

    @cached_property
    def standard_error(self) -> float:
        """√(C/(C − 1)·Σ ψ_c²); infinite where `refusal` says why."""
        return np.inf if self.refusal else self._spread

    @cached_property
    def _spread(self) -> float:
        count = self.clusters
        return float(np.sqrt(count / (count - 1) * np.square(self.influence).sum())) if count > 1 else np.inf

    @property
    def leave_one_out(self) -> Array:
        """The estimate without each cluster in turn, exact; sums from both sides, so that a giant cancels nothing."""
        found = np.empty(self.clusters)
        for part, others in _sums_of_others(self.columns):
            found[part] = self.values(others)
        return found

    @cached_property
    def jackknife_error(self) -> float:
        """√((C − 1)/C·Σ (V₍₋c₎ − mean)²): above the standard error where few clusters carry the weight."""
        if self.refusal:
            return np.inf
        count, values = self.clusters, self.leave_one_out
        values -= values.mean()
        return float(np.sqrt((count - 1) / count * np.square(values, out=values).sum()))


def _sums_of_others(columns: Array) -> Iterator[tuple[slice, Array]]:
    """The sums of all clusters but each, a piece of the clusters at a time: those before it plus those after it."""
    pieces = list(row_pieces(len(columns)))
    after = [np.zeros(columns.shape[1])]
    for piece in reversed(pieces[1:]):
        after.append(_running(columns[piece][::-1], after[-1])[-1])
    before = np.zeros(columns.shape[1])
    for piece, behind in zip(pieces, reversed(after), strict=True):
        up, down = _running(columns[piece], before), _running(columns[piece][::-1], behind)[::-1]
        yield piece, up[:-1] + down[1:]
        before = up[-1]


def _running(columns: Array, start: Array) -> Array:
    """A start, and what it is after each row is added."""
    return np.asarray(np.concatenate([start[None], columns]).cumsum(0))


@dataclass(frozen=True, eq=False)
class ClusteredTerms(ClusterStatistic):
    """An estimator's sums per cluster: its value, error and what intervals need."""

    columns: Array
    """A, Z, B, Σw and n of every cluster that has rows, float64 (clusters, 5)."""
    index: NDArray[np.integer[Any]]
    """The clusters' own numbers."""
    temperature: float = 0.0
    """λ of a log-sum-exp in place of ΣA/ΣZ; 0 is none."""
    limits: ClassVar[tuple[float, float]] = (0.0, 1.0)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The sums over several shards, in their order; a unit that occurs in more than one is summed."""
        if len(parts) == 1:
            return parts[0]
        index = np.concatenate([part.index for part in parts])
        columns, temperature = np.concatenate([part.columns for part in parts]), max(p.temperature for p in parts)
        if (index[1:] > index[:-1]).all():
            return cls(columns, index, temperature)
        units, place = np.unique(index, return_inverse=True)
        sums = np.zeros((len(units), columns.shape[1]))
        np.add.at(sums, place, columns)
        return cls(sums, units, temperature)

    def values(self, totals: Array) -> Array:
        """The one formula, of the totals."""
        parts = (totals[..., part] for part in (CORRECTION, NORMALISER, BASELINE, ROWS))
        return value_of(*parts, temperature=self.temperature)

    def gradient(self, totals: Array) -> Array:
        """∇V: 1/ΣZ for A, −ΣA/(ΣZ)² for Z, and the same for B and n."""
        gradient = np.zeros_like(totals)
        for top, bottom in ((CORRECTION, NORMALISER), (BASELINE, ROWS)):
            slope = ratio(np.ones_like(totals[..., bottom]), totals[..., bottom])
            gradient[..., top] = slope
            gradient[..., bottom] = -ratio(totals[..., top], totals[..., bottom]) * slope
        if self.temperature:
            inner = room(ratio(totals[..., CORRECTION], totals[..., NORMALISER]), self.temperature)
            gradient[..., [CORRECTION, NORMALISER]] /= inner[..., None]
        return gradient

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.totals[ROWS])

    @property
    def mean_weight(self) -> float:
        """Mean of w over rows."""
        return float(ratio(self.totals[WEIGHT], self.totals[ROWS]))

    @property
    def no_weight(self) -> bool:
        """All weights or all normalisers are zero: the correction is 0 because nothing supports it."""
        return bool(self.totals[WEIGHT] == 0 or self.totals[NORMALISER] <= 0)

    @property
    def has_baseline(self) -> bool:
        """Whether a reward model contributes."""
        return bool(self.columns[:, BASELINE].any())

    @property
    def is_plain(self) -> bool:
        """Whether z = 1 in every row."""
        return bool(np.allclose(self.columns[:, NORMALISER], self.columns[:, ROWS], rtol=1e-9, atol=0))

    @property
    def is_self_normalised(self) -> bool:
        """Whether z = w in every row."""
        return bool(np.allclose(self.columns[:, NORMALISER], self.columns[:, WEIGHT], rtol=1e-9, atol=0))

    @property
    def effective_clusters(self) -> float:
        """Effective sample size in clusters, (ΣW_c)²/ΣW_c²; 0 without weight."""
        largest = self.columns[:, WEIGHT].max(initial=0.0)
        if largest == 0:
            return 0.0
        weight = self.columns[:, WEIGHT] / largest
        return float(weight.sum() ** 2 / np.square(weight).sum())

    @cached_property
    def refusal(self) -> str:
        """Why no error can be estimated from these clusters; empty where one can."""
        if self.clusters < 2:
            return f"{self.clusters or 'no'} cluster only: an error needs at least two"
        if self.no_weight and not self.has_baseline:
            return "all weights are zero: the log says nothing about this policy"
        if not self.no_weight and self.effective_clusters < 2:
            share = float(self.columns[:, WEIGHT].max() / self.totals[WEIGHT])
            return f"one cluster carries {share:.0%} of the weight: in effect there are fewer than two"
        correction = ratio(self.totals[CORRECTION], self.totals[NORMALISER])
        baseline = ratio(self.totals[BASELINE], self.totals[ROWS])
        if self._spread <= ROUNDING * (abs(float(correction)) + abs(float(baseline))):
            return "no variation among clusters: there is nothing to estimate an error from"
        return ""

    @property
    def note(self) -> str:
        """A caveat on the error; usually empty."""
        return "all weights are zero: value and error are the reward model's alone" if self.no_weight else ""


@dataclass(frozen=True, eq=False)
class ClusteredDifference(ClusterStatistic):
    """first − second, paired: both estimated on the same clusters, so that what they share cancels."""

    first: ClusteredTerms
    second: ClusteredTerms
    limits: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        """Refuse pairs that do not share their clusters and rows."""
        first, second = self.first, self.second
        if not np.array_equal(first.index, second.index) or not np.array_equal(
            first.columns[:, ROWS], second.columns[:, ROWS]
        ):
            raise ParameterError(
                f"A paired difference needs two estimates over the same rows of the same clusters, but one has "
                f"{first.rows} rows in {first.clusters} clusters and the other {second.rows} in {second.clusters}. "
                "Evaluate both policies on one log."
            )

    @property
    def columns(self) -> Array:  # type: ignore[override]
        """The sums of both, side by side (clusters, 10)."""
        return np.concatenate([self.first.columns, self.second.columns], axis=1)

    @property
    def clusters(self) -> int:
        """Number of clusters with rows."""
        return self.first.clusters

    @cached_property
    def totals(self) -> Array:
        """Sums over all clusters."""
        return np.concatenate([self.first.totals, self.second.totals])

    @property
    def influence(self) -> Array:
        """Difference of influences, exactly zero for equal estimates."""
        return np.asarray(self.first.influence - self.second.influence)

    @property
    def leave_one_out(self) -> Array:
        """The difference without each cluster in turn."""
        values = self.first.leave_one_out
        values -= self.second.leave_one_out
        return values

    def values(self, totals: Array) -> Array:
        """The first's value less the second's."""
        first, second = np.split(totals, 2, axis=-1)
        return self.first.values(first) - self.second.values(second)

    def gradient(self, totals: Array) -> Array:
        """Gradients of both, the second's negated."""
        first, second = np.split(totals, 2, axis=-1)
        return np.concatenate([self.first.gradient(first), -self.second.gradient(second)], axis=-1)

    @property
    def refusal(self) -> str:
        """The refusal of either; two equal estimates are fine, their difference is 0 for certain."""
        return self.first.refusal or self.second.refusal

    @property
    def note(self) -> str:
        """A caveat on the error; usually empty."""
        return self.first.note or self.second.note


class ClusterSums:
    """Accumulates terms into sums per cluster; memory is five numbers per cluster, whatever the number of rows."""

    def __init__(self, clusters: int = 0) -> None:
        """Nothing seen yet; there is room for as many clusters as are expected."""
        self._sums = torch.zeros(5, clusters, dtype=torch.float64)
        self._temperature = 0.0

    def add(self, batch: Terms, cluster: Tensor, row_weight: Tensor | None = None) -> None:
        """Take in a batch of rows; `cluster` numbers each row's cluster, densely from 0; `row_weight` counts events."""
        if len(cluster) != len(batch.weight):
            raise ParameterError(
                f"{len(batch.weight)} rows came with {len(cluster)} cluster numbers; pass one per row."
            )
        if not len(cluster):
            return
        if int(cluster.min()) < 0:
            raise ParameterError(f"Cluster numbers start at 0, but one is {int(cluster.min())}.")
        self._grow(int(cluster.max()) + 1)
        self._temperature = batch.temperature
        weight = batch.weight.double()
        correction = weight * (batch.reward - batch.imputed).double()
        parts = (correction, batch.normaliser.double(), batch.baseline.double(), weight, torch.ones_like(weight))
        for total, part in zip(self._sums, parts, strict=True):
            total.index_add_(0, cluster, part if row_weight is None else part * row_weight)

    def merge(self, other: Self) -> None:
        """Take in the rows another accumulator has seen."""
        size = other._sums.shape[1]
        self._grow(size)
        self._temperature = self._temperature or other._temperature
        self._sums[:, :size] += other._sums

    def finish(self, first: int = 0) -> ClusteredTerms:
        """The sums of every cluster that has rows; clusters are numbered from `first`."""
        present = np.flatnonzero(self._sums[ROWS].numpy()).astype(np.int32)
        every = len(present) == self._sums.shape[1]
        sums = self._sums if every else self._sums[:, torch.from_numpy(present)]
        present += first
        return ClusteredTerms(sums.numpy().T, present, self._temperature)

    def _grow(self, clusters: int) -> None:
        held = self._sums.shape[1]
        if clusters > held:
            wider = torch.zeros(5, max(clusters, 2 * held), dtype=torch.float64)
            wider[:, :held] = self._sums
            self._sums = wider


def clustered(terms: Terms, cluster: Tensor, row_weight: Tensor | None = None) -> ClusteredTerms:
    """The cluster sums of one batch of rows."""
    sums = ClusterSums()
    sums.add(terms, cluster, row_weight)
    return sums.finish()


def clustered_mean(values: Array, cluster: NDArray[np.integer[Any]]) -> tuple[float, float]:
    """The mean of numbers of rows, and its error over clusters."""
    mean = float(values.mean())
    residual = np.bincount(cluster, values - mean)
    return mean, float(np.sqrt(np.square(residual).sum())) / len(values)


def pooled(columns: Array, most: int, random: np.random.Generator) -> Array:
    """Clusters summed at random into at most `most` groups of nearly equal count: independent units still."""
    count = len(columns)
    if count <= most:
        return columns
    starts = np.linspace(0, count, most, endpoint=False).astype(np.int64)
    return np.asarray(np.add.reduceat(columns[random.permutation(count)], starts, axis=0))
