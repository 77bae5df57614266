"""Learn policies in five steps: config → nuisances → objective → head → trainer.

`LearnerConfig` and a `MethodSpec` say how and what to learn; `Nuisances` of the log hold β̂, U and q̂; the `Objective`
turns weights into coefficients of log π; the head (`Full` or `InBatch` of `offpolicy.models`) gives log π and its
gradient; the `Trainer` steps, monitors a metric and writes checkpoints.
"""

from offpolicy.learning.alternation import Alternation
from offpolicy.learning.config import LearnerConfig, resolve_config
from offpolicy.learning.learn import learn_policy
from offpolicy.learning.methods import METHODS, MethodSpec, find_method
from offpolicy.learning.monitors import BOUND, held_out_metric, monitor_of
from offpolicy.learning.objective import Objective
from offpolicy.learning.objectives import OBJECTIVES, ObjectiveSpec, RowTerms, register_objective
from offpolicy.learning.over_shards import held_out_sample, nuisance_sample
from offpolicy.learning.portfolio import AUTO, PORTFOLIO, choice_of, member_settings
from offpolicy.learning.prepare import check_rewards, held_out_unit, prepare_training
from offpolicy.learning.rows import RowInputs, check_rows
from offpolicy.learning.single import LearnedPolicy
from offpolicy.learning.starts import make_scorer
from offpolicy.learning.trainer import Trainer

__all__ = [
    "AUTO",
    "BOUND",
    "METHODS",
    "OBJECTIVES",
    "PORTFOLIO",
    "Alternation",
    "LearnedPolicy",
    "LearnerConfig",
    "MethodSpec",
    "Objective",
    "ObjectiveSpec",
    "RowInputs",
    "RowTerms",
    "Trainer",
    "check_rewards",
    "check_rows",
    "choice_of",
    "find_method",
    "held_out_metric",
    "held_out_sample",
    "held_out_unit",
    "learn_policy",
    "make_scorer",
    "member_settings",
    "monitor_of",
    "nuisance_sample",
    "prepare_training",
    "register_objective",
    "resolve_config",
]
