"""From raw columns to feature columns: one kind each, checked, with rows that share a context stored once."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from offpolicy.errors import Fix, LogError
from offpolicy.log.candidates import Candidates
from offpolicy.log.derived import missing
from offpolicy.log.features import (
    BagColumn,
    CategoricalColumn,
    Column,
    EmbeddingColumn,
    FeatureTable,
    Kind,
    NumericColumn,
)
from offpolicy.log.grouping import RowGroups, group_rows
from offpolicy.log.ids import id_series, owned
from offpolicy.log.origin import Origin
from offpolicy.log.text import numbers_in, split_text, typed_text
from offpolicy.log.vocabulary import Vocabulary

PLAIN_IDS = (pl.String, pl.Boolean, pl.Categorical, pl.Enum, pl.Null)
DROP_OR_FILL = "Fill it in or drop the row."


def inferred_kind(column: str, dtype: pl.DataType, origin: Origin) -> Kind:
    """The kind of an undeclared column, by the rule that `LogSchema` documents."""
    if dtype.is_float() or dtype.is_decimal():
        return "numeric"
    if isinstance(dtype, pl.List | pl.Array):
        inner = dtype.inner
        if isinstance(inner, pl.DataType) and (inner.is_float() or inner.is_decimal()):
            return "embedding"
        if isinstance(inner, pl.DataType) and (inner.is_integer() or inner in PLAIN_IDS):
            return "bag"
    elif dtype.is_integer() or dtype in PLAIN_IDS:
        return "categorical"
    if dtype == pl.Duration:
        return "numeric"
    fix = Fix("exclude", column, "to leave it out, or convert it")
    raise origin.bad_column(column, f"holds {dtype}, which is none of number, text, date, boolean or list", fix=fix)


@dataclass(frozen=True)
class RawColumns:
    """Columns as they were read, the kinds declared for some of them, and where they came from."""

    series: Mapping[str, pl.Series]
    kinds: Mapping[str, Kind]
    origin: Origin

    def typed(self, column: str) -> tuple[Kind, pl.Series]:
        """The kind of a column, and its values as Float64, ids, Array(Float32) or List(ids)."""
        series = self.series[column]
        kind = self.kinds.get(column)
        if self.origin.is_text and series.dtype == pl.String and kind in (None, "categorical"):
            series = typed_text(column, series, kind, self.origin)
        kind = kind or inferred_kind(column, series.dtype, self.origin)
        return kind, _TYPED[kind](column, series, self.origin)


def distinct_contexts(
    typed: Mapping[str, tuple[Kind, pl.Series]],
    origin: Origin,
    candidates: Candidates | None = None,
    vocabularies: Mapping[str, Vocabulary] = MappingProxyType({}),
) -> tuple[FeatureTable, npt.NDArray[np.int32]]:
    """The distinct rows of typed columns as features, and for each row the position of its context.

    With the candidates of each row, those that differ in what was on offer are different contexts. A column without a
    vocabulary gets that of its own ids.
    """
    keys = [series for _, series in typed.values()]
    if candidates is None:
        groups = group_rows(keys)
        return _encoded(typed, groups, origin, vocabularies), owned(groups.index)
    groups = group_rows([*keys, pl.Series(candidates.hashes.view(np.int64))])
    table = _encoded(typed, groups, origin, vocabularies)
    return FeatureTable(dict(table), candidates.take(groups.first_row)), owned(groups.index)


def feature_table(
    columns: RawColumns, *, fill: bool = False, vocabularies: Mapping[str, Vocabulary] = MappingProxyType({})
) -> FeatureTable:
    """Every row of the columns as features, duplicates and all; with `fill`, missing numbers as 0."""
    typed = {name: columns.typed(name) for name in columns.series}
    if fill:
        typed = {name: (kind, filled(kind, values)) for name, (kind, values) in typed.items()}
    return features_of(typed, columns.origin, vocabularies)


def features_of(
    typed: Mapping[str, tuple[Kind, pl.Series]],
    origin: Origin,
    vocabularies: Mapping[str, Vocabulary] = MappingProxyType({}),
) -> FeatureTable:
    """Every row of typed columns as features."""
    rows = np.arange(len(next(iter(typed.values()))[1]))
    return _encoded(typed, RowGroups(rows.astype(np.int32), rows), origin, vocabularies)


def filled(kind: Kind, values: pl.Series) -> pl.Series:
    """Typed values with 0 for missing numbers, and zeros for missing vectors; ids as they are."""
    if kind in ("categorical", "bag"):
        return values
    width = values.dtype.shape[0] if isinstance(values.dtype, pl.Array) else 0
    nothing = pl.Series([[0.0] * width], dtype=values.dtype) if kind == "embedding" else 0.0
    absent = missing(values)
    return pl.select(pl.when(absent).then(pl.lit(nothing)).otherwise(values).alias(values.name)).to_series()


def _encoded(
    typed: Mapping[str, tuple[Kind, pl.Series]],
    groups: RowGroups,
    origin: Origin,
    vocabularies: Mapping[str, Vocabulary],
) -> FeatureTable:
    first_row = pl.Series(groups.first_row)
    return FeatureTable(
        {
            name: _column(name, kind, series.gather(first_row), groups.first_row, origin, vocabularies.get(name))
            for name, (kind, series) in typed.items()
        }
    )


def _column(
    name: str,
    kind: Kind,
    series: pl.Series,
    rows: npt.NDArray[np.int64],
    origin: Origin,
    vocabulary: Vocabulary | None,
) -> Column:
    """The feature column of typed values; `rows` says which row of the origin each value stands for."""
    if kind == "categorical":
        vocabulary = vocabulary or Vocabulary.of(series)
        return CategoricalColumn(owned(vocabulary.encode(series)), vocabulary)
    if kind == "bag":
        flat = flattened(series)
        vocabulary = vocabulary or Vocabulary.of(flat)
        sizes = series.list.len().to_numpy()
        offsets = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        return BagColumn(owned(offsets), owned(vocabulary.encode(flat)), vocabulary)
    values: npt.NDArray[Any] = _matrix(series) if kind == "embedding" else series.fill_null(np.nan).to_numpy()
    finite = np.isfinite(values)
    if not finite.all():
        entry = int(np.argwhere(~finite)[0][0])
        raise origin.bad_value(name, int(rows[entry]), series[entry], "must hold finite numbers", DROP_OR_FILL)
    return EmbeddingColumn(values) if kind == "embedding" else NumericColumn(values)


def _matrix(series: pl.Series) -> npt.NDArray[np.float32]:
    width = series.dtype.shape[0] if isinstance(series.dtype, pl.Array) else 0
    flat = series.explode().fill_null(np.nan)
    return owned(flat.to_numpy().reshape(len(series), width).astype(np.float32, copy=False))


def numbers(column: str, series: pl.Series, origin: Origin, *, parse: bool = True) -> pl.Series:
    """The values as Float64; text is parsed where `parse` allows it. Null stays null, for the caller to handle."""
    dtype = series.dtype
    if dtype.is_numeric() or dtype == pl.Boolean or dtype == pl.Null:
        return series.cast(pl.Float64)
    if dtype == pl.Duration:
        return series.dt.total_microseconds().cast(pl.Float64) / 1e6
    if dtype in (pl.String, pl.Categorical, pl.Enum) and parse:
        text = series.cast(pl.String)
        parsed = numbers_in(text)
        failed = parsed.is_null() & text.is_not_null()
        if failed.any():
            row = _first(failed)
            raise origin.bad_value(column, row, text[row], "must hold numbers", "Write a number or drop the row.")
        return parsed
    raise origin.bad_value(
        column, 0, series.first(), f"must hold numbers (its type is {dtype})", "Convert the column to numbers."
    )


def _numeric(column: str, series: pl.Series, origin: Origin) -> pl.Series:
    return numbers(column, series, origin)


def ids(column: str, series: pl.Series, origin: Origin) -> pl.Series:
    """The values as ids; whole floats (integers that passed through NaN) become integers, dates become text."""
    dtype = series.dtype
    if dtype.is_float():
        filled = series.fill_nan(None)
        whole = filled.cast(pl.Int64, strict=False)
        broken = (whole.cast(pl.Float64) != filled.cast(pl.Float64)).fill_null(False) | (
            whole.is_null() & filled.is_not_null()
        )
        if broken.any():
            row = _first(broken)
            remedy = "Convert the ids to integers or strings."
            raise origin.bad_value(column, row, series[row], "must hold ids", remedy)
        return whole
    if dtype.is_temporal():
        return series.cast(pl.String)
    try:
        return id_series(series)
    except LogError:
        remedy = "Convert the ids to integers or strings."
        raise origin.bad_column(column, f"must hold ids, but it is of type {dtype}", remedy) from None


def _lists(column: str, series: pl.Series, origin: Origin, what: str, items: str) -> pl.Series:
    """A column of lists, of arrays, or of text that spells lists."""
    if series.dtype == pl.String:
        return split_text(series)
    if isinstance(series.dtype, pl.Array):
        return series.cast(pl.List(series.dtype.inner))
    if not isinstance(series.dtype, pl.List):
        remedy = f"Give lists of {items}, or declare another kind."
        raise origin.bad_column(column, f"must hold {what}, but it is of type {series.dtype}", remedy)
    return series


def _embedding(column: str, series: pl.Series, origin: Origin) -> pl.Series:
    lists = _lists(column, series, origin, "vectors", "floats of one length")
    sizes = lists.list.len().cast(pl.Int64)
    first = sizes.drop_nulls().first()
    size = first if isinstance(first, int) else 1
    unequal = (sizes != size).fill_null(False)  # a missing vector is left to the caller
    if unequal.any() or size == 0:
        row = _first(unequal) if unequal.any() else 0
        rule = f"must hold vectors of one length (the first has {size})"
        remedy = "Fix the vector, or declare the column a bag if its length may vary."
        raise origin.bad_value(column, row, series[row], rule, remedy)
    if lists.null_count():
        lists = lists.fill_null(pl.lit([None] * size, dtype=lists.dtype))
    flat = lists.explode()
    values = flat.cast(pl.Float32, strict=False) + 0.0  # so that -0.0 and 0.0 are one value
    failed = values.is_null() & flat.is_not_null()
    if failed.any():
        row = _first(failed) // size
        raise origin.bad_value(column, row, series[row], "must hold vectors of numbers", DROP_OR_FILL)
    return values.reshape((len(series), size))


def _bag(column: str, series: pl.Series, origin: Origin) -> pl.Series:
    lists = _lists(column, series, origin, "bags of ids", "ids")
    flat = ids(column, flattened(lists), origin)
    if series.dtype == pl.String:
        flat = typed_text(column, flat, "categorical", origin)
    return lists.cast(pl.List(flat.dtype)).fill_null(pl.lit([], dtype=pl.List(flat.dtype)))


def flattened(lists: pl.Series) -> pl.Series:
    """All items one after another; an empty or missing list adds nothing."""
    return lists.filter(lists.list.len() > 0).explode()


def _first(mask: pl.Series) -> int:
    first = mask.fill_null(False).arg_max()
    return 0 if first is None else first


_TYPED = {"numeric": _numeric, "categorical": ids, "embedding": _embedding, "bag": _bag}
