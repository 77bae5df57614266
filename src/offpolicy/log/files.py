"""Log files: which ones a source names, which format they have, and their columns as polars frames."""

import csv
import glob
import gzip
import json
import shlex
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

import polars as pl

from offpolicy.errors import LogError
from offpolicy.log import parquet
from offpolicy.log.formats.vowpal import vowpal_format, vowpal_frame
from offpolicy.log.nested import flattened, roots, selections
from offpolicy.log.origin import Part, shown

Format: TypeAlias = Literal["parquet", "csv", "ndjson", "dsjson", "cb"]

SUFFIXES: dict[str, Format] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
}
READ_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, EOFError, zlib.error, csv.Error)


def expanded(source: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files that a path, a glob or a list of either names; at least one."""
    if isinstance(source, str | Path):
        if "://" in str(source):
            raise LogError(f"{source} is an address, not a path. Download the files and name them here.")
        path = Path(source).expanduser()
        if path.is_dir():
            raise LogError(f"{path} is a folder. Name its files, for example with the glob {path}/*.parquet.")
        if path.exists() and not path.is_file():
            raise LogError(f"{path} is a pipe or a device, not a file. Write its content to a file and name that.")
        if path.exists() or not glob.has_magic(str(path)):
            return [path]
        matches = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file())
        if not matches:
            raise LogError(f"No file matches {path}. Check the pattern and the folder.")
        return matches
    paths = [path for one in source for path in expanded(one)]
    if not paths:
        raise LogError("The list of files is empty. Name at least one file.")
    return paths


def format_of(path: Path) -> Format:
    """The format by suffix, else by the first bytes. A file that cannot be opened or is no Parquet is an error."""
    suffixes = path.suffixes[:-1] if path.suffix == ".gz" else path.suffixes
    by_name = SUFFIXES.get(suffixes[-1].lower()) if suffixes else None
    try:
        with path.open("rb") as file:
            head = file.read(4096)
            size = file.seek(0, 2)
            file.seek(max(0, size - len(parquet.MAGIC)))
            tail = file.read()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise LogError(f"{path} cannot be opened: {reason}. Check the path and your permission to read it.") from None
    if path.suffix == ".gz" and by_name is not None:
        return by_name
    vowpal = None if by_name in ("parquet", "csv") else vowpal_format(path, head)
    if vowpal is not None:
        return vowpal
    if by_name == "parquet" or (by_name is None and head.startswith(parquet.MAGIC)):
        parquet.check_frame(path, head, tail)
        return "parquet"
    if b"\0" in head[:64]:
        if head.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise _not_utf8(path, "it is UTF-16", "UTF-16")
        raise LogError(f"{path} is binary but not Parquet: it begins with {head[:12]!r}. Give Parquet, CSV or NDJSON.")
    return by_name or ("ndjson" if head.lstrip().startswith(b"{") else "csv")


def column_names(path: Path, form: Format) -> list[str]:
    """The columns of a file, in order; of objects their fields."""
    if form == "parquet":
        return list(selections(guarded(path, form, lambda: pl.read_parquet_schema(path))))
    if form in ("dsjson", "cb"):
        return vowpal_frame(path, form).columns
    if form == "ndjson":
        schema = guarded(path, form, lambda: pl.scan_ndjson(path, infer_schema_length=None).collect_schema())
        return list(selections(schema))
    header: list[str] = guarded(path, form, lambda: _csv_header(path))
    twice = next((name for position, name in enumerate(header) if name in header[:position]), None)
    if twice is not None:
        raise LogError(f"{path}: the header names the column {twice!r} more than once. Rename one of them.")
    return header


def _csv_header(path: Path) -> list[str]:
    with _opened(path) as lines:
        return next(csv.reader(lines, delimiter=separator_of(path)), [])


def read_columns(path: Path, form: Format, columns: Sequence[str]) -> tuple[pl.DataFrame, Part]:
    """These columns of a file; those of a CSV file as text."""
    if form == "parquet":
        whole = roots(columns, guarded(path, form, lambda: pl.read_parquet_schema(path)))
        parquet.check_columns(path, whole)
        frame = guarded(path, form, lambda: pl.read_parquet(path, columns=whole, glob=False, hive_partitioning=False))
    elif form in ("dsjson", "cb"):
        frame = vowpal_frame(path, form)
    elif form == "ndjson":
        scan = pl.scan_ndjson(path, infer_schema_length=None)
        whole = roots(columns, guarded(path, form, scan.collect_schema))
        frame = flattened(guarded(path, form, lambda: scan.select(whole).collect()), columns)
        check_json_types(path, frame)
    else:
        mark = separator_of(path)
        frame = guarded(
            path, form, lambda: pl.read_csv(path, columns=list(columns), separator=mark, infer_schema=False, glob=False)
        )
        frame = frame.head(max(0, len(frame) - blank_lines_at_end(path)))
        return frame.select(columns), Part(str(path), len(frame), path, mark)
    return flattened(frame, columns), Part(str(path), len(frame), path)


def separator_of(path: Path) -> str:
    """The field separator of a CSV file: of a comma, a semicolon, a tab and a bar what its header has most of."""
    if ".tsv" in path.suffixes:
        return "\t"
    with _opened(path) as lines:
        header = lines.readline()
    return max(",;\t|", key=header.count)


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="replace", newline="")
    return path.open(encoding="utf-8-sig", errors="replace", newline="")


def guarded(path: Path, form: Format, read: Any) -> Any:
    """The result of a read, with whatever the libraries raise turned into one paragraph about this file."""
    try:
        return read()
    except pl.exceptions.NoDataError:
        raise LogError(f"{path} is empty. A log needs a header and at least one row.") from None
    except pl.exceptions.DuplicateError:
        raise LogError(f"{path} has two columns of one name. Rename one of them.") from None
    except READ_ERRORS as error:
        if form in ("csv", "ndjson") and "utf-8" in str(error).lower() and (found := _first_strange_line(path)):
            line, byte = found
            raise _not_utf8(path, f"line {line} holds the byte 0x{byte.hex()}", "WINDOWS-1252") from None
        reason = _diagnosis(path, form) or (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise LogError(f"{path} cannot be read as {form.upper()}: {reason}. Fix or rewrite the file.") from None


def _not_utf8(path: Path, what: str, encoding: str) -> LogError:
    """The error of text in another encoding, with the command that converts it."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    text = f"{'zcat' if path.suffix == '.gz' else 'cat'} {shlex.quote(str(path))}"
    typed = f"{text} | iconv -f {encoding} -t UTF-8 > {shlex.quote(f'utf8-{plain.name}')}"
    return LogError(f"{path} is not UTF-8: {what}. If it is {encoding}, this converts it: `{typed}`.")


def _first_strange_line(path: Path) -> tuple[int, bytes] | None:
    """The first line that is not UTF-8, counted from 1, and the byte there."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return number, line[error.start : error.start + 1]
    return None


def _diagnosis(path: Path, form: Format) -> str | None:
    """The first broken line of a text file, found by a slower reader."""
    try:
        slower = {"csv": _overlong_row, "ndjson": _odd_json}.get(form)
        return None if slower is None else slower(path)
    except READ_ERRORS:
        return None  # the slower reader cannot read it either


def _overlong_row(path: Path) -> str | None:
    with _opened(path) as lines:
        reader = csv.reader(lines, delimiter=separator_of(path))
        width = len(next(reader, []))
        for row, fields in enumerate(reader):
            if len(fields) > width:
                place = f"row {row + 1} (counted from 1; line {reader.line_num})"
                return f"{place} has {len(fields)} fields and the header {width}"
    return None


def _odd_json(path: Path) -> str | None:
    families: dict[str, str] = {}
    with _opened(path) as lines:
        for row, value in enumerate(_json_rows(lines)):
            if not isinstance(value, dict):
                return f"row {row + 1} (counted from 1) holds {shown(value)}, which is not a JSON object"
            for column, item in value.items():
                family = _family(item)
                if family and families.setdefault(column, family) != family:
                    return (
                        f"column {column!r} holds {families[column]}s at first, "
                        f"but row {row + 1} (counted from 1) holds {shown(item)}, a {family}"
                    )
    return None if families else "it holds no rows"


def _json_rows(lines: Iterable[str]) -> Iterable[Any]:
    for line in lines:
        if line.strip():
            try:
                yield json.loads(line, parse_constant=lambda _: None)
            except (json.JSONDecodeError, RecursionError):
                yield line.strip()


def _family(item: Any) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "list", dict: "object"}
    return names.get(type(item), "")


def check_json_types(path: Path, frame: pl.DataFrame) -> None:
    """Refuse a column of strings in which some values were written as numbers or booleans."""
    for series in frame.get_columns():
        if series.dtype != pl.String:
            continue
        unquoted = series.cast(pl.Float64, strict=False).is_not_null() | series.is_in(["true", "false"])
        if unquoted.any():
            _check_all_quoted(path, series.name)


def _check_all_quoted(path: Path, column: str) -> None:
    with _opened(path) as lines:
        families = [_family(value.get(column)) for value in _json_rows(lines) if isinstance(value, dict)]
    present = [(row, family) for row, family in enumerate(families) if family]
    for row, family in present:
        if family != present[0][1]:
            with _opened(path) as lines:
                held = next(value for at, value in enumerate(_json_rows(lines)) if at == row)[column]
            raise LogError(
                f"{path}: column {column!r} mixes {present[0][1]}s with {family}s: row {row + 1} (counted from 1) "
                f"holds {shown(held)}. Write all of its values as one type."
            )


def blank_lines_at_end(path: Path) -> int:
    """How many empty lines close an uncompressed file; polars would read each as a row of nulls."""
    if path.suffix == ".gz":
        return 0
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 4096))
        tail = file.read().replace(b"\r\n", b"\n")
    return max(0, len(tail) - len(tail.rstrip(b"\n")) - 1)
