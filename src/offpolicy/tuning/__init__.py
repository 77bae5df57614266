"""Tune any method: search spaces read from signatures, one budget for all, a study that survives being killed."""

from offpolicy.tuning.spaces import PRESETS, Dial, Space, search_space
from offpolicy.tuning.study import Report, Trial, Tuned, search
from offpolicy.tuning.tune import HeldOutValue, tune

__all__ = [
    "PRESETS",
    "Dial",
    "HeldOutValue",
    "Report",
    "Space",
    "Trial",
    "Tuned",
    "search",
    "search_space",
    "tune",
]
