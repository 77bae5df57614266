"""Can this log answer the question at all? Facts about weights and support, and a verdict in plain words."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from offpolicy.evaluation.auto import AutoEstimate
from offpolicy.evaluation.rows import PolicyRows
from offpolicy.log import LoggedData
from offpolicy.models import DesignMatrix
from offpolicy.policies import ColumnPolicy, Policy, batch_log_probs, tensor
from offpolicy.propensity import LoggingPolicy

Answer = Literal["answerable", "answerable on part", "run an experiment"]

LEAST_EFFECTIVE = 50.0
"""Fewer effective clusters than this carry no interval worth trusting."""
MEAN_WEIGHT_SLACK = 0.2
"""How far the mean weight may be from 1 beyond three of its standard errors: more means that β̂ is wrong."""
LARGEST_SHARE = 0.1
"""A single cluster with more of the weight than this decides the estimate alone."""
UNSUPPORTED = 1e-4
"""An action with less logging probability than this in a context has no support there."""
UNSUPPORTED_MASS = 0.1
"""Target mass without support beyond which the value is extrapolated rather than estimated."""
CONTRADICTION = 6.0
"""Views of the value further apart than this many standard errors contradict each other."""
WIDEST = 0.5
"""An interval wider than this share of the reward range says too little to act on."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    value: float | None
    passed: bool
    meaning: str


@dataclass(frozen=True)
class Verdict:
    """The answer, what speaks against it, and what to do."""

    answer: Answer
    reasons: tuple[str, ...]
    advice: str

    @property
    def answerable(self) -> bool:
        """Whether the estimate may be relied on."""
        return self.answer == "answerable"


@dataclass(frozen=True)
class Preflight:
    """All checks of one policy on one log, and the verdict."""

    checks: tuple[Check, ...]
    verdict: Verdict
    balance: tuple[tuple[str, float, float], ...] = ()
    """Features whose weighted mean differs from their mean: name, shift before, shift after, in standard deviations."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def preflight(
    log: LoggedData, target: Policy, logging_policy: LoggingPolicy, rows: PolicyRows, estimate: AutoEstimate
) -> Preflight:
    """Look at weights, support, logger and estimate, and judge."""
    checks = [*_weight_checks(rows), *_log_checks(log, rows), *_estimate_checks(estimate)]
    supported = None
    if not isinstance(target, ColumnPolicy) and logging_policy.model != "recorded":
        unsupported = unsupported_mass(log, target, logging_policy)
        mean = float(unsupported[tensor(log.context_index).long()].mean())
        checks.append(
            Check(
                "target mass without support",
                mean,
                mean <= UNSUPPORTED_MASS,
                f"share of the policy's choices that logging makes with probability below {UNSUPPORTED:g}",
            )
        )
        supported = float((unsupported <= UNSUPPORTED_MASS / 2).double().mean())
    failed = [check for check in checks if not check.passed]
    return Preflight(tuple(checks), _verdict(failed, supported, rows), covariate_balance(log, rows))


def _weight_checks(rows: PolicyRows) -> list[Check]:
    ratio = rows.ratio.double()
    cluster = rows.cluster.long()
    per_cluster = torch.zeros(rows.n_clusters, dtype=torch.float64).index_add_(0, cluster, ratio)
    total = float(ratio.sum())
    effective = total**2 / float(per_cluster.square().sum()) if total > 0 else 0.0
    share = float(per_cluster.max()) / total if total > 0 else 1.0
    mean = float(ratio.mean())
    count = torch.bincount(cluster, minlength=len(per_cluster)).double()
    residual = per_cluster - mean * count
    error = float(residual.square().sum().sqrt()) / len(ratio)
    slack = 3 * error + MEAN_WEIGHT_SLACK
    return [
        Check(
            "effective sample size",
            effective,
            effective >= LEAST_EFFECTIVE,
            f"independent contexts or clusters that the log is worth for this policy; {LEAST_EFFECTIVE:g} are needed",
        ),
        Check("largest weight share", share, share <= LARGEST_SHARE, "share of all weight that one cluster carries"),
        Check("mean weight", mean, abs(mean - 1) <= min(slack, 0.5), "1 where the estimated propensities are right"),
    ]


def _log_checks(log: LoggedData, rows: PolicyRows) -> list[Check]:
    pairs = log.context_index.astype(np.int64)
    pairs *= log.n_actions
    pairs += log.action
    pairs.sort()
    first = np.concatenate([[True], pairs[1:] != pairs[:-1]])
    per_context = np.bincount(pairs[first] // log.n_actions, minlength=log.n_contexts)
    repeated = np.bincount(log.context_index, minlength=log.n_contexts) > 1
    single = float((per_context[repeated] == 1).mean()) if repeated.any() else None
    certain = float((rows.inputs["log_logging"] > np.log(0.99)).double().mean())
    deterministic = (single is not None and single > 0.9) or certain > 0.9
    return [
        Check(
            "contexts shown one action",
            single,
            single is None or single <= 0.9,
            "share of repeated contexts in which one action was ever shown",
        ),
        Check(
            "certain logging",
            certain,
            not deterministic,
            "share of rows whose action was shown with 99 % probability: a deterministic logger teaches nothing else",
        ),
        Check("reward varies", float(log.reward.std()), bool(log.reward.std() > 0), "standard deviation of the reward"),
    ]


def _estimate_checks(estimate: AutoEstimate) -> list[Check]:
    width = estimate.interval.high - estimate.interval.low
    return [
        Check(
            "agreement of views",
            estimate.disagreement,
            estimate.disagreement <= CONTRADICTION,
            "distance of the estimates with and without reward model, in standard errors",
        ),
        Check("interval width", width, width <= WIDEST, "share of the reward range the interval covers"),
    ]


def unsupported_mass(log: LoggedData, target: Policy, logging_policy: LoggingPolicy) -> Tensor:
    """Per context, the policy's probability on actions that logging hardly ever shows there."""
    mass = torch.empty(log.n_contexts, dtype=torch.float64)
    for tile in log.batches():
        rare = batch_log_probs(logging_policy, log, tile) < np.log(UNSUPPORTED)
        probs = batch_log_probs(target, log, tile).double().exp()
        mass[tile.contexts] = (probs * rare).sum(1)
    return mass


def _verdict(failed: list[Check], supported: float | None, rows: PolicyRows) -> Verdict:
    if not failed:
        return Verdict("answerable", (), "Rely on the estimate and its interval.")
    reasons = tuple(
        f"{check.name} is {'unknown' if check.value is None else f'{check.value:.3g}'} ({check.meaning})"
        for check in failed
    )
    support_only = {check.name for check in failed} <= {"target mass without support", "largest weight share"}
    if support_only and supported is not None and supported >= 0.3:
        return Verdict(
            "answerable on part",
            reasons,
            f"Evaluate on the {supported:.0%} of contexts where logging supports the policy; explore in the others.",
        )
    return Verdict("run an experiment", reasons, _experiment_advice(rows))


def _experiment_advice(rows: PolicyRows) -> str:
    """How much exploration would bring enough effective rows: the least share of traffic that follows the policy."""
    n = rows.n_clusters
    ratio = rows.ratio.double()
    mean = max(float(ratio.mean()), 1e-12)
    for share in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5):
        # Logging with probability 1 − ε and the policy itself with ε gives the ratio ρ/(1 − ε + ερ).
        mixed = ratio / (1 - share + share * ratio)
        effective = n * mean / max(float((ratio * mixed).mean()), 1e-12)
        if effective >= 4 * LEAST_EFFECTIVE:
            return (
                f"Run an experiment: let about {share:.0%} of the traffic follow the policy and record the "
                f"probabilities; {n} such contexts would be worth about {min(effective, n):.0f} independent ones."
            )
    return "Run an experiment on a random half of the traffic: this log says next to nothing about the policy."


def covariate_balance(log: LoggedData, rows: PolicyRows, most: int = 8) -> tuple[tuple[str, float, float], ...]:
    """Weighted means of features against their means, in standard deviations: right weights leave them in place."""
    design = DesignMatrix.fit(log.contexts, max_categories=16)
    features = design.encode(log.contexts).double()
    context = tensor(log.context_index).long()
    plain = torch.bincount(context, minlength=log.n_contexts).double()
    weight = torch.zeros(log.n_contexts, dtype=torch.float64).index_add_(0, context, rows.ratio.double())
    if float(weight.sum()) <= 0:
        return ()
    mean = plain @ features / plain.sum()
    spread = ((plain @ features.square()) / plain.sum() - mean.square()).clamp(min=0).sqrt()
    uniform = features.mean(0)
    after = (weight @ features / weight.sum() - mean) / spread.clamp(min=1e-9)
    before = (uniform - mean) / spread.clamp(min=1e-9)
    worst = after.abs().nan_to_num().argsort(descending=True)[:most].tolist()
    names = design.names
    return tuple((names[i], float(before[i]), float(after[i])) for i in worst if float(spread[i]) > 0)


def detectable_effect(estimate: AutoEstimate, level: float = 0.95, power: float = 0.8) -> float:
    """The smallest true difference that this log would find with that power, from the interval's half-width."""
    half = (estimate.interval.high - estimate.interval.low) / 2
    quantile = float(norm.ppf(0.5 + level / 2))
    return half * (1 + float(norm.ppf(power)) / quantile)
