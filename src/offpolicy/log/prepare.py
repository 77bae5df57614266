"""`prepare_log`: files of any size become a store, in memory that does not grow with them.

Files are read twice, piece by piece (text once more before, to find out what its columns hold): first to find every
problem and all ids, then to send rows to their shards. Each shard is then ordered and written by itself. A preparation
that was killed goes on with the first shard that is not written when it is run again.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from offpolicy.atomic import remove_tree
from offpolicy.errors import LogError, OffPolicyError, ParameterError
from offpolicy.log.batched import STREAMED, Files
from offpolicy.log.features import Kind
from offpolicy.log.logged_data import LoggedData
from offpolicy.log.preparation import MEMORY, WORKING, Preparation, Preparing, about, put
from offpolicy.log.readers import (
    read_rows,
)
from offpolicy.log.schema import LogSchema
from offpolicy.log.shards import SHARDS, shard_of
from offpolicy.log.store import is_store, open_store, read_manifest
from offpolicy.log.store_writer import StoreWriter, claimed, staging_of
from offpolicy.log.treatment import Missing

LEAST_PIECE = 2**16
LEAST_MEMORY = 64 * 2**20
PIECES = 48
"""A piece of a file takes this part of the memory."""


@dataclass(frozen=True)
class Prepared:
    """A store that was made: the log, and what there is to know about its columns."""

    log: LoggedData
    notes: tuple[str, ...]
    rows: int
    """Rows that were added."""


def prepare_log(
    source: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    context: Sequence[str] = (),
    action: str = "",
    reward: str = "",
    shards: int = SHARDS,
    memory: int | float | str = MEMORY,
    append: bool = False,
    force: bool = False,
    propensity: str | None = None,
    cluster: str | None = None,
    timestamp: str | None = None,
    kinds: Mapping[str, Kind] | None = None,
    actions: Any = None,
    reward_range: tuple[float, float] | None = None,
    missing: Missing | Mapping[str, Missing] | None = None,
    drop_duplicates: bool = False,
    keep: Sequence[str] = (),
    winsorise: float = 0.0,
    candidates: str | None = None,
    candidate_features: Sequence[str] = (),
    request: str | None = None,
    shown: str | None = None,
    position: str | None = None,
    keep_prob: str | None = None,
    row_weight: str | None = None,
) -> LoggedData:
    """Write log files as a store, a folder of arrays in `shards` shards, and open it.

    The files (a path, a glob, or several) may be larger than memory, of which about `memory` bytes are used ("2GB").
    Columns are named and treated as by `read_log`, to which the store is equal: `read_log(...).sharded(shards)`. With
    `append` the files are added to the store `out`, whose columns are as they were; a store that is there is replaced
    with `force` only. What was killed goes on when it is run again.
    """
    given = locals()
    how = Preparing(shards, byte_count(memory), append, force, "prepare_log", drop_duplicates, winsorise)
    schema = LogSchema.of(given) if context or action or reward or not append else None
    return prepare_rows(source, out, schema, actions, tuple(keep), how).log


def byte_count(memory: int | float | str) -> int:
    """A size such as 2GB, 512MB or a number of bytes."""
    units = {"KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40, "K": 2**10, "M": 2**20, "G": 2**30, "B": 1}
    text = str(memory).strip().upper().replace("IB", "B")
    unit = next((one for one in units if text.endswith(one)), "")
    try:
        size = float(text.removesuffix(unit)) * units.get(unit, 1)
    except ValueError:
        size = 0.0
    if not LEAST_MEMORY <= size < float("inf"):
        raise ParameterError(f"memory must be a size of at least 64MB, such as 2GB, but it is {memory!r}.")
    return int(size)


def prepare_rows(
    source: Any, out: str | Path, schema: LogSchema | None, actions: Any, keep: tuple[str, ...], how: Preparing
) -> Prepared:
    """As `prepare_log`, by a schema; without one (when appending) by that of the store."""
    target = Path(out).expanduser()
    former = _former(target, how)
    if former is not None:
        recorded = LogSchema(**former["schema"])
        if schema is not None and (schema != recorded or list(keep) != former["keep"]):
            raise ParameterError(f"{target} was prepared with other columns or options. Append with the same, or none.")
        schema, keep = recorded, tuple(former["keep"])
    if schema is None:
        raise ParameterError("Name the columns of the log: context, action and reward.")
    shard_of(np.zeros(1, dtype=np.uint64), how.shards)  # refuses a wrong number
    files = Files(source, max(LEAST_PIECE, how.memory // PIECES))
    why = _whole(files, schema, how)
    staging = staging_of(target)
    with _tidy(target, staging, former), claimed(staging):
        if why is None:
            job = Preparation(files, schema, actions, keep, how, target, former)
            rows = job.run()
            notes = tuple(job.notes)
        else:
            rows, notes = _in_memory(files, schema, actions, keep, how, target, why)
        remove_tree(staging)
    return Prepared(open_store(target, verify=False), notes, rows)


def _former(target: Path, how: Preparing) -> dict[str, Any] | None:
    """The manifest of the store to append to; a folder that is in the way is refused."""
    if how.append:
        if not is_store(target):
            raise ParameterError(f"{target} is no prepared log that could be added to. Prepare it without append.")
        found = read_manifest(target)
        if "schema" not in found:
            raise ParameterError(
                f"{target} was written from a log in memory: it cannot be added to. Prepare its files."
            )
        return found
    if target.exists() and not how.force:
        raise ParameterError(f"{target} is there already. Add to it with append (--append), or replace it with force.")
    if target.exists() and not is_store(target):
        raise ParameterError(f"{target} is no prepared log: it is not replaced. Choose another name.")
    return None


def _whole(files: Files, schema: LogSchema, how: Preparing) -> str | None:
    """Why a log has to be read in one go, where it has to."""
    if files.form not in STREAMED:
        return f"files of the format {files.form}"
    if schema.shown is not None:
        return "tables with a row a candidate"
    return "winsorising rewards" if how.winsorise else None


def _in_memory(
    files: Files, schema: LogSchema, actions: Any, keep: tuple[str, ...], how: Preparing, target: Path, why: str
) -> tuple[int, tuple[str, ...]]:
    size = WORKING * sum(path.stat().st_size for path in files.paths)
    if how.append or size > how.memory:
        raise LogError(
            f"For {why} the log is read in one go, which takes about {size / 2**30:.1f} GB and cannot be added to. "
            "Write the log as Parquet with a row a decision, or allow more memory."
        )
    read = read_rows([str(path) for path in files.paths], schema, actions, keep, how.winsorise)
    log = read.log.take(~read.log.duplicates) if how.drop_duplicates else read.log
    divided = log.sharded(how.shards)
    writer = StoreWriter(staging_of(target) / "store", [], {})
    for number, shard in enumerate(divided.shards):
        writer.add(shard, number)
    writer.finish(divided, about(files, how, {}, read.notes))
    put(staging_of(target) / "store", target)
    return log.n_rows, read.notes


@contextmanager
def _tidy(target: Path, staging: Path, former: dict[str, Any] | None) -> Iterator[None]:
    """Leave nothing half-written where a preparation fails; a killed one leaves what it can go on with."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError, OffPolicyError) as error:
        busy = isinstance(error, OffPolicyError) and "Another process" in str(error)
        if not busy:
            remove_tree(staging)
            if former is not None:
                _cut_back(target, former)
        if isinstance(error, OffPolicyError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise OffPolicyError(
            f"{target} cannot be prepared: {reason}. Nothing of it was kept. Check the folder and the space on the "
            "disk (about the size of the log, uncompressed, is needed beside the store)."
        ) from error


def _cut_back(target: Path, former: dict[str, Any]) -> None:
    StoreWriter(target, former["shards"], former["arrays"])
    known = {f"{one['number']:05}.arrow" for one in former["shards"]}
    for folder in ("clusters", "kept"):
        for path in (target / folder).glob("*.arrow"):
            if path.name not in known:
                path.unlink()
