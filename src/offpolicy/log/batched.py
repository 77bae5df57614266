"""Log files piece by piece, in memory that does not grow with them, each column as if all had been read at once.

What a column of text holds (integers, numbers, dates, lists) is a matter of all its values. So text files are looked at
once to find out; every piece is then converted alike.
"""

import gzip
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from offpolicy.errors import LogError
from offpolicy.log import parquet
from offpolicy.log.derived import MICROSECONDS_A_DAY, instants, sources
from offpolicy.log.features import Kind
from offpolicy.log.files import (
    Format,
    blank_lines_at_end,
    check_json_types,
    column_names,
    expanded,
    format_of,
    guarded,
    separator_of,
)
from offpolicy.log.nested import flattened, roots, selected
from offpolicy.log.origin import Origin, Part
from offpolicy.log.spelling import Spelling, notes_on, plainly, rewritten, spellings
from offpolicy.log.tables import Table, check_present, check_same_types, with_sources
from offpolicy.log.text import MARKS, are_flags, flags, has_spelled_ids, marks_in, mixed_text, split_text
from offpolicy.log.treatment import Decided

Piece = tuple[pl.DataFrame, Part]
STREAMED: tuple[Format, ...] = ("parquet", "csv", "ndjson")


@dataclass
class Look:
    """What all values of a column have in common, as far as it was seen."""

    name: str
    kind: Kind | None
    values: bool = False
    """Whether it holds lists with a value for each candidate."""
    text: bool = False
    flags: bool = True
    whole: bool = True
    number: bool = True
    spelled: bool = False
    present: int = 0
    odd: int = 0
    mixed: LogError | None = None
    marks: set[str] = field(default_factory=set)
    date: bool = True
    dated: bool = False
    midnight: bool = True
    time: bool = False

    @property
    def is_list(self) -> bool:
        """Whether it holds lists written as text."""
        return self.text and (self.values or self.kind in ("bag", "embedding"))

    def see(self, series: pl.Series, origin: Origin) -> None:
        """Take in a piece."""
        self.time |= series.dtype == pl.Time
        there = len(series) - series.null_count()
        if self.kind is None and there:
            times = instants(series)
            self.date &= times is not None
            if times is not None:
                self.dated = True
                self.midnight &= bool((times.to_physical() % MICROSECONDS_A_DAY == 0).all())
        if series.dtype != pl.String:
            return
        self.text = True
        if self.is_list:
            self.marks |= marks_in(series)
            series = split_text(series).explode().drop_nulls()
        if origin.is_text:
            self._see_text(series, origin)

    def _see_text(self, text: pl.Series, origin: Origin) -> None:
        self.flags &= are_flags(text)
        self.whole &= text.cast(pl.Int64, strict=False).cast(pl.String).eq_missing(text).all()
        number = text.str.strip_chars().cast(pl.Float64, strict=False)
        odd = number.is_null() & text.is_not_null()
        self.number &= not odd.any()
        self.spelled |= has_spelled_ids(text)
        self.present += len(text) - text.null_count()
        self.odd += int(odd.sum())
        if odd.any() and self.mixed is None and not self.is_list:
            self.mixed = mixed_text(self.name, text, odd, origin)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that stand for a column of dates."""
        if self.time:
            return ("hour",)
        if self.kind is not None or not self.dated or not self.date:
            return ()
        return ("weekday", "days") if self.midnight else ("weekday", "hour", "days")

    def problem(self) -> LogError | None:
        """The error of a column in which most values are numbers and some are not."""
        is_mixed = self.odd and not self.is_list and self.kind is None and 2 * (self.present - self.odd) >= self.present
        return self.mixed if is_mixed else None

    def typed(self, series: pl.Series, is_text: bool) -> pl.Series:
        """A piece of the column, typed by all of it."""
        if series.dtype != pl.String:
            return series
        if self.is_list:
            mark = next((one for one in MARKS if one in self.marks), "")
            lists = split_text(series, mark)
            if not is_text or self.kind == "embedding":
                return lists
            if self.whole:
                return lists.cast(pl.List(pl.Int64))
            numbers = self.values and self.number and not self.spelled
            return lists.cast(pl.List(pl.Float64)) if numbers else lists
        if not is_text or self.kind == "numeric":
            return series
        if self.flags and self.present:
            return flags(series)
        if self.whole:
            return series.cast(pl.Int64)
        if self.kind == "categorical" or not self.number or self.spelled:
            return series
        return series.str.strip_chars().cast(pl.Float64)


class Files:
    """Files of one format as a sequence of tables."""

    def __init__(self, source: str | Path | Sequence[str | Path], piece_bytes: int) -> None:
        """Name the files; a piece takes about this many bytes of a file."""
        self.paths, self.piece_bytes = expanded(source), piece_bytes
        self.forms = [format_of(path) for path in self.paths]
        self.form = self.forms[0]
        if len(set(self.forms)) > 1:
            other = next(number for number, form in enumerate(self.forms) if form != self.form)
            raise LogError(
                f"{self.paths[other]} is {self.forms[other].upper()} but {self.paths[0]} is {self.form.upper()}. "
                "Read files of one format at a time."
            )
        self.names = [column_names(path, self.form) for path in self.paths] if self.form in STREAMED else []
        self.columns: list[str] = []
        self.looks: dict[str, Look] = {}
        self.types: dict[str, Any] = {}
        self.spellings: dict[str, Spelling] = {}

    def look(
        self,
        columns: Sequence[str],
        kinds: Mapping[str, Kind],
        spelled: Sequence[str] = (),
        values: Sequence[str] = (),
        written: Mapping[str, str] | None = None,
    ) -> list[LogError]:
        """Find out what these columns hold; problems are returned.

        `spelled` ones keep their spelling; `values` hold a value for each candidate; `written` are the kinds by which
        columns of text are written plainly.
        """
        for path, names in zip(self.paths, self.names, strict=True):
            check_present(columns, names, str(path))
        self.columns = sources(columns, self.names[0])
        self.looks = {name: Look(name, kinds.get(name), name in values) for name in self.columns}
        self._see_spellings(written)
        schemas: list[pl.DataFrame] = []
        parts: list[Part] = []
        for path in self.paths:
            if self.form == "parquet":
                parquet.check_columns(path, roots(self.columns, pl.read_parquet_schema(path)))
                schemas.append(pl.DataFrame(schema=_parquet_schema(path, self.columns)))
                parts.append(Part(str(path), 0, path))
        if self.form == "parquet":
            check_same_types(schemas, parts)
            self.types = dict(pl.concat(schemas, how="vertical_relaxed").schema)
        dated = (pl.String, pl.Datetime, pl.Date, pl.Time)
        if self.form != "parquet" or any(dtype in dated for dtype in self.types.values()):
            for frame, part in self._raw():
                if self.form == "ndjson":
                    check_same_types([*schemas[:1], frame.clear()], [*parts[:1], part])
                    joined = [*schemas, frame.clear()]
                    schemas, parts = [pl.concat(joined, how="vertical_relaxed")], [*parts[:1], part][:1]
                for name in self.columns:
                    self.looks[name].see(frame[name], Origin((part,)))
        if self.form == "ndjson" and schemas:
            self.types = dict(schemas[0].schema)
        for name in spelled:
            self.looks[name].whole = self.looks[name].number = False
        problems = [one.problem() for name, one in self.looks.items() if name not in spelled]
        return [one for one in problems if one is not None]

    def _see_spellings(self, kinds: Mapping[str, str] | None) -> None:
        """Find how columns of CSV files are spelled, which is a matter of all their values."""
        self.spellings = {}
        if self.form != "csv" or kinds is None:
            return
        found = spellings(self.columns, separator_of(self.paths[0]), kinds)
        for frame, _ in self._raw():
            for name, one in found.items():
                one.see(frame[name])
        self.spellings = found

    @property
    def notes(self) -> list[str]:
        """How columns were read that are not written plainly."""
        return [f"{name}: {said}" for name, said in notes_on(self.spellings).items()]

    @property
    def decided(self) -> Decided:
        """The columns that hold dates."""
        return Decided({name: look.parts for name, look in self.looks.items()})

    def tables(self, wanted: Sequence[str]) -> Iterator[Table]:
        """The pieces of all files in order, with derived columns."""
        for frame, part in self._raw():
            origin = Origin((part,), typed=True)
            series = {}
            for name in self.columns:
                values = frame[name]
                if name in self.types and values.dtype != self.types[name]:
                    values = values.cast(self.types[name])
                series[name] = self.looks[name].typed(values, origin.is_text)
            yield with_sources(Table(series, origin), wanted)

    def sample(self, kinds: Mapping[str, str]) -> Table:
        """The first piece of the files, every column of it, as it is read in one go."""
        self.columns = list(self.names[0])
        frame, part = next(self._raw())
        if self.form == "csv":
            frame, _ = plainly(frame, separator_of(self.paths[0]), kinds)
        return Table({name: frame[name] for name in frame.columns}, Origin((part,)))

    def _raw(self) -> Iterator[Piece]:
        found = False
        for path in self.paths:
            for frame, part in _READERS[self.form](path, self.columns, self.piece_bytes):
                found = True
                yield rewritten(frame, self.spellings), part
        if not found:
            raise LogError(f"{self.paths[0]} holds no rows. A log needs at least one.")


def _parquet_schema(path: Path, columns: Sequence[str]) -> dict[str, Any]:
    schema = guarded(path, "parquet", lambda: pl.read_parquet_schema(path))
    return dict(flattened(pl.DataFrame(schema=schema), columns).schema)


def _parquet_pieces(path: Path, columns: Sequence[str], piece_bytes: int) -> Iterator[Piece]:
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    own = [sum(_column_bytes(group, columns)) for group in groups]
    scan = pl.scan_parquet(path, glob=False, hive_partitioning=False)
    scan = scan.select(selected(columns, scan.collect_schema()))
    start = 0
    for group, size in zip(groups, own, strict=True):
        step = max(1, group.num_rows // max(1, -(-size // piece_bytes)))
        for first in range(start, start + group.num_rows, step):
            count = min(step, start + group.num_rows - first)
            frame = guarded(path, "parquet", lambda first=first, count=count: scan.slice(first, count).collect())
            yield frame, Part(str(path), len(frame), path, start=first)
        start += group.num_rows


def _column_bytes(group: Any, columns: Sequence[str]) -> Iterator[int]:
    for place in range(group.num_columns):
        column = group.column(place)
        if roots([column.path_in_schema], columns)[0] in columns:
            yield max(column.total_uncompressed_size, 8 * group.num_rows)


def _csv_pieces(path: Path, columns: Sequence[str], piece_bytes: int) -> Iterator[Piece]:
    mark, start = separator_of(path), 0
    blank = blank_lines_at_end(path)
    with _bytes_of(path) as file:
        header = file.readline()
        blocks = _blocks(path, file, piece_bytes, b'"')
        waiting: bytes | None = None
        for block in blocks:
            if waiting is not None:
                yield (piece := _csv_piece(path, header + waiting, columns, mark, start))
                start += piece[1].n_rows
            waiting = block
        if waiting is not None:
            frame, _ = _csv_piece(path, header + waiting, columns, mark, start)
            frame = frame.head(max(0, len(frame) - blank))
            if len(frame):
                yield frame, Part(str(path), len(frame), path, mark, start)


def _csv_piece(path: Path, content: bytes, columns: Sequence[str], mark: str, start: int) -> Piece:
    read = guarded(path, "csv", lambda: pl.read_csv(content, columns=list(columns), separator=mark, infer_schema=False))
    return read.select(columns), Part(str(path), len(read), path, mark, start)


def _ndjson_pieces(path: Path, columns: Sequence[str], piece_bytes: int) -> Iterator[Piece]:
    start = 0
    with _bytes_of(path) as file:
        for block in _blocks(path, file, piece_bytes, b""):
            if not block.strip():
                continue
            frame = guarded(
                path, "ndjson", lambda block=block: pl.read_ndjson(io.BytesIO(block), infer_schema_length=None)
            )
            frame = flattened(frame, columns)
            check_json_types(path, frame)
            yield frame, Part(str(path), len(frame), path, start=start)
            start += len(frame)


def _blocks(path: Path, file: IO[bytes], size: int, quote: bytes) -> Iterator[bytes]:
    """The bytes of a file cut after whole lines; a line break between quotes is no end of a line."""
    left = b""
    while piece := guarded(path, "csv" if quote else "ndjson", lambda: file.read(size)):
        left += piece
        end = left.rfind(b"\n") + 1
        while end and quote and left.count(quote, 0, end) % 2:
            end = left.rfind(b"\n", 0, end - 1) + 1
        if end:
            yield left[:end]
            left = left[end:]
    if left:
        yield left


def _bytes_of(path: Path) -> IO[Any]:
    return cast("IO[Any]", gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


_READERS = {"parquet": _parquet_pieces, "csv": _csv_pieces, "ndjson": _ndjson_pieces}


def memory_needed(paths: Sequence[Path]) -> int:
    """About how many bytes a log takes while it is read and used in memory; files that cannot be read take none."""
    return sum(int(_WORKING * _uncompressed(path)) for path in paths)


_WORKING, _SQUEEZED = 8, 5


def _uncompressed(path: Path) -> int:
    try:
        size = path.stat().st_size
        metadata = pq.read_metadata(path) if format_of(path) == "parquet" else None
    except (OSError, pa.ArrowException, LogError):  # reading says what is wrong with it
        return 0
    if metadata is None:
        return _SQUEEZED * size if path.suffix == ".gz" else size
    return sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))


def free_memory() -> int:
    """Bytes that could be taken without swapping; a few gigabytes where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, ValueError, StopIteration):
        return 4 * 2**30
