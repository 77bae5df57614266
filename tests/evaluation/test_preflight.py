"""Every check on both sides of its threshold, by name; verdicts, advice, balance and detectable effect by hand."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.stats import genpareto, norm

from offpolicy.evaluation import PolicyRows, preflight
from offpolicy.evaluation.auto import AutoEstimate
from offpolicy.evaluation.preflight import covariate_balance, detectable_effect
from offpolicy.evaluation.views import Width
from offpolicy.log import LoggedData
from offpolicy.policies import UniformPolicy
from offpolicy.results import Check, Preflight, TwoPartInterval

Array = npt.NDArray[np.float64]
N = 100


def rows_of(ratio: Any, *, logging: Any = 0.5, unsupported: Any = None, **log: Any) -> PolicyRows:
    """One row of a context of its own for each ratio, unless the log says otherwise."""
    ratio = np.asarray(ratio, dtype=np.float64)
    n = len(ratio)
    given: dict[str, Any] = {
        "contexts": np.arange(n, dtype=np.float64)[:, None],
        "action": np.arange(n) % 2,
        "reward": np.arange(n) % 2 / 2,
        "actions": 2,
        **log,
    }
    made = LoggedData.from_arrays(**given)
    with np.errstate(divide="ignore"):
        inputs = {"log_ratio": np.log(ratio), "log_logging": np.log(np.broadcast_to(logging, n)), "reward": made.reward}
    return PolicyRows(
        made,
        {name: torch.from_numpy(np.array(values)) for name, values in inputs.items()},
        None if unsupported is None else torch.from_numpy(np.asarray(unsupported, dtype=np.float64)),
    )


def estimated(width: float = 0.25, disagreement: float = 1.0) -> AutoEstimate:
    interval = TwoPartInterval(low=0.25, high=0.25 + width, sampling=width / 2, propensity=0.0)
    return AutoEstimate(0.25 + width / 2, interval, 1.0, (), (), Width(0.1, 0.0, 0.0, disagreement))


def judged(rows: PolicyRows, **estimate: float) -> Preflight:
    return preflight(rows, estimated(**estimate))


def check(name: str, rows: PolicyRows, **estimate: float) -> Check:
    (found,) = [one for one in judged(rows, **estimate).checks if one.name == name]
    return found


def one_failed(rows: PolicyRows, name: str, **estimate: float) -> None:
    """That check fails and no other."""
    assert [one.name for one in judged(rows, **estimate).checks if not one.passed] == [name]


def test_a_good_log_passes_every_check_by_name() -> None:
    found = judged(rows_of(np.ones(N), unsupported=np.zeros(N)))
    assert {one.name: one.value for one in found.checks} == pytest.approx(
        {
            "effective sample size": 100.0,
            "largest weight share": 0.01,
            "mean weight": 1.0,
            "contexts shown one action": None,
            "certain logging": 0.0,
            "reward varies": 0.25,
            "agreement of views": 1.0,
            "interval width": 0.25,
            "target mass without support": 0.0,
        }
    )
    assert all(one.passed for one in found.checks)
    assert found.verdict.answer == "answerable"
    assert found.verdict.reasons == []
    assert found.verdict.answerable


@pytest.mark.parametrize(("clusters", "passed"), [(50, True), (49, False)])
def test_fifty_effective_clusters_are_needed(clusters: int, passed: bool) -> None:
    rows = rows_of(np.ones(4 * clusters), cluster=np.arange(4 * clusters) % clusters)
    found = check("effective sample size", rows)
    assert found.value == pytest.approx(clusters)
    assert found.passed == passed
    assert "50 are needed" in found.meaning
    if not passed:
        one_failed(rows, "effective sample size")


def test_effective_clusters_are_kish_of_the_sums_per_cluster_in_events() -> None:
    random = np.random.default_rng(0)
    ratio, cluster, events = np.exp(random.normal(size=N)), np.arange(N) % 30, random.integers(1, 5, N).astype(float)
    sums = np.array([(ratio * events)[cluster == c].sum() for c in range(30)])
    rows = rows_of(ratio, cluster=cluster, row_weight=events)
    assert check("effective sample size", rows).value == pytest.approx(sums.sum() ** 2 / (sums**2).sum())
    assert check("largest weight share", rows).value == pytest.approx(sums.max() / sums.sum())
    assert check("mean weight", rows).value == pytest.approx((ratio * events).sum() / events.sum())


@pytest.mark.parametrize(("half", "passed"), [(4.99, True), (5.2, False)])
def test_one_cluster_may_carry_a_tenth_of_the_weight(half: float, passed: bool) -> None:
    """Two rows of one cluster, neither of which has a tenth alone."""
    rows = rows_of([half, half, *np.ones(90)], cluster=[0, *range(91)])
    found = check("largest weight share", rows)
    assert found.value == pytest.approx(2 * half / (2 * half + 90))
    assert found.passed == passed
    if not passed:
        one_failed(rows, "largest weight share")


def test_without_any_weight_one_cluster_is_said_to_carry_all() -> None:
    found = check("largest weight share", rows_of(np.zeros(N)))
    assert (found.value, found.passed) == (1.0, False)


@pytest.mark.parametrize(
    ("mean", "deviation", "passed"),
    [
        (1.199, 0.0, True),
        (1.201, 0.0, False),
        (0.801, 0.0, True),
        (0.799, 0.0, False),
        (1.349, 0.5, True),  # three standard errors are 3·0.5/√100 = 0.15
        (1.351, 0.5, False),
        (0.651, 0.5, True),
        (0.649, 0.5, False),
        (1.499, 1.2, True),  # 0.2 + 0.36 = 0.56, capped
        (1.501, 1.2, False),
    ],
)
def test_the_mean_weight_may_be_off_by_a_fifth_and_three_errors_up_to_a_half(
    mean: float, deviation: float, passed: bool
) -> None:
    rows = rows_of(mean + deviation * np.where(np.arange(N) % 2, 1, -1))
    found = check("mean weight", rows)
    assert found.value == pytest.approx(mean)
    assert found.passed == passed
    if not passed and deviation < 1:
        one_failed(rows, "mean weight")


@pytest.mark.parametrize(("mean", "passed"), [(1.349, True), (1.351, False)])
def test_the_error_of_the_mean_weight_is_that_of_clusters(mean: float, passed: bool) -> None:
    """100 pairs of rows with the same deviation 0.5: 3·√(100·1²)/200 = 0.15, where rows alone would say 0.106."""
    ratio = mean + 0.5 * np.where(np.arange(200) // 2 % 2, 1, -1)
    assert check("mean weight", rows_of(ratio, cluster=np.arange(200) // 2)).passed == passed


@pytest.mark.parametrize(("mass", "passed"), [(0.0999, True), (0.1001, False)])
def test_a_tenth_of_the_policy_may_lack_support(mass: float, passed: bool) -> None:
    rows = rows_of(np.ones(N), unsupported=np.full(N, mass))
    found = check("target mass without support", rows)
    assert found.value == pytest.approx(mass)
    assert found.passed == passed
    assert "below 0.0025" in found.meaning  # 0.005 of uniform over two actions
    if not passed:
        one_failed(rows, "target mass without support")


def test_mass_without_support_is_counted_in_events() -> None:
    unsupported, events = np.where(np.arange(N) < 20, 0.5, 0.0), np.where(np.arange(N) < 20, 1.0, 3.0)
    rows = rows_of(np.ones(N), unsupported=unsupported, row_weight=events)
    assert check("target mass without support", rows).value == pytest.approx(20 * 0.5 / (20 + 240))
    names = {one.name for one in judged(rows_of(np.ones(N))).checks}
    assert "target mass without support" not in names


@pytest.mark.parametrize(("distance", "passed"), [(6.0, True), (6.01, False)])
def test_views_may_be_six_errors_apart(distance: float, passed: bool) -> None:
    rows = rows_of(np.ones(N))
    found = check("agreement of views", rows, disagreement=distance)
    assert (found.value, found.passed) == (distance, passed)
    if not passed:
        one_failed(rows, "agreement of views", disagreement=distance)


@pytest.mark.parametrize(("width", "passed"), [(0.5, True), (0.51, False)])
def test_an_interval_may_cover_half_of_the_rewards(width: float, passed: bool) -> None:
    rows = rows_of(np.ones(N))
    found = check("interval width", rows, width=width)
    assert found.value == pytest.approx(width)
    assert found.passed == passed
    if not passed:
        one_failed(rows, "interval width", width=width)


@pytest.mark.parametrize(("varied", "passed"), [(6, True), (5, False)])
def test_nine_in_ten_repeated_contexts_may_be_shown_one_action(varied: int, passed: bool) -> None:
    """60 contexts with two rows, of which some were shown two actions, and 40 with one row, which do not count."""
    context = np.concatenate([np.repeat(np.arange(60), 2), np.arange(60, 100)])
    action = np.zeros(160, dtype=np.int64)
    action[1 : 2 * varied : 2] = 1
    rows = rows_of(
        np.ones(160), contexts=np.arange(100.0)[:, None], context_index=context, action=action, cluster=np.arange(160)
    )
    found = judged(rows)
    assert check("contexts shown one action", rows).value == pytest.approx(1 - varied / 60)
    failed = [one.name for one in found.checks if not one.passed]
    assert failed == ([] if passed else ["contexts shown one action"])
    assert len(found.verdict.reasons) == len(failed), "a check that passed is no reason"
    assert check("certain logging", rows).value == 0.0


@pytest.mark.parametrize(("certain", "prob", "passed"), [(90, 0.991, True), (91, 0.991, False), (100, 0.989, True)])
def test_nine_in_ten_rows_may_be_certain(certain: int, prob: float, passed: bool) -> None:
    rows = rows_of(np.ones(N), logging=np.where(np.arange(N) < certain, prob, 0.5))
    found = check("certain logging", rows)
    assert found.value == pytest.approx(certain / N if prob > 0.99 else 0.0)
    assert found.passed == passed
    if not passed:
        one_failed(rows, "certain logging")


def test_certain_rows_are_counted_in_events() -> None:
    certain = np.arange(N) < 80
    rows = rows_of(np.ones(N), logging=np.where(certain, 1.0, 0.5), row_weight=np.where(certain, 5.0, 1.0))
    found = check("certain logging", rows)
    assert found.value == pytest.approx(400 / 420)
    assert not found.passed


def test_rewards_must_vary() -> None:
    one_failed(rows_of(np.ones(N), reward=np.full(N, 0.5)), "reward varies")
    random = np.random.default_rng(1).random(N)
    assert check("reward varies", rows_of(np.ones(N), reward=random)).value == pytest.approx(random.std())


@pytest.mark.parametrize(("supported", "answer"), [(30, "answerable on part"), (29, "run an experiment")])
@pytest.mark.parametrize("edge", [0.0, 0.05])
def test_three_in_ten_supported_contexts_are_a_part_worth_answering(supported: int, answer: str, edge: float) -> None:
    unsupported = np.where(np.arange(N) < supported, edge, 0.051 + 0.5)
    found = judged(rows_of(np.ones(N), unsupported=unsupported)).verdict
    assert found.answer == answer
    assert not found.answerable
    assert len(found.reasons) == 1
    assert "of the policy's choices are actions that logging almost never takes" in found.reasons[0]
    assert ("30% of contexts" in found.advice) == (answer == "answerable on part")
    just_above = np.where(np.arange(N) < supported, 0.0501, 0.6)
    assert judged(rows_of(np.ones(N), unsupported=just_above)).verdict.answer == "run an experiment"


def test_only_lack_of_support_leaves_a_part_to_answer() -> None:
    unsupported = np.where(np.arange(N) < 60, 0.0, 0.9)
    heavy = np.where(np.arange(N) == 0, 12.0, 1.0)
    assert judged(rows_of(heavy, unsupported=unsupported)).verdict.answer == "answerable on part"
    assert judged(rows_of(heavy, unsupported=np.zeros(N))).verdict.answer == "answerable on part"
    assert judged(rows_of(heavy)).verdict.answer == "run an experiment"
    for other in ({"width": 0.6}, {"disagreement": 7.0}):
        found = judged(rows_of(np.ones(N), unsupported=unsupported), **other).verdict
        assert found.answer == "run an experiment"
        assert len(found.reasons) == 2
    few = judged(rows_of(np.ones(40), unsupported=unsupported[:40])).verdict
    assert few.answer == "run an experiment"
    assert few.reasons[0] == "effective sample size is 40 clusters (50 are needed)"


def effective(ratio: Array, events: Array, share: float, n: int) -> float:
    """Rows that an experiment in which a share follows the policy is worth: n·E[ρ]/E[ρ·ρ/(1 − ε + ερ)]."""
    mixed = ratio / (1 - share + share * ratio)
    return float(n * np.average(ratio, weights=events) / np.average(ratio * mixed, weights=events))


@pytest.mark.parametrize(
    ("share", "heavy", "size"),
    [(0.01, 8, 10.0), (0.02, 8, 10.5), (0.05, 12, 10.0), (0.1, 15, 10.0), (0.2, 20, 12.0), (0.5, 60, 20.0)],
)
def test_experiment_advice_is_the_least_share_that_brings_two_hundred(share: float, heavy: int, size: float) -> None:
    """A few large ratios: mixing tames them, so the unmixed ratio would advise something else."""
    n = 600
    ratio = np.where(np.arange(n) < heavy, size, 1.0)
    events = (1 + np.arange(n) % 3).astype(np.float64)
    clusters = 400
    rows = rows_of(ratio, cluster=np.arange(n) % clusters, row_weight=events)
    worth = {each: effective(ratio, events, each, clusters) for each in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)}
    assert min(each for each, found in worth.items() if found >= 200) == share
    assert effective(ratio, events, 0.0, clusters) < 200, "without mixing no share would do"
    advice = judged(rows, width=0.9).verdict.advice
    assert f"about {share:.0%} of the traffic" in advice
    assert f"{clusters} such contexts give an effective sample size of about {worth[share]:.0f}." in advice


def test_experiment_advice_covers_small_and_large_shares_and_none() -> None:
    def advice(ratio: Array) -> str:
        return judged(rows_of(ratio), width=0.9).verdict.advice

    assert "about 1% of the traffic" in advice(np.ones(200))
    assert "200 such contexts give an effective sample size of about 200." in advice(np.ones(200))
    assert "200 such contexts give an effective sample size of about 200." in advice(np.full(200, 0.5))
    assert "random half of the traffic" in advice(np.ones(199))
    assert "random half of the traffic" in advice(np.zeros(300)), "a policy that was never seen"


def test_balance_by_hand() -> None:
    """Means over contexts, over events, and over weighted events, in standard deviations over events."""
    random = np.random.default_rng(2)
    age, kind = random.normal(size=20), np.array(["a", "b", "c", "d"])[np.arange(20) % 4]
    context = np.concatenate([np.arange(20), random.integers(0, 20, 60)])
    events, ratio = random.integers(1, 4, 80).astype(float), np.exp(random.normal(size=80))
    rows = rows_of(
        ratio,
        contexts={"age": age, "kind": kind, "same": np.full(20, 3.0)},
        context_index=context,
        row_weight=events,
    )
    expected = {}
    for name, feature in {"age": age, **{f"kind={k}": (kind == k).astype(float) for k in "abcd"}}.items():
        mean = np.average(feature[context], weights=events)
        spread = np.sqrt(np.average((feature[context] - mean) ** 2, weights=events))
        after = (np.average(feature[context], weights=events * ratio) - mean) / spread
        expected[name] = ((feature.mean() - mean) / spread, after)
    found = covariate_balance(rows)
    assert {name: (before, after) for name, before, after in found} == {
        name: pytest.approx(pair, abs=1e-5) for name, pair in expected.items()
    }
    order = sorted(expected, key=lambda name: -abs(expected[name][1]))
    assert [name for name, _, _ in found] == order
    assert [name for name, _, _ in covariate_balance(rows, most=2)] == order[:2]
    assert judged(rows).balance == found


def test_balance_shows_eight_features_and_nothing_without_weight() -> None:
    random = np.random.default_rng(3)
    table = {f"x{i}": random.normal(size=N) for i in range(12)}
    ratio = np.exp(random.normal(size=N))
    assert len(judged(rows_of(ratio, contexts=table)).balance) == 8
    assert judged(rows_of(np.zeros(N), contexts=table)).balance == []
    for _, before, after in judged(rows_of(np.ones(N), contexts=table)).balance:
        assert before == pytest.approx(0, abs=1e-6)
        assert after == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("level", "power"), [(0.95, 0.8), (0.9, 0.8), (0.95, 0.5), (0.8, 0.9)])
def test_detectable_effect_by_hand(level: float, power: float) -> None:
    """A true difference of z·error + what is always added + z_power·error is found with that power."""
    z, more = norm.ppf(0.5 + level / 2), norm.ppf(power)
    width = Width(error=0.03, propensity=0.04, fixed=0.01)
    assert detectable_effect(width, level, power) == pytest.approx((z + more) * 0.05 + 0.01, rel=1e-9)
    assert detectable_effect(Width(0.0, 0.0, 0.0, refusal="nothing is known"), level, power) == np.inf


@pytest.mark.parametrize(("repeated", "rows", "judged_by_them"), [(30, 100, True), (29, 100, False), (30, 700, False)])
def test_a_few_repeated_contexts_do_not_make_a_logger_deterministic(
    repeated: int, rows: int, judged_by_them: bool
) -> None:
    """Each of them is there twice with the same action: duplicates, unless they are many and much of the log."""
    context = np.concatenate([np.repeat(np.arange(repeated), 2), np.arange(repeated, rows - repeated)])
    found = rows_of(
        np.ones(rows),
        contexts=np.arange(float(rows - repeated))[:, None],
        context_index=context,
        action=context % 2,
        reward=np.arange(rows) % 2 / 2,
        cluster=np.arange(rows),
    )
    one = check("contexts shown one action", found)
    assert one.value == (1.0 if judged_by_them else None)
    assert judged(found).verdict.answerable == (not judged_by_them)


def test_one_duplicated_row_does_not_turn_the_verdict() -> None:
    random = np.random.default_rng(0)
    n = 500
    plain = {"contexts": np.arange(float(n))[:, None], "action": random.integers(0, 2, n), "reward": random.random(n)}
    twice = np.append(np.arange(n), 7)
    again = {"contexts": plain["contexts"], "context_index": twice, "cluster": np.arange(n + 1)}
    again |= {name: plain[name][twice] for name in ("action", "reward")}
    assert judged(rows_of(np.ones(n), **plain)).verdict.answerable
    assert judged(rows_of(np.ones(n + 1), **again)).verdict.answerable


@pytest.mark.parametrize("actions", [10, 20_000])
def test_uniform_logging_supports_a_uniform_target_whatever_the_number_of_actions(actions: int) -> None:
    log = LoggedData.from_arrays(
        contexts=np.arange(200.0)[:, None], action=np.arange(200) % 10, reward=np.arange(200) % 2, actions=actions
    )
    even = UniformPolicy(actions)
    rows = PolicyRows.of(log, even, even, support=True)
    found = check("target mass without support", rows)
    assert (found.value, found.passed) == (0.0, True)


def test_the_mean_weight_is_shown_with_its_error() -> None:
    """200 rows in pairs of deviation 0.5: √(100·1²)/200 = 0.05."""
    ratio = 1.1 + 0.5 * np.where(np.arange(200) // 2 % 2, 1, -1)
    assert "its standard error is 0.05" in check("mean weight", rows_of(ratio, cluster=np.arange(200) // 2)).meaning


@pytest.mark.parametrize(
    ("shape", "passed", "word"),
    [(0.1, True, "good"), (0.6, True, "usable"), (0.85, True, "unreliable"), (1.5, False, "hopeless")],
)
def test_the_tail_of_the_weights_is_graded_by_its_pareto_shape(shape: float, passed: bool, word: str) -> None:
    ratio = genpareto.isf((np.arange(4000) + 0.5) / 4000, shape)
    rows = rows_of(ratio / ratio.mean())
    found = check("tail of the weights", rows)
    assert found.value == pytest.approx(shape, abs=0.08)
    assert found.passed == passed
    assert word in found.meaning
    if not passed:
        reasons = judged(rows).verdict.reasons
        assert any(f"Pareto shape of {found.value:.2f}" in reason for reason in reasons)


def test_weights_that_take_few_values_have_no_tail() -> None:
    assert "tail of the weights" not in {one.name for one in judged(rows_of(np.ones(N))).checks}


@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_a_nearly_deterministic_policy_has_no_heavy_tail_under_uniform_logging(spread: float) -> None:
    """Of 4,000 rows it takes the logged action in 80, with weights near 50; the others have hardly any weight."""
    draw = np.random.default_rng(0)
    ratio = np.exp(-draw.uniform(8, 30, 4000))
    ratio[:80] = 50 * np.exp(spread * draw.standard_normal(80))
    found = judged(rows_of(ratio))
    assert "tail of the weights" not in {one.name for one in found.checks if not one.passed}
    assert not any("Pareto" in reason for reason in found.verdict.reasons)


def drifting(step: float, rows: int = 400, noise: float = 0.1) -> PolicyRows:
    """Rewards that are `step` higher in the later half, two rows a cluster, in mixed order."""
    order = np.random.default_rng(1).permutation(rows)
    time = np.arange(rows)[order]
    reward = 0.3 + step * (time >= rows // 2) + noise * (np.arange(rows) % 2)
    return rows_of(np.ones(rows), reward=reward, timestamp=time, cluster=np.arange(rows) // 2)


@pytest.mark.parametrize(("step", "passed"), [(0.0, True), (0.2, True), (0.3, False)])
def test_rewards_may_move_over_time_by_as_much_as_the_interval_is_wide(step: float, passed: bool) -> None:
    rows = drifting(step)
    found = check("reward drift", rows)
    log = rows.log
    assert log.timestamp is not None
    late = np.asarray(log.timestamp >= 200)
    assert found.value == pytest.approx(log.reward[late].mean() - log.reward[~late].mean(), abs=1e-12)
    assert found.passed == passed
    if not passed:
        one_failed(rows, "reward drift")


def test_an_unclear_drift_is_none_and_without_times_there_is_no_check() -> None:
    few = drifting(0.1, rows=8, noise=0.6)
    found = check("reward drift", few, width=0.01)
    assert found.passed
    assert abs(found.value or 0.0) > 0.01
    log = few.log
    assert log.timestamp is not None
    late = np.asarray(log.timestamp >= 4)
    later, earlier = log.reward - log.reward[late].mean(), log.reward[~late].mean() - log.reward
    residual = np.where(late, later / late.sum(), earlier / (~late).sum())
    error = np.sqrt(sum(residual[log.cluster_index == c].sum() ** 2 for c in range(4)))
    assert f"its standard error is {error:.2g}" in found.meaning
    assert "reward drift" not in {one.name for one in judged(rows_of(np.ones(N))).checks}
    assert "reward drift" not in {one.name for one in judged(rows_of(np.ones(N), timestamp=np.ones(N, int))).checks}


@pytest.mark.parametrize(("step", "passed"), [(0.0, True), (0.1, True), (1.2, False)])
def test_weights_that_change_over_time_say_that_the_logger_did(step: float, passed: bool) -> None:
    time = np.random.default_rng(2).permutation(400)
    ratio = 1 + step * ((time >= 200) - 0.5) + 0.1 * (np.arange(400) % 2)
    rows = rows_of(ratio, timestamp=time, cluster=np.arange(400) // 2)
    found = check("logging drift", rows)
    assert found.value == pytest.approx(ratio[time >= 200].mean() - ratio[time < 200].mean(), abs=1e-12)
    assert found.passed == passed
    if not passed:
        assert any("the logger changed" in reason for reason in judged(rows).verdict.reasons)
