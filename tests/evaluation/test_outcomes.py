"""Several rewards: each as if it were alone, every look counted, and a decision that follows from the intervals."""

from typing import Any

import numpy as np
import pytest

from offpolicy import Nuisances, evaluate
from offpolicy.errors import ParameterError
from offpolicy.evaluation.guardrails import Guardrail
from offpolicy.evaluation.outcomes import decided
from offpolicy.log import LoggedData
from offpolicy.policies import UniformPolicy
from offpolicy.results import Evaluation, Outcome

N = 3000
RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(N, 2))
ACTION = RANDOM.integers(0, 3, N)
CLICK = (RANDOM.random(N) < np.array([0.2, 0.4, 0.6])[ACTION]).astype(float)
REVENUE = np.array([5.0, 5.0, 5.2])[ACTION] * RANDOM.random(N)
RETURNS = (RANDOM.random(N) < np.array([0.30, 0.30, 0.305])[ACTION]).astype(float)
PROBS = {"third": np.array([0.1, 0.2, 0.7]), "first": np.array([0.8, 0.1, 0.1])}


def a_log(reward: Any = CLICK, limits: tuple[float, float] = (0.0, 1.0)) -> LoggedData:
    kept = {"revenue": REVENUE, "returns": RETURNS}
    return LoggedData.from_arrays(X, ACTION, reward, actions=3, reward_range=limits, keep=kept)


def functions() -> dict[str, Any]:
    return {name: (lambda contexts, p=p: np.tile(p, (contexts.n_rows, 1))) for name, p in PROBS.items()}


def judged(log: LoggedData, policies: dict[str, Any], **options: Any) -> Evaluation:
    nuisances = Nuisances(log, logging_policy=UniformPolicy(3))
    return evaluate(log, policies, nuisances=nuisances, estimators=("snips",), **options)


@pytest.mark.parametrize("form", ["function", "column"])
def test_a_reward_among_others_is_as_it_is_alone(form: str) -> None:
    policies = functions() if form == "function" else {name: p[ACTION] for name, p in PROBS.items()}
    found = judged(a_log(), policies, rewards=["revenue"], guardrails=["returns<=+5%"])
    assert [(one.reward, one.policy) for one in found.outcomes] == [
        (reward, policy) for reward in ("reward", "revenue", "returns") for policy in PROBS
    ]
    rewards = {"reward": (CLICK, (0, 1)), "revenue": (REVENUE, (0, REVENUE.max())), "returns": (RETURNS, (0, 1))}
    for one in found.outcomes:
        looks = 2 if one.guardrail else 4  # candidates, times rewards
        alone = judged(a_log(*rewards[one.reward]), {one.policy: policies[one.policy]}, level=1 - 0.05 / looks)
        (compared,) = alone.comparisons
        own = alone[one.policy]
        assert (one.value, one.low, one.high) == pytest.approx((own.value, own.interval.low, own.interval.high))
        assert one.logging == pytest.approx(rewards[one.reward][0].mean())
        ends = (compared.difference, compared.low, compared.high)
        assert (one.difference, one.difference_low, one.difference_high) == pytest.approx(ends)
        assert one.relative == pytest.approx(compared.relative)
        assert one.guardrail == (one.reward == "returns") == (one.adjusted_p_value is None)
        if compared.p_value is not None and one.adjusted_p_value is not None:
            assert compared.p_value <= one.adjusted_p_value <= min(4 * compared.p_value, 1) + 1e-12


def test_a_decision_follows_from_the_intervals() -> None:
    found = judged(a_log(), functions(), rewards=["revenue"], guardrails=["returns<=+0.2"])
    by_name = {one.policy: one for one in found.decisions}
    assert by_name["third"].holds
    assert by_name["third"].sentence.startswith("third: better on reward")
    assert "not worse on returns beyond 0.2" in by_name["third"].sentence
    assert not by_name["first"].holds
    assert "worse on reward" in by_name["first"].sentence
    tight = judged(a_log(), functions(), guardrails=["returns<=+0.001"])
    assert "may be worse on returns beyond 0.001" in tight.decisions[0].sentence
    assert not tight.decisions[0].holds


def test_one_reward_alone_has_no_outcomes() -> None:
    found = judged(a_log(), functions())
    assert (found.outcomes, found.decisions) == ([], [])


@pytest.mark.parametrize(
    ("text", "lower", "limit", "relative", "name"),
    [
        ("returns<=+2%", True, 0.02, True, "returns"),
        ("margin>=-0.5", False, 0.5, False, "margin"),
        ("cost=2*returns + 1 <= 3 %", True, 0.03, True, "cost"),
        ("returned_items", True, 0.02, True, "returned_items"),
        ("dwell time", False, 0.02, True, "dwell time"),
    ],
)
def test_guardrails_are_read(text: str, lower: bool, limit: float, relative: bool, name: str) -> None:
    found = Guardrail.parse(text)
    assert (found.lower_is_better, found.limit, found.relative, found.name) == (lower, limit, relative, name)
    assert bool(found.inferred) == ("=" not in text)


@pytest.mark.parametrize("text", ["returns<=-2%", "margin>=+1%", "returns<2%", "returns<=much", "<=2%"])
def test_guardrails_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="guardrail"):
        Guardrail.parse(text)


def test_every_side_of_a_limit_has_its_finding() -> None:
    base: dict[str, Any] = {"value": 1, "low": 1, "high": 1, "logging": 1, "difference": 0, "policy": "p"}
    base |= {"difference_low": 0, "difference_high": 0}
    kinds: list[tuple[Any, bool]] = [("better", False), ("unclear", False), ("kept", True), ("broken", True)]
    rows = [Outcome(reward=f"r{n}", finding=f, guardrail=g, limit_text="2 %", **base) for n, (f, g) in enumerate(kinds)]
    (one,) = decided(rows)
    assert one.sentence == (
        "p: better on r0; no clear difference on r1; not worse on r2 beyond 2 %; worse on r3 beyond 2 %."
    )
    assert not one.holds
    assert decided(rows[:3])[0].holds


def test_unknown_and_repeated_rewards_are_refused_before_any_work() -> None:
    with pytest.raises(ParameterError, match="keeps no column 'profit'"):
        judged(a_log(), functions(), rewards=["profit"])
    with pytest.raises(ParameterError, match="both a reward and a guardrail"):
        judged(a_log(), functions(), rewards=["revenue"], guardrails=["revenue"])
