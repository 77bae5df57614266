"""Estimate the logging policy β̂ of a log: a ladder of models, their held-out quality, cross-fitting."""

from offpolicy.logging_policy.fit import MODELS, FittedModel, LoggingPolicy, cross_fitted, fit_logging_policy
from offpolicy.logging_policy.likelihood import FitConfig
from offpolicy.logging_policy.quality import CalibrationBin, Quality

__all__ = [
    "MODELS",
    "CalibrationBin",
    "FitConfig",
    "FittedModel",
    "LoggingPolicy",
    "Quality",
    "cross_fitted",
    "fit_logging_policy",
]
