import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from offpolicy.evaluation.value import Terms, ValueSums, value


def random_terms(seed: int, rows: int = 40) -> Terms:
    random = torch.Generator().manual_seed(seed)
    return Terms(*torch.rand(5, rows, generator=random, dtype=torch.float64).unbind(0))


def part(terms: Terms, rows: slice) -> Terms:
    return Terms(*(field[rows] for field in vars(terms).values()))


@given(st.integers(0, 1000), st.lists(st.integers(1, 39), max_size=5), st.randoms(use_true_random=False))
def test_batches_in_any_order_and_shards_in_any_grouping_give_the_same_value(seed, cuts, random) -> None:  # type: ignore[no-untyped-def]
    terms = random_terms(seed)
    edges = sorted({0, 40, *cuts})
    batches = [part(terms, slice(a, b)) for a, b in itertools.pairwise(edges)]
    forward, shuffled, merged = ValueSums(), ValueSums(), ValueSums()
    for batch in batches:
        forward.add(batch)
    for batch in random.sample(batches, len(batches)):
        shuffled.add(batch)
        shard = ValueSums()
        shard.add(batch)
        merged.merge(shard)
    assert forward.finish() == shuffled.finish() == merged.finish()
    torch.testing.assert_close(forward.finish().value, value(terms).value, rtol=1e-12, atol=0)
