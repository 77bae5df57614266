"""Verdicts, advice, balance and detectable effect by hand."""

import numpy as np
import pytest
from scipy.stats import norm

from offpolicy.evaluation import PolicyRows
from offpolicy.evaluation.preflight import covariate_balance, detectable_effect
from offpolicy.evaluation.views import Width
from offpolicy.log import LoggedData
from offpolicy.policies import UniformPolicy
from preflight_rows import Array, N, check, judged, rows_of


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
