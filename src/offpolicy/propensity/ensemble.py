"""The default β̂: a convex combination of families, weighed by how likely they make rows they did not see.

Every family is fitted on all folds but one and judged on that one; the weights maximise the likelihood of all rows so
judged (a super learner). Families that overfit their own rows (networks, trees) give each row the probability of the
model that did not see it, and elsewhere the mean of the folds' models; the others are fitted again to all rows. On a
long log the families are chosen on a sample, and the chosen ones fitted to all rows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offpolicy.log import BagColumn, CategoricalColumn, FeatureTable, LoggedData, Vocabulary
from offpolicy.models import IdColumn, id_columns, linear_scorer
from offpolicy.policies import MixturePolicy, NewIds, logged_log_prob, missing_trees, row_weights
from offpolicy.propensity.config import FitConfig, FitOutcome, check_events
from offpolicy.propensity.model import FittedModel
from offpolicy.propensity.packing import fit_family
from offpolicy.propensity.time_view import TimeView

FOLDS = 3
FOLD_ROWS, FOLD_NUMBERS = 120_000, 30_000_000
"""Most rows, and most contexts × actions, of a log whose families are fitted fold by fold."""
SAMPLE_ROWS, SAMPLE_NUMBERS = 40_000, 4_000_000
"""The same of the sample of a longer log, on which families are chosen."""
JUDGES = 30_000
"""Rows of a long log that are kept for weighing the families."""
TIME_NUMBERS = 40_000_000
"""Contexts × actions of a long log with the time among them, beyond which the time must first prove its worth."""
PASSES, PASS_NUMBERS = 15, 2_000_000_000
"""Most passes over a long log, and most contexts × actions in all of them beyond the first."""
QUADRATIC_WIDTH, QUADRATIC_NUMBERS = 24, 10_000_000
"""Most features whose products are tried, and most contexts × actions for which they are."""
TREE_ACTIONS = 64
"""Most actions for which trees are tried; each round grows a tree an action."""
WORTH = 1e-3
"""A family without which held-out rows lose less than this share of their log-likelihood, beyond the standard error of
the loss, is left out."""
TOP_K_NUMBERS = 2_000_000
"""Most contexts × actions for which choosing at random among the best is tried; it takes all actions at once."""
STEPS = 300
"""Most steps of expectation–maximisation."""
CROSS_FITTED = ("network", "towers", "trees")
"""Families whose own rows tell too little about others."""
SIMPLEST_FIRST = (
    "uniform",
    "popularity",
    "linear",
    "quadratic",
    "greedy_linear",
    "towers",
    "top_k",
    "network",
    "trees",
)
FEWEST_ROWS = 1_000
"""Rows below which only quick families are tried."""


Fit = tuple[FittedModel, FitOutcome]


@dataclass(frozen=True)
class Member:
    """A family in the ensemble."""

    name: str
    weight: float
    new_weight: float
    """Its weight for contexts with an id never seen."""
    outcome: FitOutcome


@dataclass(frozen=True)
class Candidate:
    """A family fitted on all folds but one, for each fold."""

    name: str
    models: tuple[FittedModel, ...]
    outcomes: tuple[FitOutcome, ...]
    log_prob: Tensor  # (rows,) each row by the model that did not see it
    new_log_prob: Tensor | None  # the same with ids unknown; None where there are no ids

    @property
    def outcome(self) -> FitOutcome:
        """The choices to repeat on all rows: those of the fold that trained longest."""
        longest = max(self.outcomes, key=lambda each: each.epochs)
        ridge = math.exp(float(np.mean([math.log(max(each.ridge, 1e-12)) for each in self.outcomes])))
        converged = all(each.converged for each in self.outcomes)
        # A mean of different ridges is at no end of those tried.
        at_end = longest.at_grid_end and len({each.ridge for each in self.outcomes}) == 1
        return replace(longest, ridge=ridge, converged=converged, at_grid_end=at_end)


@dataclass(frozen=True)
class Ensemble:
    """What was fitted."""

    whole: FittedModel
    row_log_prob: Tensor  # (rows,)
    members: tuple[Member, ...]
    candidate_fits: Mapping[str, Fit]
    """Every family that was tried, fitted to the first of `parts`."""
    parts: tuple[LoggedData, LoggedData]
    """Rows that models were fitted to, and rows held out from them."""
    judged: FittedModel
    """The ensemble of models fitted to the first of these parts."""
    view: TimeView | None = None
    """How its models see a log."""


def fit_ensemble(log: LoggedData, view: TimeView | None, by: Any, config: FitConfig) -> Ensemble:
    """Fit the families to the log as they see it, weigh them, and put them together."""
    small = log.n_rows <= FOLD_ROWS and log.n_contexts * log.width <= FOLD_NUMBERS
    return _by_folds(log, view, by, config) if small else _by_one_split(log, view, by, config)


def _by_folds(log: LoggedData, view: TimeView | None, by: Any, config: FitConfig) -> Ensemble:
    """Every row judged by a model that did not see it."""
    ids = id_columns(log.contexts)
    fold = _folds(log, FOLDS, by, config.seed)
    check_events(log, fold)
    seen = log if view is None else view.seen(log)
    train, valid = seen.take(fold != 0), seen.take(fold == 0)
    fits = {name: fit_family(name, train, valid, None, config) for name in families_for(seen)}
    kept = _missed({name: logged_log_prob(model.policy, valid) for name, (model, _) in fits.items()}, valid)
    candidates = [_judged(name, fits[name], seen, fold, ids, config) for name in kept]
    shares = _weights([each.log_prob for each in candidates], seen)
    new = [each.new_log_prob for each in candidates if each.new_log_prob is not None]
    members = _members(kept, shares, _weights(new, seen) if new else shares, [each.outcome for each in candidates])
    parts, rows = _fitted_again(candidates, seen, config)
    whole = _joined(members, parts, seen)
    first = _joined(members, [each.models[:1] for each in candidates], train)
    row_log_prob = (torch.stack(rows, 1) + shares.log()).logsumexp(1)
    return Ensemble(whole, row_log_prob, members, fits, (train, valid), first, view)


def _by_one_split(log: LoggedData, view: TimeView | None, by: Any, config: FitConfig) -> Ensemble:
    """On a long log: families chosen on a sample, fitted to nearly all rows and weighed by the rest."""
    ids = id_columns(log.contexts)
    sample = shortened(log, config.seed)
    fold = _folds(sample, FOLDS, by, config.seed)
    few = replace(config, epochs=min(config.epochs, PASSES), patience=1)
    seen = log if view is None else view.seen(log)
    if view is not None and seen.n_contexts * seen.width > TIME_NUMBERS and not _told_by_time(sample, view, fold, few):
        view, seen = None, log
    sampled = sample if view is None else view.seen(sample)
    part, rest = sampled.take(fold != 0), sampled.take(fold == 0)
    first = {name: fit_family(name, part, rest, None, few) for name in families_for(sampled)}
    log_probs = {name: logged_log_prob(model.policy, rest) for name, (model, _) in first.items()}
    names = {*_missed(log_probs, rest), "uniform", "popularity", "linear"}
    judges = _folds(log, round(max(10, log.n_rows / JUDGES)), by, config.seed) == 0
    train, valid = seen.take(~judges), seen.take(judges)
    few = replace(few, epochs=max(1, min(few.epochs, PASS_NUMBERS // (seen.n_contexts * seen.n_actions))))
    fits = {name: _longer(name, outcome, train, valid, few) for name, (_, outcome) in first.items() if name in names}
    log_probs = {name: logged_log_prob(model.policy, valid) for name, (model, _) in fits.items()}
    kept = _missed(log_probs, valid)
    shares = _weights([log_probs[name] for name in kept], valid)
    blank = without_ids(valid, ids) if ids else valid
    new = [logged_log_prob(fits[name][0].policy, blank) for name in kept] if ids else []
    outcomes = [fits[name][1] for name in kept]
    members = _members(kept, shares, _weights(new, valid) if new else shares, outcomes)
    whole = _joined(members, [(fits[name][0],) for name in kept], train)
    return Ensemble(whole, logged_log_prob(whole.policy, seen), members, fits, (train, valid), whole, view)


def _told_by_time(sample: LoggedData, view: TimeView, fold: npt.NDArray[np.int64], config: FitConfig) -> bool:
    """Whether held-out rows of the sample are more likely under a linear model that knows their time."""
    log_probs = []
    for log in (sample, view.seen(sample)):
        part, rest = log.take(fold != 0), log.take(fold == 0)
        log_probs.append(logged_log_prob(fit_family("linear", part, rest, None, config)[0].policy, rest))
    without, timed = log_probs
    gain, error = _mean_and_error(timed - without, row_weights(rest))
    return gain > WORTH * abs(float(timed.mean())) + error


def _folds(log: LoggedData, parts: int, by: Any, seed: int) -> npt.NDArray[np.int64]:
    """The part of each row: whole groups, but single rows where ids are known, so that each id is in every part."""
    return log.row_folds(parts, seed) if id_columns(log.contexts) else log.folds(parts, by, seed)


def _longer(name: str, outcome: FitOutcome, train: LoggedData, valid: LoggedData, config: FitConfig) -> Fit:
    """A family on a longer log: with the ridge already chosen, or as many passes as held-out rows gain from."""
    if outcome.steps or outcome.epochs:
        return fit_family(name, train, valid, None, config)
    return fit_family(name, train, None, outcome, config)


def _members(
    names: Sequence[str], shares: Tensor, new_shares: Tensor, outcomes: Sequence[FitOutcome]
) -> tuple[Member, ...]:
    rows = zip(names, shares.tolist(), new_shares.tolist(), outcomes, strict=True)
    return tuple(Member(*row) for row in rows)


def _weights(log_probs: Sequence[Tensor], log: LoggedData) -> Tensor:
    return convex_weights(torch.stack(list(log_probs), 1), row_weights(log))


def families_for(log: LoggedData) -> list[str]:
    """The families worth trying on a log of this size."""
    width = linear_scorer(log).dim
    small = width <= QUADRATIC_WIDTH and log.n_contexts * log.width <= QUADRATIC_NUMBERS
    names = ["uniform", "popularity", "linear", *(["quadratic"] if small else [])]
    if log.n_rows >= FEWEST_ROWS:
        names += ["greedy_linear", "network", *(["towers"] if id_columns(log.contexts) else [])]
        if log.n_contexts * log.width <= TOP_K_NUMBERS:
            names.append("top_k")
        if worth_trees(log) and not missing_trees():
            names.append("trees")
    return names


def worth_trees(log: LoggedData) -> bool:
    """Whether trees are tried on a log of this size, where LightGBM can be loaded."""
    return log.n_rows >= FEWEST_ROWS and log.n_actions <= TREE_ACTIONS


def shortened(log: LoggedData, seed: int, rows: int = SAMPLE_ROWS, numbers: int = SAMPLE_NUMBERS) -> LoggedData:
    """The log, or a share of its groups with no more rows and (contexts × actions) numbers than these."""
    share = min(rows / log.n_rows, numbers / (log.n_contexts * log.width))
    groups = len(np.unique(log.cluster_index))
    if share >= 1 or groups < 10 * FOLDS:
        return log
    share = max(share, 5 * FOLDS / groups)
    return log.split((share, 1 - share), seed=seed)[0] if share < 1 else log


def refit(members: Sequence[Member], log: LoggedData, config: FitConfig) -> FittedModel:
    """The same families with the choices already made, fitted to another log."""
    unkept = replace(config, keep=None)  # logs of a bootstrap do not come again
    parts = [(fit_family(each.name, log, None, each.outcome, unkept)[0],) for each in members]
    return _joined(members, parts, log)


def convex_weights(log_prob: Tensor, weight: Tensor | None) -> Tensor:
    """The weights w ≥ 0, Σ w = 1 that maximise Σ log Σ_m w_m p_m, by expectation–maximisation; (members,)."""
    scaled = (log_prob - log_prob.amax(1, keepdim=True)).exp()
    events = torch.ones(len(scaled), dtype=torch.float64) if weight is None else weight.double()
    shares = torch.full((scaled.shape[1],), 1 / scaled.shape[1], dtype=torch.float64)
    for _ in range(STEPS):
        total = scaled @ shares
        found = shares * (scaled.T @ (events / total)) / events.sum()
        if float((found - shares).abs().max()) < 1e-6:
            return found
        shares = found
    return shares


def _missed(log_probs: Mapping[str, Tensor], log: LoggedData) -> list[str]:
    """The families that these rows, which none of them saw, would miss; the least simple is asked first."""
    weight = row_weights(log)

    def joint(kept: Sequence[str]) -> Tensor:
        parts = torch.stack([log_probs[name] for name in kept], 1)
        return (parts + convex_weights(parts, weight).log()).logsumexp(1)

    kept, full = list(log_probs), joint(list(log_probs))
    for name in sorted(log_probs, key=SIMPLEST_FIRST.index, reverse=True):
        others = [other for other in kept if other != name]
        if not others:
            break
        lost, error = _mean_and_error(full - joint(others), weight)
        if lost < WORTH * abs(float(full.mean())) + error:
            kept = others
    return kept


def _mean_and_error(values: Tensor, weight: Tensor | None) -> tuple[float, float]:
    events = torch.ones_like(values) if weight is None else weight
    mean = float((events * values).sum() / events.sum())
    return mean, float((events * (values - mean)).square().sum().sqrt() / events.sum())


def _judged(
    name: str, first: Fit, log: LoggedData, fold: npt.NDArray[np.int64], ids: list[str], config: FitConfig
) -> Candidate:
    """A family on all folds but one, for each fold; that of the first fold is given."""
    found, new = torch.empty(log.n_rows, dtype=torch.float64), torch.empty(log.n_rows, dtype=torch.float64)
    models, outcomes = [], []
    for k in range(FOLDS):
        valid = log.take(fold == k)
        model, outcome = fit_family(name, log.take(fold != k), valid, None, config) if k else first
        rows = torch.from_numpy(np.flatnonzero(fold == k))
        found[rows] = logged_log_prob(model.policy, valid)
        if ids:
            new[rows] = logged_log_prob(model.policy, without_ids(valid, ids))
        models.append(model)
        outcomes.append(outcome)
    return Candidate(name, tuple(models), tuple(outcomes), found, new if ids else None)


def _fitted_again(
    candidates: Sequence[Candidate], log: LoggedData, config: FitConfig
) -> tuple[list[tuple[FittedModel, ...]], list[Tensor]]:
    """Each family's models for any context, and its probability of each row of the log."""
    parts, rows = [], []
    for each in candidates:
        if each.name in CROSS_FITTED:
            parts.append(each.models)
            rows.append(each.log_prob)
        else:
            model = fit_family(each.name, log, None, each.outcome, config)[0]
            parts.append((model,))
            rows.append(logged_log_prob(model.policy, log))
    return parts, rows


def _joined(members: Sequence[Member], parts: Sequence[tuple[FittedModel, ...]], log: LoggedData) -> FittedModel:
    """One mixture of all models; those of one family share its weight."""
    models = tuple(model for part in parts for model in part)
    weights = torch.tensor([m.weight / len(p) for m, p in zip(members, parts, strict=True) for _ in p])
    new = torch.tensor([m.new_weight / len(p) for m, p in zip(members, parts, strict=True) for _ in p])
    columns = tuple(_fitted_ids(log.contexts))
    policy = MixturePolicy(
        [model.policy for model in models], _normal(weights), NewIds(columns, _normal(new)) if columns else None
    )
    return FittedModel(policy, members=models)


def _normal(weights: Tensor) -> Tensor:
    return weights.double() / weights.double().sum()


def _fitted_ids(table: FeatureTable) -> list[IdColumn]:
    return [IdColumn.fit(name, table[name]) for name in id_columns(table)]  # type: ignore[arg-type]


def without_ids(log: LoggedData, ids: Sequence[str]) -> LoggedData:
    """The same rows with ids that nobody has seen."""
    unknown = Vocabulary(["(an id never seen)"])
    columns = dict(log.contexts.items())
    codes = np.zeros(log.n_contexts, dtype=np.int32)
    for name in ids:
        one_each = BagColumn(np.arange(log.n_contexts + 1), codes, unknown)
        columns[name] = one_each if isinstance(columns[name], BagColumn) else CategoricalColumn(codes, unknown)
    return replace(log, contexts=log.contexts.changed(columns))
