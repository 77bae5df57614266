"""Learn policies: every method as a row (weight, objective), one training loop, checkpoints that survive anything."""

from offpolicy.learning.checkpoints import fingerprint
from offpolicy.learning.config import LearnerConfig, settle
from offpolicy.learning.learn import LearnedPolicy, learn_policy, make_scorer, prepare_training
from offpolicy.learning.methods import METHODS, Method, find_method
from offpolicy.learning.monitors import BOUND, check_rows, held_out_metric, monitor_of
from offpolicy.learning.objectives import OBJECTIVES, Objective, objective
from offpolicy.learning.rows import RowInputs
from offpolicy.learning.schedule import Schedule
from offpolicy.learning.trainer import Trainer

__all__ = [
    "BOUND",
    "METHODS",
    "OBJECTIVES",
    "LearnedPolicy",
    "LearnerConfig",
    "Method",
    "Objective",
    "RowInputs",
    "Schedule",
    "Trainer",
    "check_rows",
    "find_method",
    "fingerprint",
    "held_out_metric",
    "learn_policy",
    "make_scorer",
    "monitor_of",
    "objective",
    "prepare_training",
    "settle",
]
