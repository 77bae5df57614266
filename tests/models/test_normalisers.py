"""What each normaliser's optimum is, on a world small enough to enumerate."""

import pytest
import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.models.normalisers import Full, InBatch, Normaliser, Sampled

COUNTS = torch.tensor([[8, 1, 3, 4], [2, 9, 4, 1], [1, 1, 20, 2]])  # rows of a log, by (context, action)
PROPENSITY = COUNTS.double() / COUNTS.sum(1, keepdim=True)  # β*
MARGINAL = COUNTS.sum(0).double() / COUNTS.sum()  # m
STATES = torch.eye(3, dtype=torch.float64)  # one-hot: weights[a, x] is the score f(x, a)


def log_rows() -> tuple[Tensor, Tensor]:
    pair = torch.arange(12).repeat_interleave(COUNTS.flatten())
    order = torch.randperm(len(pair), generator=torch.Generator().manual_seed(0))
    return pair[order] // 4, pair[order] % 4


def fitted(normaliser: Normaliser) -> Tensor:
    """Scores f(x, a) that maximise the log-likelihood of the whole log taken as one batch."""
    rows = log_rows()
    weights = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=200, tolerance_change=1e-15, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        value = -normaliser.surrogate(STATES, weights, None, *rows, torch.ones(len(rows[0])))
        (weights.grad,) = torch.autograd.grad(value, [weights])
        return value.detach()

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    return weights.detach().t()


def test_full_recovers_the_propensities() -> None:
    torch.testing.assert_close(torch.softmax(fitted(Full()), 1), PROPENSITY, atol=1e-5, rtol=0)


def test_in_batch_finds_a_lift_and_with_the_correction_the_propensities() -> None:
    lift = (PROPENSITY / MARGINAL).log()
    scores = fitted(InBatch())
    torch.testing.assert_close(torch.log_softmax(scores, 1), torch.log_softmax(lift, 1), atol=1e-5, rtol=0)
    assert float((torch.softmax(scores, 1) - PROPENSITY).abs().max()) > 0.1
    corrected = fitted(InBatch(frequency=COUNTS.sum(0)))
    torch.testing.assert_close(torch.softmax(corrected, 1), PROPENSITY, atol=1e-5, rtol=0)


@pytest.mark.parametrize("frequency", [None, torch.tensor([3.0, 1.0, 2.0, 5.0, 1.0, 1.0], dtype=torch.float64)])
def test_in_batch_equals_the_diagonal_of_rows_against_rows(frequency: Tensor | None) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((4, 3), (6, 3), (6,))
    states, weights, bias = (torch.randn(n, generator=generator, dtype=torch.float64).requires_grad_() for n in shapes)
    row_context, row_action = torch.tensor([3, 0, 1, 1, 3, 0]), torch.tensor([5, 2, 2, 0, 5, 3])
    logits = states[row_context] @ weights[row_action].t() + bias[row_action]
    if frequency is not None:
        logits = logits - frequency[row_action].log()
    expected = torch.log_softmax(logits, 1).diagonal()
    head = (states, weights, bias, row_context, row_action)
    torch.testing.assert_close(InBatch(frequency).log_prob(*head), expected)

    scale = torch.tensor([0.5, 0.0, 2.0, -1.0, 3.0, 1.0], dtype=torch.float64)
    reference = (expected.detach().exp() * scale * expected).sum()
    surrogate = InBatch(frequency).surrogate(*head, lambda log_prob, places: log_prob.exp() * scale[places])
    torch.testing.assert_close(surrogate, reference)
    moving = (states, weights, bias)
    for one, other in zip(torch.autograd.grad(surrogate, moving), torch.autograd.grad(reference, moving), strict=True):
        torch.testing.assert_close(one, other)


def dense_sampled(head: tuple[Tensor, Tensor, Tensor], rows: tuple[Tensor, Tensor], proposal: Tensor, s: int) -> Tensor:
    """Sampled softmax written row by row: candidates are the logged action and s draws, logits f − log Q."""
    states, weights, bias = head
    share = proposal / proposal.sum()
    uniform = torch.rand(s, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    drawn = torch.searchsorted(proposal.cumsum(0), uniform * proposal.sum(), right=True)
    corrected = states @ weights.t() + bias - share.log()
    own = corrected[rows[0], rows[1]].unsqueeze(1)
    candidates = torch.cat([own, corrected[rows[0]][:, drawn]], 1)
    return torch.log_softmax(candidates, 1)[:, 0] + (s * share[rows[1]]).log()


def test_sampled_is_the_sampled_softmax_and_tends_to_the_full_one() -> None:
    generator = torch.Generator().manual_seed(0)
    states, weights = (torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in (4, 30))
    bias = torch.randn(30, generator=generator, dtype=torch.float64)
    rows = torch.randint(4, (25,), generator=generator), torch.randint(30, (25,), generator=generator)
    proposal = torch.rand(30, generator=generator, dtype=torch.float64) + 0.1
    head = [part.requires_grad_() for part in (states, weights, bias)]
    exact = Full().log_prob(states, weights, bias, *rows)
    exact_gradients = torch.autograd.grad(exact.sum(), head)
    errors = []
    for s in (20, 200_000):
        found = Sampled(proposal, s, torch.Generator().manual_seed(5)).log_prob(states, weights, bias, *rows)
        gradients = torch.autograd.grad(found.sum(), head)
        if s == 20:
            reference = dense_sampled((states, weights, bias), rows, proposal, s)
            torch.testing.assert_close(found, reference)
            expected = torch.autograd.grad(reference.sum(), head)
            for one, other in zip(gradients, expected, strict=True):
                torch.testing.assert_close(one, other)
        off = [float((one - other).abs().max()) for one, other in zip(gradients, exact_gradients, strict=True)]
        errors.append(max(float((found - exact).detach().abs().max()), *off))
    assert errors[1] < 0.05 < errors[0]


def test_coefficients_as_a_function_or_as_numbers_train_alike() -> None:
    rows = log_rows()
    coefficients = torch.linspace(0, 1, len(rows[0]), dtype=torch.float64)
    weights = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    for normaliser in (Full(), InBatch()):
        given = normaliser.surrogate(STATES, weights, None, *rows, coefficients)
        asked = normaliser.surrogate(STATES, weights, None, *rows, lambda _, number: coefficients[number])
        direct = (coefficients * normaliser.log_prob(STATES, weights, None, *rows)).sum()
        torch.testing.assert_close(given, direct)
        torch.testing.assert_close(asked, direct)


def test_every_normaliser_reports_its_name() -> None:
    sampled = Sampled(torch.ones(4), 2, torch.Generator())
    names = [normaliser.name for normaliser in (Full(), InBatch(), InBatch(torch.ones(4)), sampled)]
    assert names == ["full", "in_batch", "in_batch_corrected", "sampled"]


def test_shares_of_zero_are_refused() -> None:
    with pytest.raises(ParameterError, match="every action"):
        Sampled(torch.tensor([1.0, 0.0]), 5, torch.Generator())
    with pytest.raises(ParameterError, match="at least 1"):
        Sampled(torch.ones(2), 0, torch.Generator())
    with pytest.raises(ParameterError, match="Action 2 occurs"):
        InBatch(torch.tensor([1.0, 1.0, 0.0, 1.0])).log_prob(STATES, torch.zeros(4, 3).double(), None, *log_rows())
