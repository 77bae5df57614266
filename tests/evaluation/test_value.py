"""The one formula: against a slow loop, in batches of any size and order, and with weighted rows."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offpolicy.evaluation.clusters import ClusterSums, clustered
from offpolicy.evaluation.value import Terms


def random_terms(seed: int, rows: int = 40) -> Terms:
    random = torch.Generator().manual_seed(seed)
    return Terms(*torch.rand(5, rows, generator=random, dtype=torch.float64).unbind(0))


def columns(terms: Terms) -> list[torch.Tensor]:
    return [terms.weight, terms.normaliser, terms.reward, terms.imputed, terms.baseline]


def part(terms: Terms, rows: slice | torch.Tensor) -> Terms:
    return Terms(*(column[rows] for column in columns(terms)))


def slow_value(terms: Terms) -> float:
    weight, normaliser, reward, imputed, baseline = (column.tolist() for column in columns(terms))
    correction = sum(w * (r - q) for w, r, q in zip(weight, reward, imputed, strict=True))
    return float(sum(baseline) / len(baseline) + correction / sum(normaliser))


@given(st.integers(0, 1000), st.lists(st.integers(1, 39), max_size=5), st.randoms(use_true_random=False))
def test_batches_in_any_order_and_shards_give_the_value_of_the_formula(seed, cuts, random) -> None:  # type: ignore[no-untyped-def]
    terms, cluster = random_terms(seed), torch.arange(40) // 3
    edges = sorted({0, 40, *cuts})
    batches = [slice(a, b) for a, b in itertools.pairwise(edges)]
    shuffled, merged = ClusterSums(), ClusterSums()
    for batch in random.sample(batches, len(batches)):
        shuffled.add(part(terms, batch), cluster[batch])
        shard = ClusterSums()
        shard.add(part(terms, batch), cluster[batch])
        merged.merge(shard)
    for sums in (shuffled, merged):
        assert sums.finish().value == pytest.approx(slow_value(terms), rel=1e-12)


@given(st.integers(0, 1000))
def test_a_row_that_stands_for_events_counts_as_often(seed: int) -> None:
    terms, cluster = random_terms(seed), torch.arange(40) // 3
    times = torch.from_numpy(np.random.default_rng(seed).integers(0, 4, 40))
    times[0] = 1
    repeated = torch.arange(40).repeat_interleave(times)
    found = clustered(terms, cluster, times.double())
    expected = clustered(part(terms, repeated), cluster[repeated])
    assert found.value == pytest.approx(expected.value, rel=1e-12)
    assert found.standard_error == pytest.approx(expected.standard_error, rel=1e-9)
    assert found.mean_weight == pytest.approx(expected.mean_weight, rel=1e-12)
