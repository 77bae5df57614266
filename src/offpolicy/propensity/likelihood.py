"""Fit a scorer's softmax to the logged actions: linear ones by L-BFGS over the whole log, others by Adam in batches."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.log import LoggedData
from offpolicy.models import Batch, ContextBatches, Full, Normaliser, Places, Scorer, ascend, softmax_log_prob
from offpolicy.policies import Policy, ScorerPolicy, logged_log_prob, tensor, with_backoff
from offpolicy.progress import progress
from offpolicy.propensity.whole_batch import WholeBatch
from offpolicy.seeding import generator, torch_generator

WHOLE_NUMBERS = 1 << 25
"""Up to this many numbers in the design matrix, and in the weights, a linear model is fitted over the whole log."""

QUICK_NUMBERS = 40_000_000
"""Up to this many (contexts × actions) numbers a linear fit takes seconds."""

RIDGES = (1e-2, 1e-1, 1.0, 10.0, 100.0, 1e3, 1e4)
"""Penalties κ/2·|W|² on the weights (never the intercepts) of a linear model; the one with the best held-out likelihood
is kept. κ is the precision of a normal prior on every weight: a fact about the logger, which does not grow with the
rows, so that what is chosen on some rows holds for all."""

SEARCH_NUMBERS = 10_000_000
"""The ridge is chosen on as many contexts, drawn at random, as have this many (contexts × actions) numbers; the fit to
all contexts then starts where that one ended."""

TIGHT, LOOSE, SEARCH = 1e-10, 1e-5, 1e-4
"""How near to its maximum the likelihood must be, as a share of it: in float64; in float32, where it is then far below
the error of the estimate itself; and in float32 to compare ridges and to start from."""

Responsibility = Callable[[Tensor, Tensor], Tensor]
"""Per-row multipliers from (log π of some rows as it is now, their row numbers in the log)."""


@dataclass(frozen=True)
class FitConfig:
    """How a softmax is fitted."""

    epochs: int = 100
    """Maximum passes over the log (Adam) or half the maximum passes (L-BFGS)."""
    learning_rate: float = 0.02
    """Adam's step size."""
    batch_contexts: int | None = None
    """Contexts per step, with all their rows; None takes 512, or fewer so that an epoch has at least 32 steps."""
    ridge: float | None = None
    """Penalty κ/2·|W|² on the weights; None tries a few for a linear model and uses none for towers."""
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
    at_grid_end: bool = False
    """Whether the ridge was chosen among `RIDGES` and is the weakest or the strongest of them."""

    @property
    def grid_note(self) -> str:
        """What it means that the ridge is at an end of those tried; empty where it is not."""
        if not self.at_grid_end:
            return ""
        if self.ridge >= max(RIDGES):
            return (
                f"The strongest penalty tried ({self.ridge:g}) predicts held-out rows best: the context columns say "
                "next to nothing about which action was logged. If the logger did look at the context, add the columns "
                "it looked at."
            )
        return (
            f"The weakest penalty tried ({self.ridge:g}) predicts held-out rows best: the logger is close to "
            "deterministic given these columns. Give a smaller ridge (FitConfig), or check that no column was written "
            "after the action was chosen."
        )


def fits_quickly(log: LoggedData) -> bool:
    """Whether a linear model of this log takes seconds rather than minutes."""
    return log.n_contexts * log.n_actions <= QUICK_NUMBERS


def fits_whole(log: LoggedData, scorer: Scorer) -> bool:
    """Whether the softmax can be fitted over the whole log at once: linear, and small enough for memory."""
    return scorer.is_linear and max(log.n_contexts, log.n_actions) * scorer.dim <= WHOLE_NUMBERS


def fit_softmax(
    scorer: Scorer,
    log: LoggedData,
    held_out: LoggedData | None,
    config: FitConfig,
    normaliser: Normaliser | None = None,
    chosen: FitOutcome | None = None,
    coefficients: Responsibility | None = None,
) -> FitOutcome:
    """Fit in place; with `held_out`, choose ridge or epochs by its likelihood, else repeat what was `chosen`.

    `coefficients` multiply the gradient of each row by a number that may depend on its current log π (such as the
    responsibility of a component of a mixture); the fit is then by batches.
    """
    plain = normaliser is None and coefficients is None and scorer.is_linear
    if plain and (fits_whole(log, scorer) if chosen is None else not chosen.steps):
        return _fit_whole(scorer, log, held_out, config, chosen)
    return _fit_epochs(scorer, log, held_out, config, normaliser or Full(), chosen, coefficients)


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
    some = _some_contexts(log, config.seed, "ridge")
    problem, most = WholeBatch(scorer, log, some), 2 * config.epochs
    exact = some is None and problem.dtype == torch.float64
    ridge = config.ridge if chosen is None else chosen.ridge
    searched, converged = ridge is None and held_out is not None, False
    if ridge is None and held_out is not None:
        ridge, converged = _best_ridge(scorer, problem, held_out, config)
    ridge = scorer.default_ridge if ridge is None else ridge
    if some is not None:
        problem.maximise(scorer, ridge, SEARCH, most)
        problem = WholeBatch(scorer, log)
    if not (searched and exact):
        converged = problem.maximise(scorer, ridge, TIGHT if problem.dtype == torch.float64 else LOOSE, most)
    if not all(bool(torch.isfinite(part).all()) for part in scorer.actions()):
        raise ParameterError("The logging policy could not be fitted: its likelihood is not a number on these rows.")
    return FitOutcome(ridge, converged=converged, at_grid_end=searched and ridge in (RIDGES[0], RIDGES[-1]))


def _some_contexts(log: LoggedData, seed: int, purpose: str) -> npt.NDArray[np.int64] | None:
    """As many contexts as the search may look at; None where it may look at all."""
    most = max(1, SEARCH_NUMBERS // log.n_actions)
    if log.n_contexts <= 2 * most:
        return None
    random = generator(seed, "logging-policy", purpose)
    return np.sort(random.choice(log.n_contexts, most, replace=False))


def _best_ridge(scorer: Scorer, problem: WholeBatch, held_out: LoggedData, config: FitConfig) -> tuple[float, bool]:
    """From the strongest penalty to the weakest, each started where the last ended, until the score falls twice."""
    score = _scorer_of_rows(scorer, held_out, problem.seen, config.seed)
    tolerance = TIGHT if problem.dtype == torch.float64 else SEARCH
    best, falls, kept, kept_state = -math.inf, 0, (scorer.default_ridge, True), None
    with progress("logging policy", len(RIDGES), show=config.show_progress) as advance:
        for ridge in reversed(RIDGES):
            converged = problem.maximise(scorer, ridge, tolerance, 2 * config.epochs)
            found = score()
            advance(f"ridge {ridge:g}, held-out log-likelihood {found:.4f}")
            if found > best:
                best, falls, kept = found, 0, (ridge, converged)
                kept_state = copy.deepcopy(scorer.state_dict())
            else:
                falls += 1
            if falls == 2:
                break
    if kept_state is None:
        raise ParameterError("The logging policy could not be fitted: its likelihood is not a number on these rows.")
    scorer.load_state_dict(kept_state)
    return kept


def _scorer_of_rows(scorer: Scorer, log: LoggedData, seen: Tensor, seed: int) -> Callable[[], float]:
    """The mean log π of rows with an action that was seen in fitting, by the scorer as it is when asked."""
    some = _some_contexts(log, seed, "held-out")
    kept = np.isin(log.action, seen.numpy())
    if some is not None:
        kept &= np.isin(log.context_index, some)
    if not kept.any():
        return lambda: 0.0
    rows = log.take(kept)
    states = scorer.states(rows.contexts).detach()
    place = torch.full((log.n_actions,), -1)
    place[seen] = torch.arange(len(seen))
    context, action = tensor(rows.context_index).long(), place[tensor(rows.action).long()]

    def score() -> float:
        weights, bias = (part.detach()[seen] for part in scorer.actions())
        return weighted_mean(softmax_log_prob(states, weights, bias, context, action), rows)

    return score


def _fit_epochs(
    scorer: Scorer,
    log: LoggedData,
    held_out: LoggedData | None,
    config: FitConfig,
    normaliser: Normaliser,
    chosen: FitOutcome | None,
    responsibility: Responsibility | None,
) -> FitOutcome:
    ridge = chosen.ridge if chosen is not None else scorer.default_ridge if config.ridge is None else config.ridge
    optimiser = _adam(scorer, config.learning_rate, ridge / log.n_events)
    if scorer.is_linear:
        _start_at_popularity(scorer, log)
    batches = ContextBatches(log, config.batch_contexts or min(512, max(16, log.n_contexts // 32)))
    random = torch_generator(config.seed, "logging-policy", "batches")
    plan = list(chosen.steps) if chosen is not None and chosen.steps else None
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
                    weight = weight * (len(weight) / events)
                    each = weight if responsibility is None else _multiplied(weight, responsibility, batch)
                    total += ascend(scorer, optimiser, batch, each, normaliser) * events
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


def _multiplied(weight: Tensor, responsibility: Responsibility, batch: Batch) -> Callable[[Tensor, Places], Tensor]:
    """Coefficients of a batch's rows: how many events each stands for, times what the caller says of it."""
    return lambda log_prob, rows: weight[rows] * responsibility(log_prob, batch.rows[rows])


def _adam(scorer: Scorer, learning_rate: float, decay: float) -> torch.optim.Adam:
    """Adam with a penalty on all parameters but the intercepts."""
    bias = scorer.actions()[1]
    parameters = [p for p in scorer.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p is not bias], "weight_decay": decay},
        {"params": [p for p in parameters if p is bias], "weight_decay": 0.0},
    ]
    return torch.optim.Adam([group for group in groups if group["params"]], lr=learning_rate)


def _start_at_popularity(scorer: Scorer, log: LoggedData) -> None:
    """Intercepts of a scorer without weights: log n_a, and next to no mass on actions without rows."""
    weights, bias = scorer.actions()
    if bool(weights.any()):
        return
    share = tensor(log.action_weight) / log.n_events
    with torch.no_grad():
        bias.copy_(share.clamp(min=math.exp(-30)).log().to(bias))


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
