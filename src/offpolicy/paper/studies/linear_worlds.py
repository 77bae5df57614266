"""Learning where the truth is known: linear softmax worlds, each method tuned once on two worlds that no table shows.

Every seed redraws world, log, β̂, U and q̂. The settings of a line are those with the best mean, over the tuning
worlds, of the held-out lower bound; the truth is never used. Its value is the true one on fresh contexts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from offpolicy.checks import check_choice
from offpolicy.datasets import LinearSoftmaxWorld
from offpolicy.learning import LearnerConfig, learn_policy
from offpolicy.log import FeatureTable, LoggedData
from offpolicy.paper.studies.estimates import Estimates
from offpolicy.paper.studies.lines import ENTRIES
from offpolicy.paper.studies.study import Candidate, Row, Settings, known
from offpolicy.tuning import HeldOutValue, Outcome, Problem, Report, Setting, search, search_space

TUNING_WORLDS = 2
FRESH_CONTEXTS = 10_000
FRESH_SEED = 50_000
"""Fresh contexts of a seed are drawn from the seed plus this."""
HELD_OUT = 0.3
LEARNER = LearnerConfig(epochs=10, batch_contexts=250, patience=4, show_progress=False)
LEARNING_RATES = (0.03, 1.0)
KEPT_SEED = 0
"""The draw of everything but π where only π varies."""


@dataclass(frozen=True)
class LinearWorlds:
    """The study; its fields are what a recipe may set."""

    data: str | None = None
    """Not used: worlds are drawn."""
    redraw: str = "all"
    """What a seed draws: "all", or "policy" for π alone."""

    def __post_init__(self) -> None:
        """Check the fields that need no draw."""
        check_choice("redraw", self.redraw, ("all", "policy"))

    def labels(self) -> Mapping[str, str]:
        """Every method, and UIPS with an uninformed U."""
        return {name: entry.label for name, entry in ENTRIES.items()}

    def tune(self, line: str, trials: int, seed: int, storage: Path | None = None) -> list[Candidate]:
        """The best settings alone, with the number of epochs: the mean over the tuning worlds has chosen already."""
        entry = known(line, ENTRIES)
        worlds = range(seed, seed + TUNING_WORLDS)

        def objective(settings: Mapping[str, Setting], report: Report) -> Outcome:
            done = [
                _validated(line, settings, world, report, number * LEARNER.most_epochs)
                for number, world in enumerate(worlds)
            ]
            epochs = round(float(np.mean([each.found["epochs"] for each in done])))
            return Outcome(float(np.mean([each.value for each in done])), {"epochs": epochs})

        space = search_space(entry.method, learning_rates=LEARNING_RATES, n_actions=_divided(seed)[0].log.n_actions)
        tuned = search(objective, space, name=line, trials=trials, storage=storage, show_progress=False)
        pruned = sum(trial.state == "pruned" for trial in tuned.trials)
        found = {"settings": dict(tuned.settings), "validation": tuned.value}
        return [found | {"trials": len(tuned.trials), "pruned": pruned}]

    def validate(self, line: str, settings: Settings, seed: int) -> float:
        """The held-out lower bound on one world."""
        known(line, ENTRIES)
        return _validated(line, settings, seed, lambda step, value: None).value

    def measure(self, line: str, settings: Settings, seed: int) -> list[Row]:
        """The true value of the learned policy, of the logging policy and of the best possible one."""
        entry = known(line, ENTRIES)
        drawn = KEPT_SEED if self.redraw == "policy" else seed
        world, estimates, fresh = _drawn(drawn)
        changes: dict[str, Any] = {**estimates.given(entry), **settings, "seed": seed}
        learned = learn_policy(estimates.log, entry.method, config=LEARNER, **changes)
        logging, best = _limits(drawn)
        return [{"value": world.value(learned.policy, fresh), "logging": logging, "best": best}]


def draw_world(seed: int) -> tuple[LinearSoftmaxWorld, LoggedData]:
    """15 actions, 5 features, a logging policy as sharp as the paper's sharpest; 1,000 contexts with 2 rows each."""
    world = LinearSoftmaxWorld.draw(seed, n_actions=15, dimensions=5, temperature=0.5)
    return world, world.log(seed, 1_000, rows_per_context=2)


@lru_cache(maxsize=2)
def _drawn(seed: int) -> tuple[LinearSoftmaxWorld, Estimates, FeatureTable]:
    world, log = draw_world(seed)
    return world, Estimates(log, seed), world.contexts(seed + FRESH_SEED, FRESH_CONTEXTS)


@lru_cache(maxsize=2)
def _limits(seed: int) -> tuple[float, float]:
    """The value of the logging policy, and the best there is."""
    world, _, fresh = _drawn(seed)
    return world.value(world.logging_policy, fresh), float(world.rewards(fresh).max(1).values.mean())


@lru_cache(maxsize=2)
def _divided(seed: int) -> tuple[Estimates, HeldOutValue]:
    """A part of a world's log to learn from, and the score on the other part."""
    train, valid = draw_world(seed)[1].split((1 - HELD_OUT, HELD_OUT), seed=seed)
    estimates = Estimates(train, seed)
    return estimates, HeldOutValue(valid, estimates.logging.logged_log_prob(valid))


def _validated(line: str, settings: Mapping[str, Setting], seed: int, report: Report, first: int = 0) -> Outcome:
    estimates, score = _divided(seed)
    entry = ENTRIES[line]
    problem = Problem(estimates.log, score, estimates.given(entry))
    return problem.trial(entry.method, LEARNER, settings, report, first)
