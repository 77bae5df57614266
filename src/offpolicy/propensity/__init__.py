"""Estimate the logging policy β̂ of a log: a ladder of models, their held-out quality, cross-fitting."""

from offpolicy.propensity.fit import (
    MODELS,
    QUADRATIC_WIDTH,
    FittedModel,
    LoggingPolicy,
    cross_fitted,
    fit_logging_policy,
)
from offpolicy.propensity.likelihood import FitConfig
from offpolicy.propensity.quality import CalibrationBin, Quality

__all__ = [
    "MODELS",
    "QUADRATIC_WIDTH",
    "CalibrationBin",
    "FitConfig",
    "FittedModel",
    "LoggingPolicy",
    "Quality",
    "cross_fitted",
    "fit_logging_policy",
]
