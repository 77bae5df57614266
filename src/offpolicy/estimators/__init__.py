"""Every reweighting estimator as a row: pure weight functions of π, β̂ and U, in log space, registered by name."""

# Importing a family registers its rows; the order is the order of the tables.
from offpolicy.estimators import (  # isort: skip
    ratio as ratio,
    bounded as bounded,
    variance as variance,
    uncertainty_aware as uncertainty_aware,
    robust as robust,
    smooth as smooth,
    grouped as grouped,
    slates as slates,
    official as official,
)
from offpolicy.estimators.logspace import LOG_LIMIT, SPREAD_LIMIT, bounded_exp, log_floor, spread
from offpolicy.estimators.official import OFFICIAL, OfficialProfile
from offpolicy.estimators.registry import (
    ESTIMATORS,
    INPUTS,
    Estimator,
    Hyper,
    HyperParameter,
    estimator,
    weight,
)
from offpolicy.estimators.uncertainty_aware import worst_case_cap

__all__ = [
    "ESTIMATORS",
    "INPUTS",
    "LOG_LIMIT",
    "OFFICIAL",
    "SPREAD_LIMIT",
    "Estimator",
    "Hyper",
    "HyperParameter",
    "OfficialProfile",
    "bounded_exp",
    "estimator",
    "log_floor",
    "spread",
    "weight",
    "worst_case_cap",
]
