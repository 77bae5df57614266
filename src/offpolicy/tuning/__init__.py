"""Tune any method: search spaces read from signatures, one budget for all, a study that can be resumed after a kill."""

from offpolicy.tuning.spaces import PRESETS, Dimension, Setting, Space, describe, search_space
from offpolicy.tuning.study import Objective, Outcome, Report, Trial, Tuned, search
from offpolicy.tuning.tune import HeldOutValue, Problem, tune

__all__ = [
    "PRESETS",
    "Dimension",
    "HeldOutValue",
    "Objective",
    "Outcome",
    "Problem",
    "Report",
    "Setting",
    "Space",
    "Trial",
    "Tuned",
    "describe",
    "search",
    "search_space",
    "tune",
]
