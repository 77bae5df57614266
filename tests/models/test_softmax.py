"""The fused head equals the dense softmax in values and gradients, whatever the shapes, order, chunks and logits."""

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.models import softmax, tiles
from offpolicy.models.softmax import (
    log_normaliser,
    softmax_log_prob,
    weighted_log_likelihood,
)

TINY = 64 * 8 * 5  # bytes: five actions a chunk in float64 at the smallest tile


class Case(NamedTuple):
    states: Tensor
    weights: Tensor
    bias: Tensor | None
    row_context: Tensor
    row_action: Tensor

    def leaves(self) -> "Case":
        bias = None if self.bias is None else self.bias.clone().requires_grad_()
        return self._replace(
            states=self.states.clone().requires_grad_(), weights=self.weights.clone().requires_grad_(), bias=bias
        )

    def gradients(self, value: Tensor) -> list[Tensor]:
        leaves = [self.states, self.weights] if self.bias is None else [self.states, self.weights, self.bias]
        return list(torch.autograd.grad(value, leaves))

    def to(self, dtype: torch.dtype) -> "Case":
        bias = None if self.bias is None else self.bias.to(dtype)
        return self._replace(states=self.states.to(dtype), weights=self.weights.to(dtype), bias=bias)


def case(
    contexts: int, actions: int, d: int, rows: int, *, bias: bool = True, scale: float = 1.0, seed: int = 0
) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return Case(
        normal(contexts, d) * scale,
        normal(actions, d),
        normal(actions) if bias else None,
        torch.randint(contexts, (rows,), generator=generator),
        torch.randint(actions, (rows,), generator=generator),
    )


def dense_logits(given: Case) -> Tensor:
    logits = given.states @ given.weights.t()
    return logits if given.bias is None else logits + given.bias


def naive(given: Case) -> Tensor:
    return torch.log_softmax(dense_logits(given), 1)[given.row_context, given.row_action]


def assert_same(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-9) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@given(
    contexts=st.sampled_from([1, 2, 5, 9, 16, 18, 33]),
    actions=st.integers(1, 13),
    d=st.integers(1, 4),
    rows=st.integers(0, 40),
    bias=st.booleans(),
    tile=st.sampled_from([1, 3, 16, 19, 192]),
    max_bytes=st.sampled_from([1 << 27, TINY, 1]),
)
@settings(max_examples=80, deadline=None)
def test_every_shape_tile_and_chunk_equals_the_dense_softmax(
    contexts: int, actions: int, d: int, rows: int, bias: bool, tile: int, max_bytes: int
) -> None:
    given = case(contexts, actions, d, rows, bias=bias, seed=rows)
    coefficients = torch.linspace(-1, 2, rows, dtype=torch.float64)
    leaves = given.leaves()
    expected = naive(leaves)
    gradients = leaves.gradients((coefficients * expected).sum())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "TILE", tile)
        patch.setattr(tiles, "TILE_NUMBERS", 1)  # or a few actions would leave one tile for everything
        found = softmax_log_prob(*leaves, max_bytes=max_bytes)
        assert_same(leaves.gradients((coefficients * found).sum()), gradients)
        value = weighted_log_likelihood(*leaves, coefficients, max_bytes=max_bytes)
        assert_same(leaves.gradients(value), gradients)
    assert_same([found], [expected])
    torch.testing.assert_close(value, (coefficients * expected).sum())


@pytest.mark.parametrize("max_bytes", [1 << 27, TINY])
def test_gradcheck(max_bytes: int) -> None:
    states, weights, bias, row_context, row_action = case(4, 12, 3, 9).leaves()
    assert bias is not None

    def log_prob(states: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
        return softmax_log_prob(states, weights, bias, row_context, row_action, max_bytes=max_bytes)

    def log_total(states: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
        return log_normaliser(states, weights, bias, max_bytes=max_bytes)

    assert torch.autograd.gradcheck(log_prob, (states, weights, bias))
    assert torch.autograd.gradcheck(log_total, (states, weights, bias))


def test_log_normaliser_equals_logsumexp() -> None:
    given = case(7, 23, 4, 0)
    expected = torch.logsumexp(dense_logits(given), 1)
    for max_bytes in (1 << 27, TINY):
        torch.testing.assert_close(log_normaliser(*given[:3], max_bytes=max_bytes), expected)


def test_coefficients_may_depend_on_log_prob_and_are_held_fixed() -> None:
    given = case(6, 11, 3, 30).leaves()
    reward = torch.rand(30, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = naive(given)
    objective = (expected.detach().exp().clamp(max=0.2) * reward * expected).sum()
    value = weighted_log_likelihood(*given, lambda log_prob, rows: log_prob.exp().clamp(max=0.2) * reward[rows])
    torch.testing.assert_close(value, objective)
    assert_same(given.gradients(3.0 * value), given.gradients(3.0 * objective))


@pytest.mark.parametrize(("contexts", "passes"), [(40, 1), (70, 2)])
def test_coefficients_of_the_whole_batch_take_a_second_pass_only_if_it_does_not_fit_a_tile(
    contexts: int, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = case(contexts, 11, 3, 300).leaves()
    asked: list[int] = []

    def self_normalised(log_prob: Tensor, rows: tiles.Places) -> Tensor:
        asked.append(len(log_prob))
        return log_prob.exp() / log_prob.exp().sum()

    swept: list[int] = []

    def counted(states: Tensor, *rest: Any, **more: Any) -> tuple[tiles.LikelihoodGradient, Tensor]:
        swept.append(len(states))
        return tiles.sweep(states, *rest, **more)

    monkeypatch.setattr(softmax, "sweep", counted)
    expected = naive(given)
    objective = (expected.detach().exp() / expected.detach().exp().sum() * expected).sum()
    value = weighted_log_likelihood(*given, self_normalised, whole_batch=True, max_bytes=1)  # tiles of 64 contexts
    assert_same([value, *given.gradients(value)], [objective, *given.gradients(objective)])
    assert asked == [300]
    assert len(swept) == passes


@pytest.mark.parametrize("max_bytes", [1 << 27, TINY])
def test_masked_actions_may_fill_a_chunk(max_bytes: int) -> None:
    given = case(9, 12, 3, 30)
    assert given.bias is not None
    given.bias[:6] = -torch.inf
    given = given._replace(row_action=given.row_action % 6 + 6)
    torch.testing.assert_close(softmax_log_prob(*given, max_bytes=max_bytes), naive(given))


def test_towers_in_front_receive_their_gradients() -> None:
    given = case(6, 11, 3, 30)
    torch.manual_seed(0)
    tower = torch.nn.Linear(3, 3, dtype=torch.float64)
    head = given._replace(states=tower(given.states), weights=tower(given.weights))
    parameters = list(tower.parameters())
    expected = torch.autograd.grad(naive(head).sum(), parameters, retain_graph=True)
    found = torch.autograd.grad(weighted_log_likelihood(*head, torch.ones(30, dtype=torch.float64)), parameters)
    assert_same(list(found), list(expected))


def test_rows_and_contexts_with_zero_coefficient_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    visited: list[int] = []
    normalise = tiles.Head.normalise

    def counting(head: tiles.Head, tile: tiles.Tile, scaled: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        visited.append(tile.size)
        return normalise(head, tile, scaled)

    monkeypatch.setattr(tiles.Head, "normalise", counting)
    given = case(50, 7, 3, 200).leaves()
    coefficients = (given.row_context == 4).double()
    given.gradients(weighted_log_likelihood(*given, coefficients))
    assert visited == [1]
    log_prob = softmax_log_prob(*given)
    visited.clear()
    given.gradients((coefficients * log_prob).sum())
    assert visited == [1]
    visited.clear()
    assert weighted_log_likelihood(*given, torch.zeros(200, dtype=torch.float64)).item() == 0.0
    assert visited == []


def test_gradients_nobody_needs_are_not_computed() -> None:
    given = case(5, 7, 3, 10)
    found = tiles.sweep(
        *given[:3],
        tiles.Rows(given.row_context, given.row_action),
        max_bytes=tiles.MAX_BYTES,
        coefficients=torch.ones(10),
        needs=(False, True, False),
    )[0]
    assert found.states is None
    assert found.bias is None
    weights = given.weights.clone().requires_grad_()
    reference = given._replace(weights=weights)
    for value in (weighted_log_likelihood(*reference, torch.ones(10)), softmax_log_prob(*reference).sum()):
        torch.testing.assert_close(torch.autograd.grad(value, [weights])[0], found.weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("max_bytes", [1 << 27, 64 * 4 * 7])
def test_extreme_logits_stay_exact(dtype: torch.dtype, max_bytes: int) -> None:
    given = case(40, 50, 4, 200, scale=1e4)
    reference, fast = given.leaves(), given.to(dtype).leaves()
    expected, found = naive(reference), softmax_log_prob(*fast, max_bytes=max_bytes)
    gradients = fast.gradients(found.sum())
    assert expected.min() < -1e4
    tolerance = 1e-9 if dtype == torch.float64 else 3e-6
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance * 1e4)
    sharp = torch.logsumexp(dense_logits(given), 1)
    torch.testing.assert_close(log_normaliser(*fast[:3]).double(), sharp, rtol=tolerance, atol=tolerance)
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    if dtype == torch.float64:
        assert_same(gradients, reference.gradients(expected.sum()), 1e-6)


def test_single_precision_is_as_close_as_dense_single_precision() -> None:
    given = case(300, 2000, 16, 900, scale=0.7)
    cast = given.to(torch.float32)
    exact, ours, dense = naive(given), softmax_log_prob(*cast).double(), naive(cast).double()
    assert float((ours - exact).abs().max()) <= 2 * float((dense - exact).abs().max())


@pytest.mark.parametrize("max_bytes", [1 << 27, TINY])
def test_a_bias_of_minus_infinity_masks_actions(max_bytes: int) -> None:
    given = case(5, 17, 3, 20)
    assert given.bias is not None
    mask = torch.arange(17) % 3 == 0
    mask[:6] = True
    masked = given._replace(bias=given.bias.masked_fill(mask, -torch.inf), row_action=torch.full((20,), 7)).leaves()
    found = softmax_log_prob(*masked, max_bytes=max_bytes)
    torch.testing.assert_close(found, naive(masked))
    gradients = masked.gradients(found.sum())
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    assert not bool(gradients[1][mask].any())


def test_buffer_respects_the_byte_budget() -> None:
    head = tiles.Head(torch.zeros(1000, 2), None, 500, max_bytes=64 * 1000)
    assert head.buffer.nbytes <= 64 * 1000
    assert (head.tile, head.chunk) == (64, 250)


def test_repeated_calls_are_bitwise_equal() -> None:
    leaves = case(30, 40, 5, 300).leaves()
    first, second = (weighted_log_likelihood(*leaves, torch.ones(300)) for _ in range(2))
    assert torch.equal(first, second)
    for one, other in zip(leaves.gradients(first), leaves.gradients(second), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"row_action": torch.tensor([0, 7])}, "Row 1 points at action 7"),
        ({"row_context": torch.tensor([-1, 0])}, "Row 0 points at context -1"),
        ({"row_context": torch.tensor([0])}, "one number per row"),
        ({"bias": torch.zeros(3)}, "bias must hold"),
        ({"states": torch.zeros(5, 2)}, "states must be"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Tensor], words: str) -> None:
    given = case(5, 7, 3, 2)._replace(**change)
    with pytest.raises(ParameterError, match=words):
        softmax_log_prob(*given)


def test_the_fused_pass_supports_one_backward_pass() -> None:
    given = case(5, 7, 3, 10).leaves()
    value = weighted_log_likelihood(*given, torch.ones(10))
    torch.autograd.grad(value, [given.states], retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward pass"):
        torch.autograd.grad(value, [given.states])
