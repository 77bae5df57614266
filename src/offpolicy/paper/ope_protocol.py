"""The paper's off-policy evaluation experiment, with the controls that show what its tuning buys.

Documents are embedded, and a softmax over their labels fitted, to give β*(a|x) = softmax((x·θ + b)/τ). The target is
ε-greedy over each document's own labels, π(a|x) = (1 − ε)/|M_x|·1{a ∈ M_x} + ε/K, so that its value is known:
V = mean_x[(1 − ε) + ε|M_x|/K]. Each seed draws 100 actions a test document from β*; β̂, U and q̂ come from a log of the
training documents, drawn once. V̂ is pooled over all rows.

Three ways to set hyper-parameters stand side by side: `truth` searches the paper's grids for the least error against
the *true* value of validation documents, which no user can do; `log` takes everything from the log; `none` has nothing
to set. An estimator with a free scale reaches any value when tuned on the truth, so c·BIPS, c·Shrinkage and c times
the mean reward are tuned the same way, and UIPS with its U shuffled, or replaced by a function of frequency.

Run: python -m offpolicy.paper.ope_protocol --data DIR --tau 0.5 --seeds 20 --out FILE
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offpolicy.datasets import ExtremeShape, ExtremeWorld, load_xmc
from offpolicy.estimators import ESTIMATORS, Estimator
from offpolicy.evaluation import GAMMA, PolicyRows, auto_estimate, log_driven, plug_in_lambda, preflight
from offpolicy.log import LoggedData
from offpolicy.models import Full
from offpolicy.paper.ope_worlds import (
    QUICK,
    OpeDesign,
    OpeSplits,
    contexts_of,
    epsilon_greedy,
    synthetic_splits,
    xmc_splits,
)
from offpolicy.policies import tensor
from offpolicy.progress import progress
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
    judged = preflight(rows, estimate)
    auto = {"low": estimate.interval.low, "high": estimate.interval.high, "answer": judged.verdict.answer}
    return [*table, common | {"method": "auto", "tuned_on": "log", "value": estimate.value} | auto]


def run_protocol(
    splits: OpeSplits,
    tau: float,
    seeds: int = 20,
    design: OpeDesign | None = None,
    done: list[dict[str, Any]] | None = None,
) -> Iterator[list[dict[str, Any]]]:
    """Rows of each seed as it is finished; those of seeds already in `done` are not computed again."""
    have = {(row["tau"], row["seed"]) for row in done or []}
    missing = [seed for seed in range(seeds) if (tau, seed) not in have]
    if not missing:
        return
    fitted = prepare(splits, tau, design)
    with progress(f"tau {tau:g}", len(missing)) as advance:
        for seed in missing:
            yield one_seed(fitted, seed)
            advance("")


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per temperature and method: mean squared error, its spread over seeds, bias and variance, and of `auto` more."""
    groups: dict[tuple[float, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["tau"], row["method"], row["tuned_on"]), []).append(row)
    table = []
    for (tau, method, tuned_on), mine in groups.items():
        errors = np.array([row["value"] - row["truth"] for row in mine])
        squares, more = errors**2, len(mine) > 1
        line = {
            "tau": tau,
            "method": method,
            "tuned_on": tuned_on,
            "seeds": len(mine),
            "mse": float(squares.mean()),
            "sd": float(squares.std(ddof=1)) if more else None,
            "variance_of_squared_error": float(squares.var(ddof=1)) if more else None,
            "bias": float(errors.mean()),
            "variance": float(errors.var(ddof=1)) if more else None,
        }
        if "low" in mine[0]:
            line["coverage"] = float(np.mean([row["low"] <= row["truth"] <= row["high"] for row in mine]))
            line["answered"] = float(np.mean([row["answer"] == "answerable" for row in mine]))
        table.append(line)
    return table


def markdown(table: list[dict[str, Any]]) -> str:
    """The summary as a table, one block a temperature."""
    columns = ("sd", "variance_of_squared_error", "bias", "variance")
    lines = [
        "| τ | method | tuned on | MSE | s.d. over seeds | variance of squared errors | bias | variance |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(table, key=lambda row: row["tau"]):
        numbers = [row["mse"], *(row[name] for name in columns)]
        cells = " | ".join("" if v is None else f"{v:.3g}" for v in numbers)
        lines.append(f"| {row['tau']:g} | {row['method']} | {row['tuned_on']} | {cells} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """The command line: rows go to a file, the table to standard output."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", help="folder that holds the data set's folder; OFFPOLICY_DATA unless given")
    parser.add_argument("--set", default="delicious", help="an XMC data set, or 'synthetic'")
    parser.add_argument("--tau", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines; finished seeds are not computed again")
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    design = QUICK if options.quick else OpeDesign()
    done = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    if options.set == "synthetic":
        shape = ExtremeShape(400, 60, 8, 4.0, topics=8) if options.quick else ExtremeShape(8_000, 1_000)
        splits = synthetic_splits(shape)
    else:
        splits = xmc_splits(load_xmc(options.set, options.data), design)
    with options.out.open("a", encoding="utf-8") as file:
        for tau in options.tau:
            for rows in run_protocol(splits, tau, options.seeds, design, done):
                file.writelines(json.dumps(row) + "\n" for row in rows)
                file.flush()
                done += rows
    print(markdown(summarise([row for row in done if row["tau"] in options.tau and row["seed"] < options.seeds])))


if __name__ == "__main__":
    main()
