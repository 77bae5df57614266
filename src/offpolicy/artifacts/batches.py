"""Columns of files, frames, mappings and tables, batch after batch, without holding a whole file."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from offpolicy.errors import LogError
from offpolicy.log import (
    READ_ERRORS,
    Format,
    Origin,
    Part,
    Spelling,
    blank_lines_at_end,
    check_columns,
    column_names,
    expanded,
    format_of,
    is_path,
    listed,
    nearest,
    read_table,
    rewritten,
    separator_of,
    sources,
    spellings,
    with_derived,
)

SEPARATORS = "|;,"  # of lists written as text, in the order in which the reader looks for them


@dataclass(frozen=True)
class FileSlice(Part):
    """Consecutive rows of a file and where they begin in it."""

    first: int = 0

    def place(self, row: int) -> str:
        """The row, counted from the beginning of the file."""
        return super().place(row + self.first)


@dataclass(frozen=True)
class Batch:
    """Some rows of a source: raw columns, where they came from, and how bags written as text are separated."""

    series: Mapping[str, pl.Series]
    origin: Origin
    separators: Mapping[str, str]


def batches(source: Any, columns: Sequence[str], kinds: Mapping[str, str], size: int) -> Iterator[Batch]:
    """The columns of a path, glob, list of paths, frame or mapping; files come in batches of at most `size` rows.

    Columns of CSV files whose `kinds` are known are written plainly, as those of a log are.
    """
    if is_path(source):
        for path in expanded(source):
            yield from _of_file(path, columns, kinds, size)
        return
    table = read_table(_frame(source), columns, argument="contexts")
    yield Batch(table.series, table.origin, {})


def _frame(source: Any) -> Any:
    if not isinstance(source, Mapping):
        return source
    try:
        return pl.DataFrame(dict(source))
    except Exception as error:  # polars raises many kinds for ragged or mixed values
        reason = str(error).splitlines()[0]
        raise LogError(f"contexts: the columns cannot be read as numbers, ids or lists ({reason}).") from None


def _of_file(path: Path, columns: Sequence[str], kinds: Mapping[str, str], size: int) -> Iterator[Batch]:
    form = format_of(path)
    names = column_names(path, form)
    wanted = sources(columns, names)
    for column in wanted:
        if column not in names:
            raise LogError(
                f"{path} has no column {column!r}, which the policy or you asked for.{nearest(column, names)} "
                f"Its columns are: {listed(names)}."
            )
    scan = _scan(path, form, wanted).select(wanted)
    mark = separator_of(path) if form == "csv" else None
    first = 0
    try:
        separators = {} if mark is None else _separators(scan, [name for name, kind in kinds.items() if kind == "bag"])
        found = {} if mark is None else _spelled(scan, spellings(sources(kinds, names), mark, kinds), size)
        for frame in _without_blank_end(scan.collect_batches(chunk_size=size, lazy=True), path, form):
            frame = rewritten(frame, found)
            part = FileSlice(str(path), len(frame), path, mark, first)
            series = {name: frame.get_column(name) for name in wanted}
            yield Batch(with_derived(columns, series), Origin((part,)), separators)
            first += len(frame)
    except READ_ERRORS as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise LogError(f"{path} cannot be read as {form.upper()} ({reason}). Fix or rewrite the file.") from None


def _scan(path: Path, form: Format, columns: Sequence[str]) -> pl.LazyFrame:
    if form == "parquet":
        check_columns(path, columns)
        return pl.scan_parquet(path, glob=False, hive_partitioning=False)
    if form == "ndjson":
        return pl.scan_ndjson(path, infer_schema_length=None)
    return pl.scan_csv(path, separator=separator_of(path), infer_schema=False, glob=False)


def _spelled(scan: pl.LazyFrame, found: Mapping[str, Spelling], size: int) -> Mapping[str, Spelling]:
    """How the columns of a whole text file are spelled."""
    for frame in scan.select(list(found)).collect_batches(chunk_size=size, lazy=True) if found else ():
        for name, one in found.items():
            one.see(frame.get_column(name))
    return found


def _separators(scan: pl.LazyFrame, bags: Sequence[str]) -> dict[str, str]:
    """The separator of each bag column of a text file, by the rule of the reader, over the whole file."""
    if not bags:
        return {}
    tests = [
        pl.col(bag).str.contains(mark, literal=True).any().alias(f"{i}{mark}")
        for i, bag in enumerate(bags)
        for mark in SEPARATORS
    ]
    contains = scan.select(tests).collect(engine="streaming").row(0, named=True)
    marks = {bag: next((mark for mark in SEPARATORS if contains[f"{i}{mark}"]), None) for i, bag in enumerate(bags)}
    return {bag: mark for bag, mark in marks.items() if mark is not None}


def _without_blank_end(frames: Iterator[pl.DataFrame], path: Path, form: Format) -> Iterator[pl.DataFrame]:
    """The batches without the rows that polars makes of empty lines at the end of a CSV file."""
    blank = blank_lines_at_end(path) if form == "csv" else 0
    held: pl.DataFrame | None = None
    for frame in frames:
        held = frame if held is None else pl.concat([held, frame])
        ready = len(held) - blank
        if ready > 0:
            yield held.head(ready)
            held = held.tail(blank) if blank else None
