"""`fit_logging_policy`: estimate the unknown β*, measure how good the estimate is, and cross-fit the β̂ of each row."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offpolicy.checks import check_choice
from offpolicy.errors import ParameterError
from offpolicy.log import ActionTable, FeatureTable, LoggedData
from offpolicy.models import DesignMatrix, Normaliser, Scorer, linear_scorer, two_tower_scorer
from offpolicy.policies import (
    ClassifierPolicy,
    CountsPolicy,
    Policy,
    PopularityPolicy,
    RecordedPolicy,
    ScorerPolicy,
    UniformPolicy,
    WithBackoff,
    logged_log_prob,
    rows_only,
    with_backoff,
)
from offpolicy.propensity.likelihood import FitConfig, FitOutcome, fit_softmax, fits_quickly, softmax_policy
from offpolicy.propensity.quality import measure
from offpolicy.results import Quality

MODELS = ("auto", "recorded", "uniform", "popularity", "counts", "linear", "quadratic", "two_tower")
QUADRATIC_WIDTH = 24
"""Most features whose products `auto` tries."""
Unit = Literal["context", "cluster"]
ScorerMaker = Callable[[LoggedData], Scorer]
"""Makes a fresh, untrained scorer for a log."""


@dataclass(frozen=True)
class FittedModel:
    """One fitted β̂: a policy over all actions and, where it is a softmax, the scorer behind it."""

    policy: Policy
    scorer: Scorer | None = None
    ridge: float = 1.0
    """The penalty it was fitted with, which is also the ridge of its uncertainty."""

    @property
    def softmax(self) -> ScorerPolicy | None:
        """The softmax behind the policy, without its back-off; None where it is no softmax."""
        base = self.policy.base if isinstance(self.policy, WithBackoff) else self.policy
        return base if isinstance(base, ScorerPolicy) else None

    @property
    def design(self) -> DesignMatrix | None:
        """The features a linear model was fitted with; None for other models."""
        return None if self.scorer is None else self.scorer.design


@dataclass(frozen=True)
class CandidateFit:
    """A candidate model: fitted to some rows, scored on the others."""

    name: str
    model: FittedModel
    chosen: FitOutcome
    quality: Quality


def _cannot_refit(log: LoggedData) -> FittedModel:
    raise ParameterError("This logging policy cannot be fitted again. Make it with fit_logging_policy.")


@dataclass(frozen=True)
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
    """log β̂ of each row of its log; with cross-fitting, by a model that did not see the row."""
    folds: tuple[FittedModel, ...] = field(default=(), repr=False)
    """With cross-fitting: fold k's model saw every row but those of fold k."""
    row_fold: npt.NDArray[np.int64] | None = field(default=None, repr=False)
    normaliser: str = "full"
    """How the softmax was normalised while it was trained."""
    chosen: FitOutcome = field(default=FitOutcome(1.0), repr=False)
    """What was chosen on held-out rows."""
    candidates: tuple[CandidateFit, ...] = field(default=(), repr=False)
    """The models that `auto` chose among, each fitted to the rows that were not held out."""
    refit: Callable[[LoggedData], FittedModel] = field(default=_cannot_refit, repr=False)
    """Fit the same model, with the choices already made, to another log (for bootstraps)."""

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
        """A warning where the fit did not converge; else empty."""
        if self.chosen.converged:
            return ""
        return (
            f"The fit of the {self.model} logging policy stopped before it converged: its propensities may still move. "
            "Give it more epochs (FitConfig), or standardise the features."
        )

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

    def logged_log_prob(self, log: LoggedData) -> Tensor:
        """log β̂ of logged rows; cross-fitted for the log it was fitted to."""
        return self.row_log_prob if self.is_own(log) else logged_log_prob(self.whole.policy, log)


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
) -> LoggingPolicy:
    """Estimate β̂ from the log.

    `model` is a name (recorded, uniform, popularity, counts, linear, quadratic, two_tower; auto takes the one of
    popularity, linear and quadratic that predicts held-out rows best), a scikit-learn classifier, or a function that
    makes a `Scorer` for a log. A share `held_out` of the contexts (or clusters) chooses ridge or number
    of epochs and measures quality; the model is then refitted to all rows. With `folds` the β̂ of each row comes from
    a model that saw neither its context nor its cluster.
    """
    global _fits
    _fits += 1
    config = config or FitConfig(seed=seed)
    if isinstance(model, str):
        check_choice("model", model, MODELS)
    train, valid = _held_out_split(log, held_out, by, seed)
    models = _candidates(model, train)
    candidates = tuple(_candidate(each, config, normaliser, train, valid) for each in models)
    place = max(range(len(models)), key=lambda i: candidates[i].quality.log_likelihood)
    best, (name, fit) = candidates[place], fitter(models[place], config, normaliser)
    whole, chosen = best.model, best.chosen
    if train.n_rows < log.n_rows:
        whole, refitted = fit(log, None, chosen)
        chosen = replace(chosen, converged=chosen.converged and refitted.converged)
    rows = logged_log_prob(whole.policy, log)
    fold_models: tuple[FittedModel, ...] = ()
    row_fold = None
    if folds is not None:
        row_fold = log.folds(folds, by, seed)
        fold_models = tuple(fit(log.take(row_fold != k), None, chosen)[0] for k in range(folds))
        rows = cross_fitted(log, row_fold, lambda k, part: logged_log_prob(fold_models[k].policy, part))
    return LoggingPolicy(
        name,
        log,
        whole,
        best.quality,
        rows,
        fold_models,
        row_fold,
        normaliser.name if normaliser is not None else "full",
        chosen,
        candidates if len(candidates) > 1 else (),
        refit=lambda other: fit(other, None, chosen)[0],
    )


_fits = 0


def fits_done() -> int:
    """How many logging policies this process has fitted."""
    return _fits


def _candidate(
    model: Any, config: FitConfig, normaliser: Normaliser | None, train: LoggedData, valid: LoggedData
) -> CandidateFit:
    name, fit = fitter(model, config, normaliser)
    fitted, chosen = fit(train, valid, None)
    return CandidateFit(name, fitted, chosen, measure(fitted.policy, valid, train, all_actions=name != "recorded"))


def _candidates(model: Any, train: LoggedData) -> list[Any]:
    """The models `auto` stands for; products of features only where the whole fit stays cheap."""
    if model != "auto":
        return [model]
    scorer = linear_scorer(train)
    small = scorer.design.width <= QUADRATIC_WIDTH and fits_quickly(train)
    return ["popularity", "linear", *(["quadratic"] if small else [])]


def cross_fitted(
    log: LoggedData, row_fold: npt.NDArray[np.int64], value: Callable[[int, LoggedData], Tensor]
) -> Tensor:
    """Each row's value from the model of its own fold, which did not see it."""
    result = torch.empty(log.n_rows, dtype=torch.float64)
    for k in range(int(row_fold.max()) + 1):
        rows = np.flatnonzero(row_fold == k)
        result[torch.from_numpy(rows)] = value(k, log.take(rows)).double()
    return result


def _held_out_split(log: LoggedData, share: float, by: Unit | None, seed: int) -> tuple[LoggedData, LoggedData]:
    """Rows to fit and rows to validate on; a log with a single unit is validated on itself."""
    if not 0 < share < 1:
        raise ParameterError(f"held_out must be a share between 0 and 1, but it is {share}.")
    if by == "cluster" and log.cluster is None:
        raise ParameterError("by='cluster' needs clusters, but this log has none. Read it with one, or use 'context'.")
    units = log.context_index if by == "context" else log.cluster_index
    if len(np.unique(units)) < 2:
        return log, log
    train, valid = log.split((1 - share, share), by=by, seed=seed)
    return train, valid


Fit = Callable[[LoggedData, LoggedData | None, FitOutcome | None], tuple[FittedModel, FitOutcome]]


def fitter(model: Any, config: FitConfig, normaliser: Normaliser | None) -> tuple[str, Fit]:
    """A model's name and how to fit it: on rows, with or without held-out rows, maybe repeating a choice."""
    plain: dict[str, Callable[[LoggedData], Policy]] = {
        "recorded": lambda log: RecordedPolicy(log.actions),
        "uniform": lambda log: UniformPolicy(log.actions),
        "popularity": lambda log: with_backoff(PopularityPolicy.fit(log), log),
        "counts": lambda log: with_backoff(CountsPolicy(log), log),
    }
    if isinstance(model, str) and model in plain:
        return model, lambda log, valid, chosen: (FittedModel(plain[model](log)), FitOutcome(1.0))
    if hasattr(model, "predict_proba") or hasattr(model, "fit"):
        return type(model).__name__, lambda log, valid, chosen: (_classifier(model, log), FitOutcome(1.0))
    makers: dict[str, ScorerMaker] = {
        "linear": linear_scorer,
        "quadratic": lambda log: linear_scorer(log, quadratic=True),
        "two_tower": lambda log: two_tower_scorer(log, seed=config.seed),
    }
    maker: ScorerMaker = makers[model] if isinstance(model, str) else model
    if not callable(maker):
        raise ParameterError(
            f"model must be one of {', '.join(MODELS)}, a scikit-learn classifier, or a function that makes a scorer, "
            f"but it is {model!r}."
        )

    def fit(log: LoggedData, valid: LoggedData | None, chosen: FitOutcome | None) -> tuple[FittedModel, FitOutcome]:
        scorer = maker(log)
        outcome = fit_softmax(scorer, log, valid, config, normaliser, chosen)
        ridge = outcome.ridge if outcome.ridge > 0 else 1.0
        return FittedModel(softmax_policy(scorer, log), scorer, ridge), outcome

    return model if isinstance(model, str) else getattr(model, "__name__", "scorer"), fit


def _classifier(classifier: Any, log: LoggedData) -> FittedModel:
    design = DesignMatrix.fit(log.contexts)
    return FittedModel(with_backoff(ClassifierPolicy.fit(classifier, log, design), log))
