"""U from one matrix per action against a loop over explicit matrices, and its laws."""

import math
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.uncertainty import PerActionMatrices, per_action, ragged
from offpolicy.uncertainty.per_action import squares_by_rows


class Rows(NamedTuple):
    """A small log; the last action is never taken, the first often."""

    states: Tensor
    context: Tensor
    action: Tensor
    n_actions: int

    def take(self, keep: Tensor | slice) -> "Rows":
        return Rows(self.states, self.context[keep], self.action[keep], self.n_actions)


@st.composite
def logs(draw: st.DrawFn) -> Rows:
    contexts, d, actions, n = (draw(st.integers(*bounds)) for bounds in ((1, 8), (1, 5), (1, 6), (1, 40)))
    random = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    states = torch.randn(contexts, d, generator=random, dtype=torch.float64)
    context = torch.randint(contexts, (n,), generator=random)
    action = (torch.rand(n, generator=random).square() * actions).long()
    return Rows(states, context, action, actions + 1)


@pytest.fixture(autouse=True)
def _sort_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_action, "WAITING", 3)
    monkeypatch.setattr(ragged, "LONGEST", 3)
    monkeypatch.setattr(per_action, "CHUNK_BYTES", 2000)


ridges = st.sampled_from([1e-2, 1.0, 5.0])


def fill(log: Rows, weight: Tensor | None = None) -> PerActionMatrices:
    matrices = PerActionMatrices(log.states.shape[1], log.n_actions)
    matrices.add(log.states, log.context, log.action, weight)
    return matrices


def every_pair(log: Rows) -> tuple[Tensor, Tensor]:
    pairs = torch.cartesian_prod(torch.arange(len(log.states)), torch.arange(log.n_actions))
    return pairs[:, 0], pairs[:, 1]


def by_inverse(log: Rows, context: Tensor, action: Tensor, ridge: float, weight: Tensor | None = None) -> Tensor:
    result = []
    weight = torch.ones(len(log.context), dtype=torch.float64) if weight is None else weight
    for x, a in zip(log.states[context], action.tolist(), strict=True):
        mine = log.states[log.context[log.action == a]]
        matrix = ridge * torch.eye(len(x), dtype=torch.float64) + mine.T @ (mine * weight[log.action == a, None])
        result.append((x @ torch.linalg.inv(matrix) @ x).clamp(min=0).sqrt())
    return torch.stack(result)


@given(log=logs(), ridge=ridges)
def test_it_is_the_leverage_within_each_action(log: Rows, ridge: float) -> None:
    pairs = every_pair(log)
    torch.testing.assert_close(fill(log).finish(ridge).of(log.states, *pairs), by_inverse(log, *pairs, ridge))


@given(log=logs(), ridge=ridges, seed=st.integers(0, 100))
def test_rows_may_carry_weights(log: Rows, ridge: float, seed: int) -> None:
    weight = torch.rand(len(log.context), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    weight[weight < 0.2] = 0
    pairs = every_pair(log)
    expected = by_inverse(log, *pairs, ridge, weight)
    torch.testing.assert_close(fill(log, weight).finish(ridge).of(log.states, *pairs), expected)


@given(log=logs(), ridge=ridges)
def test_bounds(log: Rows, ridge: float) -> None:
    context, action = every_pair(log)
    found = fill(log).finish(ridge)
    u = found.of(log.states, context, action)
    length = torch.linalg.vector_norm(log.states, dim=1)[context] / math.sqrt(ridge)
    assert bool(((u >= 0) & (u <= length * (1 + 1e-14))).all())
    unseen = ~torch.isin(action, log.action)
    torch.testing.assert_close(u[unseen], length[unseen])
    total = float(found.of(log.states, log.context, log.action).square().sum())
    assert total <= log.states.shape[1] * len(torch.unique(log.action)) + 1e-12


@given(log=logs(), ridge=ridges)
def test_more_data_never_raises_it(log: Rows, ridge: float) -> None:
    pairs = every_pair(log)
    more = fill(log).finish(ridge).of(log.states, *pairs)
    less = fill(log.take(slice(0, -1))).finish(ridge).of(log.states, *pairs)
    assert bool((more <= less * (1 + 1e-11)).all())


@given(log=logs(), ridge=ridges, seed=st.integers(0, 100))
def test_neither_order_nor_shards_matter(log: Rows, ridge: float, seed: int) -> None:
    pairs = every_pair(log)
    expected = fill(log).finish(ridge).of(log.states, *pairs)
    random = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(log.context), generator=random)
    shards = torch.tensor_split(order, torch.randint(len(order), (3,), generator=random).sort().values.tolist())
    whole = fill(log.take(shards[0]))
    for shard in shards[1:-1]:
        whole.merge(fill(log.take(shard)))
    whole.finish(ridge)  # looking does not disturb
    last = log.take(shards[-1])
    whole.add(last.states, last.context, last.action)
    assert whole.n_rows == len(log.context)
    torch.testing.assert_close(whole.finish(ridge).of(log.states, *pairs), expected)


@given(log=logs(), ridge=ridges)
def test_leaving_a_row_out_is_removing_it(log: Rows, ridge: float) -> None:
    found = fill(log).finish(ridge).of(log.states, log.context, log.action, inside=True)
    for row in range(min(5, len(log.context))):
        without = log.take(torch.arange(len(log.context)) != row)
        expected = by_inverse(without, log.context[row : row + 1], log.action[row : row + 1], ridge)
        torch.testing.assert_close(found[row : row + 1], expected, rtol=1e-7, atol=1e-9)


@given(n=st.integers(1, 9), d=st.integers(1, 6), seed=st.integers(0, 1000), scale=st.sampled_from([1e-3, 1.0, 1e4]))
def test_gram_matrix_and_full_matrix_agree(n: int, d: int, seed: int, scale: float) -> None:
    random = torch.Generator().manual_seed(seed)
    rows = scale * torch.randn(1, n, d, generator=random, dtype=torch.float64)
    queries = torch.cat([rows[:, :2], torch.randn(1, 3, d, generator=random, dtype=torch.float64)], 1)
    whole = torch.eye(d, dtype=torch.float64) + rows[0].T @ rows[0]
    solved = torch.cholesky_solve(queries[0].T, torch.linalg.cholesky(whole))
    expected = (queries[0].T * solved).sum(0)
    torch.testing.assert_close(squares_by_rows(rows, queries, 1.0)[0], expected, rtol=1e-6, atol=1e-12)


def test_few_long_rows_lose_no_digits() -> None:
    rows = torch.tensor([[[1e10, 0.0, 0.0]]], dtype=torch.float64)
    assert float(squares_by_rows(rows, rows, 1.0)) == pytest.approx(1.0, rel=1e-12)


def test_dense_and_kept_rows_agree_at_the_border() -> None:
    random = torch.Generator().manual_seed(0)
    states = torch.randn(7, 4, generator=random, dtype=torch.float64)
    for n in (3, 4, 5):
        log = Rows(states, torch.arange(n), torch.zeros(n, dtype=torch.int64), 1)
        matrices = fill(log)
        pairs = torch.arange(7), torch.zeros(7, dtype=torch.int64)
        torch.testing.assert_close(matrices.finish().of(states, *pairs), by_inverse(log, *pairs, 1.0))
        assert len(matrices._kept.context) == (n if n < 4 else 0)
        assert len(matrices._sums.action) == (n >= 4)


def test_memory_stays_bounded_in_a_long_stream() -> None:
    random = torch.Generator().manual_seed(0)
    matrices = PerActionMatrices(3, 5)
    for _ in range(50):
        states = torch.randn(20, 3, generator=random)
        matrices.add(states, torch.arange(20), torch.randint(5, (20,), generator=random))
        assert sum(len(part.context) for part in matrices._waiting) <= 20
        assert len(matrices._kept.table) <= 5 * 3
    assert matrices.finish().of(torch.ones(1, 3), torch.zeros(1).long(), torch.zeros(1).long()) < 0.3


@pytest.mark.parametrize("n", [0, 1, 5, 100])
def test_official_u_of_a_context_seen_n_times(n: int) -> None:
    state = torch.randn(1, 8, generator=torch.Generator().manual_seed(0)) * 50
    matrices = PerActionMatrices(8, 2, "official")
    matrices.add(state, torch.zeros(n, dtype=torch.int64), torch.ones(n, dtype=torch.int64))
    u = matrices.finish().of(state, torch.zeros(2, dtype=torch.int64), torch.arange(2))
    assert u.tolist() == pytest.approx([8**-0.5, (8 + n) ** -0.5], rel=1e-12)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("normalisation", ["raw", "official"])
@pytest.mark.parametrize("kind", ["identical", "one row per action", "constant", "single", "zero", "huge", "none"])
def test_never_nan(kind: str, normalisation: str, inside: bool) -> None:
    states = {
        "identical": torch.tensor([[3.0, -1.0, 2.0]]).expand(30, 3),
        "constant": torch.full((30, 3), 7.0),
        "zero": torch.zeros(30, 3),
        "huge": torch.full((30, 3), 1e25),
    }.get(kind, torch.randn(30, 3, generator=torch.Generator().manual_seed(0)))
    context = torch.arange(30)
    action = torch.arange(30) if kind == "one row per action" else torch.arange(30) % 4
    if kind in ("single", "none"):
        context, action = context[: kind == "single"], action[: kind == "single"]
    matrices = PerActionMatrices(3, 31, normalisation)  # type: ignore[arg-type]
    matrices.add(states, context, action)
    u = matrices.finish().of(states, context, action, inside)
    assert u.shape == context.shape
    assert bool((u.isfinite() & (u >= 0)).all())
    assert bool((u == 0).all()) == (kind in ("zero", "none"))
    assert matrices.n_zero == (30 if kind == "zero" else 0)


def test_single_precision_states_are_used_exactly() -> None:
    states = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    rows = torch.arange(40), torch.arange(40) % 9
    single, double = PerActionMatrices(3, 9), PerActionMatrices(3, 9)
    single.add(states, *rows)
    double.add(states.double(), *rows)
    assert torch.equal(single.finish().of(states, *rows), double.finish().of(states.double(), *rows))


def test_bad_input_is_refused() -> None:
    matrices, states = PerActionMatrices(2, 3), torch.ones(2, 2)
    zeros = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ParameterError, match=r"row_action must lie in 0\.\.2, but one row holds 3"):
        matrices.add(states, zeros, zeros + 3)
    with pytest.raises(ParameterError, match=r"row_context .* holds -1"):
        matrices.add(states, zeros - 1, zeros)
    with pytest.raises(ParameterError, match="equally long"):
        matrices.add(states, zeros, zeros[:1])
    with pytest.raises(ParameterError, match="one integer per row"):
        matrices.add(states, zeros.float(), zeros)
    with pytest.raises(ParameterError, match="differ"):
        matrices.merge(PerActionMatrices(2, 4))
    with pytest.raises(ParameterError, match=r"0\.\.2"):
        matrices.finish().of(states, zeros, zeros + 7)
