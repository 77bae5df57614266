"""How the tables of learned policies are made: one method tuned, one seed learned, on synthetic worlds."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offpolicy.datasets import LinearSoftmaxWorld
from offpolicy.learning import METHODS, LearnerConfig, MethodSpec, learn_policy
from offpolicy.log import LoggedData
from offpolicy.models import Normaliser
from offpolicy.policies import tensor
from offpolicy.propensity import FitConfig, LoggingPolicy, fit_logging_policy
from offpolicy.rewards import CrossFittedRewards, RewardFitConfig, fit_reward_model
from offpolicy.seeding import torch_generator
from offpolicy.tuning import HeldOutValue, Outcome, Problem, Report, Setting, search, search_space
from offpolicy.uncertainty import Normalisation, row_uncertainty

Row = dict[str, Any]
TUNING_SEEDS = (1_000, 1_001)
"""Worlds that serve tuning alone; the table's seeds count from 0."""
FRESH_CONTEXTS = 10_000
HELD_OUT = 0.3
SYNTHETIC = LearnerConfig(epochs=10, batch_contexts=250, patience=4, show_progress=False)
SYNTHETIC_RATES = (0.03, 1.0)


@dataclass(frozen=True)
class Entry:
    """A line of the synthetic table: a method, and which U it is given."""

    name: str
    method: MethodSpec
    label: str
    uncertainty: str = "own"


CONTROLS = (
    Entry("uips_permuted_u", METHODS["uips"], "UIPS, U permuted", "permuted"),
    Entry("uips_frequency_u", METHODS["uips"], "UIPS, U = 1/√n(a)", "frequency"),
)
ENTRIES: Mapping[str, Entry] = {
    entry.name: entry for entry in (*(Entry(name, row, row.label) for name, row in METHODS.items()), *CONTROLS)
}
"""Every method, and UIPS with an uninformed U; BIPS is the control with a constant φ: Adam does not see the factor."""


def uninformed(kind: str, u: Tensor, log: LoggedData, random: torch.Generator) -> Tensor:
    """U as it is, the same numbers in another order, or a function of the action's frequency alone."""
    if kind == "permuted":
        return u[torch.randperm(len(u), generator=random)]
    if kind == "frequency":
        action = tensor(log.action).long()
        return torch.bincount(action, minlength=log.n_actions).double().rsqrt()[action]
    return u


@dataclass(frozen=True)
class Nuisances:
    """β̂, U and q̂ of a log, each made when first asked for."""

    log: LoggedData
    seed: int
    fit: FitConfig | None = None
    rewards_fit: RewardFitConfig | None = None
    normaliser: Normaliser | None = None
    normalisation: Normalisation = "raw"

    @cached_property
    def logging(self) -> LoggingPolicy:
        """β̂, linear."""
        return fit_logging_policy(self.log, "linear", config=self.fit, normaliser=self.normaliser, seed=self.seed)

    @cached_property
    def own(self) -> Tensor:
        """U of each row."""
        return row_uncertainty(self.logging, normalisation=self.normalisation)

    @cached_property
    def rewards(self) -> CrossFittedRewards:
        """q̂, linear and cross-fitted."""
        config = self.rewards_fit or RewardFitConfig(seed=self.seed, show_progress=False)
        return fit_reward_model(self.log, "linear", config=config)

    def uncertainty(self, kind: str) -> Tensor:
        """U, or one that knows less."""
        return uninformed(kind, self.own, self.log, torch_generator(self.seed, "permuted U"))

    def given(self, entry: Entry) -> dict[str, Any]:
        """What the entry's method asks for."""
        method, found = entry.method, dict[str, Any]()
        if method.needs_logging_policy:
            found["logging_policy"] = self.logging
        if method.needs_uncertainty:
            found["uncertainty"] = self.uncertainty(entry.uncertainty)
        if method.uses_reward_model:
            found["reward_model"] = self.rewards
        return found


def draw_world(seed: int) -> tuple[LinearSoftmaxWorld, LoggedData]:
    """15 actions, 5 features, a logging policy as sharp as the paper's sharpest; 1,000 contexts with 2 rows each."""
    world = LinearSoftmaxWorld.draw(seed, n_actions=15, dimensions=5, temperature=0.5)
    return world, world.log(seed, 1_000, rows_per_context=2)


@lru_cache(maxsize=2)
def _tuning_data(seed: int) -> tuple[Nuisances, HeldOutValue]:
    train, valid = draw_world(seed)[1].split((1 - HELD_OUT, HELD_OUT), seed=seed)
    nuisances = Nuisances(train, seed)
    return nuisances, HeldOutValue(valid, nuisances.logging.logged_log_prob(valid))


def tune_synthetic(name: str, trials: int) -> Row:
    """One method's settings: the best mean over the tuning worlds of the held-out lower bound."""
    entry = ENTRIES[name]
    parts = [_tuning_data(seed) for seed in TUNING_SEEDS]

    def objective(settings: Mapping[str, Setting], report: Report) -> Outcome:
        done: list[Outcome] = []
        for number, (nuisances, judge) in enumerate(parts):
            problem = Problem(nuisances.log, judge, nuisances.given(entry))
            first = number * SYNTHETIC.epochs
            done.append(problem.trial(entry.method, SYNTHETIC, settings, report, first))
        epochs = round(float(np.mean([each.found["epochs"] for each in done])))
        return Outcome(float(np.mean([each.value for each in done])), {"epochs": epochs})

    space = search_space(entry.method, learning_rates=SYNTHETIC_RATES, n_actions=parts[0][0].log.n_actions)
    tuned = search(objective, space, name=name, trials=trials, show_progress=False)
    pruned = sum(trial.state == "pruned" for trial in tuned.trials)
    return {"method": name, "trials": trials, "tuned": dict(tuned.settings), "estimate": tuned.value, "pruned": pruned}


def learn_synthetic(seed: int, tuned: Mapping[str, Mapping[str, Any]], trials: int) -> list[Row]:
    """Learn with each method's settings on a log of its own seed; the value is the true one on fresh contexts."""
    world, log = draw_world(seed)
    nuisances, fresh = Nuisances(log, seed), world.contexts(seed + 50_000, FRESH_CONTEXTS)
    logging = world.value(world.logging_policy, fresh)
    best = float(world.rewards(fresh).max(1).values.mean())
    rows = []
    for name, settings in tuned.items():
        entry = ENTRIES[name]
        changes: dict[str, Any] = {**nuisances.given(entry), **settings, "seed": seed}
        value = world.value(learn_policy(log, entry.method, config=SYNTHETIC, **changes).policy, fresh)
        row = {"method": name, "seed": seed, "trials": trials, "value": value, "logging": logging, "best": best}
        rows.append({key: round(each, 6) if isinstance(each, float) else each for key, each in row.items()})
    return rows
