"""γ from the data: how many U make [β̂e^{−γU}, β̂e^{γU}] cover β* at the nominal rate, when β* is never seen.

Three ways. `bootstrap` (the default) draws logs from β̂ and refits: the least noisy where the model fits, but blind to
misspecification, since β̂ is the truth of its worlds. `held_out` tests fits of half the log on the other half: noisier,
but it also sees such misspecification as squares of features describe. `binned` compares, in bins of (β̂, U), how often
actions were taken with how often β̂ said: a check against gross miscalibration rather than a calibration, since errors
that cancel within a bin, as most estimation error does, leave no trace, and its γ is then far too small.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from offpolicy.checks import Range, check_choice, check_number
from offpolicy.log import LoggedData
from offpolicy.policies import choice_log_probs, drawn_actions, logged_log_prob
from offpolicy.progress import progress
from offpolicy.propensity import LoggingPolicy
from offpolicy.seeding import torch_generator
from offpolicy.uncertainty.held_out import COUNTED, held_out_errors
from offpolicy.uncertainty.rows import Form, row_uncertainty, uncertainty_of

Method = Literal["bootstrap", "held_out", "binned"]
METHODS: tuple[Method, ...] = ("bootstrap", "held_out", "binned")
LEVEL = Range(0.0, 1.0, include_low=False, include_high=False)
LARGEST_GAMMA = 100.0
BINS = (10, 5)
"""Bins of equal count by expected count and by U."""
MOST_PAIRS = 400_000
"""Most (context, action) pairs that binned calibration looks at in a fold."""


@dataclass(frozen=True)
class Calibration:
    """A γ and its coverage."""

    gamma: float
    level: float
    """Nominal share of rows whose β* the band covers."""
    coverage: float
    """The share the method itself measured at this γ."""
    width: float
    """Mean of γU over the rows: half the band's width in log β."""
    method: str


def calibrate_gamma(
    logging_policy: LoggingPolicy,
    form: Form = "per_action",
    level: float = 0.95,
    *,
    uncertainty: Tensor | None = None,
    method: Method = "bootstrap",
    errors: Tensor | None = None,
    draws: int = 10,
    seed: int = 0,
) -> Calibration:
    """The smallest γ whose band reaches the level.

    `uncertainty` is U of the log's rows in that form, and `errors` what `bootstrap_errors` or `held_out_errors` gave;
    both are computed where they are not given, the errors by `draws` refits.
    """
    check_number("level", level, LEVEL)
    check_choice("method", method, METHODS)
    if uncertainty is None:
        uncertainty = row_uncertainty(logging_policy, form)
    if not bool((uncertainty > 0).any()):
        return Calibration(0.0, level, 1.0, 0.0, method)
    if method == "binned":
        gamma, coverage = _binned(logging_policy, form, level)
        return Calibration(gamma, level, coverage, gamma * float(uncertainty.mean()), method)
    if errors is None:
        find = held_out_errors if method == "held_out" else bootstrap_errors
        errors = find(logging_policy, draws, seed)
    unit = uncertainty
    if method == "bootstrap" and logging_policy.row_fold is not None and logging_policy.model not in COUNTED:
        # Its errors are those of the fit to all rows, whose U is smaller than the cross-fitted one.
        unit = uncertainty_of(logging_policy.whole, logging_policy.log, logging_policy.log, form)
    scaled = (errors / unit.clamp(min=torch.finfo(torch.float64).tiny)).flatten()
    gamma = min(float(np.quantile(scaled.numpy(), level)), LARGEST_GAMMA)
    return Calibration(
        gamma, level, float((scaled <= gamma).double().mean()), gamma * float(uncertainty.mean()), method
    )


def bootstrap_errors(logging_policy: LoggingPolicy, draws: int = 10, seed: int = 0) -> Tensor:
    """|log β̂_b − log β̂| of the rows, β̂_b refitted to actions drawn from β̂ in the same contexts; (draws, rows)."""
    log, policy = logging_policy.log, logging_policy.whole.policy
    own = logged_log_prob(policy, log)
    errors = torch.empty(draws, log.n_rows, dtype=torch.float64)
    with progress("calibrating γ", draws) as advance:
        for draw in range(draws):
            redrawn = redraw_actions(log, logging_policy, torch_generator(seed, "calibration", draw))
            errors[draw] = (logged_log_prob(logging_policy.refit(redrawn).policy, log) - own).abs()
            advance("")
    return errors


def redraw_actions(log: LoggedData, logging_policy: LoggingPolicy, random: torch.Generator) -> LoggedData:
    """The same contexts with actions redrawn from β̂; rewards, which the likelihood does not need, are zero."""
    action = torch.empty(log.n_rows, dtype=torch.int64)
    model, seen = logging_policy.whole.in_view(log)
    for tile in seen.batches():
        contexts = seen.contexts.take(tile.contexts)
        uniform = torch.rand(len(tile.rows), generator=random, dtype=torch.float64)
        row = torch.from_numpy(tile.row_context)
        drawn = drawn_actions(choice_log_probs(model.policy, contexts), row, uniform)
        if contexts.candidates is not None:
            drawn = torch.from_numpy(contexts.candidates.padded())[row, drawn]
        action[tile.rows] = drawn
    return replace(log, action=action.numpy(), reward=np.zeros(log.n_rows), logging_prob=None)


def _binned(logging_policy: LoggingPolicy, form: Form, level: float) -> tuple[float, float]:
    """The smallest γ at which that share of the bins (by predicted mass) agrees with its own counts.

    A bin holds (context, action) pairs whose β̂ and U are alike. How often they were taken has an exact Poisson
    interval; the bin agrees if that interval meets the predicted count times [e^{−γU}, e^{γU}].
    """
    parts = [_held_out_pairs(logging_policy, form, k) for k in range(max(1, len(logging_policy.folds)))]
    expected, spread, taken = (torch.cat(columns).numpy() for columns in zip(*parts, strict=True))
    cell = _ranked(expected, BINS[0]) * BINS[1] + _ranked(spread, BINS[1])
    size = BINS[0] * BINS[1]
    predicted = np.bincount(cell, expected, size)
    kept = predicted > 0
    predicted = predicted[kept]
    observed = np.bincount(cell, taken, size)[kept]
    mean_u = np.bincount(cell, expected * spread, size)[kept] / predicted
    low = np.where(observed > 0, chi2.ppf(0.025, 2 * observed) / 2, 0.0)
    high = chi2.ppf(0.975, 2 * observed + 2) / 2
    with np.errstate(divide="ignore"):
        off = np.maximum(np.log(low / predicted), np.log(predicted / high))
    needed = np.maximum(off, 0.0) / np.maximum(mean_u, 1e-12)
    order = np.argsort(needed)
    share = np.cumsum(predicted[order]) / predicted.sum()
    place = min(int(np.searchsorted(share, level)), len(order) - 1)
    return min(float(needed[order][place]), LARGEST_GAMMA), float(share[place])


def _held_out_pairs(logging_policy: LoggingPolicy, form: Form, fold: int) -> tuple[Tensor, Tensor, Tensor]:
    """Expected count n_x·β̂, U and actual count of all pairs of some contexts the fold's model did not see.

    Without cross-fitting there is no such model: the one fitted to all rows stands in, and looks better than it is.
    """
    log, row_fold = logging_policy.log, logging_policy.row_fold
    if row_fold is None:
        model, data, held_out = logging_policy.whole, log, log
    else:
        model, data, held_out = logging_policy.folds[fold], log.take(row_fold != fold), log.take(row_fold == fold)
    most = max(1, MOST_PAIRS // log.width)
    if held_out.n_contexts > most:
        held_out = held_out.take(held_out.context_index < most)  # contexts are numbered without regard to their rows
    contexts, offered = held_out.n_contexts, held_out.candidates
    sizes = np.full(contexts, held_out.n_actions) if offered is None else offered.sizes
    first = np.cumsum(sizes) - sizes
    pairs = LoggedData(
        contexts=held_out.contexts,
        context_index=np.repeat(np.arange(contexts, dtype=np.int32), sizes),
        action=np.tile(np.arange(held_out.n_actions, dtype=np.int32), contexts) if offered is None else offered.codes,
        reward=np.zeros(sizes.sum()),
        actions=held_out.actions,
    )
    cell = torch.from_numpy(first[held_out.context_index] + held_out.row_place)
    taken = torch.bincount(cell, minlength=int(sizes.sum())).double()
    rows_of = torch.from_numpy(np.bincount(held_out.context_index, minlength=contexts)).double()
    expected = rows_of.repeat_interleave(torch.from_numpy(sizes)) * logged_log_prob(model.policy, pairs).exp()
    return expected, uncertainty_of(model, data, pairs, form), taken


def _ranked(values: np.ndarray, bins: int) -> np.ndarray:
    """The bin 0..bins−1 of each value, bins of equal count."""
    rank = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    return np.minimum(rank * bins // max(len(values), 1), bins - 1).astype(np.int64)


def covered(uncertainty: Tensor, gamma: float, log_error: Tensor) -> float:
    """Share of rows whose true log β* lies within γU; for simulations whose β* is known."""
    return float((log_error.abs() <= gamma * uncertainty + math.ulp(1.0)).double().mean())
