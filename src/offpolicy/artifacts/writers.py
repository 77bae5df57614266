"""Tables written batch by batch to a file that is replaced atomically."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import polars as pl
import pyarrow.parquet

from offpolicy.atomic import atomic_file
from offpolicy.errors import ParameterError
from offpolicy.log import SUFFIXES, Format
from offpolicy.results import spreadsheet_safe


def output_format(path: Path) -> Format:
    """The format that the name of an output file asks for."""
    form = SUFFIXES.get(path.suffix.lower())
    if form is None:
        raise ParameterError(
            f"{path} must end in one of {', '.join(SUFFIXES)}, so that its format is clear. Rename the output."
        )
    return form


@contextmanager
def table_writer(path: str | Path) -> Iterator[Callable[[pl.DataFrame], None]]:
    """Yield a function that appends a frame; the suffix of `path` decides between Parquet, CSV and NDJSON."""
    target = Path(path)
    form = output_format(target)
    with atomic_file(target) as temporary, temporary.open("wb") as file:
        if form == "parquet":
            with _parquet(file) as write:
                yield write
        elif form == "csv":
            yield _csv(file, "\t" if target.suffix.lower() == ".tsv" else ",")
        else:
            yield lambda frame: frame.write_ndjson(file)


@contextmanager
def _parquet(file: IO[bytes]) -> Iterator[Callable[[pl.DataFrame], None]]:
    writer = None

    def write(frame: pl.DataFrame) -> None:
        nonlocal writer
        table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
        if writer is None:
            writer = pyarrow.parquet.ParquetWriter(file, table.schema, compression="zstd")
        writer.write_table(table)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()


def _csv(file: IO[bytes], separator: str) -> Callable[[pl.DataFrame], None]:
    def write(frame: pl.DataFrame) -> None:
        if any(dtype.is_nested() for dtype in frame.dtypes):
            name = next(name for name, dtype in frame.schema.items() if dtype.is_nested())
            raise ParameterError(f"A CSV file cannot hold the lists of column {name!r}. Write Parquet or NDJSON.")
        spreadsheet_safe(frame).write_csv(file, include_header=file.tell() == 0, separator=separator)

    return write
