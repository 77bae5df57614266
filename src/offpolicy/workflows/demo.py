"""The demonstration: from a log file with hidden propensities to policies and verdicts, against the known truth."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from offpolicy.artifacts import load_policy
from offpolicy.atomic import atomic_file, write_atomic
from offpolicy.datasets import LinearSoftmaxWorld
from offpolicy.estimators import ESTIMATORS
from offpolicy.evaluation import PolicyRows, chosen_lambdas, learned_groups, log_driven
from offpolicy.learning import AUTO, METHODS, PORTFOLIO
from offpolicy.log import ActionTable, EmbeddingColumn, FeatureTable, LoggedData, NumericColumn, Vocabulary, pieces
from offpolicy.policies import Policy, tensor
from offpolicy.propensity import LoggingPolicy, fit_logging_policy
from offpolicy.results import PolicyResult, Quality
from offpolicy.rewards import PooledRewardModel
from offpolicy.uncertainty import Calibration, calibrate_gamma, covered, row_uncertainty
from offpolicy.workflows.evaluate import run_evaluate
from offpolicy.workflows.inspect import run_inspect
from offpolicy.workflows.learn import run_learn
from offpolicy.workflows.log_spec import LogSpec
from offpolicy.workflows.run import RunOptions, check_folder, mark_folder

HELD_OUT = 0.1
LEVEL = 0.95
REFITS = 5
LEARNERS = PORTFOLIO
"""Methods that `auto` learns with, at their defaults, and chooses among."""
SHARE = 0.3
"""Contexts kept for the evaluation."""
FRESH = 20_000
"""Contexts over which a learned policy's true value is taken."""
SHOWN = ("ips", "snips", "clipped", "shrinkage", "uips", "snuips", "dm", "dr", "sndr", "uips_dr")
"""The estimators that matter most."""
NOTES = (
    "β̂, U, γ, λ and the reward model behind dm and the dr family come from this log alone. The columns on the right "
    "use the true β* with U = 0 and the same reward model: what is left there is sampling noise and the bias of the "
    "weight itself. One log is one draw: another --seed ranks estimators otherwise.",
    "--all shows every estimator. ips_gt is given the true propensities in both. minvar_paper and stablevar_paper are "
    "what the paper prints: they answer close to 0 whatever the policy (see docs/estimators.md). The _official forms "
    "take U as the released code normalises it, and their own λ and γ.",
)


@dataclass(frozen=True)
class Estimate:
    """One row of the demo's table: an estimate with the fitted and one with the true propensities."""

    name: str
    fitted: float
    mean_weight: float
    """Mean weight with the fitted propensities."""
    known: float


@dataclass(frozen=True)
class Propensities:
    """How good β̂ and its bands are, measured against the demo's ground truth."""

    quality: Quality
    true_log_likelihood: float
    """Mean log β* of the same held-out rows."""
    mean_uncertainty: float
    calibration: Calibration
    coverage: float
    """Share of rows whose β* lies in [β̂e^{−γU}, β̂e^{γU}]."""


@dataclass(frozen=True)
class Learned:
    """A policy learned from one part of the log file and evaluated on the other."""

    label: str
    truth: float
    """Its true value, known only to the demo."""
    found: PolicyResult
    """Its evaluation."""
    improvement: float | None
    """Probability that it beats logging, estimated from the log."""


@dataclass(frozen=True)
class DemoResult:
    """What the demo shows."""

    inspected: Mapping[str, Any]
    propensities: Propensities
    truth: float
    logging: float
    estimates: list[Estimate]
    learned: list[Learned]
    evaluated: Path
    """Folder of the evaluation, ready for a report."""
    commands: tuple[str, ...]
    """The same steps as commands."""
    notes: tuple[str, ...] = NOTES


def run_demo(folder: str | Path, seed: int = 0, n_contexts: int = 5_000, n_actions: int = 50) -> DemoResult:
    """Draw a world, write its log without propensities, run the user's commands on it, and compare with the truth.

    Into the folder: `impressions.parquet`, `columns.toml`, `learned` and `evaluated`.
    """
    world = LinearSoftmaxWorld.draw(seed, n_actions=n_actions)
    log = world.log(seed, n_contexts, rows_per_context=2)
    path = DemoPath.written(Path(folder), log, seed)
    inspected = run_inspect(path.spec, seed)
    learned = path.learned(world)
    hidden = log.without_propensities()
    logging_policy = fit_logging_policy(hidden, "linear", held_out=HELD_OUT, seed=seed)
    uncertainty = row_uncertainty(logging_policy)
    official = row_uncertainty(logging_policy, normalisation="official")
    calibration = calibrate_gamma(logging_policy, level=LEVEL, uncertainty=uncertainty, draws=REFITS, seed=seed)
    target = world.target_policy()
    rewards = PooledRewardModel.fit(log)
    fitted = _estimates(log, target, logging_policy, (uncertainty, official), rewards, calibration.gamma)
    none = torch.zeros_like(uncertainty)
    known = _estimates(log, target, world.logging_policy, (none, none), rewards, calibration.gamma)
    return DemoResult(
        inspected=inspected,
        propensities=_propensity_quality(logging_policy, log, uncertainty, calibration, seed),
        truth=world.value(target, log.contexts),
        logging=world.value(world.logging_policy, log.contexts),
        estimates=[Estimate(name, *fitted[name], known[name][0]) for name in fitted],
        learned=learned,
        evaluated=path.folder / "evaluated",
        commands=path.commands,
    )


@dataclass(frozen=True)
class DemoPath:
    """The files of the demo and the commands on them."""

    folder: Path
    spec: LogSpec
    seed: int

    @classmethod
    def written(cls, folder: Path, log: LoggedData, seed: int) -> "DemoPath":
        """Write the log as a user's would be: strings for users and items, no propensities."""
        folder = check_folder(folder, "demo", ("impressions.parquet", "columns.toml"), force=False)
        mark_folder(folder, "demo")
        tastes = _tastes(log.contexts)
        rows = {name: tastes[name].values[log.context_index] for name in tastes}
        items = pl.Series(_items(log.n_actions))[log.action]
        users = pl.Series([f"user-{i:06d}" for i in range(log.n_contexts)])[log.context_index]
        frame = pl.DataFrame({"user": users, **rows, "item": items, "click": log.reward.astype(np.int8)})
        file = folder / "impressions.parquet"
        with atomic_file(file) as temporary:
            frame.write_parquet(temporary)
        columns = ", ".join(f'"{name}"' for name in tastes)
        write_atomic(
            folder / "columns.toml",
            f'context = [{columns}]\naction = "item"\nreward = "click"\ncluster = "user"\n',
        )
        return cls(folder, LogSpec(str(file), tuple(tastes), "item", "click", cluster="user"), seed)

    @property
    def commands(self) -> tuple[str, ...]:
        """The demo's commands as one would type them."""
        log = f"{self.spec.source} --config {self.folder / 'columns.toml'}"
        out, evaluated = self.folder / "learned", self.folder / "evaluated"
        policies = " ".join(f"--policy {out / 'policies' / name}" for name in LEARNERS)
        seed = f"--seed {self.seed}"
        return (
            f"offpolicy inspect {log} {seed}",
            f"offpolicy learn {log} --held-out {SHARE} {seed} --out {out}",
            f"offpolicy evaluate {log} {policies} --compare uniform {seed} --out {evaluated}",
            f"offpolicy report {evaluated}",
        )

    def learned(self, world: LinearSoftmaxWorld) -> list[Learned]:
        """Learn from the file, evaluate on the contexts that were held out, and look up the truth."""
        out = self.folder / "learned"
        shutil.rmtree(out / "training", ignore_errors=True)  # of a demo with another seed
        options = RunOptions(self.seed, propensity_models=False, command=self.commands[1], config=self.spec.to_json())
        learned = run_learn(self.spec, (AUTO,), out, options, held_out=SHARE).results.choice
        assert learned is not None
        folders = {name: str(out / "policies" / name) for name in LEARNERS}
        options = RunOptions(self.seed, command=self.commands[2], config=self.spec.to_json())
        run = run_evaluate(
            self.spec, folders, options, compare_with={"uniform": "uniform"}, out=self.folder / "evaluated"
        )
        evaluation = run.results.evaluation
        assert evaluation is not None
        against = evaluation.against()
        return [
            Learned(
                (METHODS[name].label or name) + (", chosen" if name == learned.method else ""),
                _true_value(world, folder, self.seed),
                evaluation[name],
                against[name].probability_of_improvement,
            )
            for name, folder in folders.items()
        ]


def _tastes(contexts: FeatureTable) -> dict[str, NumericColumn]:
    """The world's one embedding as the plain columns of a file."""
    column = contexts["x"]
    assert isinstance(column, EmbeddingColumn)
    return {f"taste_{i + 1}": NumericColumn(values) for i, values in enumerate(column.values.T)}


def _items(n: int) -> list[str]:
    return [f"item-{i:03d}" for i in range(n)]


def _true_value(world: LinearSoftmaxWorld, folder: str, seed: int) -> float:
    """V(π) of a saved policy over fresh contexts of the world, exactly but for their draw."""
    fresh = world.contexts(seed + 1, FRESH)
    saved = load_policy(folder)
    ids = ActionTable(Vocabulary(np.array(_items(len(world.theta)))))
    policy = saved.aligned(ids)
    total = 0.0
    for tile in pieces(FRESH, len(world.theta)):
        part = fresh.take(tile)
        probs = policy.log_probs(FeatureTable(_tastes(part))).double().exp()
        total += float((probs * world.rewards(part)).sum())
    return total / FRESH


def _estimates(
    log: LoggedData,
    target: Policy,
    logging: Policy,
    uncertainty: tuple[Tensor, Tensor],
    rewards: PooledRewardModel,
    gamma: float,
) -> dict[str, tuple[float, float]]:
    """Value and mean weight of every registered estimator with U and γ; the released code's forms take the second U."""
    rows = PolicyRows.of(
        log,
        target,
        logging,
        uncertainty=uncertainty[0],
        reward_model=rewards,
        estimators=ESTIMATORS.values(),
        groups=learned_groups(log, rewards),
    )
    released = replace(rows, inputs={**rows.inputs, "uncertainty": uncertainty[1]})
    found, lam = {}, chosen_lambdas(rows)
    for name, row in ESTIMATORS.items():
        if rows.unavailable(row):  # one of them needs scikit-learn, which is an extra
            continue
        official = name.endswith("_official")
        hyper = {} if official else log_driven(row, lam, gamma)
        terms = (released if official else rows).clustered(row, **hyper)
        found[name] = (terms.value, terms.mean_weight)
    return found


def _propensity_quality(
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
