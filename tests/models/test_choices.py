"""The head among candidates equals the masked dense softmax in values and gradients, by either kernel."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.models import (
    InBatch,
    Normaliser,
    Offered,
    Sampled,
    candidate_logits,
    choices,
    expectation,
    iterate_log_probs,
    log_normaliser_gradient,
    softmax_log_prob,
    total_expectation,
    weighted_log_likelihood,
)
from offpolicy.models.choices import candidate_likelihood


def normal(random: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=random, dtype=torch.float64)


def a_case(n: int, actions: int, width: int, d: int, rows: int, seed: int = 0) -> dict[str, Any]:
    """A head over n contexts, each with its own set and scores of its own, and rows that took one of them."""
    random = torch.Generator().manual_seed(seed)
    sets = torch.stack([torch.randperm(actions, generator=random)[:width] for _ in range(n)])
    real = torch.arange(width) < torch.randint(1, width + 1, (n, 1), generator=random)
    context = torch.randint(n, (rows,), generator=random)
    place = (torch.rand(rows, generator=random) * real.sum(1)[context]).long()
    return {
        "states": normal(random, n, d),
        "weights": normal(random, actions, d),
        "bias": normal(random, actions),
        "scores": normal(random, n, width),
        "actions": sets.masked_fill(~real, 0),
        "real": real,
        "rows": (context, sets[context, place]),
        "coefficients": normal(random, rows),
    }


def masked_log_softmax(case: dict[str, Any], leaves: list[Tensor]) -> Tensor:
    """log π of all actions by brute force: everything that is not on offer is −inf."""
    states, weights, bias, scores = leaves
    n, actions = len(states), len(weights)
    added = torch.zeros(n, actions, dtype=torch.float64).scatter_add(1, case["actions"], scores * case["real"])
    offered = torch.zeros(n, actions).scatter_add(1, case["actions"], case["real"].float()) > 0
    return (states @ weights.T + bias + added).masked_fill(~offered, -torch.inf).log_softmax(1)


def leaves_of(case: dict[str, Any]) -> list[Tensor]:
    return [case[name].clone().requires_grad_() for name in ("states", "weights", "bias", "scores")]


@pytest.mark.parametrize("dense", [True, False])
@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 12),
    actions=st.integers(2, 9),
    width=st.integers(1, 6),
    d=st.integers(1, 4),
    rows=st.integers(1, 20),
    tile=st.sampled_from([1, 30, 1 << 19]),
    seed=st.integers(0, 100),
)
def test_both_kernels_are_the_masked_softmax(
    dense: bool, n: int, actions: int, width: int, d: int, rows: int, tile: int, seed: int
) -> None:
    case = a_case(n, actions, min(width, actions), d, rows, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choices, "TILE_NUMBERS", tile)
        own = leaves_of(case)
        expected = (case["coefficients"] * masked_log_softmax(case, own)[case["rows"]]).sum()
        wanted = torch.autograd.grad(expected, own)
        for fused in (True, False):
            own = leaves_of(case)
            offered = Offered(case["actions"], case["real"], own[3])
            if fused:
                found = candidate_likelihood(
                    own[0], own[1], own[2], offered, case["rows"], case["coefficients"], dense=dense
                )
            else:
                logits = candidate_logits(own[0], own[1], own[2], offered, dense=dense)
                log_prob = logits.log_softmax(1)[case["rows"][0], offered.place(*case["rows"])]
                found = (case["coefficients"] * log_prob).sum()
            torch.testing.assert_close(found, expected.detach(), rtol=1e-10, atol=1e-10)
            for mine, other in zip(torch.autograd.grad(found, own), wanted, strict=True):
                torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dense", [True, False])
def test_gradients_pass_gradcheck(dense: bool) -> None:
    case = a_case(5, 7, 4, 3, 1)

    def logits(*own: Tensor) -> Tensor:
        found = candidate_logits(own[0], own[1], own[2], Offered(case["actions"], case["real"], own[3]), dense=dense)
        return found.log_softmax(1).where(case["real"], 0.0)

    assert torch.autograd.gradcheck(logits, leaves_of(case))


def test_the_cheaper_kernel_is_chosen() -> None:
    offered = Offered(torch.zeros(4, 5, dtype=torch.int64), torch.ones(4, 5, dtype=torch.bool))
    states = torch.zeros(4, 3)
    assert choices.is_dense(states, torch.zeros(choices.DENSE_WORTH * 5, 3), offered)
    assert not choices.is_dense(states, torch.zeros(choices.DENSE_WORTH * 5 + 1, 3), offered)


def test_everything_on_offer_is_the_plain_head() -> None:
    case = a_case(20, 6, 6, 3, 50)
    offered = Offered(torch.arange(6).expand(20, 6), torch.ones(20, 6, dtype=torch.bool))
    head = (case["states"], case["weights"], case["bias"])
    context, action = case["rows"]
    plain = softmax_log_prob(*head, context, action)
    torch.testing.assert_close(softmax_log_prob(*head, context, action, offered=offered), plain)
    value = weighted_log_likelihood(*head, context, action, case["coefficients"], offered=offered)
    torch.testing.assert_close(value, case["coefficients"] @ plain)
    events = torch.rand(20, dtype=torch.float64)
    for mine, other in zip(
        log_normaliser_gradient(*head, events, offered=offered), log_normaliser_gradient(*head, events), strict=True
    ):
        torch.testing.assert_close(mine, other)

    def values(part: slice) -> Tensor:
        return torch.arange(20 * 6, dtype=torch.float64).view(20, 6)[part]

    torch.testing.assert_close(expectation(*head, values, offered), expectation(*head, values))
    torch.testing.assert_close(
        total_expectation(*head, values, events, offered), total_expectation(*head, values, events)
    )
    for (_, mine), (_, other) in zip(
        iterate_log_probs(*head, 100, offered), iterate_log_probs(*head, 100), strict=True
    ):
        torch.testing.assert_close(mine, other.clone())


def test_actions_left_out_are_not_chosen_and_a_set_may_lose_them_all() -> None:
    case = a_case(6, 5, 3, 2, 1)
    offered = Offered(case["actions"], case["real"])
    place = torch.tensor([0, -1, 1, -1, 2])
    some = offered.within(place)
    kept = {0: 0, 2: 1, 4: 2}
    for context in range(6):
        before = [int(a) for a in case["actions"][context][case["real"][context]]]
        after = [int(a) for a in some.actions[context][some.real[context]]]
        assert after == [kept[a] for a in before if a in kept]
    gone = offered.within(torch.full((5,), -1))
    head = (case["states"], case["weights"], case["bias"])
    log_total, d_weights, d_bias = log_normaliser_gradient(*head, torch.ones(6, dtype=torch.float64), offered=gone)
    assert not log_total.any()
    assert not d_weights.any()
    assert not d_bias.any()


def test_normalisers_that_stand_in_for_a_long_sum_are_refused() -> None:
    case = a_case(6, 5, 3, 2, 4)
    offered = Offered(case["actions"], case["real"])
    context, action = case["rows"]
    head = (case["states"], case["weights"], case["bias"])
    normalisers: tuple[Normaliser, ...] = (InBatch(), Sampled(torch.ones(5), 3, torch.Generator()))
    for normaliser in normalisers:
        with pytest.raises(ParameterError, match="this log has candidates"):
            normaliser.surrogate(*head, context, action, case["coefficients"], offered=offered)
