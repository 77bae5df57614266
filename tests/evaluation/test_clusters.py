import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.evaluation.clusters import ClusteredDifference, ClusteredTerms, ClusterSums, clustered, pooled
from offpolicy.evaluation.value import Terms, value

FORMS = ("plain", "self_normalised", "doubly_robust", "self_normalised_dr", "row_scale")


def log(seed: int, form: str, clusters: int = 12, rows: int = 60) -> tuple[Terms, Tensor]:
    random = torch.Generator().manual_seed(seed)
    cluster = torch.randint(0, clusters, (rows,), generator=random)
    u = torch.rand(4, rows, generator=random, dtype=torch.float64)
    weight = (2 * torch.randn(rows, generator=random, dtype=torch.float64) - 1).exp()
    zero = torch.zeros(rows, dtype=torch.float64)
    model = (u[1], u[2]) if "r" in form.split("_")[-1] else (zero, zero)
    scale = {"plain": zero + 1, "doubly_robust": zero + 1, "row_scale": u[3] + 0.1}.get(form, weight)
    if form == "row_scale":
        model = (zero, zero)
    return Terms(weight, scale, u[0].round(), *model), cluster


def part(terms: Terms, rows: Tensor) -> Terms:
    return Terms(*(field[rows] for field in vars(terms).values() if isinstance(field, Tensor)))


@given(st.integers(0, 1000), st.lists(st.integers(1, 59), max_size=5), st.randoms(use_true_random=False))
def test_batches_in_any_order_and_shards_in_any_grouping_give_the_same_sums(seed, cuts, random) -> None:  # type: ignore[no-untyped-def]
    terms, cluster = log(seed, "self_normalised_dr")
    edges = sorted({0, 60, *cuts})
    batches = [torch.arange(a, b) for a, b in itertools.pairwise(edges)]
    streamed, merged = ClusterSums(), ClusterSums()
    for rows in random.sample(batches, len(batches)):
        streamed.add(part(terms, rows), cluster[rows])
    for rows in random.sample(batches, len(batches)):
        shard = ClusterSums()
        shard.add(part(terms, rows), cluster[rows])
        merged.merge(shard)
    whole = clustered(terms, cluster)
    for other in (streamed.finish(), merged.finish()):
        np.testing.assert_array_equal(other.index, whole.index)
        np.testing.assert_allclose(other.columns, whole.columns, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(other.standard_error, whole.standard_error, rtol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_sums_are_those_of_each_clusters_rows_and_the_value_is_the_formulas(form: str) -> None:
    terms, cluster = log(1, form)
    found = clustered(terms, cluster)
    for number, row in zip(found.index, found.columns, strict=True):
        own = part(terms, cluster == int(number))
        correction = (own.weight * (own.reward - own.imputed)).sum()
        expected = torch.stack([correction, own.normaliser.sum(), own.baseline.sum(), own.weight.sum()]).numpy()
        np.testing.assert_allclose(row, [*expected, len(own.weight)], rtol=1e-12, atol=1e-12)
    assert found.value == pytest.approx(value(terms), rel=1e-12)
    assert found.rows == 60
    assert found.mean_weight == pytest.approx(float(terms.weight.mean()))


@pytest.mark.parametrize("form", FORMS)
def test_the_influence_is_the_derivative_of_the_value_when_a_cluster_counts_a_little_more(form: str) -> None:
    terms, cluster = log(2, form)
    found = clustered(terms, cluster)
    step = 1e-6
    for c in range(found.clusters):
        more, less = found.columns.copy(), found.columns.copy()
        more[c] *= 1 + step
        less[c] *= 1 - step
        slope = (ClusteredTerms(more, found.index).value - ClusteredTerms(less, found.index).value) / (2 * step)
        assert found.influence[c] == pytest.approx(slope, rel=1e-5, abs=1e-9)
    assert abs(found.influence.sum()) < 1e-12
    n = found.clusters
    assert found.standard_error == pytest.approx(math.sqrt(n / (n - 1) * float((found.influence**2).sum())))


@pytest.mark.parametrize("form", FORMS)
def test_leave_one_out_is_the_value_without_that_clusters_rows(form: str) -> None:
    terms, cluster = log(3, form)
    found = clustered(terms, cluster)
    slow = [value(part(terms, cluster != int(c))) for c in found.index]
    np.testing.assert_allclose(found.leave_one_out, slow, rtol=1e-10)
    n = len(slow)
    assert found.jackknife_error == pytest.approx(math.sqrt((n - 1) ** 2 / n * float(np.var(slow, ddof=1))))


@pytest.mark.parametrize("form", FORMS)
def test_the_standard_error_is_the_spread_over_redrawn_clusters(form: str) -> None:
    random = np.random.default_rng(4)
    terms, cluster = log(4, form, clusters=400, rows=4000)
    # Milder weights than `log` draws: a linearisation is for those.
    mild = terms.weight.clamp(max=4)
    scale = mild if torch.equal(terms.weight, terms.normaliser) else terms.normaliser
    found = clustered(Terms(mild, scale, terms.reward, terms.imputed, terms.baseline), cluster)
    drawn = [
        ClusteredTerms(found.columns[random.integers(0, found.clusters, found.clusters)], found.index).value
        for _ in range(2000)
    ]
    assert found.standard_error == pytest.approx(np.std(drawn), rel=0.08)
    assert found.jackknife_error == pytest.approx(found.standard_error, rel=0.02)


def test_rows_of_a_cluster_that_move_together_widen_the_error() -> None:
    random = torch.Generator().manual_seed(5)
    cluster = torch.arange(50).repeat_interleave(20)
    reward = (torch.rand(50, generator=random) < 0.5).double()[cluster]
    ones = torch.ones(1000, dtype=torch.float64)
    terms = Terms.without_reward_model(ones, ones, reward)
    by_row, by_cluster = clustered(terms, torch.arange(1000)), clustered(terms, cluster)
    assert by_row.value == by_cluster.value
    assert by_cluster.standard_error == pytest.approx(math.sqrt(20) * by_row.standard_error, rel=0.02)


def test_a_paired_difference_has_the_difference_of_influences_and_what_is_shared_cancels() -> None:
    first, cluster = log(6, "self_normalised_dr", clusters=40, rows=300)
    second = Terms(first.weight * 1.1, first.normaliser, first.reward, first.imputed, first.baseline * 0.9)
    one, two = clustered(first, cluster), clustered(second, cluster)
    pair = ClusteredDifference(one, two)
    assert pair.value == pytest.approx(one.value - two.value)
    np.testing.assert_allclose(pair.influence, one.influence - two.influence, atol=1e-15)
    np.testing.assert_allclose(pair.leave_one_out, one.leave_one_out - two.leave_one_out, atol=1e-15)
    assert pair.standard_error < 0.5 * math.hypot(one.standard_error, two.standard_error)
    same = ClusteredDifference(one, one)
    assert (same.value, same.standard_error, same.jackknife_error) == (0, 0, 0)


def test_a_pair_over_other_rows_is_an_error() -> None:
    terms, cluster = log(7, "plain")
    fewer = torch.arange(50)
    with pytest.raises(ParameterError, match=r"same clusters.*60 rows.*50"):
        ClusteredDifference(clustered(terms, cluster), clustered(part(terms, fewer), cluster[fewer]))


def ones_like(rows: int, weight: float, reward: float, normaliser: float = 1.0) -> Terms:
    row = torch.ones(rows, dtype=torch.float64)
    return Terms.without_reward_model(row * weight, row * normaliser, row * reward)


@pytest.mark.parametrize(
    ("terms", "cluster", "said"),
    [
        (ones_like(5, 1, 1), torch.zeros(5).long(), "1 cluster only"),
        (ones_like(0, 1, 1), torch.zeros(0).long(), "no cluster only"),
        (ones_like(5, 0, 1), torch.arange(5), "all weights are zero"),
        (ones_like(5, 0, 1, normaliser=0), torch.arange(5), "all weights are zero"),
        (ones_like(5, 2, 0.3, normaliser=2), torch.arange(5), "no variation"),
        (
            Terms.without_reward_model(
                torch.tensor([1e34, 1, 1, 1]), torch.tensor([1e34, 1, 1, 1]), torch.tensor([1.0, 0, 1, 0])
            ),
            torch.arange(4),
            "one cluster carries 100%",
        ),
    ],
)
def test_what_cannot_have_an_error_says_so_and_is_never_nan(terms: Terms, cluster: Tensor, said: str) -> None:
    found = clustered(terms, cluster)
    assert said in found.refusal
    assert found.standard_error == found.jackknife_error == math.inf
    assert math.isfinite(found.value)
    assert not np.isnan(found.influence).any()
    assert said in ClusteredDifference(found, found).refusal


def test_a_reward_model_alone_has_an_error_and_says_that_it_is_alone() -> None:
    terms, cluster = log(8, "doubly_robust")
    zero = torch.zeros_like(terms.weight)
    for normaliser in (zero + 1, zero):
        alone = clustered(Terms(zero, normaliser, terms.reward, terms.imputed, terms.baseline), cluster)
        assert alone.value == pytest.approx(float(terms.baseline.mean()))
        assert 0 < alone.standard_error < 1
        assert not alone.refusal
        assert "reward model's alone" in alone.note


def test_a_giant_cluster_does_not_swallow_the_others_when_it_is_left_out() -> None:
    columns = np.array([[1e34, 1e34, 0, 1e34, 1], [1.0, 2, 0, 2, 1], [1.0, 2, 0, 2, 1]])
    assert ClusteredTerms(columns, np.arange(3)).leave_one_out[0] == 0.5


def test_cluster_numbers_may_have_gaps_but_must_fit_the_rows() -> None:
    sums = ClusterSums()
    sums.add(ones_like(2, 1, 1), torch.tensor([7, 3]))
    assert sums.finish().index.tolist() == [3, 7]
    with pytest.raises(ParameterError, match="2 rows came with 3"):
        sums.add(ones_like(2, 1, 1), torch.tensor([1, 2, 3]))
    with pytest.raises(ParameterError, match=r"start at 0.*-1"):
        sums.add(ones_like(2, 1, 1), torch.tensor([-1, 2]))


@given(st.integers(1, 200), st.integers(1, 50))
def test_pooling_keeps_totals_and_evens_counts(count: int, most: int) -> None:
    columns = np.stack([np.arange(count, dtype=np.float64), np.ones(count)], 1)
    groups = pooled(columns, most, np.random.default_rng(0))
    assert len(groups) == min(count, most)
    np.testing.assert_allclose(groups.sum(0), columns.sum(0))
    assert groups[:, 1].max() - groups[:, 1].min() <= 1
    assert groups[:, 1].max() == math.ceil(count / len(groups))
