"""The demonstration: a synthetic log with hidden propensities; β̂, U, estimates and learners against the known truth."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from offpolicy.datasets.synthetic import LinearSoftmaxWorld
from offpolicy.estimators import ESTIMATORS, INPUTS
from offpolicy.evaluation import PolicyEvaluation, evaluate
from offpolicy.evaluation.inputs import weight_inputs
from offpolicy.evaluation.rewards import PooledRewardModel
from offpolicy.evaluation.value import PointEstimate, Terms, value
from offpolicy.learning import LearnerConfig, learn_policy
from offpolicy.log import LoggedData
from offpolicy.logging_policy import LoggingPolicy, Quality, fit_logging_policy
from offpolicy.policies import Policy, tensor
from offpolicy.uncertainty import Calibration, calibrate_gamma, covered, row_uncertainty

HELD_OUT = 0.1
LEVEL = 0.95
REFITS = 5
LEARNERS = ("ce", "bips_cap", "uips")
"""Methods the demo learns a policy with, at their default hyper-parameters."""
NOTES = (
    "β̂, U, γ and the reward model behind dm and the dr family are fitted to this log alone; no hyper-parameter but γ "
    "is tuned. The columns on the right use the true β* with U = 0 and the same reward model: what is left there is "
    "sampling noise and the bias of the weight itself. One log is one draw: another --seed ranks estimators otherwise.",
    "ips_gt is given the true propensities in both. minvar_paper and stablevar_paper are what the paper prints: they "
    "answer close to 0 whatever the policy (see docs/estimators.md). The _official forms take U as the released code "
    "normalises it, and their own γ.",
)


@dataclass(frozen=True)
class Estimate:
    """One row of the demo's table: an estimate with the fitted and one with the true propensities."""

    name: str
    fitted: PointEstimate
    known: PointEstimate


@dataclass(frozen=True)
class Propensities:
    """How good β̂ and its bands are, judged by what only the demo knows."""

    quality: Quality
    true_log_likelihood: float
    """Mean log β* of the same held-out rows."""
    mean_uncertainty: float
    calibration: Calibration
    coverage: float
    """Share of rows whose β* lies in [β̂e^{−γU}, β̂e^{γU}]."""


@dataclass(frozen=True)
class Learned:
    """A policy learned on one part of the contexts and evaluated on the other."""

    label: str
    truth: float
    """What it is worth, known to the demo alone."""
    found: PolicyEvaluation
    improvement: float
    """Probability that it beats logging, told from the log."""


@dataclass(frozen=True)
class DemoResult:
    """What the demo shows."""

    summary: dict[str, Any]
    propensities: Propensities
    truth: float
    logging: float
    estimates: list[Estimate]
    learned: list[Learned]
    notes: tuple[str, ...] = NOTES


def run_demo(seed: int = 0, n_contexts: int = 5_000, n_actions: int = 50) -> DemoResult:
    """Draw the world and its log, fit β̂ and U without its propensities, and estimate the target's value."""
    world = LinearSoftmaxWorld.draw(seed, n_actions=n_actions)
    log = world.log(seed, n_contexts, rows_per_context=2)
    hidden = log.without_propensities()
    logging_policy = fit_logging_policy(hidden, "linear", held_out=HELD_OUT, seed=seed)
    uncertainty = row_uncertainty(logging_policy)
    official = row_uncertainty(logging_policy, normalisation="official")
    calibration = calibrate_gamma(logging_policy, level=LEVEL, uncertainty=uncertainty, draws=REFITS, seed=seed)
    target = world.target_policy()
    rewards = PooledRewardModel.fit(hidden)
    fitted = _estimates(log, target, logging_policy, (uncertainty, official), rewards, calibration.gamma)
    none = torch.zeros_like(uncertainty)
    known = _estimates(log, target, world.logging_policy, (none, none), rewards, calibration.gamma)
    return DemoResult(
        summary=hidden.summary(),
        propensities=_judged(logging_policy, log, uncertainty, calibration, seed),
        truth=world.value(target, log.contexts),
        logging=world.value(world.logging_policy, log.contexts),
        estimates=[Estimate(name, fitted[name], known[name]) for name in ESTIMATORS],
        learned=_learned(world, hidden, seed),
    )


def _learned(world: LinearSoftmaxWorld, log: LoggedData, seed: int) -> list[Learned]:
    """Learn on 70 % of the contexts, evaluate on the rest without propensities, and look up the truth."""
    train, test = log.split((0.7, 0.3), seed=seed)
    beta = fit_logging_policy(train, "linear", seed=seed)
    config = LearnerConfig(epochs=30, learning_rate=0.05, metric="lower_bound", seed=seed)
    uncertainty = row_uncertainty(beta)
    policies = {
        method: learn_policy(train, method, logging_policy=beta, uncertainty=uncertainty, config=config)
        for method in LEARNERS
    }
    found = evaluate(test, policies, estimators=("snips",), seed=seed)
    chances = {row.candidate: row.probability_of_improvement for row in found.comparisons}
    return [
        Learned(policy.label, world.value(policy, test.contexts), found[name], chances[name])
        for name, policy in policies.items()
    ]


def _estimates(
    log: LoggedData,
    target: Policy,
    logging: Policy,
    uncertainty: tuple[Tensor, Tensor],
    rewards: PooledRewardModel,
    gamma: float,
) -> dict[str, PointEstimate]:
    """Every registered estimator with U and γ; those of the released code with their own, the second U."""
    inputs = weight_inputs(INPUTS, log, target, logging, uncertainty=uncertainty[0], reward_model=rewards)
    found = {}
    for name, row in ESTIMATORS.items():
        official = name.endswith("_official")
        hyper = {"gamma": gamma} if "gamma" in row.hyper and not official else {}
        weight, normaliser = row.terms(inputs | {"uncertainty": uncertainty[official]}, **hyper)
        if row.uses_reward_model:
            terms = Terms(weight, normaliser, inputs["reward"], rewards.imputed, inputs["baseline"])
        else:
            terms = Terms.without_reward_model(weight, normaliser, inputs["reward"])
        found[name] = value(terms)
    return found


def _judged(
    logging_policy: LoggingPolicy, log: LoggedData, uncertainty: Tensor, calibration: Calibration, seed: int
) -> Propensities:
    _, held_out = log.split((1 - HELD_OUT, HELD_OUT), seed=seed)  # the rows the fit held out, with their propensities
    assert log.logging_prob is not None
    assert held_out.logging_prob is not None
    error = logging_policy.row_log_prob - tensor(log.logging_prob).log()
    return Propensities(
        quality=logging_policy.quality,
        true_log_likelihood=float(tensor(held_out.logging_prob).log().mean()),
        mean_uncertainty=float(uncertainty.mean()),
        calibration=calibration,
        coverage=covered(uncertainty, calibration.gamma, error),
    )
