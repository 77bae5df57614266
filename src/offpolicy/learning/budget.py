"""How much work a method may take on a large log: a pass costs contexts × actions, and all passes share one budget.

Logs that are not large learn as long as held-out rows gain from it; nothing here touches them.
"""

import numpy as np
import numpy.typing as npt

from offpolicy.learning.config import LearnerConfig
from offpolicy.learning.methods import MethodSpec
from offpolicy.log import LoggedData
from offpolicy.seeding import generator

PASS_NUMBERS = 800_000_000
"""Contexts × actions that all passes of a method may look at where the number of epochs is left open."""
WITH_REWARDS = 3
"""A pass that needs q̂ of all actions counts as so many."""
FEWEST_PASSES = 2
SCORE_NUMBERS = 100_000_000
"""Contexts × actions of the held-out rows that score an epoch."""
STEP_CONTEXTS = 128
"""Contexts per step where passes are few, so that there are more steps in each."""


def most_epochs(config: LearnerConfig, spec: MethodSpec, log: LoggedData) -> int:
    """Epochs at most: as many as are asked for, or as many as the budget allows."""
    if config.epochs is not None:
        return config.epochs
    a_pass = log.n_contexts * log.width * (WITH_REWARDS if spec.uses_reward_model else 1)
    return min(config.most_epochs, max(FEWEST_PASSES, PASS_NUMBERS // max(a_pass, 1)))


def step_contexts(config: LearnerConfig, log: LoggedData) -> int:
    """Contexts per step: as configured, or so that an epoch has at least 32 steps."""
    if config.batch_contexts is not None:
        return config.batch_contexts
    few = config.epochs is None and log.n_contexts * log.width * config.most_epochs > PASS_NUMBERS
    return min(STEP_CONTEXTS if few else 512, max(16, log.n_contexts // 32))


def scored_rows(log: LoggedData, rows: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.int64]:
    """The held-out rows that score every epoch: all, or those of as many contexts as the budget allows."""
    contexts, most = np.unique(log.context_index[rows]), max(1, SCORE_NUMBERS // log.width)
    if len(contexts) <= most:
        return rows
    some = generator(seed, "learning", "scored").choice(contexts, most, replace=False)
    return rows[np.isin(log.context_index[rows], some)]
