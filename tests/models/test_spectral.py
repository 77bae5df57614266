"""Spectral embeddings of ids: they find who is logged with what, without looking at rewards."""

import numpy as np
import torch

from offpolicy.log import CategoricalColumn, FeatureTable, LoggedData, NumericColumn, Vocabulary
from offpolicy.models import build_scorer, has_many_ids, spectral_scorer

USERS, ACTIONS = 120, 12


def a_log(n: int = 6000, seed: int = 0) -> LoggedData:
    """Even users see the first half of the actions, odd ones the second."""
    random = np.random.default_rng(seed)
    ids = Vocabulary(np.array([f"u{i:03d}" for i in range(USERS)]))
    contexts = FeatureTable(
        {
            "user": CategoricalColumn(np.arange(USERS, dtype=np.int32), ids),
            "age": NumericColumn(random.normal(size=USERS)),
        }
    )
    user = random.integers(USERS, size=n)
    action = random.integers(ACTIONS // 2, size=n) + (user % 2) * (ACTIONS // 2)
    return LoggedData.from_arrays(contexts, action, random.integers(2, size=n), context_index=user, actions=ACTIONS)


def test_the_first_direction_tells_the_two_kinds_of_users_apart() -> None:
    log = a_log()
    scorer = spectral_scorer(log)
    first = scorer.states(log.contexts).detach()[:, 0].numpy()
    if first[0] < 0:
        first = -first
    assert (np.sign(first) == np.where(np.arange(USERS) % 2 == 0, 1, -1)).all()
    assert first.std() < 1.05  # unit variance over events
    assert scorer.dim == 4 + 1  # no other direction stands out, and one number
    assert has_many_ids(log.contexts)
    assert not has_many_ids(FeatureTable({"age": log.contexts["age"]}))


def test_its_actions_can_be_set_and_it_is_built_again_from_its_specification() -> None:
    log = a_log()
    scorer = spectral_scorer(log, rank=3)
    weights = torch.randn(ACTIONS, scorer.dim, generator=torch.Generator().manual_seed(0))
    bias = torch.arange(ACTIONS, dtype=torch.float32)
    assert scorer.set_actions(weights, bias)
    torch.testing.assert_close(scorer.actions()[0], weights)
    torch.testing.assert_close(scorer.actions()[1], bias)
    again = build_scorer(scorer.specification())
    again.load_state_dict(scorer.state_dict())
    torch.testing.assert_close(again.states(log.contexts), scorer.states(log.contexts))


def test_rewards_do_not_enter() -> None:
    log = a_log()
    other = LoggedData.from_arrays(
        log.contexts, log.action, 1 - log.reward, context_index=log.context_index, actions=ACTIONS
    )
    torch.testing.assert_close(spectral_scorer(log).states(log.contexts), spectral_scorer(other).states(log.contexts))
