"""Which rows are equal: the exact grouping behind "contexts are stored once"."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from offpolicy.log.ids import Codes, codes_in, distinct_ids

SAMPLE = 4096  # rows looked at to guess which key has the most distinct values


@dataclass(frozen=True)
class RowGroups:
    """Rows in groups of equal keys, numbered in order of first appearance."""

    index: Codes  # (rows,) the group of each row
    first_row: npt.NDArray[np.int64]  # (groups,) the first row of each group, ascending


def group_rows(keys: Sequence[pl.Series]) -> RowGroups:
    """Group the rows that agree in every key (nulls agree with nulls, NaN with NaN).

    The key with the most distinct values goes first. A further key that turns out constant inside every group so
    far, such as a feature of the user once users are grouped, costs one comparison and no hashing.
    """
    # Of two keys that look equally distinct the integer one is cheaper to code.
    ordered = sorted(keys, key=lambda key: (_sampled_distinct(key), key.dtype.is_integer()), reverse=True)
    codes, n_groups = _factorised(ordered[0])
    first = _first_rows(codes, n_groups)
    for key in ordered[1:]:
        if _is_constant_within(key, codes, first):
            continue
        other, n_other = _factorised(key)
        pair = codes.astype(np.int64)
        pair *= n_other
        pair += other
        codes, n_groups = _factorised(pl.Series(pair))
        first = _first_rows(codes, n_groups)
    order = np.argsort(first)
    rank: Codes = np.empty(n_groups, dtype=np.int32)
    rank[order] = np.arange(n_groups, dtype=np.int32)
    return RowGroups(rank[codes], first[order])


def _sampled_distinct(key: pl.Series) -> int:
    step = max(1, len(key) // SAMPLE)
    return key.gather_every(step).n_unique()


def _factorised(key: pl.Series) -> tuple[Codes, int]:
    """Codes 0..n-1 that are equal exactly where the values are, and n."""
    if key.dtype.is_float():
        key = _bit_pattern(key)
    if key.dtype.is_nested():
        return _factorised_lists(key)
    ids = distinct_ids(key)
    return codes_in(key, ids), len(ids)


def _factorised_lists(key: pl.Series) -> tuple[Codes, int]:
    """As `_factorised`, for lists and vectors: by hash if comparing each with its group's first proves that right."""
    codes, n_groups = _factorised(key.hash())
    if _is_constant_within(key, codes, _first_rows(codes, n_groups)):
        return codes, n_groups
    ids = key.unique()
    table = pl.DataFrame({"id": ids}).with_row_index("code")
    joined = pl.DataFrame({"id": key}).join(table, on="id", how="left", maintain_order="left", nulls_equal=True)
    return joined["code"].cast(pl.Int32).to_numpy(), len(ids)


def _bit_pattern(key: pl.Series) -> pl.Series:
    """Floats as integers: -0.0 becomes 0.0, and null joins NaN (readers report both as missing)."""
    values = np.array(key.cast(pl.Float64).fill_null(np.nan).to_numpy())
    values += 0.0
    values[np.isnan(values)] = np.nan
    return pl.Series(values.view(np.int64))


def _first_rows(codes: Codes, n_groups: int) -> npt.NDArray[np.int64]:
    first = np.empty(n_groups, dtype=np.int64)
    # Of several writes to one place NumPy keeps the last, so walking backwards leaves each group's first row.
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1, dtype=np.int32)
    return first


def _is_constant_within(key: pl.Series, codes: Codes, first: npt.NDArray[np.int64]) -> bool:
    if len(first) == len(codes):
        return True
    expected = key.gather(pl.Series(first)).gather(pl.Series(codes))
    return expected.eq_missing(key).all()
