"""Paired comparisons by hand: p-values, probabilities, bounds, Holm, `best`, references, and the user's scale."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from hand_made import HandMade
from offpolicy.evaluation import Evaluator, Options, auto_estimate, compare, evaluate
from offpolicy.evaluation.auto import logging_estimate
from offpolicy.evaluation.comparison import best_by_lower_bound, holm
from offpolicy.evaluation.scale import Scale
from offpolicy.log import LoggedData
from offpolicy.nuisances import Nuisances
from offpolicy.policies import UniformPolicy
from offpolicy.results import LOGGING, Comparison, Evaluation, Results, Sensitivity
from offpolicy.workflows import Finished

Array = npt.NDArray[np.float64]


def two(seed: int, **known: bool) -> tuple[HandMade, HandMade]:
    """Two policies on the rows of one log."""
    first, second = HandMade.draw(seed, **known), HandMade.draw(seed + 50, **known)
    shared = {name: getattr(first, name) for name in ("reward", "action", "cluster", "uncertainty", "row_weight")}
    return first, replace(second, imputed=first.imputed, **shared)


PAIRS = {
    "weights": two(1),
    "uncertainty": two(2, uncertainty=True),
    "reward model": two(4, uncertainty=True, rewards=True),
    "events": two(7, uncertainty=True, rewards=True, row_weight=True),
    "another": two(11, uncertainty=True, rewards=True),
}


def compared(first: HandMade, second: HandMade | None, level: float = 0.95) -> Comparison:
    other = logging_estimate(first.rows) if second is None else auto_estimate(second.rows, level)
    (found,) = compare({"new": auto_estimate(first.rows, level)}, other, "old", level)
    return found


@pytest.mark.parametrize("level", [0.95, 0.8])
@pytest.mark.parametrize("to_logging", [True, False])
@pytest.mark.parametrize("name", PAIRS)
def test_interval_p_value_and_probability_are_those_of_paired_views(name: str, to_logging: bool, level: float) -> None:
    first, second = PAIRS[name]
    other = None if to_logging else second
    found, expected = compared(first, other, level), first.against(other, level)
    assert (found.candidate, found.reference) == ("new", "old")
    difference = expected.value
    assert found.difference == pytest.approx(difference, abs=1e-9)
    assert found.low == pytest.approx(max(difference - expected.half, -1), abs=1e-9)
    assert found.high == pytest.approx(min(difference + expected.half, 1), abs=1e-9)
    beyond = max(abs(difference) - expected.distance / 2 - expected.misweighted, 0)
    error = np.hypot(expected.error, expected.propensity_error)
    assert found.p_value == pytest.approx(2 * norm.sf(beyond / error), rel=1e-6)
    assert found.probability_of_improvement == pytest.approx(
        norm.cdf(np.sign(difference) * beyond / error), rel=1e-6, abs=1e-9
    )
    assert found.adjusted_p_value == found.p_value
    assert not found.refused


def test_the_cases_hold_every_part() -> None:
    """Without this, a part could be zero in every case above, and its loss go unnoticed."""
    for name, (first, second) in PAIRS.items():
        for other in (None, second):
            one = first.against(other)
            assert one.distance > 0.01, name
            assert one.misweighted > 0.001, name
            assert (one.propensity_error > 0.001) == (first.uncertainty is not None), name
    capped = [one.against(other).largest_error > 2 * one.against(other).shrunk_error for one, other in PAIRS.values()]
    assert any(capped)
    assert not all(capped)
    # Errors of β̂ that both policies share cancel: far below those of either value.
    first, _ = PAIRS["reward model"]
    close_to_it = replace(first, ratio=first.ratio * 1.02)
    lam = first.chosen_lambda()
    assert first.against(close_to_it).propensity_error < 0.1 * first.propensity_error(lam, True)


@given(st.integers(0, 500), st.floats(0.01, 0.99), st.booleans())
def test_p_values_agree_with_the_interval_of_their_level(seed: int, level: float, to_logging: bool) -> None:
    first, second = two(seed, uncertainty=True)
    found = compared(first, None if to_logging else second, level)
    leaves_out = found.low > 0 or found.high < 0
    p, probability = found.p_value, found.probability_of_improvement
    assert p is not None
    assert probability is not None
    if abs(p - (1 - level)) > 1e-9:
        assert leaves_out == (p < 1 - level)
        assert (found.low > 0) == (probability > (1 + level) / 2)
        assert (found.high < 0) == (probability < (1 - level) / 2)
    assert probability == pytest.approx(1 - p / 2 if found.difference > 0 else p / 2, abs=1e-12)


@given(st.integers(0, 500))
def test_swapping_the_policies_changes_the_sign_and_nothing_else(seed: int) -> None:
    first, second = two(seed, uncertainty=True, rewards=True)
    one, other = compared(first, second), compared(second, first)
    assert (one.difference, one.low, one.high) == pytest.approx((-other.difference, -other.high, -other.low), abs=1e-9)
    assert one.p_value == pytest.approx(other.p_value, abs=1e-12)
    chances = [c.probability_of_improvement or 0.0 for c in (one, other)]
    assert sum(chances) == pytest.approx(1.0, abs=1e-9)


def test_a_policy_compared_with_itself_is_equal_for_certain() -> None:
    first, _ = PAIRS["reward model"]
    found = compared(first, first)
    assert (found.difference, found.low, found.high) == (0.0, 0.0, 0.0)
    assert (found.p_value, found.probability_of_improvement) == (1.0, 0.5)


def test_a_policy_without_a_reward_model_is_compared_by_what_it_has() -> None:
    first, second = PAIRS["reward model"]
    bare = replace(second, imputed=None, baseline=None)
    found = compared(first, bare)
    assert found.difference == pytest.approx(auto_estimate(first.rows).value - auto_estimate(bare.rows).value)
    assert found.low < found.difference < found.high


def test_differences_stay_within_what_rewards_allow() -> None:
    first, second = (replace(one, ratio=one.ratio**3) for one in PAIRS["weights"])
    found = compared(first, second)
    assert first.against(second).half > 1
    assert -1.0 <= found.low < found.high <= 1.0
    assert found.low == -1.0 or found.high == 1.0


def test_an_unknown_error_claims_nothing() -> None:
    alone = replace(PAIRS["weights"][0], cluster=np.zeros(24, dtype=np.int64))
    found = compared(alone, None)
    assert (found.low, found.high, found.p_value, found.probability_of_improvement) == (-1.0, 1.0, 1.0, 0.5)


def test_a_refused_comparison_keeps_its_interval_and_claims_no_probability() -> None:
    estimates = {name: auto_estimate(first.rows) for name, (first, _) in PAIRS.items() if name == "weights"}
    estimates["other"] = auto_estimate(PAIRS["weights"][1].rows)
    own = logging_estimate(PAIRS["weights"][0].rows)
    plain = compare(estimates, own, "old")
    for refused, names in (({"other"}, {"other"}), ({"old"}, {"weights", "other"})):
        for one, before in zip(compare(estimates, own, "old", refused=refused), plain, strict=True):
            assert one.refused == (one.candidate in names)
            assert (one.low, one.high) == (before.low, before.high)
            claims = (one.probability_of_improvement, one.p_value, one.adjusted_p_value)
            assert (claims == (None, None, None)) == one.refused
            if not one.refused:  # a refused candidate was compared all the same: Holm counts it
                assert one.adjusted_p_value == pytest.approx(min(1.0, 2 * (before.p_value or 0)))


def test_holm_and_joint_intervals_count_every_candidate_of_a_reference() -> None:
    base = HandMade.draw(1, uncertainty=True)
    cases = {str(seed): replace(base, ratio=HandMade.draw(seed + 20, spread=0.5).ratio) for seed in range(4)}
    estimates = {name: auto_estimate(case.rows) for name, case in cases.items()}
    found = compare(estimates, logging_estimate(base.rows), "old")
    assert [one.candidate for one in found] == list(cases)
    p = [one.p_value or 0.0 for one in found]
    expected = np.zeros(4)
    for place, rank in zip(np.argsort(p, kind="stable"), range(4), strict=True):
        expected[place] = max(min(1.0, (4 - r) * sorted(p)[r]) for r in range(rank + 1))
    assert [one.adjusted_p_value for one in found] == pytest.approx(expected.tolist(), rel=1e-9)
    for one, case in zip(found, cases.values(), strict=True):
        joint = case.against(None, 1 - 0.05 / 4)
        assert one.joint_low == pytest.approx(max(one.difference - joint.half, -1), abs=1e-9)
        assert one.joint_high == pytest.approx(min(one.difference + joint.half, 1), abs=1e-9)
        assert (one.joint_low or 0.0) < one.low
    alone = compared(cases["2"], None)
    assert (alone.joint_low, alone.joint_high) == (alone.low, alone.high)


def test_an_adjusted_p_value_is_never_below_that_of_a_smaller_p() -> None:
    """2·0.021 is less than 3·0.02, and 0.03 less than both."""
    assert holm([0.03, 0.02, 0.021]) == pytest.approx([0.06, 0.06, 0.06])
    assert holm([0.5, 0.6, 0.01]) == pytest.approx([1.0, 1.0, 0.03])


def test_the_best_has_the_highest_lower_bound_where_all_hold_at_once() -> None:
    cases = {str(seed): HandMade.draw(seed, rows=60, clusters=30, spread=0.3 + 0.2 * seed) for seed in range(4)}
    estimates = {name: auto_estimate(case.rows) for name, case in cases.items()}
    bounds = {}
    for name, case in cases.items():
        joint = case.expected(1 - 0.05 / 4)
        bounds[name] = max(joint.value - joint.half, 0.0)
    best, bound = best_by_lower_bound(estimates)
    assert bounds[best] == pytest.approx(max(bounds.values()), rel=1e-9)
    assert bound == pytest.approx(bounds[best], rel=1e-9)
    assert bound < estimates[best].interval.low, "the highest of four bounds is lower than one bound alone"
    one = {best: estimates[best]}
    assert best_by_lower_bound(one)[1] == pytest.approx(estimates[best].interval.low)
    assert best != max(estimates, key=lambda name: estimates[name].value)


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
    for one in (*refused.comparisons, *found.comparisons):
        assert one.refused == ("few" in (one.candidate, one.reference))
        assert (one.to_json()["probability_of_improvement"] is None) == one.refused
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
    halves = [(one.comparisons[0].high - one.comparisons[0].low) / 2 for one in (wide, narrow)]
    error = (halves[0] - halves[1]) / (norm.ppf(0.975) - norm.ppf(0.75))
    assert narrow["new"].detectable_effect == pytest.approx(halves[1] + norm.ppf(0.8) * error, rel=1e-9)
    one, other = wide.comparisons[0], narrow.comparisons[0]
    assert other.high - other.low < 0.8 * (one.high - one.low)


def test_one_policy_is_called_policy_and_is_the_best() -> None:
    found = evaluate(a_log(), fixed(0.3, 0.35, 0.35), nuisances=Nuisances(a_log(), logging_policy=UniformPolicy(3)))
    assert list(found.policies) == ["policy"]
    assert found.best == "policy"
