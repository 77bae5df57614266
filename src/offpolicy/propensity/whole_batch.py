"""The penalised likelihood of a linear softmax over a whole log, and its maximum by preconditioned L-BFGS.

With x the features of a context, centred and rotated to the axes of their covariance (variances λ_j), it is

    f(W, c) = Σ_n [x_n·w_{a_n} + c_{a_n} − log Σ_a exp(x_n·w_a + c_a)] − κ/2·|W|²        (a over the candidates of x_n)

The rows enter once, as the sums of features of each action (they are sufficient); a step then costs two products over
the distinct contexts, through the fused head. Where the features say nothing the curvature of f is n_a·λ_j + κ in w_aj
and n_a in c_a, n_a the events of action a, because centred features leave the intercepts alone: these numbers
precondition L-BFGS, which starts at that very policy, the popularity of the actions.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from offpolicy.log import LoggedData
from offpolicy.models import Scorer, log_normaliser_gradient, offered_of

FLOAT64_NUMBERS, FLOAT64_WEIGHTS = 1_000_000, 20_000
"""Up to this many (contexts × actions) numbers and weights the fit is in float64 and converges tightly; beyond, in
float32."""

HISTORY, HISTORY_BYTES = 10, 1 << 27
"""Steps that L-BFGS remembers, fewer where they would take more memory."""

SMALLEST_RIDGE = 1e-3
"""The preconditioner takes a smaller ridge for this, so that rounding is not magnified."""

AT_ONCE = 1 << 14
"""Contexts whose features are held in float64 at once."""

FLAT = 1e-9
"""A direction whose variance is this share of the largest is dropped: the features do not vary along it."""


@dataclass(frozen=True)
class Axes:
    """Features of contexts, centred and rotated to the axes along which they are uncorrelated."""

    mean: Tensor  # (d,)
    rotation: Tensor  # (d, r)
    variance: Tensor  # (r,)

    @staticmethod
    def of(features: Tensor, weight: Tensor) -> "Axes":
        """Those of features (contexts, d) with so many events each."""
        share = weight.double() / weight.double().sum()
        mean = torch.stack([w @ x.double() for x, w in _parts(features, share)]).sum(0)
        covariance = sum((_squares(x.double() - mean, w) for x, w in _parts(features, share)), torch.zeros(()))
        variance, rotation = torch.linalg.eigh(covariance)
        kept = variance > FLAT * variance.amax().clamp(min=1e-30)
        return Axes(mean, rotation[:, kept], variance[kept])

    def of_contexts(self, features: Tensor) -> Tensor:
        """The features along the axes, (contexts, r)."""
        return (features - self.mean.to(features)) @ self.rotation.to(features)

    def to_weights(self, along: Tensor, intercept: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and bias on the features as they are."""
        weights = along.double() @ self.rotation.T
        return weights, intercept.double() - weights @ self.mean

    def from_weights(self, weights: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse of `to_weights`."""
        return weights.double() @ self.rotation, bias.double() + weights.double() @ self.mean


def _parts(features: Tensor, weight: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(torch.split(features, AT_ONCE), torch.split(weight, AT_ONCE), strict=True)


def _squares(x: Tensor, weight: Tensor) -> Tensor:
    return x.T @ (x * weight[:, None])


def precision(numbers: int, weights: int) -> torch.dtype:
    """That of a fit to so many (contexts × actions) numbers with so many weights."""
    return torch.float64 if numbers <= FLOAT64_NUMBERS and weights <= FLOAT64_WEIGHTS else torch.float32


class Likelihood(ABC):
    """The likelihood of the rows of a log as a function of θ = (W, c), (seen, r + 1), by the sums it depends on."""

    dtype: torch.dtype
    seen: Tensor
    """The actions with any rows."""
    count: Tensor  # (seen,)
    """Their events."""
    events: float
    axes: Axes
    sums: Tensor  # (seen, r + 1)
    """Features along the axes, and ones, summed over the events of each action."""

    @abstractmethod
    def log_totals(self, weights: Tensor, bias: Tensor) -> tuple[float, Tensor, Tensor]:
        """Σ over events of log Σ_a exp(x·w_a + c_a), and its gradients."""

    def newton(self, ridge: float) -> Callable[[Tensor], Tensor]:
        """g ↦ H⁻¹·g, H the curvature where the features say nothing: n_a·λ_j + κ less λ_j·n_a·n_b/n (Sherman-Morrison).

        The intercepts' own block is taken as n_a alone, which is its inverse up to the same shift of them all.
        """
        variance = self.axes.variance.to(self.dtype)
        diagonal = torch.cat([self.count[:, None] * variance + ridge, self.count[:, None]], 1)
        ratio = (self.count[:, None] / self.events) / diagonal[:, :-1]  # (seen, r)
        shared = self.events * variance / (max(ridge, SMALLEST_RIDGE) * ratio.sum(0))

        def apply(gradient: Tensor) -> Tensor:
            step = gradient / diagonal
            step[:, :-1] += ratio * (shared * (ratio * gradient[:, :-1]).sum(0))
            return step

        return apply

    def negative(self, theta: Tensor, ridge: float) -> tuple[float, Tensor]:
        """−f and its gradient."""
        weights, bias = theta[:, :-1].contiguous(), theta[:, -1].contiguous()
        total, d_weights, d_bias = self.log_totals(weights, bias)
        value = total - float((theta * self.sums).double().sum())
        gradient = torch.cat([d_weights, d_bias[:, None]], 1).sub_(self.sums)
        gradient[:, :-1] += ridge * weights
        return value + ridge / 2 * float(weights.double().square().sum()), gradient

    def start(self, scorer: Scorer) -> Tensor:
        """θ of the scorer as it is; where it has no weights yet, of the popularity of the actions."""
        weights, bias = (part.detach()[self.seen] for part in scorer.actions())
        along, intercept = self.axes.from_weights(weights, bias)
        popular = (self.count.double() / self.events).log()
        fresh = (weights == 0).all(1)
        if bool(fresh.all()):
            intercept = popular
        elif bool(fresh.any()):  # actions that an earlier fit to fewer rows did not meet
            intercept = intercept.where(~fresh, popular + (intercept - popular)[~fresh].mean())
        return torch.cat([along, intercept[:, None]], 1).to(self.dtype)

    def write(self, theta: Tensor, scorer: Scorer) -> None:
        """Put θ into a scorer; actions without rows get zeros."""
        weights, bias = scorer.actions()
        own_weights, own_bias = self.axes.to_weights(theta[:, :-1], theta[:, -1])
        with torch.no_grad():
            weights.zero_()
            bias.zero_()
            weights[self.seen] = own_weights.to(weights)
            bias[self.seen] = (own_bias - own_bias.mean()).to(bias)

    def maximise(self, scorer: Scorer, ridge: float, tolerance: float, max_evaluations: int) -> bool:
        """Fit a scorer in place until f is known to be within a share `tolerance` of its maximum; whether it is."""
        theta, converged = lbfgs(
            lambda theta: self.negative(theta, ridge),
            self.start(scorer),
            self.newton(ridge),
            tolerance,
            max_evaluations,
        )
        self.write(theta, scorer)
        return converged


class WholeBatch(Likelihood):
    """The likelihood of the rows of a log in memory, or of those of some contexts."""

    def __init__(self, scorer: Scorer, log: LoggedData, contexts: npt.NDArray[np.int64] | None = None) -> None:
        """Collect the sums that the likelihood depends on."""
        size = log.n_contexts if contexts is None else len(contexts)
        self.dtype = precision(size * log.width, scorer.dim * log.n_actions)
        features = scorer.states(log.contexts).detach().to(self.dtype)
        weight = np.ones(log.n_rows) if log.row_weight is None else np.asarray(log.row_weight)
        action, context = log.action, log.context_index
        if contexts is not None:
            renumbered = np.full(log.n_contexts, -1)
            renumbered[contexts] = np.arange(size)
            context = renumbered[context]
            weight, action, context = weight[context >= 0], action[context >= 0], context[context >= 0]
            features = features[torch.from_numpy(contexts)]
        candidates = (
            None if log.candidates is None else log.candidates.take(slice(None) if contexts is None else contexts)
        )
        count = np.bincount(action, weight, log.n_actions)
        self.seen = torch.from_numpy(np.flatnonzero(count))
        self.offered = None
        if candidates is not None:
            place = torch.full((log.n_actions,), -1).index_put((self.seen,), torch.arange(len(self.seen)))
            self.offered = offered_of(candidates).within(place)
        self.events = float(count.sum())
        self.count = torch.from_numpy(count)[self.seen].to(self.dtype)
        self.context_weight = torch.from_numpy(np.bincount(context, weight, size)).to(self.dtype)
        self.axes = Axes.of(features, self.context_weight)
        self.features = self.axes.of_contexts(features)  # (contexts, r)
        pairs = csr_matrix((weight, (action, context)), shape=(log.n_actions, size))
        sums = torch.from_numpy(pairs @ self.features.numpy())[self.seen].to(self.dtype)
        self.sums = torch.cat([sums, self.count[:, None]], 1)  # (seen, r + 1)

    def log_totals(self, weights: Tensor, bias: Tensor) -> tuple[float, Tensor, Tensor]:
        """One product with all contexts and one back."""
        log_total, d_weights, d_bias = log_normaliser_gradient(
            self.features, weights, bias, self.context_weight, offered=self.offered
        )
        return float(self.context_weight.double() @ log_total.double()), d_weights, d_bias


def lbfgs(
    function: Callable[[Tensor], tuple[float, Tensor]],
    start: Tensor,
    precondition: Callable[[Tensor], Tensor],
    tolerance: float,
    max_evaluations: int,
) -> tuple[Tensor, bool]:
    """Minimise a smooth convex function, preconditioned by an estimate of its inverse curvature.

    Stops when half of gradient · step, which is what a Newton step would gain, and the gain of the last step are both
    below `tolerance` · |value|: returns the minimiser and whether that was reached within so many evaluations.
    """
    kept = max(3, min(HISTORY, HISTORY_BYTES // (2 * start.numel() * start.element_size())))
    history: deque[tuple[Tensor, Tensor, float]] = deque(maxlen=kept)
    theta, noise = start, 4 * torch.finfo(start.dtype).eps
    value, gradient = function(theta)
    evaluations, gain = 1, 0.0
    while True:
        step = _newton_like(gradient, history, precondition)
        slope = float((gradient * step).sum(dtype=torch.float64))
        if max(gain, -slope / 2) <= tolerance * abs(value):
            return theta, True
        size, low, high = 1.0, 0.0, float("inf")
        while True:
            if evaluations >= max_evaluations:
                return theta, False
            trial = theta + size * step
            new_value, new_gradient = function(trial)
            evaluations += 1
            new_slope = float((new_gradient * step).sum(dtype=torch.float64))
            if not new_value <= value + 1e-4 * size * slope + noise * abs(value):
                high = size
            elif new_slope < 0.9 * slope:
                low = size
            else:
                break
            if high - low < 1e-6:  # no progress that this precision can tell
                return theta, False
            size = 2 * size if high == float("inf") else (low + high) / 2 if low > 0 else 0.3 * high
        change, bend = trial - theta, new_gradient - gradient
        product = float((change * bend).sum(dtype=torch.float64))
        if product > 0:
            history.append((change, bend, product))
        theta, gain, value, gradient = trial, value - new_value, new_value, new_gradient


def _newton_like(
    gradient: Tensor, history: deque[tuple[Tensor, Tensor, float]], precondition: Callable[[Tensor], Tensor]
) -> Tensor:
    """−H⁻¹·gradient by the two loops of L-BFGS."""
    step = -gradient
    shares = []
    for change, bend, product in reversed(history):
        share = float((change * step).sum(dtype=torch.float64)) / product
        step = step.sub_(bend, alpha=share)
        shares.append(share)
    scale = 1.0
    if history:
        _, bend, product = history[-1]
        scale = product / float((bend * precondition(bend)).sum(dtype=torch.float64))
    step = precondition(step).mul_(scale)
    for (change, bend, product), share in zip(history, reversed(shares), strict=True):
        step = step.add_(change, alpha=share - float((bend * step).sum(dtype=torch.float64)) / product)
    return step
