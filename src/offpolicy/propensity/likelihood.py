"""Fit a scorer's softmax to the logged actions: L-BFGS where the whole problem is small, Adam where it is not."""

import copy
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.log import LoggedData
from offpolicy.models import ContextBatches, Full, Normaliser, Scorer, ascend
from offpolicy.policies import Policy, ScorerPolicy, logged_log_prob, tensor, with_backoff
from offpolicy.progress import progress
from offpolicy.seeding import torch_generator

LBFGS_NUMBERS = 40_000_000
"""Up to this many (contexts × actions) numbers a linear model is fitted to convergence over the whole log."""

RIDGES = (0.1, 1.0, 10.0, 100.0)
"""Penalties κ/2·|θ|² tried for a linear model; the one with the best held-out likelihood is kept."""


@dataclass(frozen=True)
class FitConfig:
    """How a softmax is fitted."""

    epochs: int = 100
    """Maximum passes over the log (Adam) or half the maximum function evaluations (L-BFGS)."""
    learning_rate: float = 0.02
    """Adam's step size."""
    batch_contexts: int | None = None
    """Contexts per step, with all their rows; None takes 512, or fewer so that an epoch has at least 32 steps."""
    ridge: float | None = None
    """Penalty κ/2·|θ|² over the whole log; None tries a few for a linear model and uses none for towers."""
    patience: int = 4
    """Epochs without a better held-out likelihood before the step size is cut, and in the end training."""
    seed: int = 0
    """Order of batches."""
    show_progress: bool | None = None
    """Show a progress bar: always, never, or (None) only on a terminal."""


@dataclass(frozen=True)
class FitOutcome:
    """What was chosen on held-out rows, so that a refit on all rows can repeat it."""

    ridge: float
    epochs: int = 0
    """Passes over the log; 0 where it was fitted to convergence."""
    steps: tuple[float, ...] = ()
    """The step size of each of them."""
    converged: bool = True
    """Whether a fit that was meant to converge did."""


def fits_whole(log: LoggedData, scorer: Scorer) -> bool:
    """Whether L-BFGS over the whole log is the better way."""
    return scorer.is_linear and log.n_contexts * log.n_actions <= LBFGS_NUMBERS


def fit_softmax(
    scorer: Scorer,
    log: LoggedData,
    held_out: LoggedData | None,
    config: FitConfig,
    normaliser: Normaliser | None = None,
    chosen: FitOutcome | None = None,
) -> FitOutcome:
    """Fit in place; with `held_out`, choose ridge or epochs by its likelihood, else repeat what was `chosen`."""
    if fits_whole(log, scorer) and normaliser is None:
        return _fit_whole(scorer, log, held_out, config, chosen)
    return _fit_epochs(scorer, log, held_out, config, normaliser or Full(), chosen)


def softmax_policy(scorer: Scorer, log: LoggedData) -> Policy:
    """The scorer's softmax over the actions this log shows, with back-off mass for the others."""
    unseen = tensor(log.action_count) == 0
    return with_backoff(ScorerPolicy(scorer, log.actions, unseen), log)


def event_weights(log: LoggedData, rows: Tensor) -> Tensor:
    """How many events each of these rows stands for."""
    if log.row_weight is None:
        return torch.ones(len(rows))
    return tensor(log.row_weight)[rows].float()


def weighted_mean(values: Tensor, log: LoggedData) -> float:
    """The mean over the events of a log of one number per row."""
    if log.row_weight is None:
        return float(values.mean())
    return float(values.double() @ tensor(log.row_weight)) / log.n_events


def _held_out_likelihood(scorer: Scorer, log: LoggedData, held_out: LoggedData) -> float:
    found = logged_log_prob(softmax_policy(scorer, log), held_out)
    return weighted_mean(found, held_out)


def _fit_whole(
    scorer: Scorer,
    log: LoggedData,
    held_out: LoggedData | None,
    config: FitConfig,
    chosen: FitOutcome | None,
) -> FitOutcome:
    if chosen is not None:
        ridges: tuple[float, ...] = (chosen.ridge,)
    else:
        ridges = (
            (config.ridge,) if config.ridge is not None else RIDGES if held_out is not None else (scorer.default_ridge,)
        )
    best, found, best_state = -math.inf, FitOutcome(ridges[0]), None
    with progress("logging policy", len(ridges), show=config.show_progress) as advance:
        # From the strongest penalty to the weakest, each started where the last ended.
        for ridge in sorted(ridges, reverse=True):
            converged = converge(scorer, log, ridge, max_evaluations=2 * config.epochs)
            score = _held_out_likelihood(scorer, log, held_out) if held_out is not None else 0.0
            advance(f"ridge {ridge:g}, held-out log-likelihood {score:.4f}")
            if score <= best:
                break
            best, found, best_state = score, FitOutcome(ridge, converged=converged), copy.deepcopy(scorer.state_dict())
    if best_state is None:
        raise ParameterError("The logging policy could not be fitted: its likelihood is not a number on these rows.")
    scorer.load_state_dict(best_state)
    return found


def converge(scorer: Scorer, log: LoggedData, ridge: float, max_evaluations: int = 500) -> bool:
    """Maximise Σ log β̂(a_n|x_n) − κ/2·|θ|² of a linear scorer, in place; returns whether it converged.

    The rows enter once, as the sums of features of each action (they are sufficient); every step then costs two
    products over the distinct contexts, in float64.
    """
    features = scorer.states(log.contexts).detach().double()
    features = torch.cat([features, features.new_ones(len(features), 1)], 1)  # (contexts, d + 1)
    rows = tensor(log.context_weight)
    seen = torch.from_numpy(np.flatnonzero(log.action_count))
    sums = features.new_zeros(log.n_actions, features.shape[1])
    weight = 1.0 if log.row_weight is None else tensor(log.row_weight)[:, None]
    sums.index_add_(0, tensor(log.action).long(), features[tensor(log.context_index).long()] * weight)
    sums = sums[seen]
    n = log.n_events

    def negative(flat: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        theta = torch.from_numpy(flat).view(len(seen), -1)
        log_total, expected = _log_partition(theta, features, rows)
        value = (log_total - float((theta * sums).sum()) + ridge / 2 * float(theta.square().sum())) / n
        return value, ((expected - sums + ridge * theta) / n).flatten().numpy()

    weights, bias = scorer.actions()
    both = torch.cat([weights, bias[:, None]], 1).detach().double()
    options = {"maxfun": max_evaluations, "maxiter": max_evaluations, "ftol": 1e-8, "gtol": 1e-6, "maxcor": 20}
    solution = minimize(negative, both[seen].flatten().numpy(), jac=True, method="L-BFGS-B", options=options)
    both = torch.zeros_like(both)
    both[seen] = torch.from_numpy(np.asarray(solution.x)).view(len(seen), -1)
    with torch.no_grad():
        weights.copy_(both[:, :-1])
        bias.copy_(both[:, -1])
    return bool(solution.success)


def _log_partition(theta: Tensor, features: Tensor, rows: Tensor) -> tuple[float, Tensor]:
    """Σ_x n_x log Σ_a exp(x·θ_a), and its gradient Σ_x n_x β̂(a|x) x, contexts in parts that fit the cache."""
    total, gradient = 0.0, torch.zeros_like(theta)
    size = max(64, (1 << 17) // len(theta))
    for part in range(0, len(features), size):
        x, n = features[part : part + size], rows[part : part + size]
        logits = theta @ x.T  # (actions, contexts)
        highest = logits.amax(0)
        mass = logits.sub_(highest).exp_()
        sums = mass.sum(0)
        total += float((n * (highest + sums.log())).sum())
        mass *= n / sums
        gradient.addmm_(mass, x)
    return total, gradient


def _fit_epochs(
    scorer: Scorer,
    log: LoggedData,
    held_out: LoggedData | None,
    config: FitConfig,
    normaliser: Normaliser,
    chosen: FitOutcome | None,
) -> FitOutcome:
    ridge = chosen.ridge if chosen is not None else scorer.default_ridge if config.ridge is None else config.ridge
    parameters = [p for p in scorer.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(parameters, lr=config.learning_rate, weight_decay=ridge / log.n_events)
    batches = ContextBatches(log, config.batch_contexts or min(512, max(16, log.n_contexts // 32)))
    random = torch_generator(config.seed, "logging-policy", "batches")
    plan = list(chosen.steps) if chosen is not None else None
    watch = _BestSoFar(scorer, config.patience)
    with progress("logging policy", config.epochs if plan is None else len(plan), show=config.show_progress) as advance:
        for epoch in range(config.epochs if plan is None else len(plan)):
            if plan is not None:
                _set_step(optimiser, plan[epoch])
            scorer.train()
            total = 0.0
            for batch in batches.epoch(random):
                weight = event_weights(log, batch.rows)
                events = float(weight.sum())
                if events > 0:  # the mean over events, as if each stood in a row of its own
                    mean = ascend(scorer, optimiser, batch, weight * (len(weight) / events), normaliser)
                    total += mean * events
            score = total / log.n_events if held_out is None else _held_out_likelihood(scorer, log, held_out)
            advance(f"{'' if held_out is None else 'held-out '}log-likelihood {score:.4f}")
            if not math.isfinite(score):
                raise ParameterError(
                    f"The logging policy's likelihood became {score} in epoch {epoch + 1}: the learning rate "
                    f"{config.learning_rate:g} is too large for these features. Lower it or standardise the features."
                )
            if held_out is not None and watch.stalled(score, optimiser):
                break
    if held_out is None:
        return FitOutcome(ridge, 0, tuple(plan or ()))
    scorer.load_state_dict(watch.state)
    return FitOutcome(ridge, watch.epoch, tuple(watch.steps[: watch.epoch]))


def _set_step(optimiser: torch.optim.Optimizer, step: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = step


class _BestSoFar:
    """The best held-out score and its weights; when progress stalls the step size is cut, then training ends."""

    CUTS = 2
    FACTOR = 0.2

    def __init__(self, scorer: Scorer, patience: int) -> None:
        self._scorer, self._patience = scorer, patience
        self._since, self._cuts = 0, 0
        self.score, self.epoch = -math.inf, 0
        self.state = copy.deepcopy(scorer.state_dict())
        self.steps: list[float] = []

    def stalled(self, score: float, optimiser: torch.optim.Optimizer) -> bool:
        self.steps.append(float(optimiser.param_groups[0]["lr"]))
        if score > self.score:
            self.score, self.epoch, self._since = score, len(self.steps), 0
            self.state = copy.deepcopy(self._scorer.state_dict())
            return False
        self._since += 1
        if self._since < self._patience:
            return False
        if self._cuts == self.CUTS:
            return True
        self._cuts += 1
        self._since = 0
        _set_step(optimiser, self.steps[-1] * self.FACTOR)
        return False
