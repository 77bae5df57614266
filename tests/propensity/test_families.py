"""Each family of models of β̂: distributions, back-off, weights, and the loggers that it is made for."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from logger_worlds import Logged, drawn, greedy_linear, greedy_tree, knowing_users, random_top, softmax_linear
from offpolicy.errors import ParameterError
from offpolicy.log import LoggedData
from offpolicy.policies import MixturePolicy, RandomTopK, logged_log_prob
from offpolicy.propensity import FAMILIES, FitConfig, FittedModel

ALL = [name for name in FAMILIES if name != "recorded"]
ODD = ("three rows", "one action", "favourite", "constant", "one row a user")
SLOW = ("quadratic", "one row a user")  # products of 64 categories
CONFIG, DEFAULT = FitConfig(epochs=8), FitConfig()


def fitted(name: str, data: LoggedData, config: FitConfig = DEFAULT) -> FittedModel:
    """Chosen on a fifth of the contexts, fitted to all."""
    train, valid = data.split((0.8, 0.2), seed=1)
    _, chosen = FAMILIES[name].fit(train, valid, None, config)
    return FAMILIES[name].fit(data, None, chosen, config)[0]


def with_unseen(world: Logged, more: int = 3) -> LoggedData:
    log = world.log
    return LoggedData.from_arrays(
        log.contexts, log.action, log.reward, context_index=log.context_index, actions=log.n_actions + more
    )


@pytest.mark.parametrize("name", ALL)
def test_every_family_is_a_distribution_and_leaves_mass_for_unseen_actions(name: str) -> None:
    shown = name != "quadratic"  # products of 64 categories take a while
    log = with_unseen(knowing_users(80, 6, shown=shown))
    model = fitted(name, log, CONFIG)
    new = knowing_users(90, 2, seed=5, shown=shown).log.contexts  # ten users nobody has seen
    for contexts in (log.contexts, new):
        probs = model.policy.log_probs(contexts).double().exp()
        assert not probs.isnan().any()
        torch.testing.assert_close(probs.sum(1), torch.ones(len(probs), dtype=torch.float64), rtol=0, atol=1e-5)
        unseen = probs[:, log.action_count == 0].sum(1)
        expected = 1 / (log.n_rows + 1) if name != "uniform" else 3 / 9
        np.testing.assert_allclose(unseen.numpy(), expected, rtol=1e-6)
    rows = logged_log_prob(model.policy, log)
    assert rows.isfinite().all()
    every = model.policy.log_probs(log.contexts).double()
    torch.testing.assert_close(rows, every[log.context_index.astype(int), log.action.astype(int)], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("trees", "two_tower", "quadratic")])
def test_a_row_of_weight_m_counts_as_m_equal_rows(name: str) -> None:
    log = knowing_users(70, 4, seed=2).log
    times = np.random.default_rng(0).integers(1, 4, log.n_rows)
    weighted = replace(log, row_weight=times.astype(float))
    repeated = log.take(np.repeat(np.arange(log.n_rows), times))
    held_out = knowing_users(70, 2, seed=2).log
    config = FitConfig(epochs=3, ridge=1.0)
    (one, _), (other, _) = (FAMILIES[name].fit(each, held_out, None, config) for each in (weighted, repeated))
    torch.testing.assert_close(
        one.policy.log_probs(log.contexts), other.policy.log_probs(log.contexts), rtol=0, atol=2e-3
    )


def softmax_share(model: FittedModel) -> float:
    base = model.base
    assert isinstance(base, MixturePolicy)
    return float(base.weights[0])


@pytest.mark.parametrize("epsilon", [0.1, 0.3])
def test_epsilon_of_a_greedy_linear_logger_is_found(epsilon: float) -> None:
    world = greedy_linear(3000, epsilon=epsilon)
    model = fitted("greedy_linear", world.log)
    fresh = greedy_linear(3000, epsilon=epsilon, seed=9)
    assert fresh.gap_closed(model.policy, world.log) > 0.9
    probs = model.policy.log_probs(fresh.log.contexts).exp()
    other = float(probs.median())  # of five actions, most are not the favourite
    assert 5 * other == pytest.approx(epsilon, abs=0.03)
    assert 1 - softmax_share(model) == pytest.approx(epsilon, abs=0.04)


@pytest.mark.parametrize(("name", "low", "high"), [("trees", 0.85, 1.01), ("network", 0.85, 1.01), ("linear", -1, 0.7)])
def test_a_greedy_tree_takes_trees_or_a_network(name: str, low: float, high: float) -> None:
    world, fresh = greedy_tree(3000), greedy_tree(3000, seed=9)
    assert low < fresh.gap_closed(fitted(name, world.log).policy, world.log) < high


def test_random_choice_among_the_three_best_is_found() -> None:
    world, fresh = random_top(3000), random_top(3000, seed=9)
    model = fitted("top_k", world.log)
    assert isinstance(model.base, RandomTopK)
    assert model.base.k == pytest.approx(3, abs=0.5)
    top = fresh.gap_closed(model.policy, world.log)
    assert top > 0.8
    assert top > fresh.gap_closed(fitted("linear", world.log).policy, world.log)


def test_towers_learn_tastes_of_users_and_pool_the_rest_towards_features() -> None:
    world = knowing_users(100, 30)
    fold = world.log.row_folds(4)
    train, valid = world.log.take(fold != 0), Logged(world.log.take(fold == 0), world.probs[fold == 0])
    towers, _ = FAMILIES["towers"].fit(train, valid.log, None, FitConfig())
    linear, _ = FAMILIES["linear"].fit(train, valid.log, None, FitConfig())
    closed = valid.gap_closed(towers.policy, train)
    assert closed > 0.75
    assert closed > valid.gap_closed(linear.policy, train) + 0.1


@pytest.mark.parametrize("name", ["greedy_linear", "network", "top_k", "trees"])
def test_a_fit_is_the_same_with_the_same_seed(name: str) -> None:
    log = greedy_tree(500).log
    one, other = (fitted(name, log, CONFIG).policy.log_probs(log.contexts) for _ in range(2))
    assert torch.equal(one, other)


def test_a_refit_repeats_the_steps_that_were_chosen() -> None:
    log = softmax_linear(600).log
    train, valid = log.split((0.8, 0.2))
    for name in ("greedy_linear", "top_k", "network"):
        model, chosen = FAMILIES[name].fit(train, valid, None, CONFIG)
        assert 0 < chosen.epochs == len(chosen.steps) <= CONFIG.epochs
        again, repeated = FAMILIES[name].fit(train, None, chosen, CONFIG)
        assert repeated.steps == chosen.steps
        assert float(logged_log_prob(again.policy, valid).mean()) == pytest.approx(
            float(logged_log_prob(model.policy, valid).mean()), abs=0.02
        )


@pytest.mark.parametrize("name", ["trees", "top_k"])
def test_too_many_actions_are_refused_at_once(name: str) -> None:
    rows = 40_000
    random = np.random.default_rng(0)
    x, action = random.normal(size=rows), np.arange(rows) % 30_000
    log = LoggedData.from_arrays({"x": x}, action, np.zeros(rows), actions=30_000)
    with pytest.raises(ParameterError, match="Take '"):
        FAMILIES[name].fit(log, None, None, FitConfig())


def test_exploration_covers_the_logged_actions_alone() -> None:
    log = with_unseen(greedy_linear(600), more=4)
    base = fitted("greedy_linear", log, CONFIG).base
    assert isinstance(base, MixturePolicy)
    probs = base.members[1].log_probs(log.contexts).exp()[0]
    np.testing.assert_allclose(probs.numpy(), [0.2] * 5 + [0.0] * 4)
    assert float(base.weights.sum()) == pytest.approx(1)


def favourite(rows: int) -> LoggedData:
    """One action in all but a few rows."""
    probs = np.full((rows, 4), 0.002)
    probs[:, 0] = 1 - 0.006
    return drawn(probs, {"x": np.random.default_rng(3).normal(size=rows)}, 3).log


@pytest.mark.parametrize(("name", "kind"), [each for each in product(ALL, ODD) if each != SLOW])
def test_odd_logs_give_finite_probabilities(name: str, kind: str) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=120)
    logs: dict[str, Callable[[], LoggedData]] = {
        "three rows": lambda: LoggedData.from_arrays({"x": x[:3]}, [0, 1, 0], np.zeros(3), actions=3),
        "one action": lambda: LoggedData.from_arrays({"x": x}, np.ones(120, dtype=int), np.zeros(120), actions=3),
        "favourite": lambda: favourite(400),
        "constant": lambda: LoggedData.from_arrays(
            {"c": np.full(120, 4.2), "x": x}, random.integers(0, 4, 120), np.zeros(120), actions=4
        ),
        "one row a user": lambda: LoggedData.from_arrays(
            {"user": [f"u{i}" for i in range(120)]}, random.integers(0, 4, 120), np.zeros(120), actions=4
        ),
    }
    log = logs[kind]()
    train, valid = log.split((0.6, 0.4))
    for model in (FAMILIES[name].fit(train, valid, None, CONFIG)[0], fitted(name, log, CONFIG)):
        probs = model.policy.log_probs(log.contexts)
        assert not probs.isnan().any()
        torch.testing.assert_close(probs.double().exp().sum(1), torch.ones(log.n_contexts, dtype=torch.float64))
        assert logged_log_prob(model.policy, log).isfinite().all()
        assert math.isfinite(float(logged_log_prob(model.policy, log).mean()))
