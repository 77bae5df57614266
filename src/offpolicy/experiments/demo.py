"""The demonstration: a synthetic log whose propensities are hidden, judged by every estimator against the truth."""

from dataclasses import dataclass
from typing import Any

import torch

from offpolicy.datasets.synthetic import LinearSoftmaxWorld
from offpolicy.estimators import ESTIMATORS, INPUTS
from offpolicy.evaluation.inputs import weight_inputs
from offpolicy.evaluation.value import Terms, value

NOTE = (
    "β̂ in this table is the true β* with U = 0, because this version does not estimate it yet; the reward model of "
    "dm and the dr family is the true q. So the table shows what each weight costs when nothing is misestimated."
)


@dataclass(frozen=True)
class Estimate:
    """One row of the demo's table."""

    name: str
    value: float
    mean_weight: float


@dataclass(frozen=True)
class DemoResult:
    """What the demo shows."""

    summary: dict[str, Any]
    truth: float
    logging: float
    estimates: list[Estimate]
    notes: list[str]


def run_demo(seed: int = 0, n_contexts: int = 5_000, n_actions: int = 50) -> DemoResult:
    """Draw the world and its log, and estimate the target's value with every registered estimator."""
    world = LinearSoftmaxWorld.draw(seed, n_actions=n_actions)
    log = world.log(seed, n_contexts, rows_per_context=2)
    target = world.target_policy()
    uncertainty = torch.zeros(log.n_rows, dtype=torch.float64)
    inputs = weight_inputs(INPUTS, log, target, world.logging_policy, uncertainty=uncertainty, reward_model=world)
    estimates = []
    for name, row in ESTIMATORS.items():
        weight, normaliser = row.terms(inputs)
        if row.uses_reward_model:
            terms = Terms(weight, normaliser, inputs["reward"], inputs["imputed"], inputs["baseline"])
        else:
            terms = Terms.without_reward_model(weight, normaliser, inputs["reward"])
        point = value(terms)
        estimates.append(Estimate(name, point.value, point.mean_weight))
    return DemoResult(
        summary=log.without_propensities().summary(),
        truth=world.value(target, log.contexts),
        logging=world.value(world.logging_policy, log.contexts),
        estimates=estimates,
        notes=[NOTE],
    )
