"""Encoders against loops over single entries, and what they make of unknown, rare, constant and missing things."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.errors import ParameterError
from offpolicy.log import BagColumn, CategoricalColumn, EmbeddingColumn, FeatureTable, NumericColumn, Vocabulary
from offpolicy.models.columns import FURTHEST, Bags
from offpolicy.models.encoders import ColumnIndex, DesignMatrix

CITIES = ["rome", "oslo", "lima", "oslo", "oslo", "rome", "cairo"]
TAGS: list[list[int]] = [[7], [], [7, 9], [9, 9, 3], [], [11], [7, 3, 9, 11]]


def categorical(values: list[Any], vocabulary: Vocabulary | None = None) -> CategoricalColumn:
    vocabulary = Vocabulary.of(values) if vocabulary is None else vocabulary
    return CategoricalColumn(vocabulary.encode(values), vocabulary)


def bags(values: list[list[int]], vocabulary: Vocabulary | None = None) -> BagColumn:
    flat = [i for bag in values for i in bag]
    vocabulary = Vocabulary.of(flat) if vocabulary is None else vocabulary
    offsets = np.concatenate(([0], np.cumsum([len(bag) for bag in values])))
    return BagColumn(offsets, vocabulary.encode(flat), vocabulary)


def table(cities: Vocabulary | None = None, tags: Vocabulary | None = None) -> FeatureTable:
    random = np.random.default_rng(0)
    return FeatureTable(
        {
            "age": NumericColumn(random.normal(40, 10, size=7)),
            "same": NumericColumn(np.full(7, 0.1)),
            "city": categorical(CITIES, cities),
            "vector": EmbeddingColumn(random.normal(3, [0, 2, 5], size=(7, 3)).astype(np.float32)),
            "tags": bags(TAGS, tags),
        }
    )


def by_hand(max_categories: int) -> np.ndarray[Any, Any]:
    """The design matrix, entry by entry."""
    given = table()
    age, vector = given["age"], given["vector"]
    assert isinstance(age, NumericColumn)
    assert isinstance(vector, EmbeddingColumn)
    kept = {64: (["cairo", "lima", "oslo", "rome"], [3, 7, 9, 11]), 3: (["oslo", "rome"], [7, 9])}[max_categories]
    rows = []
    for i in range(7):
        row = [(age.values[i] - age.values.mean()) / age.values.std(), 0.0]
        row += [float(CITIES[i] == city) for city in kept[0]]
        row += [float(CITIES[i] not in kept[0])] * (max_categories == 3)
        for j in range(3):
            values = vector.values[:, j].astype(float)
            row.append(0.0 if j == 0 else (values[i] - values.mean()) / values.std())
        size = max(1, len(TAGS[i]))
        row += [TAGS[i].count(tag) / size for tag in kept[1]]
        row += [sum(tag not in kept[1] for tag in TAGS[i]) / size] * (max_categories == 3)
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("max_categories", [64, 3])
def test_the_design_matrix_equals_the_one_by_hand(max_categories: int) -> None:
    design = DesignMatrix.fit(table(), max_categories)
    found = design.encode(table())
    assert found.dtype == torch.float32
    assert found.shape == (7, design.width) == (7, len(design.names))
    np.testing.assert_allclose(found.numpy(), by_hand(max_categories), atol=1e-5)


def test_names_say_what_a_column_is() -> None:
    names = DesignMatrix.fit(table(), 3).names
    expected = ["age", "same", "city=oslo", "city=rome", "city=(other)"]
    assert names == [*expected, "vector[0]", "vector[1]", "vector[2]", "tags=7", "tags=9", "tags=(other)"]


def test_the_order_of_a_vocabulary_does_not_matter() -> None:
    other = table(Vocabulary(["x", "rome", "cairo", "oslo", "lima"]), Vocabulary([11, 9, 1, 3, 7]))
    for most in (64, 3):
        fitted_here, fitted_there = DesignMatrix.fit(table(), most), DesignMatrix.fit(other, most)
        assert fitted_here.names == fitted_there.names
        for one in (fitted_here, fitted_there):
            assert torch.equal(one.encode(table()), one.encode(other))
    index = ColumnIndex.fit(table())
    here, there = index.encode(table()), index.encode(other)
    torch.testing.assert_close(here, there, rtol=0, atol=0)


def new_entries() -> FeatureTable:
    columns = dict(table().take([0, 1]))
    columns["city"] = categorical(["atlantis", "rome"])
    columns["tags"] = bags([[99, 7], []])
    return FeatureTable(columns)


def test_unknown_ids_are_zeros_where_all_ids_fit_and_others_where_not() -> None:
    full, capped = DesignMatrix.fit(table()), DesignMatrix.fit(table(), 3)
    found = dict(zip(full.names, full.encode(new_entries()).T, strict=True))
    assert all(float(found[name][0]) == 0.0 for name in full.names if name.startswith("city"))
    assert found["tags=7"].tolist() == [0.5, 0.0]
    found = dict(zip(capped.names, capped.encode(new_entries()).T, strict=True))
    assert found["city=(other)"].tolist() == [1.0, 0.0]
    assert found["tags=(other)"].tolist() == [0.5, 0.0]


def test_an_index_gives_unknown_ids_the_last_code() -> None:
    index = ColumnIndex.fit(table())
    codes, tags = index.encode(new_entries())[2], index.encode(new_entries())[4]
    assert isinstance(codes, torch.Tensor)
    assert codes.tolist() == [4, 3]
    assert isinstance(tags, Bags)
    assert tags.codes.tolist() == [4, 1]
    assert tags.offsets.tolist() == [0, 2, 2]


def test_ids_of_the_vocabulary_that_do_not_occur_are_unknown_to_an_index() -> None:
    vocabulary = Vocabulary(["a", "b", "c"])
    fitted = ColumnIndex.fit(FeatureTable({"id": categorical(["c", "a"], vocabulary)}))
    (codes,) = fitted.encode(FeatureTable({"id": categorical(["a", "b", "c"], vocabulary)}))
    assert isinstance(codes, torch.Tensor)
    assert codes.tolist() == [0, 2, 1]


def test_statistics_come_from_the_fitted_table_only() -> None:
    fitted = FeatureTable({"x": NumericColumn(np.array([0.0, 2.0]))})
    other = FeatureTable({"x": NumericColumn(np.array([5.0]))})
    assert DesignMatrix.fit(fitted).encode(other).tolist() == [[4.0]]
    (values,) = ColumnIndex.fit(fitted).encode(other)
    assert isinstance(values, torch.Tensor)
    assert values.tolist() == [[4.0]]


@pytest.mark.parametrize("values", [[1e308, -1e308, 1e308], [1e-310, 3e-310, 2e-310], [0.0, 0.0, 0.0], [1e9 + 1, 1e9]])
def test_extreme_numbers_stay_finite(values: list[float]) -> None:
    fitted = FeatureTable({"x": NumericColumn(np.array(values))})
    design = DesignMatrix.fit(fitted)
    beyond = FeatureTable({"x": NumericColumn(np.array([1.7e308, -1.7e308, 0.0]))})
    for given in (fitted, beyond):
        found = design.encode(given)
        assert bool(found.isfinite().all())
        assert float(found.abs().max()) <= FURTHEST


def test_a_constant_column_stays_zero_for_new_values() -> None:
    design = DesignMatrix.fit(FeatureTable({"x": NumericColumn(np.full(3, 0.1))}))
    assert design.encode(FeatureTable({"x": NumericColumn(np.array([7.0]))})).tolist() == [[0.0]]


def test_bags_that_are_all_empty_still_make_a_matrix() -> None:
    given = FeatureTable({"tags": bags([[], []])})
    assert DesignMatrix.fit(given).encode(given).tolist() == [[0.0], [0.0]]
    (found,) = ColumnIndex.fit(given).encode(given)
    assert isinstance(found, Bags)
    assert found.offsets.tolist() == [0, 0, 0]


@pytest.mark.parametrize("ids", [[1, 2, None], ["a", "b", None], [True, False, None], [2**64 - 1, 0]])
def test_json_keeps_the_encoding_whatever_the_ids(ids: list[Any]) -> None:
    columns = dict(table().take(np.arange(len(ids))))
    given = FeatureTable({**columns, "id": categorical(ids)})
    design, index = DesignMatrix.fit(given), ColumnIndex.fit(given)
    design_again = DesignMatrix.from_json(json.loads(json.dumps(design.to_json())))
    index_again = ColumnIndex.from_json(json.loads(json.dumps(index.to_json())))
    assert design_again.names == design.names
    assert torch.equal(design_again.encode(given), design.encode(given))
    assert str(index_again.encode(given)) == str(index.encode(given))


def test_no_entries_encode_to_no_rows_but_cannot_be_fitted() -> None:
    empty = table().take([])
    assert DesignMatrix.fit(table()).encode(empty).shape == (0, 13)
    with pytest.raises(ParameterError, match="at least one entry"):
        DesignMatrix.fit(empty)


def test_columns_that_do_not_fit_are_named() -> None:
    design = DesignMatrix.fit(table())
    columns = dict(table())
    with pytest.raises(ParameterError, match=r"'age' must be numeric.*missing"):
        design.encode(FeatureTable({name: column for name, column in columns.items() if name != "age"}))
    with pytest.raises(ParameterError, match=r"'age' must be numeric.*it is categorical"):
        design.encode(FeatureTable({**columns, "age": columns["city"]}))
    with pytest.raises(ParameterError, match="'vector' must hold vectors of 3"):
        design.encode(FeatureTable({**columns, "vector": EmbeddingColumn(np.zeros((7, 2), dtype=np.float32))}))
    with pytest.raises(ParameterError, match="max_categories"):
        DesignMatrix.fit(table(), 1)


def test_a_vocabulary_is_translated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    index = ColumnIndex.fit(table())
    other = table(Vocabulary(["rome", "oslo", "lima", "cairo"]))
    index.encode(table_tile := other.take([0, 1]))
    monkeypatch.setattr(Vocabulary, "encode", lambda *_: pytest.fail("translated again"))
    index.encode(table_tile)
    index.encode(other.take([3]))
