"""Open Bandit Pipeline's feedback dictionary, there and back."""

from typing import Any

import numpy as np
import pytest

from offpolicy.errors import LogError
from offpolicy.log import LoggedData, from_obp, target_prob_from_obp, to_obp


def feedback(n_rounds: int = 40, n_actions: int = 4, len_list: int = 3, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    context = rng.normal(size=(6, 2)).astype(np.float32).astype(np.float64)[rng.integers(0, 6, n_rounds)]
    return {
        "n_rounds": n_rounds,
        "n_actions": n_actions,
        "context": context,
        "action_context": np.eye(n_actions),
        "action": rng.integers(0, n_actions, n_rounds),
        "position": rng.integers(0, len_list, n_rounds),
        "reward": rng.integers(0, 2, n_rounds),
        "expected_reward": rng.random((n_rounds, n_actions)),
        "pi_b": np.full((n_rounds, n_actions, 1), 1 / n_actions),
        "pscore": rng.uniform(0.1, 1.0, n_rounds),
    }


KEPT = ("context", "action_context", "action", "position", "reward", "pscore")


def test_there_and_back() -> None:
    given = feedback()
    log = from_obp(given)
    assert log.contexts["position"].kind == "categorical"
    assert log.n_contexts == len({(*x, p) for x, p in zip(given["context"].tolist(), given["position"], strict=True)})
    back = to_obp(log)
    assert (back["n_rounds"], back["n_actions"]) == (40, 4)
    for name in KEPT:
        np.testing.assert_array_equal(back[name], given[name])
    assert from_obp(back) == log


def test_one_position_and_no_propensity() -> None:
    given = feedback() | {"position": np.zeros(40, dtype=int), "pscore": None, "action_context": None}
    log = from_obp(given)
    assert list(log.contexts) == ["context"]
    assert log.logging_prob is None
    assert log.actions.features is None
    back = to_obp(log)
    assert back["position"] is None
    assert back["pscore"] is None


def test_rewards_of_another_range() -> None:
    given = feedback() | {"reward": np.linspace(-2.0, 2.0, 40)}
    with pytest.raises(LogError, match="reward_range"):
        from_obp(given)
    log = from_obp(given, reward_range=(-2.0, 2.0))
    np.testing.assert_allclose(to_obp(log)["reward"], given["reward"], atol=1e-12)


def test_every_kind_becomes_dense_columns() -> None:
    log = LoggedData.from_arrays(
        {"n": [1.5, 2.5], "c": ["x", "y"], "e": np.array([[1.0, 2.0], [3.0, 4.0]]), "b": [["p", "q", "q", "q"], []]},
        [0, 1],
        [0, 1],
        actions=2,
    )
    expected = [[1.5, 1, 0, 1, 2, 0.25, 0.75], [2.5, 0, 1, 3, 4, 0, 0]]
    assert to_obp(log)["context"].tolist() == expected


def test_the_target_probability_is_picked_from_the_dense_array() -> None:
    given = feedback()
    rng = np.random.default_rng(1)
    dist = rng.dirichlet(np.ones(4), size=(40, 3)).transpose(0, 2, 1)  # (rounds, actions, positions)
    expected = [dist[n, given["action"][n], given["position"][n]] for n in range(40)]
    assert target_prob_from_obp(dist, given).tolist() == expected
    assert target_prob_from_obp(dist, from_obp(given)).tolist() == expected
    flat = [dist[n, given["action"][n], 0] for n in range(40)]
    assert target_prob_from_obp(dist[:, :, :1], from_obp(given)).tolist() == flat
    assert target_prob_from_obp(dist[:, :, 0], given).tolist() == flat


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reward": None}, "has no 'reward'"),
        ({"n_rounds": 41}, "n_rounds = 41"),
        ({"context": np.zeros((39, 2))}, r"'context' must be a matrix of numbers with 40 rows.*\(39, 2\)"),
        ({"context": np.r_[np.zeros((39, 2)), [[0.0, np.nan]]]}, "row 39, column 1 holds nan"),
        ({"action_context": np.eye(3)}, "'action_context'"),
        ({"action": np.full(40, 9)}, "row 0 holds 9"),
        ({"pscore": np.zeros(40)}, "logging_prob must lie in"),
        ({"n_actions": 1, "action_context": None}, "at least two actions"),
    ],
)
def test_bad_feedback(change: dict[str, Any], said: str) -> None:
    with pytest.raises(LogError, match=said):
        from_obp(feedback() | change)


def test_bad_action_dist() -> None:
    given = feedback()
    with pytest.raises(LogError, match=r"\(40, 4, positions\)"):
        target_prob_from_obp(np.ones((40, 5, 1)), given)
    with pytest.raises(LogError, match="row 0 is 2"):
        target_prob_from_obp(np.full((40, 4, 1), 2.0), given)
    with pytest.raises(LogError, match="no position"):
        target_prob_from_obp(np.ones((40, 4, 3)), given | {"position": None})
    with pytest.raises(LogError, match=r"0\.\.1"):
        target_prob_from_obp(np.ones((40, 4, 2)), given)
