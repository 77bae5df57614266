"""Learn policies: every method as a row (weight, objective), one training loop, checkpoints that survive anything."""

from offpolicy.learning.config import LearnerConfig
from offpolicy.learning.learn import LearnedPolicy, learn_policy, make_scorer
from offpolicy.learning.methods import METHODS, Method, find_method
from offpolicy.learning.objectives import OBJECTIVES, Objective, objective

__all__ = [
    "METHODS",
    "OBJECTIVES",
    "LearnedPolicy",
    "LearnerConfig",
    "Method",
    "Objective",
    "find_method",
    "learn_policy",
    "make_scorer",
    "objective",
]
