"""The pooled reward model against explicit regressions: coefficients, the chosen pull, and rows left out."""

import numpy as np
import pytest
import torch

from offpolicy.log import LoggedData
from offpolicy.models import DesignMatrix
from offpolicy.rewards import PooledRewardModel, row_rewards
from offpolicy.rewards.pooled import RIDGES


def a_log(kind: str, rows: int = 160, actions: int = 5, width: int = 2) -> LoggedData:
    """Rewards that are alike for all actions, or rise with a slope of each action's own."""
    random = np.random.default_rng(2)
    x = random.normal(size=(rows // 2, width))[np.arange(rows) // 2]
    action = random.integers(0, actions - 1, rows)  # the last is never logged
    own = 0.18 * (action - 1.5) * x[:, 0] * (kind == "own")
    reward = 0.5 + 0.05 * x[:, 1] + own + 0.05 * random.normal(size=rows)
    return LoggedData.from_arrays({"x": x}, action, reward.clip(0, 1), actions=actions)


def design_of(log: LoggedData) -> np.ndarray:
    features = DesignMatrix.fit(log.contexts).encode(log.contexts).double().numpy()
    return np.column_stack([features, np.ones(len(features))])[log.context_index]


def ridge_fit(x: np.ndarray, y: np.ndarray, ridge: float) -> np.ndarray:
    return np.asarray(np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ y))


def left_out(log: LoggedData, residual: np.ndarray, ridge: float) -> np.ndarray:
    """What each row's action-part, refitted without the rows of its context, leaves of its residual."""
    x, rest = design_of(log), np.empty(log.n_rows)
    for n in range(log.n_rows):
        others = (log.action == log.action[n]) & (log.context_index != log.context_index[n])
        rest[n] = residual[n] - x[n] @ ridge_fit(x[others], residual[others], ridge)
    return rest


@pytest.mark.parametrize(("kind", "width"), [("alike", 2), ("own", 2), ("own", 60)])
def test_it_is_two_ridge_regressions_and_pairs_do_not_predict_themselves(kind: str, width: int) -> None:
    log = a_log(kind, width=width)
    model = PooledRewardModel.fit(log)
    x = design_of(log)
    pooled = ridge_fit(x, log.reward, 1.0)
    np.testing.assert_allclose(model.pooled.numpy(), pooled, rtol=1e-6, atol=1e-9)
    residual = log.reward - x @ pooled
    errors = {ridge: np.square(left_out(log, residual, ridge)).sum() for ridge in RIDGES}
    assert model.ridge == min(errors, key=lambda ridge: errors[ridge])
    assert (model.ridge <= 30) == (kind == "own" and width == 2)
    own = np.zeros((5, x.shape[1]))
    for action in range(4):
        mine = log.action == action
        own[action] = ridge_fit(x[mine], residual[mine], model.ridge)
    np.testing.assert_allclose(model.own.numpy(), own, rtol=1e-5, atol=1e-8)
    imputed = (log.reward - left_out(log, residual, model.ridge)).clip(0, 1)
    np.testing.assert_allclose(row_rewards(model, log), imputed, rtol=1e-6, atol=1e-8)
    contexts = np.column_stack(
        [DesignMatrix.fit(log.contexts).encode(log.contexts).double().numpy(), np.ones(log.n_contexts)]
    )
    every = (contexts @ (own + pooled).T).clip(0, 1)
    np.testing.assert_allclose(model.rewards(log.contexts), every, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(model.rewards(log.contexts)[:, 4], (contexts @ pooled).clip(0, 1), rtol=1e-6)


def test_rows_of_another_log_get_the_rewards_of_their_actions() -> None:
    log = a_log("own")
    model = PooledRewardModel.fit(log)
    other = log.take(np.arange(50, 90))
    expected = model.rewards(other.contexts).numpy()[other.context_index, other.action]
    np.testing.assert_array_equal(row_rewards(model, other), expected)
    again = a_log("own")  # the same rows, built again, are recognised
    torch.testing.assert_close(row_rewards(model, again), model.imputed)
    seen = model.rewards(log.contexts).numpy()[log.context_index, log.action]
    assert float(np.abs(model.imputed.numpy() - seen).max()) > 1e-3


def test_rewards_stay_possible_far_from_the_data() -> None:
    model = PooledRewardModel.fit(a_log("own"))
    far = LoggedData.from_arrays({"x": np.array([[50.0, 50.0], [-50.0, -50.0]])}, [0, 1], [0, 1], actions=5)
    found = model.rewards(far.contexts)
    assert set(found.flatten().tolist()) == {0.0, 1.0}


def test_a_row_alone_in_its_action_is_predicted_by_the_others() -> None:
    log = a_log("alike")
    action = np.array(log.action)
    action[7] = 4
    log = LoggedData.from_arrays(log.contexts, action, log.reward, context_index=log.context_index, actions=5)
    model = PooledRewardModel.fit(log)
    x = design_of(log)
    assert float(model.imputed[7]) == pytest.approx(float(x[7] @ ridge_fit(x, log.reward, 1.0)), abs=1e-9)
