"""Small logs whose rows are written down, and what the docstrings promise of them in slow NumPy, row by row."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import norm

from offpolicy.evaluation import PolicyRows
from offpolicy.log import LoggedData

Array = npt.NDArray[np.float64]
View = Callable[[Array], float]
"""A number as a function of the rows kept."""


@dataclass(frozen=True)
class HandMade:
    """One policy on one log: a number a row, and nothing else."""

    ratio: Array
    reward: Array
    action: npt.NDArray[np.int64]
    cluster: npt.NDArray[np.int64]
    uncertainty: Array | None = None
    imputed: Array | None = None
    baseline: Array | None = None
    row_weight: Array | None = None
    log_logging: float | Array = -1.0

    @classmethod
    def draw(
        cls,
        seed: int,
        rows: int = 24,
        clusters: int = 9,
        spread: float = 1.0,
        *,
        uncertainty: bool = False,
        rewards: bool = False,
        row_weight: bool = False,
    ) -> "HandMade":
        """Rows at random, with as much known about them as asked for."""
        random = np.random.default_rng(seed)
        return cls(
            ratio=np.exp(spread * random.normal(size=rows)),
            reward=random.random(rows).round(2),
            action=random.integers(0, 4, rows),
            cluster=np.concatenate([np.arange(clusters), random.integers(0, clusters, rows - clusters)]),
            uncertainty=random.uniform(0.1, 0.6, rows) if uncertainty else None,
            imputed=random.random(rows) if rewards else None,
            baseline=random.random(rows) if rewards else None,
            row_weight=random.integers(1, 6, rows).astype(np.float64) if row_weight else None,
        )

    @property
    def log(self) -> LoggedData:
        """The log of these rows, one context each."""
        return LoggedData.from_arrays(
            contexts=np.arange(len(self.ratio))[:, None].astype(np.float64),
            action=self.action,
            reward=self.reward,
            actions=4,
            cluster=self.cluster,
            row_weight=self.row_weight,
        )

    @property
    def rows(self) -> PolicyRows:
        """As the library holds them."""
        with np.errstate(divide="ignore"):
            inputs: dict[str, Any] = {"log_ratio": np.log(self.ratio), "reward": self.reward}
        inputs["log_logging"] = np.broadcast_to(self.log_logging, self.ratio.shape)
        for name in ("uncertainty", "imputed", "baseline"):
            if getattr(self, name) is not None:
                inputs[name] = getattr(self, name)
        return PolicyRows(self.log, {name: torch.from_numpy(np.array(values)) for name, values in inputs.items()})

    @property
    def events(self) -> Array:
        """How many events each row stands for."""
        return np.ones(len(self.ratio)) if self.row_weight is None else self.row_weight

    def value(self, weight: Array, rewards: bool, keep: Array | None = None) -> float:
        """mean q̂(x, π) + Σ w·(r − q̂)/Σ w over the rows kept."""
        m = self.events if keep is None else self.events * keep
        q = self.imputed if rewards and self.imputed is not None else np.zeros(len(weight))
        base = float((m * self.baseline).sum() / m.sum()) if rewards and self.baseline is not None else 0.0
        return base + float((m * weight * (self.reward - q)).sum() / (m * weight).sum())

    def jackknife(self, weight: Array, rewards: bool) -> float:
        """The error of one view."""
        return self.left_out(lambda keep: self.value(weight, rewards, keep))

    def left_out(self, view: View) -> float:
        """√((C − 1)/C·Σ (V₍₋c₎ − mean)²), leaving out one cluster at a time."""
        names = np.unique(self.cluster)
        left = np.array([view((self.cluster != c).astype(np.float64)) for c in names])
        return float(np.sqrt((len(names) - 1) / len(names) * ((left - left.mean()) ** 2).sum()))

    def shrunk(self, lam: float) -> Array:
        """λρ/(λ + ρ²)."""
        return self.ratio if np.isinf(lam) else lam * self.ratio / (lam + self.ratio**2)

    def chosen_lambda(self) -> float:
        """The λ of the grid, or none, with the least squared move from no shrinkage plus squared error of any kind."""
        middle, largest = max(float(np.median(self.ratio)), 1e-3), max(float(self.ratio.max()), 1e-2)
        grid = [*np.exp(np.linspace(np.log(middle**2), np.log(10 * largest**2), 12)), np.inf]
        errors = []
        for lam in grid:
            weight = self.shrunk(lam)
            moves = [self.value(weight, kind) - self.value(self.ratio, kind) for kind in self.kinds]
            spreads = [self.jackknife(weight, kind) for kind in self.kinds]
            errors.append(max(move**2 + spread**2 for move, spread in zip(moves, spreads, strict=True)))
        return float(grid[int(np.argmin(errors))])

    def propensity_error(self, lam: float, rewards: bool) -> float:
        """√Σ_a (Σ_{n of a} ∂V/∂log β̂ · U)² of self-normalised shrunk weights."""
        return float(np.sqrt((self.effects(lam, rewards) ** 2).sum()))

    def effects(self, lam: float, rewards: bool) -> Array:
        """Σ_{n of a} ∂V/∂log β̂ · U of every action."""
        if self.uncertainty is None:
            return np.zeros(4)
        weight = self.events * self.shrunk(lam)
        q = self.imputed if rewards and self.imputed is not None else np.zeros(len(weight))
        outcome = self.reward - q
        centre = (weight * outcome).sum() / weight.sum()
        elasticity = np.ones(len(weight))
        if np.isfinite(lam):
            elasticity = 1 - 2 / (1 + np.exp(-(2 * np.log(self.ratio) - np.log(lam))))
        change = weight * (outcome - centre) / weight.sum() * self.uncertainty * elasticity
        return np.array([change[self.action == a].sum() for a in range(4)])

    def expected(self, level: float = 0.95) -> "Expected":
        """The estimate, its half-width and every part of it."""
        lam = self.chosen_lambda()
        kinds = self.kinds
        shrunk = [(self.shrunk(lam), kind) for kind in kinds]
        bare = [(self.ratio, kind) for kind in kinds]
        values = [self.value(*view) for view in (*shrunk, *bare)]
        small = max(self.jackknife(*view) for view in shrunk)
        large = max(self.jackknife(*view) for view in (*shrunk, *bare))
        z = float(norm.ppf(0.5 + level / 2))
        return Expected(
            value=values[len(kinds) - 1],
            lam=lam,
            values=values,
            shrunk_error=small,
            largest_error=large,
            error=min(large, 2 * small),
            propensity_error=self.propensity_error(lam, kinds[-1]),
            distance=max(values) - min(values),
            misweighted=abs(1 - self.mean(self.ratio)) * self.deviation / 3,
            z=z,
        )

    @property
    def kinds(self) -> list[bool]:
        """Without, and where there is one with a reward model."""
        return [False] if self.baseline is None else [False, True]

    def mean(self, values: Array, keep: Array | None = None) -> float:
        """Over events."""
        return float(np.average(values, weights=self.events if keep is None else self.events * keep))

    @property
    def deviation(self) -> float:
        """Of the rewards."""
        return float(np.sqrt(self.mean((self.reward - self.mean(self.reward)) ** 2)))

    def views(self) -> tuple[list[View], list[View]]:
        """The shrunk and the bare views of the value, as functions of the rows kept."""
        lam = self.chosen_lambda()
        shrunk, bare = ([self._view(weight, kind) for kind in self.kinds] for weight in (self.shrunk(lam), self.ratio))
        return shrunk, bare

    def _view(self, weight: Array, rewards: bool) -> View:
        return lambda keep: self.value(weight, rewards, keep)

    def _own_mean(self, keep: Array) -> float:
        return self.mean(self.reward, keep)

    def against(self, other: "HandMade | None", level: float = 0.95) -> "Expected":
        """The same of the difference to another policy, or to logging: every view is paired."""
        every = np.ones(len(self.ratio))
        mine, ratio = self.views(), np.ones(len(self.ratio)) if other is None else other.ratio
        means: list[View] = [self._own_mean] * len(self.kinds)
        theirs = (means, means) if other is None else other.views()
        shrunk, bare = (
            [minus(f, g) for f, g in zip(one, two, strict=True)] for one, two in zip(mine, theirs, strict=True)
        )
        d = self.ratio - ratio
        b = self.mean(self.reward * d**2) / self.mean(d**2)
        bare.append(lambda keep: self.mean(d * (self.reward - b), keep))
        effect = self.effects(self.chosen_lambda(), self.kinds[-1])
        if other is not None:
            effect = effect - other.effects(other.chosen_lambda(), other.kinds[-1])
        values = [view(every) for view in (*shrunk, *bare)]
        small, large = max(map(self.left_out, shrunk)), max(map(self.left_out, (*shrunk, *bare)))
        return Expected(
            value=values[len(self.kinds) - 1],
            lam=self.chosen_lambda(),
            values=values,
            shrunk_error=small,
            largest_error=large,
            error=min(large, 2 * small),
            propensity_error=float(np.sqrt((effect**2).sum())),
            distance=max(values) - min(values),
            misweighted=abs(self.mean(self.ratio) - self.mean(ratio)) * self.deviation / 3,
            z=float(norm.ppf(0.5 + level / 2)),
        )


def minus(first: View, second: View) -> View:
    return lambda keep: first(keep) - second(keep)


@dataclass(frozen=True)
class Expected:
    """The parts of the half-width."""

    value: float
    lam: float
    values: list[float]
    shrunk_error: float
    largest_error: float
    error: float
    propensity_error: float
    distance: float
    misweighted: float
    z: float

    @property
    def sampling(self) -> float:
        """z times the sampling error."""
        return self.z * self.error

    @property
    def half(self) -> float:
        """The whole half-width."""
        return self.z * float(np.hypot(self.error, self.propensity_error)) + self.distance / 2 + self.misweighted
