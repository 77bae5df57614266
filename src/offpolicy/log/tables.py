"""One table from any source: its needed columns, stacked over files, and where each row came from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import polars as pl

from offpolicy.errors import LogError
from offpolicy.log.derived import source_of, sources, with_derived
from offpolicy.log.files import Format, column_names, expanded, format_of, read_columns, separator_of
from offpolicy.log.formats.vowpal import VowpalFormat, vowpal_log
from offpolicy.log.frames import frame_columns, frame_names, wrapped
from offpolicy.log.nested import holders
from offpolicy.log.origin import Origin, Part
from offpolicy.log.schema import listed, nearest
from offpolicy.log.spelling import plainly
from offpolicy.log.store import is_store, store_columns

TEXT = (pl.String, pl.Categorical, pl.Enum)


@dataclass(frozen=True)
class Table:
    """The columns that were asked for; `series` is emptied column by column as they are encoded."""

    series: dict[str, pl.Series]
    origin: Origin


def is_path(source: Any) -> bool:
    """Whether a source names files rather than being a frame."""
    if isinstance(source, list | tuple):
        return all(isinstance(one, str | Path) for one in source)
    return isinstance(source, str | Path)


def source_names(source: Any) -> list[str]:
    """The names of a source's columns; of several files, the first one's."""
    if isinstance(source, Table):
        return list(source.series)
    if is_store(source):
        return store_columns(source)
    if not is_path(source):
        return frame_names(wrapped(source, "source"))
    path = expanded(source)[0]
    return column_names(path, format_of(path))


def read_table(
    source: Any,
    columns: Sequence[str],
    everything: bool = False,
    argument: str = "source",
    kinds: Mapping[str, str] | None = None,
) -> Table:
    """The columns of a source, in order, derived ones included; with `everything` also all its other columns.

    With `kinds`, columns of CSV files are written plainly, but for those whose kind says that they hold ids or lists.
    """
    if isinstance(source, Table):
        read = sources(columns, source.series)
        check_present(read, list(source.series), source.origin.name)
        return Table(with_derived(columns, source.series), source.origin.of(read))
    if not is_path(source):
        frame = wrapped(source, argument)
        names = frame_names(frame)
        check_present(columns, names, "the frame")
        wanted = _wanted(columns, names, everything)
        series, part = frame_columns(frame, sources(wanted, names))
        return Table(with_derived(wanted, series), Origin((part,)))
    paths = expanded(source)
    formats = [format_of(path) for path in paths]
    if len(set(formats)) > 1:
        other = next(number for number, form in enumerate(formats) if form != formats[0])
        raise LogError(
            f"{paths[other]} is {formats[other].upper()} but {paths[0]} is {formats[0].upper()}. "
            "Read files of one format at a time."
        )
    if formats[0] in ("dsjson", "cb"):
        return _of_vowpal(paths, formats[0], columns, everything)
    return _stacked(paths, formats[0], columns, everything, kinds)


def _of_vowpal(paths: Sequence[Path], form: Format, columns: Sequence[str], everything: bool) -> Table:
    """Files of Vowpal Wabbit are read as one: a feature that one of them lacks is zero there."""
    found = vowpal_log(paths, cast("VowpalFormat", form))
    wanted = _wanted(columns, found.frame.columns, everything)
    check_present(wanted, found.frame.columns, str(paths[0]))
    parts = tuple(Part(str(path), n_rows, path) for path, n_rows in zip(paths, found.parts, strict=True))
    return Table({name: found.frame.get_column(name) for name in wanted}, Origin(parts))


def _stacked(
    paths: Sequence[Path], form: Format, columns: Sequence[str], everything: bool, kinds: Mapping[str, str] | None
) -> Table:
    frames: list[pl.DataFrame] = []
    parts: list[Part] = []
    wanted: list[str] = []
    for path in paths:
        names = column_names(path, form)
        wanted = wanted or _wanted(columns, names, everything)
        if not names:
            raise LogError(f"{path} is empty: it has no columns. A log needs at least one row.")
        check_present([*columns, *wanted], names, str(path))
        frame, part = read_columns(path, form, sources(wanted, names))
        frames.append(frame)
        parts.append(part)
    check_same_types(frames, parts)
    stacked = frames[0] if len(frames) == 1 else pl.concat(frames, how="vertical_relaxed", rechunk=False)
    respelled: dict[str, str] = {}
    if kinds is not None and form == "csv":
        stacked, respelled = plainly(stacked, separator_of(paths[0]), kinds)
    series = {name: stacked.get_column(name) for name in stacked.columns}
    return Table(with_derived(wanted, series), Origin(tuple(parts), respelled=respelled))


def _wanted(columns: Sequence[str], names: Sequence[str], everything: bool) -> list[str]:
    return list(dict.fromkeys([*columns, *names])) if everything else list(columns)


def with_sources(table: Table, columns: Sequence[str]) -> Table:
    """These columns of a table, derived ones made of their sources."""
    return Table(with_derived(columns, table.series), table.origin)


def check_present(columns: Sequence[str], names: Sequence[str], where: str) -> None:
    """Refuse a source without one of the columns."""
    known = {*names, *(holder for name in names for holder in holders(name))}
    for column in columns:
        if column not in known and source_of(column) not in known:
            raise LogError(
                f"{where} has no column {column!r}.{nearest(column, names)} Its columns are: {listed(names)}."
            )


def check_same_types(frames: Sequence[pl.DataFrame], parts: Sequence[Part]) -> None:
    """Refuse files of which columns of one name hold different things."""
    first = frames[0].schema
    for frame, part in zip(frames[1:], parts[1:], strict=True):
        for name, dtype in frame.schema.items():
            if not _stackable(first[name], dtype):
                raise LogError(
                    f"{part.name}: column {name!r} is of type {dtype}, but in {parts[0].name} it is {first[name]}. "
                    "Write it with one type in all files."
                )


def _stackable(left: pl.DataType, right: pl.DataType) -> bool:
    if left == right or pl.Null in (left, right):
        return True
    if isinstance(left, pl.List) and isinstance(right, pl.List):
        return _stackable(_inner(left), _inner(right))
    return (left.is_numeric() and right.is_numeric()) or (left in TEXT and right in TEXT)


def _inner(dtype: pl.List) -> pl.DataType:
    inner = dtype.inner
    return inner if isinstance(inner, pl.DataType) else inner()
