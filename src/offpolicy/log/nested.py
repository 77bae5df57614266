"""Columns of objects, as events carry them: every field is a column of its own, such as `outcome.click`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

MARK = "."


def selections(schema: Mapping[str, pl.DataType]) -> dict[str, pl.Expr]:
    """What selects each column, by its name; a column of objects stands for its fields, at any depth.

    A field whose name is that of a whole column gives way to it.
    """
    found: dict[str, pl.Expr] = {}
    ahead: list[tuple[str, pl.Expr, Any]] = [
        (name, pl.col(name), dtype) for name, dtype in reversed(list(schema.items()))
    ]
    while ahead:
        name, value, dtype = ahead.pop()
        if isinstance(dtype, pl.Struct):
            fields = [(f"{name}{MARK}{one.name}", value.struct.field(one.name), one.dtype) for one in dtype.fields]
            ahead += reversed([field for field in fields if field[0] not in schema])
        else:
            found[name] = value
    return found


def roots(columns: Iterable[str], known: Iterable[str]) -> list[str]:
    """The whole columns in which these are found, once each."""
    names = set(known)
    return list(dict.fromkeys(next((one for one in holders(name) if one in names), name) for name in columns))


def holders(name: str) -> list[str]:
    """A column and the objects that may hold it: `a.b.c`, `a.b`, `a`."""
    parts = name.split(MARK)
    return [MARK.join(parts[:end]) for end in range(len(parts), 0, -1)]


def flattened(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """These columns of a frame, fields of objects among them; null where the frame has none."""
    return frame.select(selected(columns, frame.schema))


def selected(columns: Sequence[str], schema: Mapping[str, pl.DataType]) -> list[pl.Expr]:
    """What selects these columns, whole objects too if they are named; null for one that is not there."""
    found = {name: pl.col(name) for name in schema} | selections(schema)
    return [found.get(name, pl.lit(None)).alias(name) for name in columns]
