"""Users' ids (integers, strings or booleans, null allowed) as polars series, and their integer codes.

Every function is exact: codes come from lookup tables, enumerations or joins, never from a bare hash.
"""

from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from offpolicy.errors import LogError

Codes: TypeAlias = npt.NDArray[np.int32]
Id: TypeAlias = int | str | bool | None
Checked = TypeVar("Checked")

UNKNOWN = -1  # the code of an id that a vocabulary does not hold
TABLE_SLACK = 4  # a lookup table may have this many entries per value before a hash join is cheaper
INT64_MAX = 2**63 - 1


def sealed(array: Any, dtype: Any) -> npt.NDArray[Any]:
    """The array with this dtype, contiguous and read-only.

    A writeable array is copied, so that its owner cannot change the result later; a read-only one is shared.
    """
    given = np.asarray(array)
    if given.dtype == dtype and given.flags.c_contiguous and not given.flags.writeable:
        return given
    kept = np.array(given, dtype=dtype, order="C")
    kept.flags.writeable = False
    return kept


def owned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Mark an array that has no other owner as read-only, so that `sealed` need not copy it."""
    array.flags.writeable = False
    return array


def id_series(values: Any) -> pl.Series:
    """Ids of any origin as a series of Int64, UInt64 (beyond 2⁶³), String or Boolean."""
    series = values if isinstance(values, pl.Series) else _series_of(values)
    dtype = series.dtype
    if dtype in (pl.Categorical, pl.Enum) or dtype == pl.Null:
        return series.cast(pl.String)
    if dtype == pl.UInt64:
        largest = series.max()
        return series if isinstance(largest, int) and largest > INT64_MAX else series.cast(pl.Int64)
    if dtype.is_integer() and dtype not in (pl.Int128, pl.UInt128):
        return series.cast(pl.Int64)
    if dtype in (pl.String, pl.Boolean):
        return series
    raise LogError(
        f"Ids must be integers, strings or booleans, but column {series.name!r} holds {dtype}; its first value is "
        f"{series.first()!r}. Convert it, or declare the column numeric."
    )


def _series_of(values: Any) -> pl.Series:
    if isinstance(values, np.ndarray) and values.dtype.kind in "iub" and values.ndim == 1:
        return pl.Series(np.ascontiguousarray(values))
    items = values.tolist() if isinstance(values, np.ndarray) else list(values)
    items = [item.item() if isinstance(item, np.generic) else item for item in items]
    kinds = {type(item) for item in items if item is not None}
    if not kinds:
        return pl.Series(items, dtype=pl.String)
    if len(kinds) > 1 or not kinds <= {int, str, bool}:
        first = next(item for item in items if item is not None)
        position, odd = next(
            (i, item)
            for i, item in enumerate(items)
            if item is not None and (type(item) is not type(first) or not isinstance(item, int | str))
        )
        raise LogError(
            f"Ids must be all integers, all strings or all booleans, but the value at position {position} is "
            f"{odd!r} ({type(odd).__name__}) and the first one is {first!r}. Convert them to one type."
        )
    if kinds == {int}:
        largest, smallest = (extreme(i for i in items if i is not None) for extreme in (max, min))
        if smallest < -INT64_MAX - 1 or largest > (2 * INT64_MAX + 1 if smallest >= 0 else INT64_MAX):
            raise LogError(f"Integer ids must fit in 64 bits, but they reach {smallest} and {largest}. Use strings.")
        return pl.Series(items, dtype=pl.UInt64 if largest > INT64_MAX else pl.Int64)
    return pl.Series(items, dtype=pl.String if kinds == {str} else pl.Boolean)


def distinct_ids(series: pl.Series) -> pl.Series:
    """The distinct ids in ascending order, null (when there is one) last."""
    span = _table_span(series, len(series))
    if span is None:
        return series.unique().sort(nulls_last=True).alias("id")
    low, size = span
    seen = np.zeros(size, dtype=np.bool_)
    for chunk in series.drop_nulls().get_chunks():
        seen[chunk.to_numpy() - low] = True
    ids = pl.Series("id", np.flatnonzero(seen) + low, dtype=pl.Int64)
    return pl.concat([ids, pl.Series("id", [None], dtype=pl.Int64)]) if series.null_count() else ids


def codes_in(series: pl.Series, ids: pl.Series) -> Codes:
    """The position of each value in `ids` (distinct values), `UNKNOWN` for a value that is not there."""
    missing = series.is_null()
    if series.dtype != ids.dtype:
        series = _as_type_of(series, ids)
    if len(ids) - ids.null_count() == 0 or series.null_count() == len(series):
        codes: Codes = np.full(len(series), UNKNOWN, dtype=np.int32)
    elif (span := _table_span(ids, len(series))) is not None:
        codes = _codes_by_table(series, ids, span)
    elif ids.dtype == pl.String:
        codes = _codes_by_enum(series, ids)
    else:
        table = pl.DataFrame({"id": ids}).with_row_index("code")
        frame = pl.DataFrame({"id": series})
        joined = frame.join(table, on="id", how="left", maintain_order="left")
        codes = np.array(joined["code"].cast(pl.Int32).fill_null(UNKNOWN).to_numpy())
    if missing.any() and ids.null_count():
        codes[missing.to_numpy()] = np.argmax(ids.is_null().to_numpy())
    return codes


def _as_type_of(series: pl.Series, ids: pl.Series) -> pl.Series:
    """The values that could be among `ids`; null where the type alone rules it out (the string "7" is not 7)."""
    if series.dtype.is_integer() and ids.dtype.is_integer():
        return series.cast(ids.dtype, strict=False)
    return pl.repeat(None, len(series), dtype=ids.dtype, eager=True)


def _table_span(ids: pl.Series, n_values: int) -> tuple[int, int] | None:
    """The smallest id and the size of a lookup table over all of them, or None where a table would be wasteful."""
    if ids.dtype != pl.Int64:
        return None
    low, high = ids.min(), ids.max()
    if not isinstance(low, int) or not isinstance(high, int):
        return None
    size = high - low + 1
    return (low, size) if size <= TABLE_SLACK * max(n_values, len(ids)) + 1024 else None


def _codes_by_table(series: pl.Series, ids: pl.Series, span: tuple[int, int]) -> Codes:
    low, size = span
    table: Codes = np.full(size + 1, UNKNOWN, dtype=np.int32)  # the last entry stands for every value outside
    positions = np.flatnonzero(ids.is_not_null().to_numpy())
    table[ids.drop_nulls().to_numpy() - low] = positions
    codes: Codes = np.empty(len(series), dtype=np.int32)
    start = 0
    for chunk in series.get_chunks():
        filled = chunk.fill_null(low - 1 if low > -INT64_MAX else low + size) if chunk.null_count() else chunk
        values = filled.to_numpy()
        if len(values) and (values.min() < low or values.max() >= low + size):
            offsets = np.where((values >= low) & (values < low + size), values - low, size)
        else:
            offsets = values - low
        np.take(table, offsets, out=codes[start : start + len(values)])
        start += len(values)
    return codes


def _codes_by_enum(series: pl.Series, ids: pl.Series) -> Codes:
    known = ids.drop_nulls()
    codes = series.cast(pl.Enum(known), strict=False).to_physical().cast(pl.Int32).fill_null(UNKNOWN)
    if not ids.null_count():
        return np.array(codes.to_numpy())
    positions = np.append(np.flatnonzero(ids.is_not_null().to_numpy()), UNKNOWN).astype(np.int32)
    return np.asarray(positions[codes.to_numpy()], dtype=np.int32)


def trusted(kind: type[Checked], **values: Any) -> Checked:
    """An instance made of parts that were checked before, such as a slice of a checked column: not checked again."""
    made = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made
