"""What learning maximises: each objective turns the weights of some rows into coefficients of log π.

    surrogate = mean over rows of c_n·log π(a_n|x_n),   c_n under stop-gradient

A weight w comes from the registry; its slope is ∂w/∂log π, which is w itself while φ = w/ρ is held fixed. The gain is
the reward less a baseline, or less q̂(x, a) where a reward model is present. Any objective takes any weight. To add one,
write a function: its keyword-only parameters are hyper-parameters with declared ranges, as those of a weight are.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import torch
from torch import Tensor

from offpolicy.checks import Range
from offpolicy.estimators import Estimator, HyperParameter
from offpolicy.registry import Registry

Translation = Annotated[float, Range(-1.0, 1.0, grid=tuple(round(0.05 * i, 2) for i in range(1, 20)))]
Penalty = Annotated[float, Range(0.0, math.inf, include_high=False, grid=(0.0, 0.01, 0.1, 1.0, 10.0))]
Power = Annotated[float, Range(0.0, 1.0, grid=(0.0, 0.25, 0.5, 0.75, 1.0))]
Smoothing = Annotated[float, Range(0.0, 1.0, grid=(0.001, 0.01, 0.05, 0.1, 0.5))]
Negatives = Annotated[float, Range(0.0, math.inf, include_high=False, grid=(0.01, 0.1, 1.0))]


@dataclass(frozen=True)
class Moments:
    """Mean and standard deviation of w·gain over all events at the start of an epoch."""

    mean: float
    spread: float
    events: float


@dataclass(frozen=True)
class RowTerms:
    """What an objective may use of some rows, all without gradient and of one length."""

    log_prob: Tensor
    weight: Tensor
    slope: Tensor
    """∂w/∂log π: w while φ is frozen, the true derivative with the exact gradient."""
    normaliser: Tensor
    """z of the registry: 1, w, or a row scale."""
    reward: Tensor
    """r in [0, 1]."""
    gain: Tensor
    """r less the reward baseline; r − q̂(x, a) where a reward model is present."""
    moments: Moments | None = None
    """For objectives that ask for them."""
    count: Tensor | None = None
    """How many events each row stands for, where weight, slope and normaliser are already multiplied by it."""

    @property
    def events(self) -> float:
        """How many events all rows stand for."""
        return float(len(self.weight) if self.count is None else self.count.sum())

    def times(self, count: Tensor) -> "RowTerms":
        """The terms of rows that stand for several events each, for objectives that sum over a batch."""
        weight, slope, normaliser = self.weight * count, self.slope * count, self.normaliser * count
        return replace(self, weight=weight, slope=slope, normaliser=normaliser, count=count)


@dataclass(frozen=True)
class ObjectiveSpec:
    """A row of the table of objectives."""

    name: str
    coefficients: Callable[..., Tensor]
    per_row: bool = True
    """Whether a row's coefficient depends on that row alone."""
    zero_without_gain: bool = True
    """Whether a row without gain has coefficient zero, so that it can be skipped."""
    uses_moments: bool = False

    @cached_property
    def hyper(self) -> Mapping[str, HyperParameter]:
        """Its hyper-parameters, read from the signature as the registry reads a weight's."""
        return Estimator(self.name, self.coefficients, "offpolicy").hyper

    def of(self, rows: RowTerms, hyper: Mapping[str, Any]) -> Tensor:
        """c_n of the rows."""
        return self.coefficients(rows, **{name: hyper[name] for name in self.hyper})


OBJECTIVES: Registry[ObjectiveSpec] = Registry("objective")


def register_objective(name: str, **row: Any) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register the decorated function of `RowTerms` as an objective."""

    def register(coefficients: Callable[..., Tensor]) -> Callable[..., Tensor]:
        OBJECTIVES.add(name, ObjectiveSpec(name, coefficients, **row))
        return coefficients

    return register


@register_objective("value")
def value(rows: RowTerms) -> Tensor:
    """The mean of w·gain: c = slope·gain."""
    return rows.slope * rows.gain


@register_objective("translated", zero_without_gain=False)
def translated(rows: RowTerms, *, translation: Translation = 0.0) -> Tensor:
    """The mean of w·(gain − translation): BanditNet's Lagrangian of the self-normalised value."""
    return rows.slope * (rows.gain - translation)


@register_objective("likelihood")
def likelihood(rows: RowTerms, *, power: Power = 0.5) -> Tensor:
    """The mean of gain·β̂^{−power}·log π, a weight without π, so that a linear softmax has one maximum: power 0 is CE.

    With w = ρ, w/π is 1/β̂.
    """
    return rows.gain * (rows.weight.log() - rows.log_prob).mul(power).exp().where(rows.weight > 0, 0.0)


@register_objective("log_linear")
def log_linear(rows: RowTerms, *, smoothing: Smoothing = 0.01) -> Tensor:
    """The mean of π·log(1 + λ·gain/β̂)/λ, λ = `smoothing`: logarithmic smoothing, linear in π; a loss counts in full.

    c = π·log(1 + λ·gain/β̂)/λ, where w/π is 1/β̂.
    """
    prob = rows.log_prob.exp()
    share = rows.weight / prob.clamp(min=torch.finfo(prob.dtype).tiny) * rows.gain
    smoothed = torch.log1p(smoothing * share.clamp(min=0.0)) / smoothing if smoothing > 0 else share
    return prob * torch.where(share > 0, smoothed, share)


@register_objective("self_normalised", per_row=False, zero_without_gain=False)
def self_normalised(rows: RowTerms) -> Tensor:
    """V̂ = Σ w·gain/Σ w over the batch, exactly: c = n·slope·(gain − V̂)/Σ w; without weight nothing moves."""
    total = rows.weight.sum()
    if not bool(total > 0):
        return torch.zeros_like(rows.weight)
    estimate = (rows.weight * rows.gain).sum() / total
    return rows.slope * (rows.gain - estimate) * (rows.events / total)


@register_objective("frozen_normaliser", per_row=False)
def frozen_normaliser(rows: RowTerms) -> Tensor:
    """Σ w·gain/Σ z over the batch with Σ z held fixed: c = n·slope·gain/Σ z."""
    total = rows.normaliser.sum()
    if not bool(total > 0):
        return torch.zeros_like(rows.weight)
    return rows.slope * rows.gain * (rows.events / total)


@register_objective("variance_penalised", uses_moments=True)
def variance_penalised(rows: RowTerms, *, penalty: Penalty = 0.1) -> Tensor:
    """POEM: mean(u) − penalty·√(var(u)/N), u = w·gain, majorised at the start of the epoch so that rows decouple.

    With m and s the mean and deviation of u at that point, √ is concave and −ū² ≤ −2mū + m², which leaves
    c = slope·gain·[1 + k(m − u)], k = penalty·√N/((N − 1)s); s = 0 means no penalty.
    """
    moments = rows.moments
    assert moments is not None
    plain = rows.slope * rows.gain
    if moments.spread == 0 or moments.events < 2:
        return plain
    k = penalty * math.sqrt(moments.events) / ((moments.events - 1) * moments.spread)
    return plain * (1 + k * (moments.mean - rows.weight * rows.gain))


@register_objective("with_negatives", zero_without_gain=False)
def with_negatives(rows: RowTerms, *, negatives: Negatives = 0.1) -> Tensor:
    """The mean of sg(w)·[gain·log π + negatives·(1 − r)·log(1 − π)].

    ∇log(1 − π) = −π/(1 − π)·∇log π, so c = w·[gain − negatives·(1 − r)·π/(1 − π)].
    """
    tiny = torch.finfo(rows.log_prob.dtype).eps
    odds: Tensor = torch.exp(rows.log_prob) / torch.special.expm1(rows.log_prob).neg().clamp(min=tiny)
    return rows.weight * (rows.gain - negatives * (1 - rows.reward) * odds)


def top_k_factor(log_prob: Tensor, top_k: int) -> Tensor:
    """K(1 − π)^(K−1): how fast the chance that one of K independent draws takes the action grows with π."""
    if top_k == 1:
        return torch.ones_like(log_prob)
    return top_k * torch.exp((top_k - 1) * torch.log1p(-torch.exp(log_prob)))
