"""Slates: the same numbers as Open Bandit Pipeline's, the laws of each user model, and what `evaluate` says of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy import ESTIMATORS, LoggedData, evaluate, fit_logging_policy, from_obp, repeat_test, to_obp
from offpolicy.errors import ParameterError
from offpolicy.evaluation import PolicyRows, with_slates, with_user_model
from offpolicy.evaluation.slates import position_log_prob
from offpolicy.log import ActionTable
from offpolicy.policies import FunctionPolicy, LinearSoftmaxPolicy, RecordedPolicy, as_policy
from slate_worlds import SlateWorld

CASES = json.loads((Path(__file__).parent / "obp_slates.json").read_text(encoding="utf-8"))
LENGTH = 3


def arrays(case: dict[str, Any]) -> dict[str, Any]:
    """The feedback dictionary as that library holds it."""
    return {name: np.array(values) if isinstance(values, list) else values for name, values in case.items()}


def conditional(cascade: Any) -> np.ndarray[Any, Any]:
    table = np.array(cascade).reshape(-1, LENGTH)
    return np.asarray((table / np.concatenate([np.ones((len(table), 1)), table[:, :-1]], 1)).ravel())


def obp_rows(name: str) -> tuple[PolicyRows, dict[str, float]]:
    """The rows of a policy with the propensities and the reward model that were given to that library."""
    case = CASES[name]
    log = from_obp(arrays(case["feedback"]))
    target = as_policy(conditional(case["target"]["evaluation_policy_pscore_cascade"]), log)
    recorded = RecordedPolicy(log.actions)
    rows = PolicyRows.of(log, target, recorded)
    q_hat = np.array(case["q_hat"]).reshape(log.n_rows, -1)
    dist = np.array(case["action_dist"]).reshape(log.n_rows, -1)
    own = {"imputed": q_hat[np.arange(log.n_rows), log.action], "baseline": (q_hat * dist).sum(1)}
    rows = replace(rows, inputs=dict(rows.inputs) | {key: torch.from_numpy(v / LENGTH) for key, v in own.items()})
    return with_slates(rows, target, recorded), case["values"]


@pytest.mark.parametrize("case", ["with_repetition", "without_repetition"])
@pytest.mark.parametrize("name", ["sips", "rips", "cascade_dr", "iips"])
def test_values_equal_those_of_open_bandit_pipeline(case: str, name: str) -> None:
    rows, values = obp_rows(case)
    if name == "iips" and case == "without_repetition":  # chances in a position are not known from a column
        assert rows.unavailable(ESTIMATORS["iips"])
        logged = np.array(CASES[case]["feedback"]["pscore_item_position"])
        target = np.array(CASES[case]["target"]["evaluation_policy_pscore_item_position"])
        rows = replace(
            rows, inputs=dict(rows.inputs) | {"log_position_ratio": torch.from_numpy(np.log(target / logged))}
        )
    # Theirs is the reward of a slate, ours that of a position.
    assert LENGTH * rows.clustered(ESTIMATORS[name]).value == pytest.approx(values[name], abs=1e-8)


def test_chances_in_a_position_equal_those_that_open_bandit_pipeline_enumerates() -> None:
    case = CASES["without_repetition"]
    log = from_obp(arrays(case["feedback"]))
    logits = torch.tensor(case["logits"], dtype=torch.float64)
    contexts = torch.from_numpy(arrays(case["feedback"])["context"].astype(np.float32))

    def policy(table: Any) -> Any:
        nearest = torch.cdist(torch.from_numpy(table["context"].values.copy()), contexts).argmin(1)
        return logits[nearest].softmax(1)

    expected = np.array(case["target"]["evaluation_policy_pscore_item_position"])
    for draws, most in ((32, 0.05), (4096, 0.01)):
        found = position_log_prob(FunctionPolicy(policy, log.actions), log, draws=draws).exp().numpy()
        np.testing.assert_allclose(found, expected, rtol=most)
    first = log.position == 0
    np.testing.assert_allclose(found[first], expected[first], rtol=1e-12)


@pytest.mark.parametrize("case", ["with_repetition", "without_repetition"])
def test_the_slate_feedback_dictionary_goes_both_ways(case: str) -> None:
    feedback = arrays(CASES[case]["feedback"])
    log = from_obp(feedback)
    again = to_obp(log)
    for name in ("slate_id", "action", "position", "reward"):
        np.testing.assert_array_equal(again[name], feedback[name])
    for name in ("context", "pscore", "pscore_cascade"):
        np.testing.assert_allclose(again[name], feedback[name], rtol=1e-6)
    assert (log.candidates is None) == (case == "with_repetition")
    if case == "with_repetition":
        np.testing.assert_allclose(again["pscore_item_position"], feedback["pscore_item_position"])
    assert from_obp(again) == log


def tiny(users: str, repeats: bool = False) -> SlateWorld:
    """Three actions in two positions, so that every slate can be written down."""
    world = SlateWorld.make(users, 3, n_actions=3, length=2, d=2)  # type: ignore[arg-type]
    return replace(world, repeats=repeats)


def every_slate(world: SlateWorld, x: np.ndarray[Any, Any]) -> tuple[LoggedData, float]:
    """A log in which each slate of each context stands for as many events as logging shows it, and π's true value."""
    slates = np.tile(world.slates, (len(x), 1))
    contexts = np.repeat(x, len(world.slates), 0)
    chance = world.conditional(world.logging, contexts, slates).prod(1)
    reward = world.chances(contexts, slates)
    truth = (world.conditional(world.target, contexts, slates).prod(1) * reward.mean(1)).sum() / len(x)
    log = LoggedData.from_arrays(
        {"x": np.repeat(contexts, 2, 0)},
        slates.ravel(),
        reward.ravel(),
        actions=world.logging.actions,
        request=np.repeat(np.arange(len(slates)), 2),
        position=np.tile([1, 2], len(slates)),
        row_weight=np.repeat(chance, 2),
    )
    return log, float(truth)


RIGHT = {
    "independent": ("sips", "rips", "iips", "cascade_dr"),
    "cascade": ("sips", "rips", "cascade_dr"),
    "any": ("sips",),
    "additive": ("sips", "pseudo_inverse"),
}


@pytest.mark.parametrize("users", RIGHT)
def test_an_estimator_is_unbiased_where_its_assumption_holds_and_only_there(users: str) -> None:
    world = tiny(users, repeats=users == "additive")
    x = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32).astype(np.float64)
    log, truth = every_slate(world, x)
    rows = PolicyRows.of(log, world.target, world.logging)
    extra = {"imputed": torch.rand(log.n_rows, dtype=torch.float64)}
    q_hat = torch.rand(4, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    place = (np.arange(log.n_rows) // (2 * len(world.slates)), log.position)
    extra["imputed"] = q_hat[place[0], place[1], log.action]
    base = torch.from_numpy(world.base(world.target, x))[place[0]]
    if log.candidates is not None:
        offered = torch.zeros(log.n_rows, 3, dtype=torch.bool)
        owner = log.candidates.take(log.context_index)
        offered[owner.owner, owner.codes] = True
        base = base * offered / (base * offered).sum(1, keepdim=True)
    extra["baseline"] = (base * q_hat[place]).sum(1)
    rows = with_slates(replace(rows, inputs=dict(rows.inputs) | extra), world.target, world.logging)
    for name in ("sips", "rips", "cascade_dr", "iips", "pseudo_inverse"):
        if rows.unavailable(ESTIMATORS[name]):
            assert name == "pseudo_inverse"
            assert users != "additive"
            continue
        error = abs(rows.clustered(ESTIMATORS[name]).value - truth)
        exact = 1e-3 if name == "iips" else 1e-9  # its chances in a position are drawn
        assert (error < exact) == (name in RIGHT[users]), (name, error)


def test_the_weights_are_products_along_the_request() -> None:
    world = SlateWorld.make("any", 1)
    log = world.log(50, 0, recorded=True)
    rows = with_slates(PolicyRows.of(log, world.target, RecordedPolicy(log.actions)), world.target, world.logging)
    x = log.contexts["x"].values[log.context_index[log.position == 0]].astype(float)  # type: ignore[union-attr]
    slate = log.action.reshape(50, 4).astype(np.int64)
    ratio = world.conditional(world.target, x, slate) / world.conditional(world.logging, x, slate)
    np.testing.assert_allclose(rows.log_ratio.exp().reshape(50, 4), ratio, rtol=1e-9)
    np.testing.assert_allclose(rows.inputs["log_cascade_ratio"].exp().reshape(50, 4), ratio.cumprod(1), rtol=1e-9)
    np.testing.assert_allclose(
        rows.inputs["log_slate_ratio"].exp().reshape(50, 4), np.tile(ratio.prod(1)[:, None], 4), rtol=1e-9
    )


def test_rows_may_come_in_any_order() -> None:
    world = SlateWorld.make("cascade", 1)
    log = world.log(60, 0, recorded=True)
    order = np.random.default_rng(0).permutation(log.n_rows)
    values = []
    for one in (log, log.take(order)):
        recorded = RecordedPolicy(one.actions)
        rows = with_slates(PolicyRows.of(one, world.target, recorded), world.target, recorded)
        values.append([rows.clustered(ESTIMATORS[name]).value for name in ("sips", "rips")])
    np.testing.assert_allclose(values[0], values[1], rtol=1e-12)


def test_evaluate_says_what_each_number_assumes_and_takes_the_weakest_assumption_that_the_log_carries() -> None:
    world = SlateWorld.make("cascade")
    result = evaluate(world.log(3000, 0), {"target": world.target}, "linear")["target"]
    assumed = {one.name: one.assumes for one in result.estimates}
    assert assumed["sips"] == "any"
    assert assumed["rips"] == assumed["cascade_dr"] == "cascade"
    assert assumed["iips"] == "independent"
    assert assumed["snips"] == result.assumes == "any"
    assert "shown twice" in result.left_out["pseudo_inverse"]
    few = evaluate(world.log(250, 0), {"target": world.target}, "linear")["target"]
    assert few.assumes != "any"
    asked = evaluate(world.log(250, 0), {"target": world.target}, "linear", user_model="any")["target"]
    assert asked.assumes == "any"
    assert asked.interval.high - asked.interval.low > few.interval.high - few.interval.low
    with pytest.raises(ParameterError, match="user_model"):
        evaluate(world.log(250, 0), {"target": world.target}, "linear", user_model="pyramid")


def test_one_reward_a_slate_leaves_the_estimators_of_positions_out() -> None:
    world = SlateWorld.make("any")
    log = world.log(2000, 0)
    total = np.repeat(log.reward.reshape(-1, 4).max(1), 4)
    log = replace(log, reward=total)
    result = evaluate(log, {"target": world.target}, "linear")["target"]
    assert {one.name for one in result.estimates} >= {"sips", "snips"}
    assert "one reward" in result.left_out["rips"]
    assert "one reward" in result.left_out["iips"]
    assert result.assumes == "any"


def test_the_interval_covers_and_requests_are_its_units() -> None:
    world = SlateWorld.make("independent")
    log = world.log(2000, 1)
    result = evaluate(log, {"target": world.target}, "linear", user_model="cascade")["target"]
    assert result.interval.low < world.value(world.target, 100_000) < result.interval.high
    rows = with_user_model(
        with_slates(PolicyRows.of(log, world.target, world.logging), world.target, world.logging), "cascade"
    )
    assert rows.n_clusters == 2000


def test_one_position_is_the_ordinary_estimator() -> None:
    random = np.random.default_rng(0)
    x, action = random.normal(size=(300, 2)), random.integers(0, 4, 300)
    table = ActionTable.numbered(4)
    target = LinearSoftmaxPolicy("x", torch.randn(4, 2).double(), torch.zeros(4).double(), table=table)
    plain = LoggedData.from_arrays({"x": x}, action, random.random(300), actions=table, logging_prob=np.full(300, 0.25))
    slates = LoggedData.from_arrays(
        {"x": x},
        action,
        plain.reward,
        actions=table,
        logging_prob=np.full(300, 0.25),
        request=np.arange(300),
        position=np.ones(300, int),
    )
    recorded = RecordedPolicy(table)
    expected = PolicyRows.of(plain, target, recorded).clustered(ESTIMATORS["ips"]).value
    rows = with_slates(PolicyRows.of(slates, target, recorded), target, recorded)
    for name in ("sips", "rips"):
        assert rows.clustered(ESTIMATORS[name]).value == pytest.approx(expected, rel=1e-12)


def test_the_repeat_test_looks_at_the_top_of_requests_alone() -> None:
    world = SlateWorld.make("independent", 1)
    log = world.log(600, 0)
    assert repeat_test(fit_logging_policy(log, "linear")) is None
    users = replace(log, cluster=np.repeat(np.arange(600) // 6, 4).astype(np.int32), cluster_vocabulary=None)
    found = repeat_test(fit_logging_policy(users, "linear"))
    assert found is not None
    assert found.rows == 600
    assert not found.flagged
