"""Where rows came from, so that every error names the file, the column, the row and the value."""

import csv
import gzip
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import polars as pl

from offpolicy.errors import Fix, LogError

SHOWN = 80  # characters of a value that a message repeats


@dataclass(frozen=True)
class Part:
    """One file, frame or set of arrays; `separator` is set for a CSV file, whose rows have line numbers."""

    name: str
    n_rows: int
    path: Path | None = None
    separator: str | None = None
    start: int = 0
    """The row of the file with which a piece of it begins."""

    def place(self, row: int) -> str:
        """The row and, in a CSV file, its line, both counted from 1."""
        row += self.start
        if self.separator is None or self.path is None:
            return f"row {row + 1} (counted from 1)"
        return f"row {row + 1} (counted from 1; line {_line_number(self.path, self.separator, row)})"


@dataclass(frozen=True)
class Origin:
    """The parts that rows were stacked from, in order."""

    parts: Sequence[Part]
    typed: bool = False
    """Whether text that stands for numbers was typed before, by all of its column."""
    respelled: Mapping[str, str] = field(default_factory=dict)
    """How columns that were not written plainly were read, in words."""

    @property
    def is_text(self) -> bool:
        """Whether every value arrived as text (CSV) and has yet to be typed."""
        return any(part.separator is not None for part in self.parts)

    def of(self, columns: Collection[str]) -> "Origin":
        """The origin of some columns."""
        return replace(self, respelled={name: note for name, note in self.respelled.items() if name in columns})

    @property
    def name(self) -> str:
        """The file or frame; of several files the first and how many more there are."""
        first = self.parts[0].name
        return first if len(self.parts) == 1 else f"{first} (and {len(self.parts) - 1} more)"

    def bad_value(
        self, column: str, row: int, value: Any, rule: str, remedy: str = "", *, fix: Fix | None = None
    ) -> LogError:
        """The error for one offending value; `row` counts over all parts."""
        part, place = self.place(row)
        said = f"{part.name}: column {column!r} {rule}, but {place} holds {shown(value)}. {remedy}"
        return LogError(said.rstrip(), fix)

    def place(self, row: int) -> tuple[Part, str]:
        """The part that a row came from, and its place there in words."""
        ends = list(accumulate(part.n_rows for part in self.parts))
        number = min(bisect_right(ends, row), len(ends) - 1)
        part = self.parts[number]
        return part, part.place(row - (ends[number] - part.n_rows))

    def bad_column(self, column: str, problem: str, remedy: str = "", *, fix: Fix | None = None) -> LogError:
        """The error for a column as a whole."""
        return LogError(f"{self.name}: column {column!r} {problem}. {remedy}".rstrip(), fix)


def shown(value: Any) -> str:
    """A value as messages print it: null by that name, long ones cut short."""
    plain = value.to_list() if isinstance(value, pl.Series) else value
    text = "null (an empty field)" if plain is None else repr(plain)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def _line_number(path: Path, separator: str, row: int) -> int:
    """The line on which a row of a CSV file begins; quoted fields may span lines."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", errors="replace", newline="") as lines:
            reader = csv.reader(lines, delimiter=separator)
            for _ in range(row + 1):  # the header and the rows before
                next(reader, None)
            return reader.line_num + 1
    except csv.Error:  # a field too long for this reader: count as if no field spanned lines
        return row + 2
