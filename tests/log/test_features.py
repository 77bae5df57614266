"""Vocabularies and feature columns: round trips, frozenness, and that wrong ones cannot be built."""

import json
import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpolicy.errors import LogError
from offpolicy.log import (
    BagColumn,
    CategoricalColumn,
    EmbeddingColumn,
    FeatureTable,
    NumericColumn,
    Vocabulary,
)

small = st.integers(-50, 50)
wide = st.integers(-(2**63), 2**63 - 1)
unsigned = st.integers(2**63, 2**64 - 1)
text = st.text(max_size=6)
id_lists = st.one_of(*(st.lists(st.none() | ids, min_size=1, max_size=40) for ids in (small, wide, unsigned, text)))


@given(id_lists)
def test_encode_then_decode_gives_the_ids_back(values: list[Any]) -> None:
    vocabulary = Vocabulary.of(values)
    codes = vocabulary.encode(values)
    assert codes.dtype == np.int32
    assert vocabulary.decode(codes) == values
    assert len(vocabulary) == len(set(values))
    assert sorted(set(codes.tolist())) == list(range(len(vocabulary)))


@given(id_lists, id_lists)
def test_encode_marks_exactly_the_unknown(known: list[Any], asked: list[Any]) -> None:
    vocabulary = Vocabulary.of(known)
    codes = vocabulary.encode(asked).tolist()
    expected = [vocabulary.to_list().index(value) if value in known else -1 for value in asked]
    assert codes == expected


@given(id_lists)
def test_vocabulary_survives_json_and_pickle(values: list[Any]) -> None:
    vocabulary = Vocabulary.of(values)
    assert Vocabulary.from_list(json.loads(json.dumps(vocabulary.to_list()))).to_list() == vocabulary.to_list()
    assert pickle.loads(pickle.dumps(vocabulary)) == vocabulary


def test_vocabulary_keeps_the_given_order_and_types_apart() -> None:
    vocabulary = Vocabulary(["b", "a", None])
    assert vocabulary.encode(["a", "b", "c", None]).tolist() == [1, 0, -1, 2]
    assert vocabulary != Vocabulary(["a", "b", None])
    assert Vocabulary([1, 2]) != Vocabulary(["1", "2"])
    assert Vocabulary([1, 2]).encode(["1", "2"]).tolist() == [-1, -1]
    assert Vocabulary([False, True]).encode(np.array([True, False])).tolist() == [1, 0]
    assert hash(Vocabulary([1, 2])) == hash(Vocabulary([1, 2]))


def test_sorted_vocabulary_puts_null_last() -> None:
    assert Vocabulary.of([3, None, -1, 3]).to_list() == [-1, 3, None]
    assert Vocabulary.of(pl.Series(["b", None, "a"], dtype=pl.Categorical)).to_list() == ["a", "b", None]


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([1, 2, 1], "1 occurs twice"),
        ([1, "a"], "position 1 is 'a'"),
        ([1.5, 2.0], "position 0 is 1.5"),
        ([True, 2], "position 1 is 2"),
        ([2**64], "64 bits"),
        (pl.Series("when", [1.5]), "'when' holds Float64"),
    ],
)
def test_bad_ids_are_refused(ids: Any, said: str) -> None:
    with pytest.raises(LogError, match=said):
        Vocabulary(ids)


def test_decode_refuses_codes_outside() -> None:
    with pytest.raises(LogError, match=r"0\.\.1"):
        Vocabulary(["a", "b"]).decode([-1])


def columns() -> dict[str, Any]:
    vocabulary = Vocabulary(["x", "y", "z"])
    return {
        "n": NumericColumn(np.array([0.5, 1.5, 2.5])),
        "c": CategoricalColumn(np.array([2, 0, 1], dtype=np.int32), vocabulary),
        "e": EmbeddingColumn(np.arange(6, dtype=np.float32).reshape(3, 2)),
        "b": BagColumn(np.array([0, 2, 2, 3]), np.array([0, 1, 2], dtype=np.int32), vocabulary),
    }


def plain(column: Any) -> list[Any]:
    """The entries of a column as Python values."""
    if isinstance(column, NumericColumn | EmbeddingColumn):
        return list(column.values.tolist())
    if isinstance(column, CategoricalColumn):
        return list(column.vocabulary.decode(column.codes))
    decoded = column.vocabulary.decode(column.codes)
    return [decoded[a:b] for a, b in pairwise(column.offsets)]


@pytest.mark.parametrize("name", ["n", "c", "e", "b"])
@given(index=st.lists(st.integers(0, 2), max_size=6))
def test_take_gives_the_entries_at_the_positions(name: str, index: list[int]) -> None:
    column = columns()[name]
    taken = column.take(np.array(index, dtype=np.int64))
    assert len(taken) == len(index)
    assert plain(taken) == [plain(column)[i] for i in index]


def test_kinds_and_equality() -> None:
    left, right = columns(), columns()
    assert {name: column.kind for name, column in left.items()} == {
        "n": "numeric",
        "c": "categorical",
        "e": "embedding",
        "b": "bag",
    }
    assert FeatureTable(left) == FeatureTable(right)
    for name in left:
        assert left[name] == right[name]
        assert left[name] != left[name].take([1, 0, 2])


def test_everything_is_read_only_and_detached_from_the_callers_array() -> None:
    mine = np.array([1.0, 2.0])
    column = NumericColumn(mine)
    mine[0] = 9.0
    assert column.values.tolist() == [1.0, 2.0]
    table = FeatureTable(columns())
    for held in table.values():
        arrays = [value for value in vars(held).values() if isinstance(value, np.ndarray)]
        assert arrays
        assert not any(array.flags.writeable for array in arrays)
    frozen: Any
    for frozen in (column, table, Vocabulary([1, 2])):
        with pytest.raises(AttributeError):
            frozen.values = None


VOCABULARY = Vocabulary([1, 2])
Embedding: Any = EmbeddingColumn  # to be called with arrays that its signature forbids


@pytest.mark.parametrize(
    "build",
    [
        lambda: NumericColumn(np.array([1.0, np.nan])),
        lambda: NumericColumn(np.ones((2, 2))),
        lambda: Embedding(np.array([[1.0, np.inf]])),
        lambda: Embedding(np.array([[1e300]])),
        lambda: Embedding(np.ones((2, 0))),
        lambda: Embedding(np.ones(3)),
        lambda: CategoricalColumn(np.array([0, 2]), VOCABULARY),
        lambda: CategoricalColumn(np.array([-1, 0]), VOCABULARY),
        lambda: BagColumn(np.array([0, 2]), np.array([0]), VOCABULARY),
        lambda: BagColumn(np.array([0, 2, 1]), np.array([0]), VOCABULARY),
        lambda: BagColumn(np.array([1, 1]), np.array([0]), VOCABULARY),
        lambda: BagColumn(np.array([0, 1]), np.array([5]), VOCABULARY),
        lambda: FeatureTable({}),
        lambda: FeatureTable({"a": NumericColumn(np.ones(2)), "b": NumericColumn(np.ones(3))}),
    ],
)
def test_a_wrong_column_cannot_be_built(build: Any) -> None:
    with pytest.raises(LogError):
        build()
