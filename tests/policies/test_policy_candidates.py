"""Every policy chooses among what a context offers: its probabilities there sum to 1, and all else has none."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from offpolicy.datasets.request_worlds import RequestWorld
from offpolicy.log import ActionTable, Candidates, EmbeddingColumn, FeatureTable, LoggedData, Vocabulary
from offpolicy.models import linear_scorer
from offpolicy.policies import (
    CountsPolicy,
    EpsilonGreedyPolicy,
    LinearSoftmaxPolicy,
    MixturePolicy,
    Policy,
    PopularityPolicy,
    RandomTopK,
    ScorerPolicy,
    UniformPolicy,
    aligned,
    all_log_probs,
    as_policy,
    choice_log_probs,
    logged_log_prob,
    with_backoff,
)

WORLD = RequestWorld.make("varying", 0, n_actions=9)
LOG = WORLD.log(80, 1)
SETS = LOG.candidates
assert SETS is not None


def a_scorer_policy() -> ScorerPolicy:
    scorer = linear_scorer(LOG)
    with torch.no_grad():
        scorer.weights.normal_(generator=torch.Generator().manual_seed(0))
        scorer.bias.normal_(generator=torch.Generator().manual_seed(1))
    return ScorerPolicy(scorer, LOG.actions)


def lists() -> dict[str, Any]:
    return {"lists": [[i % 9, (i + 2) % 9] for i in range(LOG.n_contexts)], "residual": 0.1}


POLICIES: dict[str, Any] = {
    "uniform": UniformPolicy(LOG.actions),
    "linear": WORLD.target,
    "scorer": a_scorer_policy(),
    "greedy": EpsilonGreedyPolicy(WORLD.target, 0.2),
    "popularity": PopularityPolicy.fit(LOG),
    "counts": CountsPolicy(LOG),
    "mixture": MixturePolicy([WORLD.target, UniformPolicy(LOG.actions)], torch.tensor([0.7, 0.3])),
    "top_k": RandomTopK(linear_scorer(LOG), 2.0, LOG.actions),
    "backoff": with_backoff(WORLD.target, LOG.take(LOG.action < 6)),
    "function": as_policy(lambda contexts: torch.full((contexts.n_rows, 9), 1 / 9), LOG),
    "lists": as_policy(lists(), LOG),
}
RENORMALISED = ("uniform", "linear", "scorer", "popularity", "function", "lists")
"""Policies whose choice among candidates is their choice among all, renormalised."""


def brute_force(policy: Policy) -> Tensor:
    """log π of all actions, renormalised over each context's candidates."""
    assert SETS is not None
    offered = torch.zeros(LOG.n_contexts, 9, dtype=torch.bool)
    offered[torch.from_numpy(SETS.owner), torch.from_numpy(SETS.codes.astype(np.int64))] = True
    every = policy.log_probs(FeatureTable(dict(LOG.contexts)) if policy is not POLICIES["lists"] else LOG.contexts)
    return every.double().masked_fill(~offered, -torch.inf).log_softmax(1)


@pytest.mark.parametrize("name", POLICIES)
def test_probabilities_are_of_what_is_on_offer(name: str) -> None:
    assert SETS is not None
    policy = POLICIES[name]
    if name == "lists":
        rows = logged_log_prob(policy, LOG)
        expected = brute_force(policy)[torch.from_numpy(LOG.context_index).long(), torch.from_numpy(LOG.action).long()]
        torch.testing.assert_close(rows, expected)
        return
    found = choice_log_probs(policy, LOG.contexts)
    assert found.shape == (LOG.n_contexts, SETS.width)
    real = torch.from_numpy(SETS.padded() >= 0)
    torch.testing.assert_close(found.double().exp().sum(1), torch.ones(LOG.n_contexts, dtype=torch.float64))
    assert bool((found[~real] == -torch.inf).all())
    if name in RENORMALISED:
        tolerance = 1e-5 if found.dtype == torch.float32 else 1e-10
        torch.testing.assert_close(
            all_log_probs(policy, LOG.contexts).double(), brute_force(policy), rtol=tolerance, atol=tolerance
        )
    rows = found[torch.from_numpy(LOG.context_index).long(), torch.from_numpy(np.array(LOG.row_place))].double()
    torch.testing.assert_close(logged_log_prob(policy, LOG), rows, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "lists"])
def test_offering_everything_changes_nothing(name: str) -> None:
    policy = POLICIES[name]
    every = Candidates.of_lists([list(range(9))] * LOG.n_contexts, LOG.actions.vocabulary)
    plain = FeatureTable(dict(LOG.contexts))
    if name == "counts":
        pytest.skip("counts know contexts together with what they offered")
    found = choice_log_probs(policy, FeatureTable(dict(LOG.contexts), every))
    torch.testing.assert_close(found.double(), policy.log_probs(plain).double(), rtol=1e-5, atol=1e-6)


def test_the_favourite_is_the_favourite_among_the_candidates() -> None:
    contexts = FeatureTable(
        {"x": EmbeddingColumn(np.ones((2, 1), dtype=np.float32))},
        Candidates.of_lists([[0, 1, 2], [1, 2]], Vocabulary(range(4))),
    )
    base = LinearSoftmaxPolicy("x", torch.tensor([[1.0], [2.0], [3.0], [9.0]]), torch.zeros(4))
    probs = choice_log_probs(EpsilonGreedyPolicy(base, 0.3), contexts).exp()
    expected = [[0.1, 0.1, 0.8], [0.15, 0.85, 0.0]]
    torch.testing.assert_close(probs, torch.tensor(expected, dtype=torch.float64))


def test_candidates_that_a_policy_does_not_know_are_never_chosen() -> None:
    known = ActionTable(Vocabulary([3, 1]))
    contexts = FeatureTable(
        {"x": EmbeddingColumn(np.ones((3, 1), dtype=np.float32))},
        Candidates.of_lists([[0, 1, 3], [0, 2], [3]], Vocabulary(range(4))),
    )
    policy = LinearSoftmaxPolicy("x", torch.tensor([[1.0], [1.0]]), torch.zeros(2), table=known)
    for one in (policy, aligned(policy, ActionTable.numbered(4))):
        probs = choice_log_probs(one, contexts).exp()
        # Where it knows none of the candidates nothing tells them apart.
        torch.testing.assert_close(probs, torch.tensor([[0.0, 0.5, 0.5], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]).to(probs))


def test_popularity_is_of_those_on_offer() -> None:
    """Action 2 is rarely on offer but always taken: raw counts would call it unpopular."""
    random = np.random.default_rng(0)
    strength = np.array([1.0, 2.0, 8.0])
    lists, action = [], []
    for i in range(4000):
        offered = [0, 1] if i % 10 else [0, 1, 2]
        share = strength[offered] / strength[offered].sum()
        lists.append(offered)
        action.append(int(random.choice(offered, p=share)))
    log = LoggedData.from_arrays({"x": np.zeros(4000)}, action, np.zeros(4000), actions=3, candidates=lists)
    found = PopularityPolicy.fit(log).log_frequency.exp().numpy()
    np.testing.assert_allclose(found / found[0], strength, rtol=0.15)
    among = choice_log_probs(PopularityPolicy.fit(log), log.contexts).exp()
    assert log.n_contexts == 2
    np.testing.assert_allclose(among[0].numpy(), [1 / 11, 2 / 11, 8 / 11], atol=0.03)


def test_back_off_counts_the_candidates_never_logged() -> None:
    part = LOG.take(np.flatnonzero(LOG.action < 6))
    policy: Any = with_backoff(WORLD.target, part)
    assert SETS is not None
    probs = choice_log_probs(policy, LOG.contexts).exp()
    codes = SETS.padded()
    unseen = np.asarray(part.action_count == 0)
    for context in range(LOG.n_contexts):
        own = [a for a in codes[context] if a >= 0]
        never = [a for a in own if unseen[a]]
        each = policy.mass / unseen.sum()
        total = (1 - policy.mass if len(never) < len(own) else 0.0) + each * len(never)
        for place, action in enumerate(own):
            if unseen[action]:
                assert float(probs[context, place]) == pytest.approx(each / total)
