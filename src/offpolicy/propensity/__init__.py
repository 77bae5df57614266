"""Estimate the logging policy β̂ of a log: models of it, their held-out quality, cross-fitting, saving."""

from offpolicy.propensity.fit import (
    MODELS,
    CandidateFit,
    FittedModel,
    LoggingPolicy,
    cross_fitted,
    fit_logging_policy,
    fits_done,
)
from offpolicy.propensity.likelihood import FitConfig
from offpolicy.propensity.saving import packed, unpacked

__all__ = [
    "MODELS",
    "CandidateFit",
    "FitConfig",
    "FittedModel",
    "LoggingPolicy",
    "cross_fitted",
    "fit_logging_policy",
    "fits_done",
    "packed",
    "unpacked",
]
