"""Weights of groups of actions, and weights without β̂: laws, given and learned groups, refusals."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offpolicy import evaluate, learn_policy
from offpolicy.errors import ParameterError
from offpolicy.estimators import ESTIMATORS, INPUTS
from offpolicy.evaluation import PolicyRows, action_groups, learned_groups, weight_inputs
from offpolicy.evaluation.balance import balanced_log_ratio
from offpolicy.evaluation.groups import k_means
from offpolicy.log import ActionTable, CategoricalColumn, FeatureTable, LoggedData, Vocabulary
from offpolicy.policies import TabularPolicy, UniformPolicy
from tiny_world import TinyWorld
from worlds import small_log

seeds = st.integers(0, 10_000)
OWN, ONE = torch.arange(4), torch.zeros(4, dtype=torch.long)


@given(seeds)
def test_groups_of_one_action_are_ips_and_one_group_is_logging(seed: int) -> None:
    log, (target, logging) = small_log(seed).log, TinyWorld.draw(seed).policies()
    own, one = (weight_inputs(INPUTS, log, target, logging, groups=groups) for groups in (OWN, ONE))
    torch.testing.assert_close(own["log_group_ratio"], own["log_ratio"].double(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ESTIMATORS["mips"].terms(one)[0], torch.ones(12, dtype=torch.float64))


@given(seeds)
def test_mips_is_unbiased_where_a_groups_actions_pay_the_same(seed: int) -> None:
    world = TinyWorld.draw(seed)
    pays = world.reward_mean.clone()
    pays[:, 2] = pays[:, 0]  # the first and third action are one group
    world = replace(world, reward_mean=pays)
    log, prob = world.outcomes()
    inputs = weight_inputs(INPUTS, log, *world.policies(), groups=torch.tensor([0, 1, 0, 2]))
    weight, _ = ESTIMATORS["mips"].terms(inputs)
    assert float((prob * weight * inputs["reward"]).sum()) == pytest.approx(world.value, rel=1e-9)
    ips = ESTIMATORS["ips"].terms(inputs)[0]
    assert float((prob * weight.square()).sum()) <= float((prob * ips.square()).sum()) * (1 + 1e-9)


class Table:
    """q̂ from a table over the tiny world's contexts."""

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table

    def rewards(self, contexts: FeatureTable) -> torch.Tensor:
        return self.table[torch.from_numpy(np.array(contexts["context"].codes)).long()]  # type: ignore[union-attr]


@given(seeds, st.floats(0, 0.2))
def test_offcem_is_unbiased_where_the_model_gets_differences_within_groups_right(seed: int, shift: float) -> None:
    world = TinyWorld.draw(seed)
    wrong = world.reward_mean + shift * torch.tensor([1.0, -1.0, 1.0, 2.0])  # by as much for the actions of a group
    log, prob = world.outcomes()
    inputs = weight_inputs(INPUTS, log, *world.policies(), groups=torch.tensor([0, 1, 0, 2]), reward_model=Table(wrong))
    weight, _ = ESTIMATORS["offcem"].terms(inputs)
    score = inputs["baseline"] + weight * (inputs["reward"] - inputs["imputed"])
    assert float((prob * score).sum()) == pytest.approx(world.value, rel=1e-6)


def a_log(rows: int = 60) -> LoggedData:
    random = np.random.default_rng(0)
    column = CategoricalColumn(np.array([1, 0, 1, 2], dtype=np.int32), Vocabulary(["tea", "coffee", "soup"]))
    table = ActionTable(Vocabulary(["a", "b", "c", "d"]), FeatureTable({"kind": column}))
    ids = np.array(["a", "b", "c", "d"])[random.integers(0, 4, rows)]
    return LoggedData.from_arrays(
        contexts=random.normal(size=(rows, 2)), action=ids, reward=random.random(rows), actions=table
    )


def test_groups_by_column_mapping_and_list_are_the_same() -> None:
    log = a_log()
    kinds = {"a": "coffee", "b": "tea", "c": "coffee", "d": "soup"}
    found = [action_groups(given_, log).tolist() for given_ in ("kind", kinds, ["x", "y", "x", "z"])]
    for groups in found:
        assert groups[0] == groups[2]
        assert len(set(groups)) == 3


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("colour", "no categorical column of the action table: 'colour'. There are: kind"),
        ({"a": 0, "b": 1, "d": 0}, "no group for action 'c'"),
        ([0, 1, 0], "each of the 4 actions, but it has 3"),
    ],
)
def test_groups_that_do_not_fit_are_refused(groups: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        action_groups(groups, a_log())


def test_k_means_finds_what_is_apart() -> None:
    random = np.random.default_rng(1)
    middle = np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]])
    truth = random.integers(0, 3, 60)
    found = k_means(middle[truth] + 0.1 * random.normal(size=(60, 2)), 3, random)
    pairs = {(int(t), int(g)) for t, g in zip(truth, found, strict=True)}
    assert len(pairs) == 3
    assert len(set(k_means(np.ones((5, 2)), 3, random).tolist())) == 1


def test_learned_groups_hold_actions_with_like_predictions() -> None:
    world = TinyWorld.draw(3)
    log, _ = world.outcomes()
    table = torch.tensor([[0.1, 0.9, 0.12, 0.88]] * 3)
    groups = learned_groups(log, Table(table)).tolist()
    assert groups[0] == groups[2] != groups[1] == groups[3]


def test_evaluate_weighs_given_groups_and_learns_them_otherwise() -> None:
    log = a_log(200)
    names = ("ips", "mips", "offcem", "dr")
    own = evaluate(log, "uniform", "popularity", estimators=names, action_groups=["p", "q", "r", "s"])["policy"]
    value = {one.name: one.value for one in own.estimates}
    assert value["mips"] == pytest.approx(value["ips"], rel=1e-9)
    assert value["offcem"] == pytest.approx(value["dr"], rel=1e-9)
    learned = evaluate(log, "uniform", "popularity", estimators=names)["policy"]
    assert {one.name for one in learned.estimates} == set(names)
    column = evaluate(log, np.full(200, 0.25), "popularity", estimators=names)["policy"]
    assert "log_group_ratio" in column.left_out["mips"]


@pytest.mark.parametrize("name", ["mips", "offcem", "balanced"])
def test_weights_of_groups_teach_nothing(name: str) -> None:
    with pytest.raises(ParameterError, match="can evaluate a policy but not teach one"):
        learn_policy(a_log(), name)


def test_odds_of_a_classifier_are_close_to_the_true_ratios() -> None:
    world = TinyWorld.draw(5)
    random = np.random.default_rng(0)
    every, prob = world.outcomes()
    pick = random.choice(every.n_rows, size=6000, p=prob.numpy() / prob.sum().item())
    log = LoggedData.from_arrays(
        contexts=every.contexts,
        context_index=every.context_index[pick],
        action=every.action[pick],
        reward=every.reward[pick],
        actions=4,
        cluster=np.arange(6000),
    )
    target, _ = world.policies()
    rows = PolicyRows.of(log, target, UniformPolicy(4), estimators=[ESTIMATORS["balanced"]])  # β̂ is wrong: no matter
    ratio = (world.target / world.logging).numpy()[every.context_index[pick], log.action]
    found = rows.inputs["log_balanced_ratio"].exp().numpy()
    assert np.corrcoef(np.log(found), np.log(ratio))[0, 1] > 0.95
    estimate = rows.clustered(ESTIMATORS["balanced"])
    assert estimate.mean_weight == pytest.approx(1.0, abs=0.1)
    assert estimate.value == pytest.approx(world.value, abs=0.04)
    assert abs(log.reward.mean() - world.value) > 0.05, "the log itself says something else"


def test_an_action_never_taken_has_no_odds_and_a_column_has_none_at_all() -> None:
    world = TinyWorld.draw(2)
    log, _ = world.outcomes()
    never = world.target.clone()
    never[:, 1] = 0
    ratio = balanced_log_ratio(log, TabularPolicy("context", never / never.sum(1, keepdim=True)))
    assert bool((ratio[torch.from_numpy(log.action == 1)] == -torch.inf).all())
    assert bool(torch.isfinite(ratio[torch.from_numpy(log.action != 1)]).all())
    found = evaluate(a_log(), np.full(60, 0.25), "popularity", estimators=("balanced",))["policy"]
    assert "log_balanced_ratio" in found.left_out["balanced"]
