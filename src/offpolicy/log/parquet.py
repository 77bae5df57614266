"""A trial reading of Parquet files: polars is quick, but ends the whole process on some damaged files."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from offpolicy.errors import LogError

MAGIC = b"PAR1"
DAMAGE = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError, TypeError)
"""What arrow raises on damaged files."""


def check_frame(path: Path, head: bytes, tail: bytes) -> None:
    """Refuse a file that does not begin and end like Parquet, or whose list of columns is damaged."""
    if not head:
        raise LogError(f"{path} is empty (0 bytes), so it is not a Parquet file. Write it again.")
    if not head.startswith(MAGIC):
        raise LogError(f"{path} is not a Parquet file: it begins with {head[:12]!r}. Rename it if it is CSV or NDJSON.")
    if tail != MAGIC:
        raise LogError(f"{path} is truncated: a Parquet file ends with {MAGIC!r}. Copy or write it again in full.")
    try:
        metadata = pq.read_metadata(path)
        groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
        sound = all(group.num_rows >= 0 for group in groups)
        sound = sound and sum(group.num_rows for group in groups) == metadata.num_rows
    except DAMAGE:
        sound = False
    if not sound:
        raise _damaged(path)


def check_columns(path: Path, columns: Sequence[str]) -> None:
    """Read columns by the slower, sturdier reader, a group of rows at a time, and keep nothing."""
    try:
        schema = pq.read_schema(path)
        kinds = {name: schema.field(name).type for name in columns}
        words = [n for n, kind in kinds.items() if pa.types.is_string(kind) or pa.types.is_large_string(kind)]
        with pq.ParquetFile(path, read_dictionary=words) as file:
            for group in range(file.num_row_groups):
                file.read_row_group(group, columns=list(columns))
    except pa.ArrowNotImplementedError:
        return  # a kind of column that only polars knows
    except DAMAGE:
        raise _damaged(path) from None


def _damaged(path: Path) -> LogError:
    return LogError(f"{path} cannot be read as PARQUET: it is damaged. Copy or write it again in full.")
