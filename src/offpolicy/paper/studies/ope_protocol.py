"""The paper's off-policy evaluation experiment, with the controls that show what its tuning buys.

Documents are embedded, and a softmax over their labels fitted, to give β*(a|x) = softmax((x·θ + b)/τ). The target is
ε-greedy over each document's own labels, π(a|x) = (1 − ε)/|M_x|·1{a ∈ M_x} + ε/K, so that its value is known:
V = mean_x[(1 − ε) + ε|M_x|/K]. Each seed draws 100 actions per test document from β*; β̂, U and q̂ come from a log of the
training documents, drawn once. V̂ is pooled over all rows.

Three ways to set hyper-parameters stand side by side: `truth` searches the paper's grids for the least error against
the *true* value of validation documents, which no user can do; `log` takes everything from the log; `none` has nothing
to set. An estimator with a free scale reaches any value when tuned on the truth, so c·BIPS, c·Shrinkage and c times
the mean reward are tuned the same way, and UIPS with its U shuffled, or replaced by a function of frequency.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offpolicy.datasets import ExtremeWorld
from offpolicy.estimators import ESTIMATORS, Estimator
from offpolicy.evaluation import GAMMA, PolicyRows, auto_estimate, log_driven, plug_in_lambda, preflight
from offpolicy.log import LoggedData
from offpolicy.models import Full
from offpolicy.paper.studies.ope_worlds import OpeDesign, OpeSplits, contexts_of, epsilon_greedy
from offpolicy.policies import tensor
from offpolicy.propensity import FitConfig, LoggingPolicy, fit_logging_policy
from offpolicy.rewards import PooledRewardModel
from offpolicy.seeding import generator, torch_generator
from offpolicy.uncertainty import PerActionMatrices, PerActionUncertainty, State, state_function

NOTHING_TO_SET = (
    *("ips_gt", "ips", "snips", "dm", "dr", "sndr"),
    *("minvar_paper", "stablevar_paper", "minvar", "stablevar"),
)
TUNED = (
    *("clipped", "shrinkage", "sn_shrinkage", "uips_p", "uips_o", "uips", "uips_official", "snuips"),
    *("shrinkage_dr", "uips_dr"),
)
LOG_DRIVEN = ("clipped", "shrinkage", "sn_shrinkage", "uips", "snuips", "uips_tight", "shrinkage_dr", "uips_dr")


@dataclass(frozen=True)
class Nuisances:
    """What was learnt from the training log at one temperature, and the hyper-parameters tuned on the truth."""

    tau: float
    test: ExtremeWorld
    design: OpeDesign
    beta: LoggingPolicy
    state: State
    matrices: PerActionUncertainty
    frequency: Tensor  # (actions,), 1/√n_a
    rewards: PooledRewardModel
    tuned: Mapping[str, Mapping[str, float]]
    scale: Mapping[str, float]
    """c of the controls with a free scale."""

    def rows(self, world: ExtremeWorld, log: LoggedData) -> PolicyRows:
        """Everything the estimators ask for about the rows of a log of some contexts."""
        target, _ = epsilon_greedy(world, self.design.epsilon)
        context, action = tensor(log.context_index).long(), tensor(log.action).long()
        u = self.matrices.of(self.state(log), context, action)
        asked = [ESTIMATORS[name] for name in {*NOTHING_TO_SET, *TUNED, *LOG_DRIVEN}]
        given: dict[str, Any] = {"uncertainty": u, "reward_model": self.rewards, "estimators": asked}
        return PolicyRows.of(log, target, self.beta, support=True, **given)


def prepare(splits: OpeSplits, tau: float, design: OpeDesign | None = None, seed: int = 0) -> Nuisances:
    """Fit β̂, U and q̂ to one training log, then tune on the true value of validation contexts."""
    design = design or OpeDesign()
    worlds = [replace(w, temperature=tau) for w in (splits.train, splits.validation, splits.test)]
    log = worlds[0].log(seed, design.rows_per_context).without_propensities()
    config = FitConfig(epochs=design.logging_epochs, seed=seed)
    beta = fit_logging_policy(log, "linear", config=config, normaliser=Full(), seed=seed)
    state = state_function(beta.whole.softmax, log, intercept=True)
    states = state(log)
    matrices = PerActionMatrices(states.shape[1], log.n_actions)
    matrices.add(states, tensor(log.context_index).long(), tensor(log.action).long())
    few = np.arange(log.n_rows) % design.rows_per_context < design.reward_rows
    fitted = Nuisances(
        tau,
        worlds[2],
        design,
        beta,
        state,
        matrices.finish(beta.whole.ridge),
        tensor(np.maximum(log.action_count, 1)).double().rsqrt(),
        PooledRewardModel.fit(log.take(few), beta.whole.design),
        {},
        {},
    )
    return _tuned(fitted, contexts_of(worlds[1], np.arange(min(design.tuning, worlds[1].contexts.n_rows))), seed)


def _tuned(fitted: Nuisances, world: ExtremeWorld, seed: int) -> Nuisances:
    """The point of each grid with the least error against the truth, and the scale that leaves none."""
    log = world.log(seed + 1_000_003, fitted.design.rows_per_context)
    rows = fitted.rows(world, log)
    truth = epsilon_greedy(world, fitted.design.epsilon)[1]
    sides = _sides(rows, fitted.frequency, seed)
    tuned = {
        label: _search(rows_of, name, truth, fitted.design.budget, seed) for label, (name, rows_of) in sides.items()
    }
    found = {
        "ips": rows.clustered(ESTIMATORS["ips"]).value,
        "shrinkage": rows.clustered(ESTIMATORS["shrinkage"], **tuned["shrinkage"]).value,
        "mean reward": float(rows.reward.mean()),
    }
    return replace(fitted, tuned=tuned, scale={name: truth / max(v, 1e-12) for name, v in found.items()})


def _sides(rows: PolicyRows, frequency: Tensor, seed: int) -> dict[str, tuple[str, PolicyRows]]:
    """Tuned estimators by label: the plain ones, and UIPS with a U that knows nothing or only frequency."""
    u = rows.inputs["uncertainty"]
    shuffled = u[torch.randperm(len(u), generator=torch_generator(seed, "ope-shuffle"))]
    by_count = frequency[tensor(rows.log.action).long()]
    others = {"uips, U shuffled": shuffled, "uips, U = 1/√n_a": by_count}
    return {name: (name, rows) for name in TUNED} | {
        label: ("uips", replace(rows, inputs={**rows.inputs, "uncertainty": u})) for label, u in others.items()
    }


def _search(rows: PolicyRows, name: str, truth: float, budget: int, seed: int) -> dict[str, float]:
    """As many points of the estimator's grid as the budget allows, at random; the one nearest to the truth."""
    row = ESTIMATORS[name]
    grids = _grids(row)
    sizes = [len(grid) for grid in grids.values()]
    points = generator(seed, "ope-search", name).permutation(int(np.prod(sizes)))[:budget]
    tried = [
        {key: grids[key][i] for key, i in zip(grids, np.unravel_index(point, sizes), strict=True)} for point in points
    ]
    errors = [abs(rows.clustered(row, **hyper).value - truth) for hyper in tried]
    return tried[int(np.argmin(errors))]


def _grids(row: Estimator) -> dict[str, tuple[float, ...]]:
    """The values each hyper-parameter may take; one without a grid keeps its default."""
    return {p.name: p.allowed.grid for p in row.hyper.values() if p.allowed and p.allowed.grid}


def one_seed(fitted: Nuisances, seed: int) -> list[dict[str, Any]]:
    """Every method's estimate on one drawn test log, as plain rows."""
    log = fitted.test.log(seed, fitted.design.rows_per_context)
    rows = fitted.rows(fitted.test, log)
    truth = epsilon_greedy(fitted.test, fitted.design.epsilon)[1]
    found: dict[tuple[str, str], float] = {("constant 0", "none"): 0.0}
    for name in NOTHING_TO_SET:
        found[name, "none"] = rows.clustered(ESTIMATORS[name]).value
    for label, (name, side) in _sides(rows, fitted.frequency, seed).items():
        found[label, "truth"] = side.clustered(ESTIMATORS[name], **fitted.tuned[label]).value
    found["c·ips", "truth"] = fitted.scale["ips"] * found["ips", "none"]
    found["c·shrinkage", "truth"] = fitted.scale["shrinkage"] * found["shrinkage", "truth"]
    found["c·mean reward", "truth"] = fitted.scale["mean reward"] * float(rows.reward.mean())
    estimate = auto_estimate(rows)
    lam = {"lam": estimate.lam, "uips_tight": plug_in_lambda(rows.ratio, rows.reward)}
    for name in LOG_DRIVEN:
        row = ESTIMATORS[name]
        found[name, "log"] = rows.clustered(row, **log_driven(row, lam, GAMMA)).value
    common = {"tau": fitted.tau, "seed": seed, "truth": truth}
    table = [common | {"method": name, "tuned_on": by, "value": v} for (name, by), v in found.items()]
    checked = preflight(rows, estimate)
    auto = {"low": estimate.interval.low, "high": estimate.interval.high, "answer": checked.verdict.answer}
    return [*table, common | {"method": "auto", "tuned_on": "log", "value": estimate.value} | auto]
