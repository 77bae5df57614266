"""Typed rows of a log on their way to shards: a file a shard, to which pieces of the log are appended."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.ipc

from offpolicy.log.encode import distinct_contexts
from offpolicy.log.features import Kind
from offpolicy.log.hashing import Hashes, table_hashes, vocabulary_hashes
from offpolicy.log.offers import Offers
from offpolicy.log.origin import Origin
from offpolicy.log.roles import TypedRows
from offpolicy.log.shards import shard_of
from offpolicy.log.vocabulary import Vocabulary

OFFERED = "offered"


@dataclass(frozen=True)
class Columns:
    """Which columns a spilled row has: roles, context with kinds, what is kept, what was offered."""

    roles: tuple[str, ...]
    context: tuple[tuple[str, Kind], ...]
    kept: tuple[str, ...]
    offered: str | None
    features: tuple[str, ...]
    weighted: bool

    @classmethod
    def of(cls, rows: TypedRows) -> "Columns":
        """Those of some rows."""
        offers = rows.offers
        return cls(
            tuple(rows.roles),
            tuple((name, kind) for name, (kind, _) in rows.context.items()),
            () if rows.kept is None else tuple(rows.kept.columns),
            None if offers is None else offers.column,
            () if offers is None else tuple(offers.features),
            rows.weights is not None,
        )

    @classmethod
    def of_json(cls, plain: Mapping[str, Any]) -> "Columns":
        """The inverse of `vars`, after JSON."""
        lists = {name: tuple(plain[name]) for name in ("roles", "kept", "features")}
        context = tuple((name, kind) for name, kind in plain["context"])
        return cls(**lists, context=context, offered=plain["offered"], weighted=plain["weighted"])

    def rows(self, frame: pl.DataFrame, origin: Origin) -> TypedRows:
        """The rows of a frame."""
        offers = None
        if self.offered is not None:
            lists = frame[OFFERED]
            features = {name: frame[f"{OFFERED} {n}"].explode() for n, name in enumerate(self.features)}
            sizes = lists.list.len().cast(pl.Int64).to_numpy()
            offers = Offers(self.offered, lists.explode(), sizes, features, origin)
        return TypedRows(
            {role: frame[role] for role in self.roles},
            {name: (kind, frame[f"context {n}"].alias(name)) for n, (name, kind) in enumerate(self.context)},
            offers,
            frame["weight"].to_numpy() if self.weighted else None,
            frame.select(pl.col(f"kept {n}").alias(name) for n, name in enumerate(self.kept)) if self.kept else None,
            None,
        )


def frame_of(rows: TypedRows) -> pl.DataFrame:
    """Rows as a frame whose columns are called by their place."""
    series = [values.alias(role) for role, values in rows.roles.items()]
    series += [values.alias(f"context {n}") for n, (_, values) in enumerate(rows.context.values())]
    series += [] if rows.kept is None else [one.alias(f"kept {n}") for n, one in enumerate(rows.kept.get_columns())]
    if rows.weights is not None:
        series.append(pl.Series("weight", rows.weights))
    if rows.offers is not None:
        offers = rows.offers
        flat = {OFFERED: offers.ids} | {f"{OFFERED} {n}": one for n, one in enumerate(offers.features.values())}
        owner = pl.Series("owner", np.repeat(np.arange(len(offers.sizes)), offers.sizes))
        lists = pl.DataFrame([owner, *(one.alias(name) for name, one in flat.items())])
        series += lists.group_by("owner", maintain_order=True).agg(pl.all()).drop("owner").get_columns()
    return pl.DataFrame(series)


def unit_hashes_of(rows: TypedRows, origin: Origin, vocabularies: Mapping[str, Vocabulary]) -> Hashes:
    """The hash of each row's unit: its cluster or request, or else the features of its context."""
    unit = rows.roles.get("cluster", rows.roles.get("request"))
    if unit is not None:
        vocabulary = Vocabulary.of(unit)
        return np.asarray(vocabulary_hashes(vocabulary)[vocabulary.encode(unit)])
    contexts, index = distinct_contexts(rows.context, origin, None, vocabularies)
    return np.asarray(table_hashes(dict(contexts), contexts.n_rows)[index])


def spill(frame: pl.DataFrame, units: Hashes, shards: int, folder: Path) -> None:
    """Append rows to the files of their shards, in order."""
    shard = shard_of(units, shards)
    ordered = frame[np.argsort(shard, kind="stable")]
    starts = np.concatenate(([0], np.cumsum(np.bincount(shard, minlength=shards))))
    for number in np.flatnonzero(np.diff(starts)).tolist():
        with spill_file(folder, number).open("ab") as file:
            ordered.slice(int(starts[number]), int(starts[number + 1] - starts[number])).write_ipc_stream(file)


def spill_file(folder: Path, number: int) -> Path:
    """The file of a shard."""
    return folder / f"{number:05}.rows"


def spilled(folder: Path, number: int) -> pl.DataFrame | None:
    """The rows of a shard; None where there are none."""
    path = spill_file(folder, number)
    return pl.concat(_streams(path), rechunk=False) if path.exists() else None


def _streams(path: Path) -> Iterator[pl.DataFrame]:
    size = path.stat().st_size
    with pa.OSFile(str(path)) as file:
        while file.tell() < size:
            frame = pl.from_arrow(pa.ipc.open_stream(file).read_all(), rechunk=False)
            assert isinstance(frame, pl.DataFrame)
            yield frame


class Distinct:
    """The different ids among all that were seen."""

    def __init__(self, former: Sequence[pl.Series] = ()) -> None:
        """Begin with some."""
        self._seen, self._waiting, self._at = list(former), 0, 1_000_000

    def add(self, ids: pl.Series) -> None:
        """Take in more."""
        some = ids.rename("id").unique()
        self._seen.append(some)
        self._waiting += len(some)
        if self._waiting > self._at:
            self._seen = [self.ids().unique()]
            self._waiting, self._at = len(self._seen[0]), max(1_000_000, 2 * len(self._seen[0]))

    def ids(self) -> pl.Series:
        """All of them, some perhaps several times."""
        frames = [one.rename("id").to_frame() for one in self._seen]
        return pl.concat(frames, how="vertical_relaxed")["id"]
