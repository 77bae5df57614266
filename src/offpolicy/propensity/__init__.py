"""Estimate the logging policy β̂ of a log: models of it, their held-out quality, cross-fitting, saving."""

from offpolicy.propensity.config import FitConfig
from offpolicy.propensity.ensemble import Member, shortened
from offpolicy.propensity.families import FAMILIES, MODELS
from offpolicy.propensity.fit import (
    OVER_SHARDS,
    CandidateFit,
    LoggingPolicy,
    cross_fitted,
    fit_logging_policy,
    fits_done,
)
from offpolicy.propensity.model import Family, FittedModel
from offpolicy.propensity.repeats import Repeats, repeat_test
from offpolicy.propensity.saving import packed, unpacked

__all__ = [
    "FAMILIES",
    "MODELS",
    "OVER_SHARDS",
    "CandidateFit",
    "Family",
    "FitConfig",
    "FittedModel",
    "LoggingPolicy",
    "Member",
    "Repeats",
    "cross_fitted",
    "fit_logging_policy",
    "fits_done",
    "packed",
    "repeat_test",
    "shortened",
    "unpacked",
]
