"""`fit_logging_policy`: estimate the unknown β*, measure how good the estimate is, and cross-fit the β̂ of each row."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offpolicy.drawing import facts_html
from offpolicy.engine import Engine
from offpolicy.errors import ParameterError
from offpolicy.log import ActionTable, FeatureTable, LoggedData
from offpolicy.models import Normaliser, id_columns, pooled_ids
from offpolicy.policies import choice_log_probs, logged_log_prob, missing_trees, rows_only
from offpolicy.propensity.config import FitConfig, FitOutcome, check_events
from offpolicy.propensity.ensemble import Member, fit_ensemble, refit, worth_trees
from offpolicy.propensity.families import LINEAR, QUADRATIC, Softmax, family_of
from offpolicy.propensity.model import Family, FittedModel
from offpolicy.propensity.over_shards import fit_over_shards
from offpolicy.propensity.quality import measure
from offpolicy.propensity.time_view import TimedPolicy, TimeView
from offpolicy.results import Quality

Unit = Literal["context", "cluster"]
STOPPED = (
    "The fit of the {model} logging policy stopped before it converged: its propensities may still move. Give it more "
    "epochs (FitConfig), or standardise the features."
)
OVER_SHARDS = {family.name: family for family in (LINEAR, QUADRATIC)}
"""Families that can be fitted to a log of many shards without having it in memory."""
EMBEDDING = ("towers", "network", "two_tower")
"""Families that know ids: held-out rows are of ids they have seen."""
FEWEST_UNITS = 30
"""Contexts (or clusters) below which `auto` is the linear model."""


@dataclass(frozen=True)
class CandidateFit:
    """A candidate model: fitted to some rows, scored on the others."""

    name: str
    model: FittedModel
    chosen: FitOutcome
    quality: Quality
    weight: float = 1.0
    """Its weight in the ensemble."""


def _cannot_refit(log: LoggedData) -> FittedModel:
    raise ParameterError("This logging policy cannot be fitted again. Make it with fit_logging_policy.")


@dataclass(frozen=True, repr=False)
class LoggingPolicy:
    """The estimated logging policy β̂ of a log."""

    model: str
    """Which model it is."""
    log: LoggedData = field(repr=False)
    """The log it was fitted to; other logs are distinguished by their fingerprint."""
    whole: FittedModel = field(repr=False)
    """Fitted to all rows."""
    quality: Quality
    """Held-out figures."""
    row_log_prob: Tensor = field(repr=False)  # (rows,)
    """log β̂ of each row of its log; with cross-fitting, by a model that did not see the row. Empty where it was fitted
    over shards: then it is computed when it is asked for."""
    folds: tuple[FittedModel, ...] = field(default=(), repr=False)
    """With cross-fitting: fold k's model saw every row but those of fold k."""
    row_fold: npt.NDArray[np.int64] | None = field(default=None, repr=False)
    normaliser: str = "full"
    """How the softmax was normalised while it was trained."""
    chosen: FitOutcome = field(default=FitOutcome(1.0), repr=False)
    """What was chosen on held-out rows."""
    members: tuple[Member, ...] = ()
    """The families of an ensemble and their weights."""
    candidates: tuple[CandidateFit, ...] = field(default=(), repr=False)
    """The families of an ensemble one by one, each fitted to the rows that were not held out."""
    refit: Callable[[LoggedData], FittedModel] = field(default=_cannot_refit, repr=False)
    """Fit the same model, with the choices already made, to another log (for bootstraps)."""

    def __repr__(self) -> str:
        """What it is made of, and its held-out log-likelihood."""
        return f"LoggingPolicy({self.description}; held-out log-likelihood {self.quality.log_likelihood:.4g})"

    def _repr_html_(self) -> str:
        """For notebooks: what it is made of, and its quality on rows it was not fitted to."""
        about = {"model": self.description, "actions": self.n_actions, "rows": self.log.n_rows}
        quality = {name: value for name, value in self.quality.to_json().items() if name not in ("bins", "rows")}
        return facts_html("The estimated logging policy", about | quality)

    @property
    def description(self) -> str:
        """What it is made of, in one line."""
        if not self.members:
            return self.model
        parts = sorted(self.members, key=lambda one: -one.weight)
        named = ", ".join(f"{one.name} {one.weight:.2f}" for one in parts)
        timed = " with the time as a feature" if self.whole.view is not None else ""
        return f"an ensemble of {named}{timed}" if len(parts) > 1 else f"{parts[0].name}{timed}"

    @property
    def actions(self) -> ActionTable:
        """The actions it chooses among."""
        return self.whole.policy.actions

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return len(self.actions)

    @property
    def note(self) -> str:
        """What to know about the fit: whether it converged, ended at a grid's end, or pooled ids; else empty."""
        outcomes = [one.outcome for one in self.members] or [self.chosen]
        notes = [] if self.chosen.converged else [STOPPED.format(model=self.model)]
        notes += [one.grid_note for one in outcomes if one.grid_note][:1]
        names = [one.name for one in self.members] or [self.model]
        if not any(name in EMBEDDING for name in names):
            notes += [f"{text} 'towers' gives each its own." for text in pooled_ids(self.log.contexts)]
        if self.candidates and worth_trees(self.log) and (missing := missing_trees()):
            notes.append(f"{missing} They were left out.")
        return " ".join(notes)

    @property
    def rows_only(self) -> bool:
        """Whether it knows the logged actions alone, as recorded propensities do."""
        return rows_only(self.whole.policy)

    def is_own(self, log: LoggedData) -> bool:
        """Whether this is the log it was fitted to."""
        return log.same_as(self.log)

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """log β̂(·|x) by the model fitted to all rows."""
        return self.whole.policy.log_probs(contexts)

    def log_probs_among(self, contexts: FeatureTable) -> Tensor:
        """log β̂ of the candidates by the model fitted to all rows."""
        return choice_log_probs(self.whole.policy, contexts)

    def logged_log_prob(self, log: LoggedData) -> Tensor:
        """log β̂ of logged rows; cross-fitted for the log it was fitted to."""
        own = len(self.row_log_prob) == log.n_rows and self.is_own(log)
        return self.row_log_prob if own else logged_log_prob(self.whole.policy, log)


def fit_logging_policy(
    log: LoggedData,
    model: Any = "linear",
    *,
    folds: int | None = None,
    by: Unit | None = None,
    held_out: float = 0.1,
    normaliser: Normaliser | None = None,
    config: FitConfig | None = None,
    seed: int = 0,
    engine: Engine | str | None = None,
) -> LoggingPolicy:
    """Estimate β̂ from the log.

    `model` is `auto`, an ensemble of the families worth trying on this log, or the name of one family (see
    `offpolicy.propensity.MODELS`), a scikit-learn classifier, or a function that makes a `Scorer` for a log. For a
    single family a share `held_out` of the contexts (or clusters) chooses ridge or number of epochs and measures
    quality, and it is then refitted to all rows; the ensemble uses three folds. With `folds` the β̂ of each row comes
    from a model that saw neither its context nor its cluster.

    Linear families of a log of many shards are fitted over the shards, by the workers of an `engine` where one is
    given, to the same weights with any of them; the β̂ of their rows is computed when it is asked for.
    """
    global _fits
    _fits += 1
    config = config or FitConfig(seed=seed)
    plain = folds is None and normaliser is None and (log.candidates is None or log.candidates.features is None)
    if log.n_shards > 1 and plain and isinstance(model, str) and model in OVER_SHARDS:
        return _over_shards(OVER_SHARDS[model], log, held_out, config, engine)
    units = len(np.unique(log.context_index if by == "context" else log.cluster_index))
    if by == "cluster" and log.cluster is None:
        raise ParameterError("by='cluster' needs clusters, but this log has none. Read it with one, or use 'context'.")
    if not 0 < held_out < 1:
        raise ParameterError(f"held_out must be a share between 0 and 1, but it is {held_out}.")
    if isinstance(model, str) and model == "auto" and units >= FEWEST_UNITS:
        fitted = _ensemble(log, by, config)
    else:
        family = family_of("linear" if isinstance(model, str) and model == "auto" else model, normaliser)
        train, valid = _held_out(log, held_out, by, seed, family.name) if units > 1 else (log, log)
        fitted = _single(family, log, train, valid, config)
    if normaliser is not None:
        fitted = replace(fitted, normaliser=normaliser.name)
    if folds is None:
        return fitted
    row_fold = log.folds(folds, by, seed)
    models = tuple(fitted.refit(log.take(row_fold != k)) for k in range(folds))
    rows = cross_fitted(log, row_fold, lambda k, part: logged_log_prob(models[k].policy, part))
    return replace(fitted, row_log_prob=rows, folds=models, row_fold=row_fold)


_fits = 0


def _held_out(log: LoggedData, share: float, by: Unit | None, seed: int, family: str) -> list[LoggedData]:
    """The rows to fit and the rows to measure on; no group of rows is in both, but for families that embed its id."""
    if by is None and family in EMBEDDING and id_columns(log.contexts):
        side = np.minimum(log.row_folds(max(2, round(1 / share)), seed), 1)
        check_events(log, 1 - side)
        return [log.take(side == 1), log.take(side == 0)]
    parts = log.divide((1 - share, share), by=by, seed=seed)
    side = np.zeros(log.n_rows, dtype=np.int64)
    side[parts[1][0]] = 1
    check_events(log, side)
    return [part for _, part in parts]


def fits_done() -> int:
    """How many logging policies this process has fitted."""
    return _fits


def _over_shards(
    family: Softmax, log: LoggedData, held_out: float, config: FitConfig, engine: Engine | str | None
) -> LoggingPolicy:
    """A linear family fitted over the shards of a log."""
    whole, chosen, quality = fit_over_shards(family, log, held_out, config, engine)

    def again(other: LoggedData) -> FittedModel:
        return family.fit(other, None, chosen, config)[0]

    return LoggingPolicy(family.name, log, whole, quality, torch.empty(0), chosen=chosen, refit=again)


def _single(family: Family, log: LoggedData, train: LoggedData, valid: LoggedData, config: FitConfig) -> LoggingPolicy:
    """One family: chosen and measured on the held-out rows, then fitted to all."""
    whole, chosen = family.fit(train, valid, None, config)
    quality = measure(whole.policy, valid, train, all_actions=family.name != "recorded")
    if train.n_rows < log.n_rows:
        whole, refitted = family.fit(log, None, chosen, config)
        chosen = replace(chosen, converged=chosen.converged and refitted.converged)
    rows = logged_log_prob(whole.policy, log)

    def again(other: LoggedData) -> FittedModel:
        return family.fit(other, None, chosen, config)[0]

    return LoggingPolicy(family.name, log, whole, quality, rows, chosen=chosen, refit=again)


def _ensemble(log: LoggedData, by: Unit | None, config: FitConfig) -> LoggingPolicy:
    """The families that carry weight, over contexts with the time among them where the log has one."""
    fitted = fit_ensemble(log, TimeView.of_log(log), by, config)
    view, members = fitted.view, fitted.members  # beside which nothing of the fit is kept
    weight = {one.name: one.weight for one in members}
    train, valid = fitted.parts
    candidates = tuple(
        CandidateFit(name, timed(model, view), outcome, measure(model.policy, valid, train), weight.get(name, 0.0))
        for name, (model, outcome) in fitted.candidate_fits.items()
    )
    return LoggingPolicy(
        "auto",
        log,
        timed(fitted.whole, view),
        measure(fitted.judged.policy, valid, train),
        fitted.row_log_prob,
        chosen=FitOutcome(1.0, converged=all(one.outcome.converged for one in members)),
        members=members,
        candidates=candidates,
        refit=lambda other: refitted(members, view, other, config),
    )


def refitted(members: tuple[Member, ...], view: TimeView | None, log: LoggedData, config: FitConfig) -> FittedModel:
    """The ensemble's families fitted to another log."""
    return timed(refit(members, log if view is None else view.seen(log), config), view)


def timed(model: FittedModel, view: TimeView | None) -> FittedModel:
    """A model of contexts with time, for contexts as the log has them."""
    return model if view is None else FittedModel(TimedPolicy(model.policy, view), members=(model,), view=view)


def cross_fitted(
    log: LoggedData, row_fold: npt.NDArray[np.int64], value: Callable[[int, LoggedData], Tensor]
) -> Tensor:
    """Each row's value from the model of its own fold, which did not see it."""
    result = torch.empty(log.n_rows, dtype=torch.float64)
    for k in range(int(row_fold.max()) + 1):
        rows = np.flatnonzero(row_fold == k)
        result[torch.from_numpy(rows)] = value(k, log.take(rows)).double()
    return result
