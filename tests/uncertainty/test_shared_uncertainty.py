"""U from one shared matrix against explicit inverses, its laws, and the identities of the official form."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.uncertainty import SharedMatrix, row_leave_one_out
from offpolicy.uncertainty.factor import cholesky

sizes = {
    "n": st.integers(1, 12),
    "d": st.integers(1, 5),
    "seed": st.integers(0, 10_000),
    "ridge": st.sampled_from([1e-3, 0.5, 1.0, 7.0]),
}


def rows(n: int, d: int, seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uncertainty(data: Tensor, queries: Tensor, ridge: float | None = 1.0, inside: bool = False) -> Tensor:
    matrix = SharedMatrix(data.shape[1])
    matrix.add(data)
    return matrix.finish(ridge).of(queries, inside)


def by_inverse(data: Tensor, queries: Tensor, ridge: float) -> Tensor:
    inverse = torch.linalg.inv(ridge * torch.eye(data.shape[1], dtype=torch.float64) + data.T @ data)
    return torch.einsum("ni,ij,nj->n", queries, inverse, queries).clamp(min=0).sqrt()


@given(**sizes)
def test_it_is_the_ridge_leverage(n: int, d: int, seed: int, ridge: float) -> None:
    data, queries = rows(n, d, seed), rows(4, d, seed + 1)
    torch.testing.assert_close(uncertainty(data, queries, ridge), by_inverse(data, queries, ridge))


@given(**sizes)
def test_bounds(n: int, d: int, seed: int, ridge: float) -> None:
    data, queries = rows(n, d, seed), rows(4, d, seed + 1)
    u = uncertainty(data, queries, ridge)
    assert bool((u >= 0).all())
    assert bool((u <= torch.linalg.vector_norm(queries, dim=1) / math.sqrt(ridge)).all())
    assert float(uncertainty(data, data, ridge).square().sum()) <= d + 1e-12


@given(**sizes)
def test_more_data_never_raises_it(n: int, d: int, seed: int, ridge: float) -> None:
    data, queries = rows(n + 1, d, seed), rows(4, d, seed + 1)
    assert bool((uncertainty(data, queries, ridge) <= uncertainty(data[:n], queries, ridge) * (1 + 1e-12)).all())


@given(**sizes, cut=st.integers(0, 12))
def test_neither_order_nor_shards_matter(n: int, d: int, seed: int, ridge: float, cut: int) -> None:
    data, queries = rows(n, d, seed), rows(4, d, seed + 1)
    shuffled = data[torch.randperm(n, generator=torch.Generator().manual_seed(seed))]
    one, other = SharedMatrix(d), SharedMatrix(d)
    one.add(shuffled[:cut])
    other.add(shuffled[cut:])
    other.merge(one)
    assert other.n_rows == n
    torch.testing.assert_close(other.finish(ridge).of(queries), uncertainty(data, queries, ridge))


@given(**sizes, copies=st.integers(1, 3))
def test_leaving_a_row_out_is_removing_one_copy_of_it(n: int, d: int, seed: int, ridge: float, copies: int) -> None:
    data = rows(n, d, seed)
    row = data[:1]
    everything = torch.cat([data, *[row] * (copies - 1)])
    without = everything[1:]
    found = uncertainty(everything, row, ridge, inside=True)
    torch.testing.assert_close(found, uncertainty(without, row, ridge), rtol=1e-9, atol=0)
    weighted = SharedMatrix(d)
    weighted.add(data, torch.tensor([float(copies)] + [1.0] * (n - 1)))
    torch.testing.assert_close(weighted.finish(ridge).of(row, inside=True), found)


def test_a_weighted_row_leaves_with_its_weight() -> None:
    data, weight = rows(6, 3, 0), torch.rand(6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    matrix, without = SharedMatrix(3), SharedMatrix(3)
    matrix.add(data, weight)
    without.add(data[1:], weight[1:])
    torch.testing.assert_close(matrix.finish().of(data, inside=weight)[:1], without.finish().of(data[:1]))
    u = matrix.finish().of(data)
    torch.testing.assert_close(row_leave_one_out(u, weight), matrix.finish().of(data, inside=weight))


@given(**sizes)
def test_official_is_leverage_with_ridge_d_on_unit_features(n: int, d: int, seed: int, ridge: float) -> None:
    data, queries = rows(n, d, seed, scale=ridge), rows(4, d, seed + 1)
    official = SharedMatrix(d, "official")
    official.add(data)
    unit = data / torch.linalg.vector_norm(data, dim=1, keepdim=True)
    asked = queries / torch.linalg.vector_norm(queries, dim=1, keepdim=True)
    released = torch.eye(d, dtype=torch.float64) + unit.T @ unit / d
    expected = (torch.einsum("ni,ij,nj->n", asked, torch.linalg.inv(released), asked) / d).sqrt()
    found = official.finish().of(queries)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found, by_inverse(unit, asked, d))


@pytest.mark.parametrize("n", [0, 1, 2, 64])
def test_official_u_of_a_context_seen_n_times(n: int) -> None:
    context = rows(1, 64, 3, scale=100.0)
    official = SharedMatrix(64, "official")
    official.add(context.expand(n, 64))
    assert float(official.finish().of(context)) == pytest.approx((64 + n) ** -0.5, rel=1e-12)


def test_leverage_without_ridge_does_not_feel_the_scale() -> None:
    data = rows(20, 3, 0)
    small, large = uncertainty(data, data, 1e-9), uncertainty(1e3 * data, 1e3 * data, 1e-9)
    torch.testing.assert_close(small, large)


@given(
    data=st.sampled_from(["zero", "one", "identical", "constant", "huge", "tiny"]),
    normalisation=st.sampled_from(["raw", "official"]),
    inside=st.booleans(),
)
@example(data="huge", normalisation="raw", inside=True)
def test_never_nan(data: str, normalisation: str, inside: bool) -> None:
    features = {
        "zero": torch.zeros(3, 4),
        "one": torch.randn(1, 4, generator=torch.Generator().manual_seed(0)),
        "identical": torch.ones(1000, 1) @ torch.tensor([[3.0, -1.0, 2.0, 0.0]]),
        "constant": torch.full((50, 4), 7.0),
        "huge": 1e30 * rows(9, 4, 0),
        "tiny": 1e-320 * torch.ones(3, 4, dtype=torch.float64),
    }[data]
    matrix = SharedMatrix(4, normalisation)  # type: ignore[arg-type]
    matrix.add(features)
    u = matrix.finish().of(features, inside)
    assert bool(u.isfinite().all())
    assert bool((u >= 0).all())
    if data == "zero":
        assert matrix.n_zero == 3
        assert bool((u == 0).all())


def test_jitter_helps_only_the_matrix_that_needs_it() -> None:
    good = torch.eye(2, dtype=torch.float64) * 4
    singular = torch.tensor([[1.0, 1.0], [1.0, 1.0 - 1e-12]], dtype=torch.float64)
    factor = cholesky(torch.stack([good, singular]))
    assert torch.equal(factor[0], good / 2)
    torch.testing.assert_close(factor[1] @ factor[1].T, singular, rtol=0, atol=1e-8)
    torch.testing.assert_close(cholesky(singular), factor[1])
    with pytest.raises(ParameterError, match="larger ridge"):
        cholesky(-good)


def test_bad_input_is_refused() -> None:
    matrix = SharedMatrix(3)
    with pytest.raises(ParameterError, match=r"row 1 holds \[nan"):
        matrix.add(torch.tensor([[1.0, 2, 3], [math.nan, 2, 3]]))
    with pytest.raises(ParameterError, match=r"\(rows, 3\)"):
        matrix.add(torch.zeros(2, 4))
    with pytest.raises(ParameterError, match="not negative"):
        matrix.add(torch.zeros(1, 3), torch.tensor([-1.0]))
    with pytest.raises(ParameterError, match="each of 1 rows"):
        matrix.add(torch.zeros(1, 3), torch.ones(2))
    with pytest.raises(ParameterError, match="ridge"):
        matrix.finish(0.0)
    with pytest.raises(ParameterError, match="differ"):
        matrix.merge(SharedMatrix(3, "official"))
    with pytest.raises(ParameterError, match="official"):
        SharedMatrix(3, "oficial")  # type: ignore[arg-type]
