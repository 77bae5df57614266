"""A log prepared as a folder: a file for each array, which grows shard by shard, and a manifest of what is there.

Opening reads the manifest and maps the files into memory, so that only what is looked at is loaded, and the system may
drop it again. An array's file holds its shards one after another, which makes the whole log one array and a shard a
slice of it. Every shard of every array has a checksum: data are compared with it before they are used.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.ipc

from offpolicy.errors import LogError
from offpolicy.log.actions import ActionTable
from offpolicy.log.candidates import Candidates
from offpolicy.log.features import COLUMNS, BagColumn, CategoricalColumn, Column, FeatureTable, column_parts, parts_of
from offpolicy.log.hashing import digest, table_hashes, vocabulary_hashes
from offpolicy.log.ids import trusted
from offpolicy.log.logged_data import LoggedData
from offpolicy.log.rules import ROW_ARRAYS
from offpolicy.log.shards import Layout
from offpolicy.log.vocabulary import Vocabulary

MANIFEST, FORMAT = "manifest.json", 1
FRAMES = ("clusters", "kept")
"""What is one Arrow file a shard: ids of clusters, and the columns kept beside the rows."""
Arrays = dict[str, npt.NDArray[Any]]


def is_store(path: Any) -> bool:
    """Whether a path is that of a prepared log."""
    return isinstance(path, str | Path) and (Path(path).expanduser() / MANIFEST).is_file()


def table_arrays(name: str, table: Mapping[str, Column]) -> Arrays:
    """The arrays of feature columns by the name of their file."""
    found: Arrays = {}
    for number, column in enumerate(table.values()):
        found |= {f"{name}.{number}.{part}": getattr(column, part) for part in parts_of(column.kind)}
    return found


def table_schema(table: Mapping[str, Column] | None) -> list[list[str]] | None:
    """The name and kind of each column."""
    return None if table is None else [[name, column.kind] for name, column in table.items()]


def vocabularies_of(name: str, table: Mapping[str, Column] | None) -> dict[str, Vocabulary]:
    """The vocabularies of feature columns by the name of their file."""
    columns = enumerate((table or {}).values())
    return {f"{name}.{n}": one.vocabulary for n, one in columns if isinstance(one, CategoricalColumn | BagColumn)}


def log_arrays(log: LoggedData) -> Arrays:
    """Every array of a log by the name of its file."""
    found = {f"rows.{name}": values for name in ROW_ARRAYS if (values := getattr(log, name)) is not None}
    found |= table_arrays("contexts", log.contexts) | {"hashes.contexts": log.context_hashes}
    if log.cluster is not None:
        found["hashes.clusters"] = log.cluster_hashes
    if log.candidates is not None:
        found |= {"candidates.offsets": log.candidates.offsets, "candidates.codes": log.candidates.codes}
        found |= table_arrays("candidates", log.candidates.features or {})
        found["hashes.features"] = log._feature_hashes
    return found


def log_vocabularies(log: LoggedData) -> dict[str, Vocabulary]:
    """Every vocabulary that the shards of a log share."""
    offered = None if log.candidates is None else log.candidates.features
    found = {"actions": log.actions.vocabulary, **vocabularies_of("contexts", log.contexts)}
    return found | vocabularies_of("actions", log.actions.features) | vocabularies_of("candidates", offered)


def checksum(pieces: Iterable[Any]) -> str:
    """The SHA-256 of bytes."""
    sha = hashlib.sha256()
    for piece in pieces:
        sha.update(piece)
    return sha.hexdigest()


def manifest_text(content: Mapping[str, Any]) -> str:
    """A manifest with its own checksum."""
    body = json.dumps(content, indent=0, ensure_ascii=False, allow_nan=False, sort_keys=True)
    return json.dumps({"checksum": checksum([body.encode()]), "manifest": body})


def manifest_of(text: str, path: Path) -> dict[str, Any]:
    """The content of a manifest, whose checksum must be right."""
    try:
        outer = json.loads(text)
        body, expected = outer["manifest"], outer["checksum"]
        content: dict[str, Any] = json.loads(body) if checksum([body.encode()]) == expected else {}
    except (ValueError, KeyError, TypeError, AttributeError):
        content = {}
    if content.get("format") != FORMAT:
        raise LogError(f"{path} is damaged or of another version: prepare the log again.")
    return content


def read_manifest(store: str | Path) -> dict[str, Any]:
    """What a store's manifest says."""
    path = Path(store).expanduser() / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LogError(f"{path} cannot be read ({error}). Name the folder of a prepared log.") from None
    return manifest_of(text, path)


def store_columns(store: str | Path) -> list[str]:
    """The columns that a store was made of, as far as it says, and those it keeps beside the rows."""
    manifest = read_manifest(store)
    schema = manifest.get("schema") or {}
    single = ("action", "reward", "propensity", "cluster", "timestamp", "candidates", "request", "position")
    roles = [schema[name] for name in single if schema.get(name)]
    return list(dict.fromkeys([*schema.get("context", ()), *roles, *manifest.get("keep", ())]))


@dataclass(frozen=True)
class StoreShard:
    """Where a log, or a shard of one, comes from; `number` is None for the whole."""

    path: Path
    manifest: Mapping[str, Any]
    number: int | None = None

    def reopening(self) -> tuple[Any, ...]:
        """How another process gets the same log: by path, its data checked shard by shard as they are used."""
        return _reopened, (str(self.path), self.manifest["fingerprint"], self.number)

    def of(self, number: int) -> "StoreShard":
        """One shard, whose files are checked once a process."""
        key = (str(self.path), self.manifest["fingerprint"], number)
        if key not in _CHECKED:
            check_shard(self.path, self.manifest, number)
            _CHECKED.add(key)
        return StoreShard(self.path, self.manifest, number)


_CHECKED: set[tuple[str, str, int]] = set()


@lru_cache(maxsize=4)
def _opened(path: str, fingerprint: str) -> LoggedData:
    log = open_store(path, verify=False)
    if log.fingerprint != fingerprint:
        raise LogError(f"The store {path} has changed since it was opened. Run the command again.")
    return log


def _reopened(path: str, fingerprint: str, number: int | None) -> LoggedData:
    log = _opened(path, fingerprint)
    return log if number is None else log.shard(number)


def check_shard(store: Path, manifest: Mapping[str, Any], number: int) -> None:
    """Refuse a shard one of whose files does not hold what was written, by name."""
    begin = {name: sum(one["bytes"][name] for one in manifest["shards"][:number]) for name in manifest["arrays"]}
    shard = manifest["shards"][number]
    for name, expected in shard["checksums"].items():
        frame = name in FRAMES
        path = store / frame_file(name, shard["number"]) if frame else store / array_file(name)
        start = 0 if frame else begin[name] + lead(name)
        zeros = b"" if frame or number else b"".join(_pieces(path, 0, lead(name)))
        if any(zeros) or checksum(_pieces(path, start, None if frame else shard["bytes"][name])) != expected:
            raise LogError(
                f"{path} is damaged: its bytes for shard {shard['number']} are not those that were written (their "
                "checksum differs). Copy the store again or prepare it anew."
            )


def _pieces(path: Path, start: int, size: int | None) -> Iterator[bytes]:
    """The bytes of a part of a file, a megabyte at a time; of a missing file none."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            left = path.stat().st_size - start if size is None else size
            while left > 0 and (piece := file.read(min(left, 2**20))):
                left -= len(piece)
                yield piece
    except OSError as error:
        raise LogError(f"{path}, a part of the store, cannot be read: {error}. Copy the store again.") from None


def array_file(name: str) -> str:
    """The file of an array."""
    return f"arrays/{name}.bin"


def frame_file(name: str, number: int) -> str:
    """The Arrow file of a shard."""
    return f"{name}/{number:05}.arrow"


def lead(name: str) -> int:
    """Bytes before the first shard: offsets begin with a zero of 8 bytes."""
    return 8 if name.endswith(".offsets") else 0


def open_store(path: str | Path, *, verify: bool = True) -> LoggedData:
    """The log of a prepared folder, its arrays mapped from disk: opening costs next to no memory.

    With `verify` every file is read once and compared with its checksum (about a second for a gigabyte); without,
    each shard is compared when it is first taken with `shard` or `shards`, which is what worker processes do.
    """
    store = Path(path).expanduser().resolve()
    manifest = read_manifest(store)
    for name, expected in manifest["files"].items():
        if checksum(_pieces(store / name, 0, None)) != expected:
            raise LogError(f"{store / name} is damaged: its checksum differs. Copy the store again or prepare it anew.")
    source = StoreShard(store, manifest)
    if verify:
        for number in range(len(manifest["shards"])):
            check_shard(store, manifest, number)
    return _mapped(store, manifest, source)


def _mapped(store: Path, manifest: Mapping[str, Any], source: StoreShard) -> LoggedData:
    shards = manifest["shards"]
    arrays = {name: _array(store, name, about, shards) for name, about in manifest["arrays"].items()}
    vocabularies = {name: _vocabulary([store / file]) for name, file in manifest["vocabularies"].items()}
    fixed = {
        name: np.fromfile(store / file, dtype=dtype).reshape(shape) if width else np.fromfile(store / file, dtype=dtype)
        for name, (file, dtype, width) in manifest["action_arrays"].items()
        for shape in [(-1, width or 1)]
    }
    actions = ActionTable(vocabularies["actions"], _table("actions", manifest["actions"], fixed, vocabularies))
    contexts = _table("contexts", manifest["contexts"], arrays, vocabularies)
    assert contexts is not None
    if "candidates.offsets" in arrays:
        offered = _table("candidates", manifest["candidates"], arrays, vocabularies)
        offsets, codes = arrays["candidates.offsets"], arrays["candidates.codes"]
        parts = {"offsets": offsets, "codes": codes, "vocabulary": actions.vocabulary, "features": offered}
        sets = trusted(Candidates, **parts)
        contexts = trusted(FeatureTable, _columns=dict(contexts), _n_rows=contexts.n_rows, _candidates=sets)
    known = {"context_hashes": arrays["hashes.contexts"], "_source": source}
    known |= {key: manifest[key] for key in ("fingerprint", "rows_fingerprint")}
    if "hashes.clusters" in arrays:
        known["cluster_hashes"] = arrays["hashes.clusters"]
    if "hashes.features" in arrays:
        known["_feature_hashes"] = arrays["hashes.features"]
    files = {name: [store / frame_file(name, one["number"]) for one in shards] for name in FRAMES}
    kept = [_frame(file) for file in files["kept"]] if manifest["kept"] else []
    return trusted(
        LoggedData,
        contexts=contexts,
        actions=actions,
        **{name: arrays.get(f"rows.{name}") for name in ROW_ARRAYS},
        cluster_vocabulary=_vocabulary(files["clusters"]) if "rows.cluster" in arrays else None,
        kept=pl.concat(kept, rechunk=False) if kept else None,
        layout=layout_of(shards, "rows.cluster" in arrays, "rows.request" in arrays),
        **{name: tuple(manifest[name]) for name in ("reward_range", "treated")},
        **{name: manifest[name] for name in ("reward_name", "frames", "lineage")},
        **known,
    )


def layout_of(shards: Iterable[Mapping[str, Any]], clusters: bool, requests: bool) -> Layout:
    """Where the shards of a manifest begin."""
    counts = list(shards)

    def bounds(name: str) -> tuple[int, ...]:
        return (0, *accumulate(one[name] for one in counts))

    found = (bounds("clusters") if clusters else None, bounds("requests") if requests else None)
    return Layout(bounds("rows"), bounds("contexts"), *found)


def _array(store: Path, name: str, about: list[Any], shards: list[dict[str, Any]]) -> npt.NDArray[Any]:
    dtype, width = np.dtype(about[0]), about[1]
    size = (lead(name) + sum(one["bytes"][name] for one in shards)) // dtype.itemsize
    path = store / array_file(name)
    try:
        flat = np.memmap(path, dtype, "r", shape=(size,)) if size else np.empty(0, dtype)
    except (OSError, ValueError) as error:
        raise LogError(f"{path}, a part of the store, cannot be read: {error}. Copy the store again.") from None
    plain = np.asarray(flat)
    plain.flags.writeable = False
    return plain.reshape(-1, width) if width else plain


def _vocabulary(files: list[Path]) -> Vocabulary:
    return trusted(Vocabulary, _ids=pl.concat([_frame(file)["id"] for file in files], rechunk=False))


def _frame(path: Path) -> pl.DataFrame:
    """An Arrow file mapped into memory; arrow maps where polars would read."""
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (OSError, pa.ArrowException) as error:
        raise LogError(f"{path}, a part of the store, cannot be read: {error}. Copy the store again.") from None
    frame = pl.from_arrow(table, rechunk=False)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _table(
    name: str, schema: list[list[str]] | None, arrays: Arrays, vocabularies: Mapping[str, Vocabulary]
) -> FeatureTable | None:
    """A feature table of arrays that were checked when they were written."""
    if schema is None:
        return None
    columns: dict[str, Column] = {}
    for number, (column, kind) in enumerate(schema):
        own = {part: arrays[f"{name}.{number}.{part}"] for part in parts_of(kind)}
        parts = column_parts(kind, own, vocabularies.get(f"{name}.{number}"))
        columns[column] = trusted(COLUMNS[kind], **parts)
    size = len(next(iter(columns.values())))
    return trusted(FeatureTable, _columns=columns, _n_rows=size, _candidates=None)


def fingerprint_of(actions: ActionTable, reward_range: tuple[float, float], digests: Iterable[str]) -> str:
    """The fingerprint of a log in shards, from theirs."""
    features = actions.features
    described = None if features is None else table_hashes(features, features.n_rows)
    about = (vocabulary_hashes(actions.vocabulary), described, np.array(reward_range))
    return digest(*about, np.array(list(digests)))
