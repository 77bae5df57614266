"""Fit a scorer's softmax to the logged actions: linear ones by L-BFGS over the whole log, others by Adam in batches."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.log import LoggedData
from offpolicy.models import Batch, Full, Normaliser, Scorer, offered_of, softmax_log_prob
from offpolicy.policies import Policy, ScorerPolicy, tensor, with_backoff
from offpolicy.progress import progress
from offpolicy.propensity.config import RIDGES, FitConfig, FitOutcome, some_contexts, weighted_mean
from offpolicy.propensity.training import train
from offpolicy.propensity.whole_batch import Likelihood, WholeBatch

WHOLE_NUMBERS = 1 << 25
"""Up to this many numbers in the design matrix, and in the weights, a linear model is fitted over the whole log."""

SEARCH_NUMBERS = 10_000_000
"""The ridge is chosen on as many contexts, drawn at random, as have this many (contexts × actions) numbers; the fit to
all contexts then starts where that one ended."""

TIGHT, LOOSE, SEARCH = 1e-10, 1e-5, 1e-4
"""How near to its maximum the likelihood must be, as a share of it: in float64; in float32, where it is then far below
the error of the estimate itself; and to compare ridges and to start from."""


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
) -> FitOutcome:
    """Fit in place; with `held_out`, choose ridge or epochs by its likelihood, else repeat what was `chosen`."""
    plain = normaliser is None and scorer.is_linear
    if plain and (fits_whole(log, scorer) if chosen is None else not chosen.steps):
        return _fit_whole(scorer, log, held_out, config, chosen)
    ridge = chosen.ridge if chosen is not None else scorer.default_ridge if config.ridge is None else config.ridge
    model = SoftmaxModel(scorer, log, normaliser or Full(), config.learning_rate, ridge)
    return replace(train(model, log, held_out, config, chosen), ridge=ridge)


class SoftmaxModel:
    """A scorer's softmax as `train` takes it, with a ridge on all parameters but the intercepts."""

    def __init__(self, scorer: Scorer, log: LoggedData, normaliser: Normaliser, step: float, ridge: float) -> None:
        """A linear scorer starts at popularity."""
        self.scorer, self._normaliser, self._step, self._decay = scorer, normaliser, step, ridge / log.n_events
        if scorer.is_linear:
            start_at_popularity(scorer, log)

    def optimiser(self) -> torch.optim.Optimizer:
        """Adam with weight decay."""
        self.scorer.train()
        bias = self.scorer.actions()[1]
        parameters = [p for p in self.scorer.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in parameters if p is not bias], "weight_decay": self._decay},
            {"params": [p for p in parameters if p is bias], "weight_decay": 0.0},
        ]
        return torch.optim.Adam([group for group in groups if group["params"]], lr=self._step)

    def total(self, batch: Batch, weight: Tensor) -> Tensor:
        """Σ weight·log π."""
        self.scorer.train()
        weights, bias = self.scorer.actions()
        states, offered = batch.states(self.scorer), batch.offered(self.scorer)
        rows = (batch.row_context, batch.row_action)
        return self._normaliser.surrogate(states, weights, bias, *rows, weight, offered=offered)

    def end_epoch(self) -> None:
        """Nothing to do."""

    def policy(self, log: LoggedData) -> Policy:
        """The softmax as it is now."""
        return softmax_policy(self.scorer, log)

    def state(self) -> Any:
        """Its weights."""
        return copy.deepcopy(self.scorer.state_dict())

    def restore(self, state: Any) -> None:
        """Go back."""
        self.scorer.load_state_dict(state)


def start_at_popularity(scorer: Scorer, log: LoggedData) -> None:
    """Intercepts of a scorer without weights: log n_a, and next to no mass on actions without rows."""
    weights, bias = scorer.actions()
    if bool(weights.any()):
        return
    share = tensor(log.action_weight) / log.n_events
    with torch.no_grad():
        bias.copy_(share.clamp(min=math.exp(-30)).log().to(bias))


def softmax_policy(scorer: Scorer, log: LoggedData) -> Policy:
    """The scorer's softmax over the actions this log shows, with back-off mass for the others."""
    unseen = tensor(log.action_count) == 0
    return with_backoff(ScorerPolicy(scorer, log.actions, unseen), log)


def _fit_whole(
    scorer: Scorer,
    log: LoggedData,
    held_out: LoggedData | None,
    config: FitConfig,
    chosen: FitOutcome | None,
) -> FitOutcome:
    some = some_contexts(log, SEARCH_NUMBERS, config.seed, "ridge")
    problem, most = WholeBatch(scorer, log, some), 2 * config.epochs
    ridge = config.ridge if chosen is None else chosen.ridge
    searched = ridge is None and held_out is not None
    if ridge is None and held_out is not None:
        ridge = best_ridge(scorer, problem, held_out, config)
    ridge = scorer.default_ridge if ridge is None else ridge
    if some is not None:
        problem.maximise(scorer, ridge, SEARCH, most)
        problem = WholeBatch(scorer, log)
    converged = problem.maximise(scorer, ridge, TIGHT if problem.dtype == torch.float64 else LOOSE, most)
    if not all(bool(torch.isfinite(part).all()) for part in scorer.actions()):
        raise ParameterError("The logging policy could not be fitted: its likelihood is not a number on these rows.")
    return FitOutcome(ridge, converged=converged, at_grid_end=searched and ridge in (RIDGES[0], RIDGES[-1]))


def best_ridge(scorer: Scorer, problem: Likelihood, held_out: LoggedData, config: FitConfig) -> float:
    """From the strongest penalty to the weakest, each started where the last ended, until the score falls twice."""
    score = _scorer_of_rows(scorer, held_out, problem.seen, config.seed)
    tolerance = SEARCH / 1000 if problem.dtype == torch.float64 else SEARCH
    best, falls, kept, kept_state = -math.inf, 0, scorer.default_ridge, None
    with progress("logging policy", len(RIDGES), show=config.show_progress) as advance:
        for ridge in reversed(RIDGES):
            problem.maximise(scorer, ridge, tolerance, 2 * config.epochs)
            found = score()
            advance(f"ridge {ridge:g}, held-out log-likelihood {found:.4f}")
            if found > best:
                best, falls, kept = found, 0, ridge
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
    some = some_contexts(log, SEARCH_NUMBERS, seed, "held-out")
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
    offered = None if rows.candidates is None else offered_of(rows.candidates).within(place)

    def score() -> float:
        weights, bias = (part.detach()[seen] for part in scorer.actions())
        return weighted_mean(softmax_log_prob(states, weights, bias, context, action, offered=offered), rows)

    return score
