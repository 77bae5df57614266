"""The repeat test: brute force over pairs, 1 under the true β, above where the logger knew the user."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from logger_worlds import Logged, drifting, knowing_users, softmax_linear
from offpolicy.log import LoggedData
from offpolicy.policies import TabularPolicy
from offpolicy.propensity import FittedModel, LoggingPolicy, ensemble, fit_logging_policy, repeat_test, repeats


def under(world_policy: Any, log: LoggedData) -> LoggingPolicy:
    """A logging policy that is exactly this."""
    return replace(fit_logging_policy(log, "popularity"), whole=FittedModel(world_policy))


def tabular(users: int, rows_each: int, seed: int = 0, knows: float = 0.0) -> tuple[LoggedData, LoggingPolicy]:
    """Users who come with different contexts; the logger may add a taste of the user's own."""
    random = np.random.default_rng(seed)
    table = random.dirichlet(np.ones(5), size=4)
    user, context = np.repeat(np.arange(users), rows_each), random.integers(0, 4, users * rows_each)
    taste = np.exp(knows * random.normal(size=(users, 5)))
    probs = table[context] * taste[user]
    probs /= probs.sum(1, keepdims=True)
    action = (probs.cumsum(1) < random.random(len(user))[:, None]).sum(1).clip(max=4)
    log = LoggedData.from_arrays(
        {"c": np.array(list("abcd"))[context]}, action, np.zeros(len(user)), actions=5, cluster=user
    )
    column: Any = log.contexts["c"]
    order = ["abcd".index(one) for one in column.vocabulary.to_list()]
    return log, under(TabularPolicy("c", torch.from_numpy(table[order])), log)


def brute_force(log: LoggedData, probs: Any) -> tuple[float, float, float, float]:
    units = np.unique(log.cluster_index)
    observed, expected = np.zeros(len(units)), np.zeros(len(units))
    for u, unit in enumerate(units):
        for i, j in combinations(np.flatnonzero(log.cluster_index == unit), 2):
            observed[u] += log.action[i] == log.action[j]
            expected[u] += probs[i] @ probs[j]
    ratio = observed.sum() / expected.sum()
    error = np.sqrt(((observed - ratio * expected) ** 2).sum()) / expected.sum()
    return ratio, error, observed.sum(), expected.sum()


def brute_force_link(log: LoggedData, probs: Any) -> float:
    """Rewards less their action's mean, times how many more alike rows of the unit there are than β̂ says."""
    by_unit = []
    for unit in np.unique(log.cluster_index):
        rows = np.flatnonzero(log.cluster_index == unit)
        total = 0.0
        for i in rows:
            more = sum((log.action[j] == log.action[i]) - probs[j, log.action[i]] for j in rows if j != i)
            total += more * (log.reward[i] - log.reward[log.action == log.action[i]].mean())
        by_unit.append(total)
    return float(np.sum(by_unit) / np.sqrt(np.sum(np.square(by_unit))))


def test_pairs_are_those_of_brute_force() -> None:
    log, beta = tabular(40, 5, knows=0.5)
    random = np.random.default_rng(0)
    log = replace(log, reward=random.random(log.n_rows)).take(random.permutation(log.n_rows)[:180])
    beta = replace(beta, log=log)
    table = beta.log_probs(log.contexts).exp().numpy()
    found = repeat_test(beta)
    assert found is not None
    ratio, error, observed, expected = brute_force(log, table[log.context_index])
    assert [found.ratio, found.error] == pytest.approx([ratio, error])
    assert [found.observed, found.expected] == pytest.approx([observed, expected])
    assert (found.units, found.rows) == (len(np.unique(log.cluster_index)), 180)
    assert found.reward_link == pytest.approx(brute_force_link(log, table[log.context_index]))
    assert found.to_json()["flagged"] == found.flagged


def test_under_the_true_policy_the_ratio_is_one() -> None:
    off = []
    for seed in range(12):
        _, beta = tabular(120, 8, seed=seed)
        found = repeat_test(beta)
        assert found is not None
        off.append((found.ratio - 1) / found.error)
        assert abs(found.ratio - 1) < 4 * found.error
        assert not found.flagged
    assert np.sqrt(np.mean(np.square(off))) == pytest.approx(1, abs=0.5)  # the error is neither tiny nor huge


def test_a_logger_that_knows_more_is_flagged() -> None:
    _, beta = tabular(120, 8, knows=1.2)
    found = repeat_test(beta)
    assert found is not None
    assert found.ratio > 1.3
    assert found.flagged
    assert found.p_value < 1e-4


def groups(rows: int, size: int) -> Any:
    return (np.arange(rows) // size).astype(np.int32)


def hidden(shown: bool) -> Logged:
    return knowing_users(120, 25, shown=shown)


def test_a_fitted_policy_is_flagged_where_the_id_is_hidden_and_not_where_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ensemble, "families_for", lambda log: ["towers"])
    missing = repeat_test(fit_logging_policy(hidden(False).log, "linear"))
    assert missing is not None
    assert missing.ratio > 1.3
    assert missing.flagged
    given = repeat_test(fit_logging_policy(hidden(True).log, "auto"))
    assert given is not None
    assert given.ratio < 1.15
    assert not given.flagged


def test_nothing_is_said_where_nothing_repeats_or_only_logged_actions_are_known() -> None:
    alone = softmax_linear(200)
    assert repeat_test(fit_logging_policy(alone.log, "popularity")) is None
    few = alone.log.take(np.arange(30))
    assert repeat_test(fit_logging_policy(replace(few, cluster=groups(30, 2)), "popularity")) is None  # few pairs
    recorded = replace(alone.log, logging_prob=np.exp(alone.true_log_prob), cluster=groups(200, 20))
    assert repeat_test(fit_logging_policy(recorded, "recorded")) is None


def test_a_long_log_is_tested_on_some_of_its_units(monkeypatch: pytest.MonkeyPatch) -> None:
    _, beta = tabular(200, 8, knows=1.2)
    monkeypatch.setattr(repeats, "ROWS", 500)
    found = repeat_test(beta)
    assert found is not None
    assert 300 < found.rows < 700
    assert found.rows == 8 * found.units  # whole units
    assert found.flagged


def test_a_policy_in_time_is_asked_at_each_row_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ensemble, "families_for", lambda log: ["quadratic"])
    world = drifting(2000)
    log = replace(world.log, cluster=groups(2000, 20))  # neighbours in time
    ratios = []
    for beta in (fit_logging_policy(log, "auto"), fit_logging_policy(replace(log, timestamp=None), "auto")):
        found = repeat_test(beta)
        assert found is not None
        ratios.append(found.ratio)
    assert ratios[0] == pytest.approx(1, abs=0.06)
    assert ratios[0] <= ratios[1]


def test_shrinkage_of_an_embedded_id_is_no_sign_of_hidden_knowledge() -> None:
    """With the user's id among the columns, pooled tastes leave an excess that only its hiding would make a sign."""
    known = repeat_test(fit_logging_policy(knowing_users(100, 20).log, "towers"))
    blind = repeat_test(fit_logging_policy(knowing_users(100, 20, shown=False).log, "linear"))
    assert known is not None
    assert blind is not None
    assert known.tolerated > blind.tolerated
    assert not known.flagged
    assert blind.flagged
    assert known.ratio < blind.ratio


@pytest.mark.parametrize("linked", [False, True])
def test_an_excess_of_ids_that_goes_with_the_rewards_is_flagged(linked: bool) -> None:
    """What too few rows of an id leave unexplained does no harm until it also moves the rewards."""
    world = knowing_users(150, 15, seed=1)
    log = world.log
    random = np.random.default_rng(2)
    other = fit_logging_policy(log, "popularity")  # knows no ids, so that an excess is left
    chance = world.true_log_prob if linked else random.permutation(world.true_log_prob)
    reward = (random.random(log.n_rows) < np.exp(chance)).astype(np.float64)
    found = repeat_test(replace(other, log=replace(log, reward=reward)))
    assert found is not None
    assert found.ids_given
    assert (found.reward_link > 3) == linked
    assert found.ratio > 1.2
    assert found.tolerated == (repeats.TOLERATED if linked else repeats.TOLERATED_OF_IDS)
    assert found.flagged == linked
