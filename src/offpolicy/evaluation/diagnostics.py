"""Diagnostics of an evaluation: its weights, the logger, the estimate, drift over time; and what a failed one means."""

import numpy as np
import numpy.typing as npt

from offpolicy.evaluation.auto import AutoEstimate
from offpolicy.evaluation.clusters import ROWS, WEIGHT, ClusteredTerms
from offpolicy.evaluation.inputs import UNSUPPORTED, least_support
from offpolicy.evaluation.rows import PolicyRows
from offpolicy.evaluation.statistics import Asked, RowStatistics, Statistic
from offpolicy.evaluation.tails import pareto_shape, tail_size
from offpolicy.evaluation.value import Array
from offpolicy.log import LoggedData
from offpolicy.propensity import Repeats
from offpolicy.results import Check

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
NEGLIGIBLE = 0.001
"""Clusters below this share of the mean weight are not among those whose tail is judged: a policy that nearly always
takes one action leaves most rows next to no weight, and a tail that reaches down to them looks endless."""
CLEAR_DRIFT = 4.0
"""Standard errors beyond which rewards have moved over time for certain."""
CERTAIN = 0.99
"""A propensity above this is as good as certain."""
WIDEST = 0.5
"""An interval wider than this share of the reward range says too little to act on."""


def diagnosed(
    rows: RowStatistics, estimate: AutoEstimate, repeats: Repeats | None = None
) -> tuple[list[Check], float | None]:
    """Every check, and the share of contexts in which logging supports the policy, where that is known."""
    log = rows.log
    checks = [*_weight_checks(rows), *_log_checks(rows), *_estimate_checks(estimate), *_drift(rows, estimate)]
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
    supported, support = None, rows.total(_support)
    if support[1] > 0:
        mean, supported = float(support[0] / support[1]), float(support[2] / support[3])
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
    return checks, supported


def _support(rows: PolicyRows) -> Array:
    """Σ of unsupported mass over events, the events, how many contexts are supported, and how many there are."""
    if rows.unsupported is None:
        return np.zeros(4)
    mass, events = rows.unsupported.numpy(), rows.log.context_weight
    return np.array([np.multiply(mass, events).sum(), events.sum(), (mass <= UNSUPPORTED_MASS / 2).sum(), len(mass)])


def _weight_checks(rows: RowStatistics) -> list[Check]:
    largest, total, events, clusters = 0.0, 0.0, 0.0, 0
    for most, weights, counts, units in rows.map(_cluster_weights):
        largest, total, events, clusters = max(largest, most), total + weights, events + counts, clusters + units
    mean = total / events if events > 0 else 0.0
    plain, squares, away, carrying = rows.total(_weight_squares, largest, mean, NEGLIGIBLE * total / max(clusters, 1))
    effective = float(plain**2 / squares) if largest > 0 else 0.0
    share = largest / total if total > 0 else 1.0
    error = float(np.sqrt(away)) / events
    slack = 3 * error + MEAN_WEIGHT_SLACK
    return [
        Check(
            name="effective sample size",
            value=effective,
            passed=effective >= LEAST_EFFECTIVE,
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
        *_tail_check(rows, int(carrying)),
    ]


def _ips(rows: PolicyRows) -> ClusteredTerms:
    """The weights of every cluster, whatever groups they are summed in."""
    return rows.sums_of(Asked("ips"), unit=rows.cluster)


def _cluster_weights(rows: PolicyRows) -> tuple[float, float, float, int]:
    """The largest weight of a cluster, Σ of all, events, and how many clusters there are."""
    sums = _ips(rows)
    weight = sums.columns[:, WEIGHT]
    return float(weight.max(initial=0.0)), float(weight.sum()), float(sums.columns[:, ROWS].sum()), len(weight)


def _weight_squares(rows: PolicyRows, largest: float, mean: float, least: float) -> Array:
    """Σ of weights and of their squares in units of the largest, of squared distances from the mean weight, and of
    clusters that weigh at least so much."""
    sums = _ips(rows)
    weight, events = sums.columns[:, WEIGHT], sums.columns[:, ROWS]
    unit = weight / largest if largest > 0 else weight
    away = np.square(weight - mean * events).sum()
    return np.array([unit.sum(), np.square(unit).sum(), away, (weight >= least).sum()])


def _largest_weights(rows: PolicyRows, count: int) -> Array:
    weight = _ips(rows).columns[:, WEIGHT]
    return weight if len(weight) <= count else np.partition(weight, len(weight) - count)[-count:]


def _tail_check(rows: RowStatistics, carrying: int) -> list[Check]:
    """The shape of the tail of the weights that are not negligible; weights that take few values have none."""
    largest = np.concatenate(list(rows.map(_largest_weights, tail_size(carrying) + 1)))
    shape = pareto_shape(largest, carrying)
    if shape is None:
        return []
    grades = ((0.5, "good"), (0.7, "usable"), (HEAVIEST_TAIL, "unreliable unless the weights are shrunk"))
    grade = next((name for most, name in grades if shape <= most), "hopeless: the weights need not have a mean")
    meaning = f"Pareto shape k of the largest weights: {grade}"
    return [Check(name="tail of the weights", value=shape, passed=shape <= HEAVIEST_TAIL, meaning=meaning)]


def shown_one_action(log: LoggedData) -> float | None:
    """The share of repeated contexts in which one action was ever shown; None where too few repeat to tell."""
    counts = np.zeros(4, dtype=np.int64)
    for shard in log.shards:
        counts += _shown_counts(shard)
    return _one_action_share(counts, log.n_rows)


def _one_action_share(counts: npt.NDArray[np.int64], rows: int) -> float | None:
    repeated, single, again, shown = counts.tolist()
    # A few repeated rows may be duplicates; they say nothing about how the logger chooses.
    enough = again >= LEAST_REPEATED and shown >= LEAST_REPEATED_SHARE * rows
    return single / repeated if enough else None


def _shown_counts(log: LoggedData) -> npt.NDArray[np.int64]:
    """Contexts that repeat, those with one action, rows beyond the first of each, and rows; of one shard."""
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
    again, all_rows = (shown[repeated] - 1).sum(), shown[repeated].sum()
    return np.array([repeated.sum(), (per_context[repeated] == 1).sum(), again, all_rows])


def _shown_of_rows(rows: PolicyRows) -> npt.NDArray[np.int64]:
    return _shown_counts(rows.log)


def _certain(rows: PolicyRows) -> Array:
    """Rows whose action was as good as certain although there was a choice, rows with a choice, and all, in events."""
    log = rows.log
    certain = (rows.inputs["log_logging"] > np.log(CERTAIN)).numpy()
    choice = np.ones(log.n_rows, dtype=bool)
    if log.candidates is not None:
        choice = log.candidates.sizes[log.context_index] > 1
    events = np.ones(log.n_rows) if log.row_weight is None else log.row_weight
    return np.array([events[certain & choice].sum(), events[choice].sum(), events.sum()])


def _reward_sum(rows: PolicyRows) -> float:
    return float(rows.log.reward.sum())


def _reward_squares(rows: PolicyRows, centre: float) -> float:
    return float(np.square(rows.log.reward - centre).sum())


def _log_checks(rows: RowStatistics) -> list[Check]:
    single = _one_action_share(rows.total(_shown_of_rows), rows.n_rows)
    sure, choice, events = rows.total(_certain).tolist()
    certain = (sure / events) / max(choice / events, 1e-12)
    spread = (rows.total(_reward_squares, rows.total(_reward_sum) / rows.n_rows) / rows.n_rows) ** 0.5
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


def _drift(rows: RowStatistics, estimate: AutoEstimate) -> list[Check]:
    """Whether rewards, or the weights, are others in the later half of the log."""
    if rows.log.timestamp is None:
        return []
    ends = list(rows.map(_ends_of_time))
    first, last = min(one for one, _ in ends), max(other for _, other in ends)
    if first == last:
        return []
    (middle,) = rows.quantiles(_times, [0.5])
    if middle == last:
        middle = np.nextafter(middle, -np.inf)  # then the last instant is the later half
    moved, error = _later_less_earlier(rows, _rewards, float(middle))
    limit = max(CLEAR_DRIFT * error, estimate.interval.high - estimate.interval.low)
    said = "later less earlier mean {}; its standard error is {:.2g}"
    meaning = said.format("reward, in shares of the reward range", error)
    checks = [Check(name="reward drift", value=moved, passed=abs(moved) <= limit, meaning=meaning)]
    moved, error = _later_less_earlier(rows, ratios, float(middle))
    meaning = said.format("weight, 0 where the propensities follow the logger through time", error)
    passed = abs(moved) <= 3 * error + MEAN_WEIGHT_SLACK
    return [*checks, Check(name="logging drift", value=moved, passed=passed, meaning=meaning)]


def _ends_of_time(rows: PolicyRows) -> tuple[int, int]:
    assert rows.log.timestamp is not None
    return int(rows.log.timestamp.min()), int(rows.log.timestamp.max())


def _times(rows: PolicyRows) -> Array:
    assert rows.log.timestamp is not None
    return rows.log.timestamp.astype(np.float64)


def _rewards(rows: PolicyRows) -> Array:
    return rows.log.reward


def ratios(rows: PolicyRows) -> Array:
    """ρ of every row."""
    return rows.ratio.double().numpy()


def _later_less_earlier(rows: RowStatistics, values: Statistic, middle: float) -> tuple[float, float]:
    """The difference of two means over events, and its clustered error."""
    sums = rows.total(_half_sums, values, middle)
    squares = rows.total(_half_influence, values, middle, sums)
    return float(sums[0, 0] / sums[0, 1] - sums[1, 0] / sums[1, 1]), float(np.sqrt(squares))


def _halves(rows: PolicyRows, middle: float) -> tuple[Array, list[npt.NDArray[np.bool_]]]:
    """The events of each row, and which rows are later than the middle and which are not."""
    late = _times(rows) > middle
    return np.ones(rows.log.n_rows) if rows.log.row_weight is None else rows.log.row_weight, [late, ~late]


def _half_sums(rows: PolicyRows, values: Statistic, middle: float) -> Array:
    events, halves = _halves(rows, middle)
    found = values(rows)
    return np.array([[(events * found)[half].sum(), events[half].sum()] for half in halves])


def _half_influence(rows: PolicyRows, values: Statistic, middle: float, sums: Array) -> float:
    """Σ over clusters of their squared influence on the difference."""
    events, halves = _halves(rows, middle)
    found, influence = values(rows), np.zeros(rows.log.n_rows)
    for half, (gain, total), sign in zip(halves, sums, (1, -1), strict=True):
        influence[half] = (events * (found - gain / total))[half] / total * sign
    return float(np.square(np.bincount(rows.log.cluster_index, influence)).sum())


def failure(check: Check, unit: str) -> str:
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
