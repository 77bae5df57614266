"""Paired comparisons by hand: p-values, probabilities, bounds, Holm, `best`, references, and the user's scale."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import norm

from hand_made import HandMade
from offpolicy.evaluation import Evaluator, Options, auto_estimate, compare, evaluate
from offpolicy.evaluation.auto import AutoEstimate
from offpolicy.evaluation.clusters import ClusteredTerms
from offpolicy.evaluation.comparison import best_by_lower_bound, holm
from offpolicy.evaluation.scale import Scale
from offpolicy.log import LoggedData
from offpolicy.nuisances import Nuisances
from offpolicy.policies import UniformPolicy
from offpolicy.results import LOGGING, Comparison, Evaluation, Results, Sensitivity, TwoPartInterval
from offpolicy.workflows import Finished

Array = npt.NDArray[np.float64]
CLUSTERS = 12
Z95, Z80 = float(norm.ppf(0.975)), float(norm.ppf(0.9))


def terms(seed: int, mean: float) -> ClusteredTerms:
    """Σw·r and Σw of every cluster; the value is about the mean."""
    random = np.random.default_rng(seed)
    weight = random.uniform(0.5, 1.5, CLUSTERS)
    gain = weight * np.clip(mean + 0.2 * random.normal(size=CLUSTERS), 0, 1)
    ones = np.ones(CLUSTERS)
    return ClusteredTerms(np.stack([gain, weight, 0 * ones, weight, ones], 1), np.arange(CLUSTERS))


def estimate(statistic: ClusteredTerms, propensity: float, low: float = 0.0) -> AutoEstimate:
    """An estimate with that statistic and that part from β̂; the other view is something else."""
    interval = TwoPartInterval(low=low, high=1.0, sampling=0.03, propensity=propensity)
    return AutoEstimate(statistic.value, interval, 1.0, (statistic, terms(99, 0.9)), 0.0)


def paired_error(one: ClusteredTerms, other: ClusteredTerms) -> float:
    """√((C − 1)/C·Σ (D₍₋c₎ − mean)²) of the difference, leaving out one cluster at a time."""
    left = []
    for c in range(CLUSTERS):
        kept = np.arange(CLUSTERS) != c
        left.append(
            one.columns[kept, 0].sum() / one.columns[kept, 1].sum()
            - other.columns[kept, 0].sum() / other.columns[kept, 1].sum()
        )
    return float(np.sqrt((CLUSTERS - 1) / CLUSTERS * np.square(np.array(left) - np.mean(left)).sum()))


ONE, TWO, BASE = terms(1, 0.55), terms(2, 0.45), terms(3, 0.5)


@pytest.mark.parametrize(("level", "z"), [(0.95, Z95), (0.8, Z80)])
@pytest.mark.parametrize("candidate", [ONE, TWO])
def test_p_probability_and_bounds_hold_both_parts_of_the_error(
    candidate: ClusteredTerms, level: float, z: float
) -> None:
    (found,) = compare({"new": estimate(candidate, 0.12)}, BASE, "old", level)
    sampling = paired_error(candidate, BASE)
    error = np.sqrt(sampling**2 + (0.12 / z) ** 2)
    difference = candidate.value - BASE.value
    assert (found.candidate, found.reference) == ("new", "old")
    assert found.difference == pytest.approx(difference, abs=1e-12)
    assert found.p_value == pytest.approx(2 * (1 - norm.cdf(abs(difference) / error)), rel=1e-9)
    assert found.probability_of_improvement == pytest.approx(norm.cdf(difference / error), rel=1e-9)
    assert found.low == pytest.approx(difference - z * error, abs=1e-9)
    assert found.high == pytest.approx(difference + z * error, abs=1e-9)
    assert found.adjusted_p_value == found.p_value
    alone = norm.cdf(difference / sampling)
    assert abs((found.probability_of_improvement or 0.0) - float(alone)) > 0.01, "the case shows the part from β̂"


def test_a_policy_as_reference_adds_its_own_propensity_error() -> None:
    (found,) = compare({"new": estimate(ONE, 0.12)}, estimate(TWO, 0.2), "old")
    error = np.sqrt(paired_error(ONE, TWO) ** 2 + (0.12 / Z95) ** 2 + (0.2 / Z95) ** 2)
    difference = ONE.value - TWO.value
    assert found.difference == pytest.approx(difference, abs=1e-12)
    assert found.p_value == pytest.approx(2 * norm.sf(abs(difference) / error), rel=1e-9)
    assert found.probability_of_improvement == pytest.approx(norm.cdf(difference / error), rel=1e-9)
    assert found.low == pytest.approx(difference - Z95 * error, abs=1e-9)
    assert found.high == pytest.approx(difference + Z95 * error, abs=1e-9)


def test_differences_stay_within_what_rewards_allow() -> None:
    (found,) = compare({"new": estimate(ONE, 5.0)}, BASE, "old")
    assert (found.low, found.high) == (-1.0, 1.0)
    error = np.hypot(paired_error(ONE, BASE), 5 / Z95)
    assert found.p_value == pytest.approx(2 * norm.sf(abs(found.difference) / error))


def test_a_policy_compared_with_itself_is_equal_for_certain() -> None:
    (found,) = compare({"new": estimate(BASE, 0.0)}, BASE, "old")
    assert (found.difference, found.low, found.high) == (0.0, 0.0, 0.0)
    assert (found.p_value, found.probability_of_improvement) == (1.0, 0.5)


@pytest.mark.parametrize("shift", [0.1, -0.1])
def test_without_any_error_the_sign_decides(shift: float) -> None:
    def moved(by: float) -> AutoEstimate:
        found = estimate(BASE, 0.0)
        return AutoEstimate(BASE.value + by, found.interval, 1.0, found.views, 0.0)

    (found,) = compare({"new": moved(shift)}, BASE, "old")
    assert (found.p_value, found.probability_of_improvement) == (0.0, float(shift > 0))
    assert (found.low, found.high) == pytest.approx((shift, shift))


def test_an_unknown_error_claims_nothing() -> None:
    one_cluster = ClusteredTerms(BASE.columns[:1], np.array([0]))
    other = ClusteredTerms(ONE.columns[:1], np.array([0]))
    (found,) = compare({"new": estimate(other, 0.1)}, one_cluster, "old")
    assert found.difference == pytest.approx(other.value - one_cluster.value)
    assert (found.low, found.high, found.p_value, found.probability_of_improvement) == (-1.0, 1.0, 1.0, 0.5)


def test_holm_counts_every_candidate_of_a_reference() -> None:
    candidates = {str(seed): estimate(terms(seed, 0.3 + 0.1 * seed), 0.05) for seed in range(4)}
    found = compare(candidates, BASE, "old")
    assert [one.candidate for one in found] == list(candidates)
    errors = [np.hypot(paired_error(one.statistic, BASE), 0.05 / Z95) for one in candidates.values()]
    p = [2 * norm.sf(abs(one.difference) / error) for one, error in zip(found, errors, strict=True)]
    expected = np.zeros(4)
    for place, rank in zip(np.argsort(p), range(4), strict=True):
        smaller = [min(1.0, (4 - r) * sorted(p)[r]) for r in range(rank + 1)]
        expected[place] = max(smaller)
    assert [one.adjusted_p_value for one in found] == pytest.approx(expected.tolist(), rel=1e-9)
    assert any((one.adjusted_p_value or 0) > (one.p_value or 0) + 1e-6 for one in found)


def test_an_adjusted_p_value_is_never_below_that_of_a_smaller_p() -> None:
    """2·0.021 is less than 3·0.02, and 0.03 less than both."""
    assert holm([0.03, 0.02, 0.021]) == pytest.approx([0.06, 0.06, 0.06])
    assert holm([0.5, 0.6, 0.01]) == pytest.approx([1.0, 1.0, 0.03])


def test_the_best_has_the_highest_lower_bound_not_the_highest_value() -> None:
    wide, narrow = estimate(terms(1, 0.9), 0.1, low=0.2), estimate(terms(2, 0.5), 0.1, low=0.4)
    assert wide.value > narrow.value
    assert best_by_lower_bound({"wide": wide, "narrow": narrow}) == "narrow"
    assert best_by_lower_bound({"narrow": narrow, "wide": wide}) == "narrow"


ROWS = 120
RANDOM = np.random.default_rng(5)
CONTEXT = RANDOM.normal(size=(ROWS, 2))
ACTION = RANDOM.integers(0, 3, ROWS)
REWARD = np.where(ACTION == 0, 0.4, 0.6) + 0.3 * (RANDOM.random(ROWS) - 0.5)


def a_log(low: float = 0.0, high: float = 1.0) -> LoggedData:
    """Uniform logging of three actions; the first is a little worse than the others."""
    return LoggedData.from_arrays(
        contexts=CONTEXT, action=ACTION, reward=low + REWARD * (high - low), actions=3, reward_range=(low, high)
    )


def fixed(*prob: float) -> Array:
    """A column of a policy that does not look at the context."""
    return np.array(prob)[ACTION]


def judged(log: LoggedData, policies: Any, **given: Any) -> Evaluation:
    nuisances = Nuisances(log, logging_policy=UniformPolicy(3))
    return Evaluator(nuisances, policies, given.pop("references", {}), Options(("snips",), **given)).evaluation


FEW = np.where(np.sort(REWARD)[-2] <= REWARD, 1.0, np.where(REWARD.min() == REWARD, 0.4, 0.0))
"""A policy that is seen in the two best rows and the worst: the highest value, and nothing to support it."""


def test_evaluate_takes_the_best_candidate_by_its_lower_bound() -> None:
    found = judged(a_log(), {"few": FEW, "even": fixed(0.3, 0.35, 0.35)})
    assert found["few"].value > found["even"].value
    assert found["few"].interval.low < found["even"].interval.low
    assert found.best == "even"


def test_references_are_never_best_nor_counted_by_holm_nor_refused() -> None:
    policies = {"bad": fixed(0.8, 0.1, 0.1), "even": fixed(0.3, 0.35, 0.35)}
    references = {"good": fixed(0.0, 0.5, 0.5), "few": FEW}
    alone, found = judged(a_log(), policies), judged(a_log(), policies, references=references)
    assert found["good"].interval.low > max(found[name].interval.low for name in policies)
    assert found.best == alone.best == "even"
    assert [found[name].reference for name in ("bad", "even", "good", "few")] == [False, False, True, True]
    assert [(c.candidate, c.reference) for c in found.comparisons] == [
        (candidate, reference) for reference in (LOGGING, "good", "few") for candidate in policies
    ]
    for ours, theirs in zip(found.comparisons, alone.comparisons, strict=False):
        assert ours == theirs
    for reference in (LOGGING, "good"):
        pair = [c for c in found.comparisons if c.reference == reference]
        p = [c.p_value or 0.0 for c in pair]
        small = int(np.argmin(p))
        assert pair[small].adjusted_p_value == pytest.approx(min(1, 2 * p[small]), rel=1e-12)
        assert pair[1 - small].adjusted_p_value == pytest.approx(max(min(1, 2 * p[small]), p[1 - small]), rel=1e-12)
    assert found["few"].preflight.verdict.answer == "run an experiment"
    assert all(found[name].preflight.verdict.answer == "answerable" for name in policies)
    assert not Finished(Results(kind="evaluate", evaluation=found)).refused
    refused = judged(a_log(), {"few": FEW, "even": policies["even"]})
    assert Finished(Results(kind="evaluate", evaluation=refused)).refused


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (1.0, 5.0), (-3.0, -1.0), (-10.0, 30.0)])
def test_everything_is_on_the_users_scale(low: float, high: float) -> None:
    column = fixed(0.1, 0.45, 0.45)
    reference = {"other": fixed(0.8, 0.1, 0.1)}
    plain, found = (
        judged(log, {"new": column}, references=reference, intervals=("normal", "bootstrap"))
        for log in (a_log(), a_log(low, high))
    )
    width = high - low
    assert found.reward_range == [low, high]
    assert found.logging.value == pytest.approx(low + width * REWARD.mean(), rel=1e-12)
    one, other = plain["new"], found["new"]
    weight = 3 * column
    assert other.estimates[0].value == pytest.approx(low + width * (weight * REWARD).sum() / weight.sum(), rel=1e-9)
    assert other.value == pytest.approx(low + width * one.value, rel=1e-9)
    for name in ("low", "high", "centre"):
        assert getattr(other.interval, name) == pytest.approx(low + width * getattr(one.interval, name), rel=1e-9)
        for kind in ("normal", "bootstrap"):
            ours, theirs = (each.estimates[0].intervals[kind] for each in (other, one))
            assert getattr(ours, name) == pytest.approx(low + width * getattr(theirs, name), rel=1e-9)
        assert getattr(found.logging.interval, name) == pytest.approx(
            low + width * getattr(plain.logging.interval, name), rel=1e-9
        )
    for name in ("sampling", "propensity"):
        assert getattr(other.interval, name) == pytest.approx(width * getattr(one.interval, name), rel=1e-9)
    assert other.estimates[0].standard_error == pytest.approx(width * (one.estimates[0].standard_error or 0), rel=1e-9)
    assert other.detectable_effect == pytest.approx(width * (one.detectable_effect or 0), rel=1e-9)
    assert other.sensitivity.flips_at == pytest.approx(one.sensitivity.flips_at, rel=1e-9)
    for curve in ("low", "high"):
        unit = [low + width * end for end in getattr(one.sensitivity, curve)]
        assert getattr(other.sensitivity, curve) == pytest.approx(unit, rel=1e-9)
    for theirs_, ours_ in zip(plain.comparisons, found.comparisons, strict=True):
        assert ours_.difference == pytest.approx(width * theirs_.difference, rel=1e-9)
        assert ours_.low == pytest.approx(width * theirs_.low, rel=1e-9)
        assert ours_.high == pytest.approx(width * theirs_.high, rel=1e-9)
        assert ours_.p_value == pytest.approx(theirs_.p_value, rel=1e-9)
        reference_value = found.logging.value if ours_.reference == LOGGING else found["other"].value
        assert ours_.difference == pytest.approx(other.value - reference_value, rel=1e-9)
        assert ours_.relative == pytest.approx((other.value - reference_value) / abs(reference_value), rel=1e-9)
        assert (ours_.relative or 0) > 0, "better is positive, whatever the sign of rewards"


def test_a_reference_worth_nothing_has_no_relative_difference() -> None:
    one = Comparison(candidate="a", reference="b", difference=0.1, low=-0.1, high=0.3)
    assert Scale(-1, 1).comparison(one, 0.5).relative is None
    scaled = Scale(-1, 1).comparison(one, 0.25)
    assert (scaled.difference, scaled.low, scaled.high) == pytest.approx((0.2, -0.2, 0.6))
    assert scaled.relative == pytest.approx(0.4)


def test_a_curve_with_gaps_keeps_them() -> None:
    curve = Sensitivity(flips_at=2.0, gammas=[1.0, 2.0], low=[0.5, None], high=[None, 0.75])
    found = Scale(1, 5).sensitivity(curve)
    assert (found.low, found.high, found.gammas, found.flips_at) == ([3.0, None], [None, 4.0], [1.0, 2.0], 2.0)


@pytest.mark.parametrize(("column", "better"), [(fixed(0.1, 0.45, 0.45), True), (fixed(0.8, 0.1, 0.1), False)])
def test_the_factor_that_flips_the_conclusion_by_hand(column: Array, better: bool) -> None:
    """Γ² is the ratio of gains to losses against the logging policy's value, on the side that must give way."""
    found = judged(a_log(1, 5), {"new": column})
    gap = 3 * column * (REWARD - REWARD.mean())
    gains, losses = gap[gap > 0].sum(), -gap[gap < 0].sum()
    assert (gains > losses) == better
    expected = np.sqrt(gains / losses if better else losses / gains)
    assert found["new"].sensitivity.flips_at == pytest.approx(expected, rel=1e-9)


def test_level_reaches_intervals_and_comparisons() -> None:
    wide, narrow = (judged(a_log(), {"new": fixed(0.1, 0.45, 0.45)}, level=level) for level in (0.95, 0.5))
    assert (wide.level, narrow.level) == (0.95, 0.5)
    ratio = float(norm.ppf(0.75) / norm.ppf(0.975))
    assert narrow["new"].interval.sampling == pytest.approx(ratio * wide["new"].interval.sampling, rel=1e-9)
    assert narrow["new"].interval.level == 0.5
    assert narrow.logging.interval is not None
    assert narrow.logging.interval.level == 0.5
    assert narrow["new"].estimates[0].intervals["normal"].level == 0.5
    half = (narrow["new"].interval.high - narrow["new"].interval.low) / 2
    effect = half * (1 + norm.ppf(0.8) / norm.ppf(0.75))
    assert narrow["new"].detectable_effect == pytest.approx(effect, rel=1e-9)
    one, other = wide.comparisons[0], narrow.comparisons[0]
    assert other.high - other.low < 0.8 * (one.high - one.low)


def test_pairs_of_auto_estimates_agree_with_slow_numpy() -> None:
    """From rows to comparison: jackknife of the paired difference of shrunk estimates, both with a reward model."""
    case = HandMade.draw(4, uncertainty=True, rewards=True)
    other = HandMade.draw(4, uncertainty=True, rewards=True)
    swapped = HandMade(**{**other.__dict__, "ratio": other.ratio[::-1].copy()})
    (found,) = compare({"new": auto_estimate(case.rows)}, auto_estimate(swapped.rows), "old")
    one, two = case.expected(), swapped.expected()
    left = []
    for c in np.unique(case.cluster):
        keep = (case.cluster != c).astype(np.float64)
        values = [each.value(each.shrunk(e.lam), True, keep) for each, e in ((case, one), (swapped, two))]
        left.append(values[0] - values[1])
    spread = np.sqrt(8 / 9 * np.square(np.array(left) - np.mean(left)).sum())
    parts = [(e.half - e.sampling) / Z95 for e in (one, two)]
    error = float(np.sqrt(spread**2 + parts[0] ** 2 + parts[1] ** 2))
    assert found.difference == pytest.approx(one.value - two.value, rel=1e-9)
    assert found.p_value == pytest.approx(2 * norm.sf(abs(one.value - two.value) / error), rel=1e-8)


def test_one_policy_is_called_policy_and_is_the_best() -> None:
    found = evaluate(a_log(), fixed(0.3, 0.35, 0.35), nuisances=Nuisances(a_log(), logging_policy=UniformPolicy(3)))
    assert list(found.policies) == ["policy"]
    assert found.best == "policy"
