"""Every check on both sides of its threshold, by name."""

import numpy as np
import pytest
from scipy.stats import genpareto

from offpolicy.evaluation import PolicyRows
from preflight_rows import N, check, judged, one_failed, rows_of


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
