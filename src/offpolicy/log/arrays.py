"""Contexts given as arrays: a matrix, a vector, or named columns."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from offpolicy.errors import LogError
from offpolicy.log.encode import RawColumns, feature_table
from offpolicy.log.features import BagColumn, CategoricalColumn, Column, FeatureTable
from offpolicy.log.grouping import group_rows
from offpolicy.log.ids import Codes, id_series, owned
from offpolicy.log.origin import Origin, Part


def context_table(contexts: Any) -> FeatureTable:
    """Contexts given as a matrix, a vector, a mapping from names to arrays or columns, or a table."""
    if isinstance(contexts, FeatureTable):
        return contexts
    named = contexts if isinstance(contexts, Mapping) else {"context": contexts}
    if not named:
        raise LogError("contexts must hold at least one column, but the mapping is empty. Give one feature or id.")
    columns: dict[str, Column] = {}
    for name, values in named.items():
        columns[str(name)] = values if isinstance(values, Column) else _column(str(name), values)
    return FeatureTable(columns)


def _column(name: str, values: Any) -> Column:
    try:
        series = values if isinstance(values, pl.Series) else _series(name, values)
    except LogError:
        raise
    except Exception as error:  # the libraries raise many kinds for ragged or mixed values
        reason = str(error).splitlines()[0]
        raise LogError(f"contexts: column {name!r} cannot be read as numbers, ids or lists ({reason}).") from None
    origin = Origin((Part("contexts", len(series)),))
    return feature_table(RawColumns({name: series}, {}, origin))[name]


def _series(name: str, values: Any) -> pl.Series:
    array = values if isinstance(values, np.ndarray) else None
    if array is not None and array.ndim == 2 and array.dtype.kind in "iufb" and array.shape[1]:
        flat = pl.Series(name, array.astype(np.float32).ravel())
        return flat.reshape(array.shape) if len(array) else flat.cast(pl.Float32).reshape((0, array.shape[1]))
    if array is not None and array.ndim != 1:
        raise LogError(f"contexts: column {name!r} must have one or two dimensions, but its shape is {array.shape}.")
    if array is not None and array.dtype.kind in "iufb":
        return pl.Series(name, np.ascontiguousarray(array))
    items = list(values)
    scalar = next((item for item in items if item is not None), None)
    if isinstance(scalar, int | str | np.integer | np.str_):
        return id_series(items).alias(name)
    return pl.Series(name, items, strict=True)


def deduplicated(table: FeatureTable) -> tuple[FeatureTable, Codes]:
    """The distinct entries of a table, and for each entry its position among them."""
    keys = [_key(column) for column in table.values()]
    if table.candidates is not None:
        keys.append(pl.Series(table.candidates.hashes.view(np.int64)))
    groups = group_rows(keys)
    return table.take(groups.first_row), owned(groups.index)


def _key(column: Column) -> pl.Series:
    if isinstance(column, CategoricalColumn):
        return pl.Series(column.codes).cast(pl.Int64)
    if isinstance(column, BagColumn):
        rows = np.repeat(np.arange(len(column)), np.diff(column.offsets))
        bags = pl.DataFrame({"row": rows, "code": column.codes}).group_by("row", maintain_order=True).agg("code")
        every = pl.DataFrame({"row": np.arange(len(column))}).join(bags, on="row", how="left", maintain_order="left")
        return every["code"]
    if column.values.ndim == 2:
        return pl.Series(column.values.ravel() + np.float32(0.0)).reshape(column.values.shape)
    return pl.Series(column.values)
