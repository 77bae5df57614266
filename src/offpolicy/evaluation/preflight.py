"""Can this log answer the question at all? Facts about weights and support, and a verdict in plain words."""

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import norm

from offpolicy.estimators import ESTIMATORS
from offpolicy.evaluation.auto import AutoEstimate
from offpolicy.evaluation.clusters import ROWS, WEIGHT
from offpolicy.evaluation.inputs import UNSUPPORTED, least_support
from offpolicy.evaluation.rows import PolicyRows
from offpolicy.evaluation.tails import pareto_shape
from offpolicy.evaluation.value import Array
from offpolicy.evaluation.views import Width
from offpolicy.log import LoggedData
from offpolicy.models import DesignMatrix
from offpolicy.policies import tensor
from offpolicy.propensity import Repeats
from offpolicy.results import Check, Preflight, Verdict

LEAST_EFFECTIVE = 50.0
"""With fewer effective clusters than this no interval can be trusted."""
MEAN_WEIGHT_SLACK = 0.2
"""How far the mean weight may be from 1 beyond three of its standard errors: more means that β̂ is wrong."""
MOST_MEAN_WEIGHT_SLACK = 0.5
"""And never further than this, however large its error."""
LARGEST_SHARE = 0.1
"""A single cluster with more of the weight than this decides the estimate alone."""
UNSUPPORTED_MASS = 0.1
"""Target mass without support beyond which the value is extrapolated rather than estimated."""
CONTRADICTION = 6.0
"""Views of the value further apart than this many standard errors contradict each other."""
DETERMINISTIC = 0.9
"""Share of contexts with one action, or of rows with certain propensity, beyond which the logger is deterministic."""
LEAST_REPEATED = 30
"""Rows of contexts already seen, below which they say nothing about the logger."""
LEAST_REPEATED_SHARE = 0.1
"""Share of the rows that must lie in such contexts; fewer may be duplicates."""
HEAVIEST_TAIL = 1.0
"""A Pareto shape beyond this leaves the weights without a mean."""
CLEAR_DRIFT = 4.0
"""Standard errors beyond which rewards have moved over time for certain."""
CERTAIN = 0.99
"""A propensity above this is as good as certain."""
WIDEST = 0.5
"""An interval wider than this share of the reward range says too little to act on."""


def preflight(rows: PolicyRows, estimate: AutoEstimate, repeats: Repeats | None = None) -> Preflight:
    """Check weights, support, logger and estimate, and give a verdict; `repeats` is the repeat test of β̂."""
    log = rows.log
    checks = [*_weight_checks(rows), *_log_checks(log, rows), *_estimate_checks(estimate), *_drift(rows, estimate)]
    if repeats is not None:
        checks.append(
            Check(
                name="repeats",
                value=repeats.ratio,
                passed=not repeats.flagged,
                meaning="pairs of rows of one user (or context) with the same action, observed over expected: 1 where "
                f"the logger looked at the columns alone; its standard error is {repeats.error:.2g}",
            )
        )
    supported = None
    if rows.unsupported is not None:
        mean = float(np.average(rows.unsupported.numpy(), weights=log.context_weight))
        checks.append(
            Check(
                name="target mass without support",
                value=mean,
                passed=mean <= UNSUPPORTED_MASS,
                meaning="share of the policy's choices that logging makes with probability below "
                + (
                    f"{least_support(log.n_actions):.3g}"
                    if log.candidates is None
                    else f"{UNSUPPORTED:g} of its even share of the candidates"
                ),
            )
        )
        supported = float((rows.unsupported <= UNSUPPORTED_MASS / 2).double().mean())
    failed = [check for check in checks if not check.passed]
    verdict = _verdict(failed, supported, rows)
    return Preflight(checks=checks, verdict=verdict, balance=covariate_balance(log, rows))


def _weight_checks(rows: PolicyRows) -> list[Check]:
    sums = rows.clustered(ESTIMATORS["ips"])
    weight, events = sums.columns[:, WEIGHT], sums.columns[:, ROWS]
    total, mean = float(weight.sum()), sums.mean_weight
    share = float(weight.max()) / total if total > 0 else 1.0
    error = float(np.sqrt(np.square(weight - mean * events).sum())) / float(events.sum())
    slack = 3 * error + MEAN_WEIGHT_SLACK
    return [
        Check(
            name="effective sample size",
            value=sums.effective_clusters,
            passed=sums.effective_clusters >= LEAST_EFFECTIVE,
            meaning=f"clusters of equal weight that would be as informative; {LEAST_EFFECTIVE:g} are needed",
        ),
        Check(
            name="largest weight share",
            value=share,
            passed=share <= LARGEST_SHARE,
            meaning="share of all weight that one cluster carries",
        ),
        Check(
            name="mean weight",
            value=mean,
            passed=abs(mean - 1) <= min(slack, MOST_MEAN_WEIGHT_SLACK),
            meaning=f"1 where the estimated propensities are right; its standard error is {error:.2g}",
        ),
        *_tail_check(weight),
    ]


def _tail_check(weight: Array) -> list[Check]:
    """The shape of the tail; weights that take few values have none."""
    shape = pareto_shape(weight)
    if shape is None:
        return []
    grades = ((0.5, "good"), (0.7, "usable"), (HEAVIEST_TAIL, "unreliable unless the weights are shrunk"))
    grade = next((name for most, name in grades if shape <= most), "hopeless: the weights need not have a mean")
    meaning = f"Pareto shape k of the largest weights: {grade}"
    return [Check(name="tail of the weights", value=shape, passed=shape <= HEAVIEST_TAIL, meaning=meaning)]


def shown_one_action(log: LoggedData) -> float | None:
    """The share of repeated contexts in which one action was ever shown; None where too few repeat to tell."""
    pairs = log.context_index.astype(np.int64)
    pairs *= log.n_actions
    pairs += log.action
    pairs.sort()
    first = np.concatenate([[True], pairs[1:] != pairs[:-1]])
    per_context = np.bincount(pairs[first] // log.n_actions, minlength=log.n_contexts)
    shown = np.bincount(log.context_index, minlength=log.n_contexts)
    repeated = shown > 1
    if log.candidates is not None:
        repeated &= log.candidates.sizes > 1  # where one action is on offer, one is shown
    # A few repeated rows may be duplicates; they say nothing about how the logger chooses.
    enough = (shown[repeated] - 1).sum() >= LEAST_REPEATED and shown[
        repeated
    ].sum() >= LEAST_REPEATED_SHARE * log.n_rows
    return float((per_context[repeated] == 1).mean()) if enough else None


def _certain(log: LoggedData, rows: PolicyRows) -> float:
    """The share of rows whose action was as good as certain; rows that offered no choice do not count."""
    certain = rows.inputs["log_logging"] > np.log(CERTAIN)
    if log.candidates is None:
        return rows.mean(certain)
    choice = torch.from_numpy(log.candidates.sizes[log.context_index] > 1)
    return rows.mean(certain & choice) / max(rows.mean(choice), 1e-12)


def _log_checks(log: LoggedData, rows: PolicyRows) -> list[Check]:
    single = shown_one_action(log)
    certain = _certain(log, rows)
    spread = float(log.reward.std())
    return [
        Check(
            name="contexts shown one action",
            value=single,
            passed=single is None or single <= DETERMINISTIC,
            meaning="share of repeated contexts in which one action was ever shown",
        ),
        Check(
            name="certain logging",
            value=certain,
            passed=certain <= DETERMINISTIC,
            meaning=f"share of rows whose action was shown with {CERTAIN:.0%} probability: a deterministic logger "
            "teaches nothing about other actions",
        ),
        Check(name="reward varies", value=spread, passed=spread > 0, meaning="standard deviation of the reward"),
    ]


def _estimate_checks(estimate: AutoEstimate) -> list[Check]:
    width = estimate.interval.high - estimate.interval.low
    return [
        Check(
            name="agreement of views",
            value=estimate.disagreement,
            passed=estimate.disagreement <= CONTRADICTION,
            meaning="distance of the estimates with and without reward model, in standard errors",
        ),
        Check(
            name="interval width",
            value=width,
            passed=width <= WIDEST,
            meaning="share of the reward range the interval covers",
        ),
    ]


def _drift(rows: PolicyRows, estimate: AutoEstimate) -> list[Check]:
    """Whether rewards, or the weights, are others in the later half of the log."""
    log = rows.log
    if log.timestamp is None or log.timestamp.min() == log.timestamp.max():
        return []
    late = log.timestamp > np.median(log.timestamp)
    if not late.any():
        late = log.timestamp == log.timestamp.max()
    moved, error = _later_less_earlier(log, log.reward, late)
    limit = max(CLEAR_DRIFT * error, estimate.interval.high - estimate.interval.low)
    said = "later less earlier mean {}; its standard error is {:.2g}"
    meaning = said.format("reward, in shares of the reward range", error)
    checks = [Check(name="reward drift", value=moved, passed=abs(moved) <= limit, meaning=meaning)]
    moved, error = _later_less_earlier(log, rows.ratio.double().numpy(), late)
    meaning = said.format("weight, 0 where the propensities follow the logger through time", error)
    passed = abs(moved) <= 3 * error + MEAN_WEIGHT_SLACK
    return [*checks, Check(name="logging drift", value=moved, passed=passed, meaning=meaning)]


def _later_less_earlier(log: LoggedData, values: Array, late: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """The difference of two means over events, and its clustered error."""
    events = np.ones(log.n_rows) if log.row_weight is None else log.row_weight
    influence = np.zeros(log.n_rows)
    means = []
    for half in (late, ~late):
        total = events[half].sum()
        means.append(float((events * values)[half].sum() / total))
        influence[half] = (events * (values - means[-1]))[half] / total * (1 if half is late else -1)
    return means[0] - means[1], float(np.sqrt(np.square(np.bincount(log.cluster_index, influence)).sum()))


def _verdict(failed: list[Check], supported: float | None, rows: PolicyRows) -> Verdict:
    if not failed:
        return Verdict(answer="answerable", advice="Rely on the estimate and its interval.")
    reasons = [_reason(check, "context" if rows.log.cluster is None else "user") for check in failed]
    support_only = {check.name for check in failed} <= {"target mass without support", "largest weight share"}
    if support_only and supported is not None and supported >= 0.3:
        part = f"Evaluate on the {supported:.0%} of contexts where logging supports the policy; explore in the others."
        return Verdict(answer="answerable on part", reasons=reasons, advice=part)
    return Verdict(answer="run an experiment", reasons=reasons, advice=_experiment_advice(rows))


def _reason(check: Check, unit: str) -> str:
    """What a failed check found, in one plain sentence; `unit` is what repeats in the log."""
    if check.value is None:
        return f"{check.name} is unknown ({check.meaning})"
    sentences = {
        "effective sample size": "effective sample size is {:.3g} clusters" + f" ({LEAST_EFFECTIVE:g} are needed)",
        "largest weight share": "one cluster carries {:.1%} of the weight"
        + f" (at most {LARGEST_SHARE:.0%} is acceptable)",
        "tail of the weights": "the tail of the weights has a Pareto shape of {:.2f}"
        + f" (beyond {HEAVIEST_TAIL:g} they need not have a mean: a few rows that the log does not hold would decide)",
        "reward drift": "the mean reward of the later half of the log differs by {:.2g} of the reward range from that "
        "of the earlier half, more than the interval is wide: the value depends on when it is asked for",
        "logging drift": "the mean weight of the later half of the log differs by {:.2g} from that of the earlier: the "
        "logger changed, and the estimated propensities do not follow it",
        "mean weight": "mean weight is {:.3g} (1 if the estimated propensities are right)",
        "contexts shown one action": "{:.1%} of repeated contexts were shown a single action",
        "certain logging": "{:.1%} of rows have a logging probability above "
        + f"{CERTAIN:.0%} (a deterministic logger says nothing about other actions)",
        "repeats": f"the same {unit} got the same action {{:.1f}} times as often as the estimated propensities say: "
        "the logger knew more than they do",
        "reward varies": "every row has the same reward",
        "agreement of views": "estimates with and without a reward model are {:.3g} standard errors apart"
        + f" (at most {CONTRADICTION:g} are acceptable)",
        "interval width": "the interval covers {:.1%} of the reward range" + f" (at most {WIDEST:.0%} is acceptable)",
        "target mass without support": "{:.1%} of the policy's choices are actions that logging almost never takes"
        + f" (at most {UNSUPPORTED_MASS:.0%} is acceptable)",
    }
    return sentences[check.name].format(check.value)


def _experiment_advice(rows: PolicyRows) -> str:
    """How much exploration would bring enough effective rows: the least share of traffic that follows the policy."""
    n = rows.n_clusters
    ratio = rows.ratio.double()
    mean = rows.mean(ratio)
    for share in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5):
        # Logging with probability 1 − ε and the policy itself with ε gives the ratio ρ/(1 − ε + ερ).
        mixed = ratio / (1 - share + share * ratio)
        effective = n * mean / max(rows.mean(ratio * mixed), 1e-12)
        if effective >= 4 * LEAST_EFFECTIVE:
            return (
                f"Run an experiment: let about {share:.0%} of the traffic follow the policy and record the "
                f"probabilities; {n} such contexts give an effective sample size of about {min(effective, n):.0f}."
            )
    return "Run an experiment on a random half of the traffic: this log says next to nothing about the policy."


def covariate_balance(log: LoggedData, rows: PolicyRows, most: int = 8) -> list[tuple[str, float | None, float | None]]:
    """Weighted means of features against their means, in standard deviations: right weights leave them in place."""
    design = DesignMatrix.fit(log.contexts, max_categories=16)
    features = design.encode(log.contexts).double()
    context = tensor(log.context_index).long()
    plain = tensor(log.context_weight)
    ratio = rows.ratio.double() if rows.row_weight is None else rows.ratio.double() * rows.row_weight
    weight = torch.zeros(log.n_contexts, dtype=torch.float64).index_add_(0, context, ratio)
    if float(weight.sum()) <= 0:
        return []
    mean = plain @ features / plain.sum()
    spread = ((plain @ features.square()) / plain.sum() - mean.square()).clamp(min=0).sqrt()
    uniform = features.mean(0)
    after = (weight @ features / weight.sum() - mean) / spread.clamp(min=1e-9)
    before = (uniform - mean) / spread.clamp(min=1e-9)
    worst = after.abs().nan_to_num().argsort(descending=True)[:most].tolist()
    names = design.names
    return [(names[i], float(before[i]), float(after[i])) for i in worst if float(spread[i]) > 0]


def detectable_effect(width: Width, level: float = 0.95, power: float = 0.8) -> float:
    """The smallest true difference that this log would find with that power, from the width of the difference."""
    return width.half(level) + float(norm.ppf(power)) * width.scale
