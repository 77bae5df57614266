"""Centred Gauss–Newton U against explicit sums over actions, autograd's Hessian and what the bands should cover."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from offpolicy.datasets.synthetic import LinearSoftmaxWorld
from offpolicy.errors import ParameterError
from offpolicy.log import EmbeddingColumn, LoggedData
from offpolicy.policies import tensor
from offpolicy.uncertainty import BlockGaussNewton, LastLayerGaussNewton, LinearGaussNewton, gauss_newton

shapes = {
    "contexts": st.integers(1, 6),
    "actions": st.integers(1, 5),
    "d": st.integers(1, 4),
    "seed": st.integers(0, 999),
}


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauss_newton, "TILE", 4)
    monkeypatch.setattr(gauss_newton, "CHUNK_BYTES", 300)


class Model:
    """Random states, embeddings, head and counts."""

    def __init__(self, contexts: int, actions: int, d: int, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self.states, self.embeddings, self.weights = (
            torch.randn(n, d, generator=random, dtype=torch.float64) for n in (contexts, actions, actions)
        )
        self.bias = torch.randn(actions, generator=random, dtype=torch.float64)
        self.counts = torch.randint(0, 6, (contexts,), generator=random).double()
        self.log_probs = torch.log_softmax(self.states @ self.weights.T + self.bias, 1)
        self.pairs = torch.cartesian_prod(torch.arange(contexts), torch.arange(actions)).unbind(1)
        self.head = (self.weights, self.bias)

    def tile(self, part: slice) -> Tensor:
        return self.log_probs[part]


def by_inverse(features: Tensor, log_probs: Tensor, counts: Tensor, ridge: float) -> Tensor:
    """U of all pairs, from g (contexts, actions, any) and explicit sums."""
    prob = log_probs.exp()
    off = features - (prob.unsqueeze(2) * features).sum(1, keepdim=True)
    matrix = torch.einsum("x,xa,xai,xaj->ij", counts, prob, off, off)
    inverse = torch.linalg.inv(matrix + ridge * torch.eye(features.shape[2], dtype=torch.float64))
    return torch.einsum("xai,ij,xaj->xa", off, inverse, off).clamp(min=0).sqrt().flatten()


def last_layer(model: Model, head: gauss_newton.LogProbs, embeddings: Tensor, ridge: float = 1.0) -> Tensor:
    matrix = LastLayerGaussNewton(embeddings.shape[1])
    matrix.add(model.states, model.counts, embeddings, head)
    return matrix.finish(ridge).of(model.states, embeddings, head, *model.pairs)


def linear(model: Model, head: gauss_newton.LogProbs, ridge: float = 1.0) -> Tensor:
    matrix = LinearGaussNewton(model.states.shape[1], len(model.weights))
    matrix.add(model.states, model.counts, head)
    return matrix.finish(ridge).of(model.states, head, *model.pairs)


@given(**shapes, ridge=st.sampled_from([0.1, 1.0, 5.0]))
def test_shared_last_layer(contexts: int, actions: int, d: int, seed: int, ridge: float) -> None:
    model = Model(contexts, actions, d, seed)
    features = model.states.unsqueeze(1) * model.embeddings
    expected = by_inverse(features, model.log_probs, model.counts, ridge)
    torch.testing.assert_close(last_layer(model, model.tile, model.embeddings, ridge), expected)
    torch.testing.assert_close(last_layer(model, model.head, model.embeddings, ridge), expected)


@given(**shapes, ridge=st.sampled_from([0.1, 1.0, 5.0]))
def test_linear_softmax(contexts: int, actions: int, d: int, seed: int, ridge: float) -> None:
    model = Model(contexts, actions, d, seed)
    features = torch.einsum("ab,xi->xabi", torch.eye(actions, dtype=torch.float64), model.states).flatten(2)
    expected = by_inverse(features, model.log_probs, model.counts, ridge)
    torch.testing.assert_close(linear(model, model.tile, ridge), expected)
    torch.testing.assert_close(linear(model, model.head, ridge), expected)


@given(**shapes)
def test_a_shift_of_all_logits_of_a_context_changes_nothing(contexts: int, actions: int, d: int, seed: int) -> None:
    model = Model(contexts, actions, d, seed)
    shift = torch.linspace(-3, 3, d, dtype=torch.float64)
    shifted = (model.weights + shift, model.bias + 7)
    torch.testing.assert_close(linear(model, shifted), linear(model, model.head))
    embeddings = model.embeddings + 100 * shift
    torch.testing.assert_close(last_layer(model, shifted, embeddings), last_layer(model, model.head, model.embeddings))


@given(**shapes, cut=st.integers(0, 6))
def test_shards_merge(contexts: int, actions: int, d: int, seed: int, cut: int) -> None:
    model = Model(contexts, actions, d, seed)
    whole, parts = LastLayerGaussNewton(d), [LastLayerGaussNewton(d) for _ in range(2)]
    linear_whole, linear_parts = LinearGaussNewton(d, actions), [LinearGaussNewton(d, actions) for _ in range(2)]
    for index, keep in ((1, slice(cut, None)), (0, slice(0, cut))):
        states, counts = model.states[keep], model.counts[keep]
        parts[index].add(states, counts, model.embeddings, model.head)
        linear_parts[index].add(states, counts, model.head)
    parts[1].merge(parts[0])
    linear_parts[1].merge(linear_parts[0])
    whole.add(model.states, model.counts, model.embeddings, model.head)
    linear_whole.add(model.states, model.counts, model.head)
    assert parts[1].n_rows == whole.n_rows == linear_parts[1].n_rows
    torch.testing.assert_close(parts[1].finish().factor, whole.finish().factor)
    torch.testing.assert_close(linear_parts[1].finish().factor, linear_whole.finish().factor)


@given(**shapes)
def test_more_rows_never_raise_it(contexts: int, actions: int, d: int, seed: int) -> None:
    model = Model(contexts, actions, d, seed)
    before = linear(model, model.head), last_layer(model, model.head, model.embeddings)
    model.counts = model.counts + 1
    after = linear(model, model.head), last_layer(model, model.head, model.embeddings)
    for less, more in zip(before, after, strict=True):
        assert bool((more <= less * (1 + 1e-10) + 1e-12).all())


def test_sampled_curvature_approaches_the_exact_one() -> None:
    model = Model(6, 5, 3, 0)
    exact, sampled = LastLayerGaussNewton(3), LastLayerGaussNewton(3)
    exact.add(model.states, model.counts, model.embeddings, model.head)
    random = torch.Generator().manual_seed(1)
    sampled.add(model.states, model.counts, model.embeddings, model.head, samples=20_000, generator=random)
    torch.testing.assert_close(sampled._matrix, exact._matrix, rtol=0.05, atol=0.05)


def fitted(states: Tensor, row_context: Tensor, row_action: Tensor, n_actions: int, ridge: float) -> Tensor:
    """θ (actions, d) at the maximum of Σ log β̂ − κ|θ|²/2."""
    theta = torch.zeros(n_actions, states.shape[1], dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([theta], max_iter=300, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        loss = penalised(theta, states, row_context, row_action, ridge)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    solver.step(closure)  # type: ignore[no-untyped-call]
    return theta.detach()


def penalised(theta: Tensor, states: Tensor, row_context: Tensor, row_action: Tensor, ridge: float) -> Tensor:
    log_probs = torch.log_softmax(states @ theta.T, 1)
    return -log_probs[row_context, row_action].sum() + ridge / 2 * theta.square().sum()


def world_log(seed: int, contexts: int, per_context: int) -> tuple[LinearSoftmaxWorld, LoggedData, Tensor]:
    world = LinearSoftmaxWorld.draw(seed, n_actions=5, dimensions=3)
    log = world.log(seed, contexts, per_context)
    column = log.contexts["x"]
    assert isinstance(column, EmbeddingColumn)
    x = tensor(column.values).double()
    return world, log, torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)


def test_it_is_the_laplace_standard_deviation_of_log_prob() -> None:
    _, log, states = world_log(0, 40, 3)
    row_context, row_action = tensor(log.context_index).long(), tensor(log.action).long()
    theta = fitted(states, row_context, row_action, 5, 1.0)
    hessian = torch.autograd.functional.hessian(  # type: ignore[no-untyped-call]
        lambda flat: penalised(flat.view(5, -1), states, row_context, row_action, 1.0), theta.flatten()
    )
    jacobian = torch.autograd.functional.jacobian(  # type: ignore[no-untyped-call]
        lambda flat: torch.log_softmax(states @ flat.view(5, -1).T, 1)[row_context, row_action], theta.flatten()
    )
    expected = torch.einsum("ni,ij,nj->n", jacobian, torch.linalg.inv(hessian), jacobian).sqrt()
    counts = torch.bincount(row_context, minlength=len(states))
    matrix = LinearGaussNewton(4, 5)
    matrix.add(states, counts, (theta, None))
    found = matrix.finish().of(states, (theta, None), row_context, row_action)
    torch.testing.assert_close(found, expected)


def test_its_bands_cover_in_a_linear_world() -> None:
    """About 95 % of |log β* − log β̂| ≤ 1.96 U; the mean over contexts of one fit is a noisy share."""
    hits: dict[str, list[float]] = {"exact": [], "block": []}
    for seed in range(4):
        world, log, states = world_log(seed, 600, 1)
        row_context, row_action = tensor(log.context_index).long(), tensor(log.action).long()
        theta = fitted(states, row_context, row_action, 5, 1.0)
        log_prob = torch.log_softmax(states @ theta.T, 1)[row_context, row_action]
        error = (log_prob - world.logging_policy.log_probs(log.contexts)[row_context, row_action]).abs()
        exact, block = LinearGaussNewton(4, 5), BlockGaussNewton(4, 5)
        exact.add(states, torch.bincount(row_context, minlength=len(states)), (theta, None))
        block.add(states, row_context, row_action, log_prob)
        spread = exact.finish().of(states, (theta, None), row_context, row_action)
        hits["exact"].append(float((error <= 1.96 * spread).double().mean()))
        spread = block.finish().of(states, row_context, row_action, log_prob)
        hits["block"].append(float((error <= 1.96 * spread).double().mean()))
    for shares in hits.values():
        assert 0.85 <= sum(shares) / len(shares) <= 1.0


@given(**shapes, rows=st.integers(1, 30), inside=st.booleans())
def test_blocks(contexts: int, actions: int, d: int, seed: int, rows: int, inside: bool) -> None:
    model = Model(contexts, actions, d, seed)
    random = torch.Generator().manual_seed(seed)
    row_context, row_action = (torch.randint(n, (rows,), generator=random) for n in (contexts, actions))
    log_prob = model.log_probs[row_context, row_action]
    one, other = BlockGaussNewton(d, actions), BlockGaussNewton(d, actions)
    one.add(model.states, row_context[::2], row_action[::2], log_prob[::2])
    other.add(model.states, row_context[1::2], row_action[1::2], log_prob[1::2])
    one.merge(other)
    found = one.finish(2.0).of(model.states, row_context, row_action, log_prob, inside)
    rest = 1 - log_prob.exp()
    for row in range(rows):
        mine = row_action == row_action[row]
        if inside:
            mine[row] = False
        x = model.states[row_context[mine]]
        block = 2 * torch.eye(d, dtype=torch.float64) + x.T @ (x * rest[mine, None])
        state = model.states[row_context[row]]
        expected = rest[row] * (state @ torch.linalg.inv(block) @ state).clamp(min=0).sqrt()
        torch.testing.assert_close(found[row], expected, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("kind", ["identical", "certain", "zero", "masked", "single"])
def test_never_nan(kind: str) -> None:
    model = Model(1 if kind == "single" else 5, 4, 3, 0)
    if kind == "identical":
        model.states[:] = model.states[0]
    if kind == "zero":
        model.states[:] = 0
    scale = 1e4 if kind == "certain" else 1.0
    bias = model.bias.clone()
    if kind == "masked":
        bias[1] = -torch.inf
    head = (scale * model.weights, bias)
    log_probs = torch.log_softmax(model.states @ head[0].T + bias, 1)
    row_context, row_action = model.pairs
    block = BlockGaussNewton(3, 4)
    block.add(model.states, row_context, row_action, log_probs[row_context, row_action])
    found = block.finish().of(model.states, row_context, row_action, log_probs[row_context, row_action])
    for u in (linear(model, head), last_layer(model, head, model.embeddings), found):
        assert bool((u.isfinite() & (u >= 0)).all())
        assert kind != "zero" or bool((u == 0).all())


def test_bad_input_is_refused() -> None:
    model = Model(3, 4, 2, 0)
    with pytest.raises(ParameterError, match="BlockGaussNewton"):
        LinearGaussNewton(64, 1000)
    matrix = LinearGaussNewton(2, 4)
    with pytest.raises(ParameterError, match="must give"):
        matrix.add(model.states, model.counts, lambda part: model.log_probs[part, :3])
    with pytest.raises(ParameterError, match="normalised"):
        matrix.add(model.states, model.counts, lambda part: model.log_probs[part] + 1)
    with pytest.raises(ParameterError, match="differ"):
        matrix.merge(LinearGaussNewton(2, 3))
    zeros = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ParameterError, match="not exceed 0"):
        BlockGaussNewton(2, 4).add(model.states, zeros, zeros, torch.ones(2))
    with pytest.raises(ParameterError, match="each of 2 rows"):
        BlockGaussNewton(2, 4).add(model.states, zeros, zeros, -torch.ones(3))
