"""Intervals for a value, as functions of clustered terms; and what the propensities' own error adds."""

# Importing a family registers its intervals; the order is the order of the tables.
from offpolicy.evaluation.intervals.normal import normal  # isort: skip
from offpolicy.evaluation.intervals.bootstrap import bootstrap  # isort: skip
from offpolicy.evaluation.intervals.bernstein import empirical_bernstein  # isort: skip
from offpolicy.evaluation.intervals.betting import betting  # isort: skip
from offpolicy.evaluation.intervals.likelihood import empirical_likelihood  # isort: skip
from offpolicy.evaluation.intervals.registry import INTERVALS, LEVEL, Interval, IntervalMethod, interval
from offpolicy.evaluation.intervals.sensitivity import (
    GAMMAS,
    Each,
    GammaSensitivity,
    gamma_sensitivity,
    sensitivity_over,
)
from offpolicy.evaluation.intervals.worst_case import (
    WorstCase,
    linearised_propensity_error,
    propensity_effects,
    worst_case_over,
    worst_case_self_normalised,
)

__all__ = [
    "GAMMAS",
    "INTERVALS",
    "LEVEL",
    "Each",
    "GammaSensitivity",
    "Interval",
    "IntervalMethod",
    "WorstCase",
    "betting",
    "bootstrap",
    "empirical_bernstein",
    "empirical_likelihood",
    "gamma_sensitivity",
    "interval",
    "linearised_propensity_error",
    "normal",
    "propensity_effects",
    "sensitivity_over",
    "worst_case_over",
    "worst_case_self_normalised",
]
