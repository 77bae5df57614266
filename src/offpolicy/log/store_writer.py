"""Writing a store: shards are added one after another, and the manifest is replaced when all are there.

What lies behind the shards that the manifest names is not there for any reader: a writer that was killed, or whose disk
was full, leaves the store as it was.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from offpolicy.atomic import flush, lock, remove_tree, write_atomic
from offpolicy.errors import OffPolicyError
from offpolicy.log.hashing import digest
from offpolicy.log.ids import UNKNOWN, codes_in
from offpolicy.log.logged_data import LoggedData
from offpolicy.log.shards import SHARDS
from offpolicy.log.store import (
    FORMAT,
    FRAMES,
    MANIFEST,
    array_file,
    checksum,
    fingerprint_of,
    frame_file,
    is_store,
    lead,
    log_arrays,
    log_vocabularies,
    manifest_text,
    open_store,
    table_arrays,
    table_schema,
)
from offpolicy.log.vocabulary import Vocabulary

POINTERS = {"rows.context_index": "contexts", "rows.cluster": "clusters", "rows.request": "requests"}
"""Arrays of codes that count on from shard to shard, and what they count."""


class StoreWriter:
    """Adds shards to a folder, behind those that are there."""

    def __init__(self, folder: Path, shards: list[dict[str, Any]], arrays: dict[str, list[Any]]) -> None:
        """Take up a folder that holds these shards; whatever lies behind them is cut off."""
        self.folder, self.shards, self.arrays = folder, list(shards), dict(arrays)
        (folder / "arrays").mkdir(parents=True, exist_ok=True)
        self.cut()

    def cut(self) -> None:
        """Bring every array back to the shards that are known."""
        for name in self.arrays:
            path = self.folder / array_file(name)
            with path.open("ab") as file:
                file.truncate(lead(name) + self._bytes(name))

    def _bytes(self, name: str) -> int:
        return sum(one["bytes"][name] for one in self.shards)

    def add(self, log: LoggedData, number: int) -> dict[str, Any]:
        """Write a shard, its codes counted from 0, behind the others."""
        arrays = log_arrays(log)
        if not self.shards:
            self.arrays = {name: [one.dtype.newbyteorder("<").str, _width(one)] for name, one in arrays.items()}
            for name in arrays:
                (self.folder / array_file(name)).write_bytes(bytes(lead(name)))
        counts = {
            "rows": log.n_rows,
            "contexts": log.n_contexts,
            "clusters": 0 if log.cluster is None else int(log.cluster.max()) + 1,
            "requests": 0 if log.request is None else int(log.request.max()) + 1,
        }
        known = {"digest": log.rows_digest, "rows_fingerprint": log.rows_fingerprint}
        written: dict[str, Any] = {"number": number, **counts, **known, "bytes": {}, "checksums": {}}
        for name, values in arrays.items():
            data = np.ascontiguousarray(self._counted_on(name, values)).data.cast("B")
            with (self.folder / array_file(name)).open("ab") as file:
                file.write(data)
            written["bytes"][name], written["checksums"][name] = len(data), checksum([data])
        ids = None if log.cluster_vocabulary is None else pl.DataFrame({"id": log.cluster_vocabulary.ids})
        for name, frame in zip(FRAMES, (ids, log.kept), strict=True):
            if frame is not None:
                written["checksums"][name] = write_frame(self.folder / frame_file(name, number), frame)
        self.shards.append(written)
        return written

    def _counted_on(self, name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Codes and offsets that follow those of the shards before."""
        if name in POINTERS:
            before = sum(one[POINTERS[name]] for one in self.shards)
            return np.asarray(values + np.array(before, dtype=values.dtype))
        if lead(name):
            codes = name.removesuffix("offsets") + "codes"
            before = self._bytes(codes) // np.dtype(self.arrays[codes][0]).itemsize
            return np.asarray(values[1:] + before)
        return values

    def finish(self, log: LoggedData, about: Mapping[str, Any]) -> dict[str, Any]:
        """Write what the shards share, as one of them has it, and the manifest last."""
        generation = len(self.shards)
        vocabularies = {
            name: f"vocabularies/{name}-{generation}.arrow" for name in log_vocabularies(log)
        }  # a new name, so that readers of the former manifest keep theirs
        files = {
            vocabularies[name]: write_frame(self.folder / vocabularies[name], pl.DataFrame({"id": one.ids}))
            for name, one in log_vocabularies(log).items()
        }
        described: dict[str, list[Any]] = {}
        for name, values in table_arrays("actions", log.actions.features or {}).items():
            file = f"vocabularies/{name}-{generation}.bin"
            write_atomic(self.folder / file, values.tobytes())
            files[file] = checksum([values.tobytes()])
            described[name] = [file, values.dtype.newbyteorder("<").str, _width(values)]
        offered = None if log.candidates is None else log.candidates.features
        digests = [one["digest"] for one in self.shards]
        manifest = {
            **about,
            "format": FORMAT,
            "shards": self.shards,
            "arrays": self.arrays,
            "files": files,
            "vocabularies": vocabularies,
            "action_arrays": described,
            "actions": table_schema(log.actions.features),
            "contexts": table_schema(log.contexts),
            "candidates": table_schema(offered),
            "kept": log.kept is not None,
            "reward_range": list(log.reward_range),
            "reward_name": log.reward_name,
            "treated": list(log.treated),
            "frames": log.frames,
            "lineage": log.lineage,
            "fingerprint": fingerprint_of(log.actions, log.reward_range, digests),
            "rows_fingerprint": digest(np.array([one["rows_fingerprint"] for one in self.shards])),
        }
        for path in self.folder.rglob("*.*"):
            flush(path)
        write_atomic(self.folder / MANIFEST, manifest_text(manifest))
        return manifest


def _width(values: npt.NDArray[Any]) -> int | None:
    return values.shape[1] if values.ndim == 2 else None


def write_frame(path: Path, frame: pl.DataFrame) -> str:
    """Write an Arrow file that can be mapped into memory; its checksum."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        frame.rechunk().write_ipc(file, compression="uncompressed", record_batch_size=max(1, frame.height))
    with path.open("rb") as file:
        return checksum(iter(lambda: file.read(2**20), b""))


def write_store(log: LoggedData, path: str | Path, shards: int | None = None) -> LoggedData:
    """Write a log in memory as a store, and open it: a divided log as it is, any other in `shards` shards."""
    divided = log if log.layout is not None and shards is None else log.sharded(shards or SHARDS)
    target = Path(path).expanduser()
    staging = staging_of(target)
    if target.exists():
        raise OffPolicyError(f"{target} is there already. Choose another name or remove it.")
    with claimed(staging):
        try:
            remove_tree(staging, inside=True)
            writer = StoreWriter(staging, [], {})
            for number, shard in enumerate(divided.shards):
                writer.add(shard, number)
            about = {"command": "write_store", "sources": [], "notes": [], "shard_count": divided.n_shards}
            writer.finish(divided, about)
            staging.rename(target)
        except BaseException:
            remove_tree(staging)
            raise
    return open_store(target, verify=False)


def in_store(log: LoggedData, path: str | Path) -> LoggedData:
    """A log as the store at a path, so that other processes can open it; written unless it is there already."""
    target = Path(path).expanduser()
    if is_store(target):
        found = open_store(target)
        if found.fingerprint == log.fingerprint and found.lineage == log.lineage:
            return found
        remove_tree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    return write_store(log, target)


def staging_of(target: Path) -> Path:
    """The folder beside a store in which it is made."""
    return target.with_name(f"{target.name}.preparing")


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold a folder, made where it is not there, against other processes."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(lock(folder, wait=False))
        except BlockingIOError:
            raise OffPolicyError(f"Another process is preparing {folder}. Wait until it is done.") from None
        yield


def grown(former: Vocabulary, ids: pl.Series) -> Vocabulary:
    """A vocabulary grown at its end by the ids that it does not hold, in ascending order."""
    new = ids.filter(pl.Series(codes_in(ids, former.ids) == UNKNOWN)).unique().sort(nulls_last=True)
    return former if not len(new) else Vocabulary(pl.concat([former.ids.rename("id"), new.rename("id")]))
