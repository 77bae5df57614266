"""Expectations, rankings and draws over all actions against their dense counterparts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.models import all_actions
from offpolicy.models.all_actions import expectation, iterate_log_probs, linear_values, sample, top_k, total_expectation


def head(contexts: int, actions: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    states, weights, bias = ((contexts, d), (actions, d), (actions,))
    return (
        torch.randn(states, generator=generator, dtype=torch.float64),
        torch.randn(weights, generator=generator, dtype=torch.float64),
        torch.randn(bias, generator=generator, dtype=torch.float64),
    )


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_actions, "TILE", 4)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("actions", [7, 5000])
def test_log_probs_come_tile_by_tile(with_bias: bool, actions: int) -> None:
    states, weights, bias = head(10, actions, 3)
    offset = bias if with_bias else None
    expected = torch.log_softmax(states @ weights.t() + (bias if with_bias else 0.0), 1)
    for tile in (None, 3):
        found = torch.empty_like(expected)
        for part, log_prob in iterate_log_probs(states, weights, offset, tile):
            found[part] = log_prob
        torch.testing.assert_close(found, expected)


def test_expectation_equals_the_dense_sum_and_so_does_its_gradient() -> None:
    reward_states, reward_weights, reward_bias = head(10, 7, 2, seed=1)
    values = linear_values(reward_states, reward_weights, reward_bias)
    dense = torch.sigmoid(reward_states @ reward_weights.t() + reward_bias)
    states, weights, bias = leaves = [part.requires_grad_() for part in head(10, 7, 3)]
    coefficients = torch.linspace(-1, 1, 10, dtype=torch.float64)
    expected = (torch.softmax(states @ weights.t() + bias, 1) * dense).sum(1)
    expected_gradients = torch.autograd.grad((coefficients * expected).sum(), leaves)
    found = expectation(states, weights, bias, values)
    torch.testing.assert_close(found, expected)
    for one, other in zip(torch.autograd.grad((coefficients * found).sum(), leaves), expected_gradients, strict=True):
        torch.testing.assert_close(one, other)
    assert torch.autograd.gradcheck(lambda h, w, b: expectation(h, w, b, values), leaves)
    total = total_expectation(states, weights, bias, values, coefficients)
    torch.testing.assert_close(total, (coefficients * expected).sum())
    for one, other in zip(torch.autograd.grad(2 * total, leaves), expected_gradients, strict=True):
        torch.testing.assert_close(one, 2 * other)


def test_expectation_of_a_constant_is_the_constant() -> None:
    states, weights, bias = head(10, 7, 3)
    mean = expectation(states, weights, bias, lambda part: torch.full((part.stop - part.start, 7), 2.5))
    torch.testing.assert_close(mean, torch.full((10,), 2.5, dtype=torch.float64))


@given(levels=st.lists(st.integers(0, 3), min_size=1, max_size=12), data=st.data())
@settings(max_examples=60, deadline=None)
def test_equal_logits_rank_by_action_number(levels: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(levels)))
    scores = torch.tensor(levels, dtype=torch.float32)
    actions, logits = top_k(torch.ones(2, 1), scores.unsqueeze(1), None, k)
    expected = sorted(range(len(levels)), key=lambda action: (-levels[action], action))[:k]
    assert actions.tolist() == [expected, expected]
    assert torch.equal(logits[0], scores[expected])


def test_top_k_refuses_more_than_there_are() -> None:
    with pytest.raises(ParameterError, match=r"1\.\.7"):
        top_k(*head(2, 7, 3), k=8)


def test_draws_follow_the_policy_and_carry_its_log_prob() -> None:
    states, weights, bias = head(6, 8, 3)
    bias[2] = -torch.inf
    draws, log_prob = sample(states, weights, bias, 20_000, torch.Generator().manual_seed(3))
    exact = torch.log_softmax(states @ weights.t() + bias, 1)
    torch.testing.assert_close(log_prob, exact.gather(1, draws))
    possible = torch.arange(8) != 2
    for context in range(6):
        counts = torch.bincount(draws[context], minlength=8)
        assert counts[2] == 0
        expected = exact[context].exp()[possible] * 20_000
        assert chisquare(counts[possible].numpy(), expected.numpy()).pvalue > 1e-4


def test_draws_repeat_with_the_seed() -> None:
    first, second = (sample(*head(6, 8, 3), 50, torch.Generator().manual_seed(3))[0] for _ in range(2))
    assert torch.equal(first, second)
