"""Can this log answer the question at all? The diagnostics of weights and support, and a verdict in plain words."""

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from offpolicy.estimators import bounded_exp
from offpolicy.evaluation.auto import AutoEstimate
from offpolicy.evaluation.diagnostics import LEAST_EFFECTIVE, diagnosed, failure, ratios
from offpolicy.evaluation.rows import PolicyRows
from offpolicy.evaluation.statistics import RowStatistics
from offpolicy.evaluation.value import Array
from offpolicy.evaluation.views import Width
from offpolicy.log import row_pieces
from offpolicy.models import DesignMatrix
from offpolicy.policies import tensor
from offpolicy.propensity import Repeats
from offpolicy.results import Check, Preflight, Verdict

BALANCE_CATEGORIES = 16
"""Places for the values of a category when features are compared."""


def preflight(
    rows: RowStatistics, estimate: AutoEstimate, repeats: Repeats | None = None, *, balance: bool = True
) -> Preflight:
    """Check weights, support, logger and estimate, and give a verdict; `repeats` is the repeat test of β̂.

    With `balance`, features are compared before and after weighting as well.
    """
    checks, supported = diagnosed(rows, estimate, repeats)
    failed = [check for check in checks if not check.passed]
    verdict = _verdict(failed, supported, rows)
    return Preflight(checks=checks, verdict=verdict, balance=covariate_balance(rows) if balance else [])


def _verdict(failed: list[Check], supported: float | None, rows: RowStatistics) -> Verdict:
    if not failed:
        return Verdict(answer="answerable", advice="Rely on the estimate and its interval.")
    reasons = [failure(check, "context" if rows.log.cluster is None else "user") for check in failed]
    support_only = {check.name for check in failed} <= {"target mass without support", "largest weight share"}
    if support_only and supported is not None and supported >= 0.3:
        part = f"Evaluate on the {supported:.0%} of contexts where logging supports the policy; explore in the others."
        return Verdict(answer="answerable on part", reasons=reasons, advice=part)
    return Verdict(answer="run an experiment", reasons=reasons, advice=_experiment_advice(rows))


EXPLORED = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Shares of the traffic that might follow the policy in an experiment."""


def _experiment_advice(rows: RowStatistics) -> str:
    """How much exploration would bring enough effective rows: the least share of traffic that follows the policy."""
    n = rows.n_clusters
    mixed, events = np.split(rows.total(_mixed_sums), [len(EXPLORED)])
    for share, square in zip(EXPLORED, mixed / events, strict=True):
        effective = n * rows.mean_ratio / max(square, 1e-12)
        if effective >= 4 * LEAST_EFFECTIVE:
            return (
                f"Run an experiment: let about {share:.0%} of the traffic follow the policy and record the "
                f"probabilities; {n} such contexts give an effective sample size of about {min(effective, n):.0f}."
            )
    return "Run an experiment on a random half of the traffic: this log says next to nothing about the policy."


def _mixed_sums(rows: PolicyRows) -> Array:
    """Σ ρ·ρ/(1 − ε + ερ) for each ε, as logging with 1 − ε and the policy with ε would have it, and the events."""
    ratio = ratios(rows)
    events = np.ones(len(ratio)) if rows.log.row_weight is None else rows.log.row_weight
    sums = [(events * ratio * ratio / (1 - share + share * ratio)).sum() for share in EXPLORED]
    return np.array([*sums, events.sum()])


def covariate_balance(rows: RowStatistics, most: int = 8) -> list[tuple[str, float | None, float | None]]:
    """Weighted means of features against their means, in standard deviations: right weights leave them in place."""
    design = rows.design(BALANCE_CATEGORIES)
    sums = torch.from_numpy(rows.total(_feature_sums, design))
    contexts, events, weight = sums[:3, -1].tolist()
    if weight <= 0:
        return []
    uniform, plain, after, square = sums[:, :-1]
    mean = plain / events
    spread = (square / events - mean.square()).clamp(min=0).sqrt()
    after = (after / weight - mean) / spread.clamp(min=1e-9)
    before = (uniform / contexts - mean) / spread.clamp(min=1e-9)
    worst = after.abs().nan_to_num().argsort(descending=True)[:most].tolist()
    names = design.names
    return [(names[i], float(before[i]), float(after[i])) for i in worst if float(spread[i]) > 0]


def _feature_sums(rows: PolicyRows, design: DesignMatrix) -> Array:
    """Σ of features over contexts, over events and over weights, and of their squares over events, (4, features + 1).

    The last column is that of a feature which is always 1.
    """
    log = rows.log
    weight = torch.zeros(log.n_contexts, dtype=torch.float64)
    for part in rows.parts():
        ratio = bounded_exp(rows.log_ratio[part]).double()
        ratio = ratio if rows.row_weight is None else ratio * rows.row_weight[part]
        weight.index_add_(0, tensor(log.context_index)[part].long(), ratio)
    plain = tensor(log.context_weight)

    def sums_of(some: slice) -> Tensor:
        features = design.encode(log.contexts.take(some)).double()
        features = torch.cat([features, torch.ones(len(features), 1, dtype=torch.float64)], 1)
        return torch.stack(
            [features.sum(0), plain[some] @ features, weight[some] @ features, plain[some] @ features.square()]
        )

    return torch.stack([sums_of(some) for some in row_pieces(log.n_contexts)]).sum(0).numpy()


def detectable_effect(width: Width, level: float = 0.95, power: float = 0.8) -> float:
    """The smallest true difference that this log would find with that power, from the width of the difference."""
    return width.half(level) + float(norm.ppf(power)) * width.scale
