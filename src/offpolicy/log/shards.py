"""A log as a list of shards: rows in an order that is a function of what they say, every unit whole within one shard.

A unit is a cluster, or the features of a context where there are no clusters; a keyed hash says which shard it is in.
Within a shard contexts are ordered by their hash and the rows of a context by theirs, so that the same rows give the
same shards, whatever the order of files and rows they came in. What belongs to a shard is contiguous: its rows, its
contexts (stored once a shard), its clusters and requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from offpolicy.errors import LogError, ParameterError
from offpolicy.log.hashing import Hashes, mixed, number_hashes, uniform
from offpolicy.log.ids import owned, trusted
from offpolicy.log.vocabulary import Vocabulary

if TYPE_CHECKING:
    from offpolicy.log.log_arrays import LogArrays
    from offpolicy.log.logged_data import LoggedData

AnyLog = TypeVar("AnyLog", bound="LogArrays")
SHARDS, MOST_SHARDS = 64, 65_536
KEY = "shard"
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """Where shards begin among rows, contexts, clusters and requests: 0, ..., the number of them. None is empty."""

    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    clusters: tuple[int, ...] | None = None
    requests: tuple[int, ...] | None = None

    def __len__(self) -> int:
        """The number of shards."""
        return len(self.rows) - 1

    def taken(
        self,
        rows: Positions | npt.NDArray[np.bool_],
        contexts: Positions,
        clusters: Positions | None,
        n_requests: int,
    ) -> "Layout | None":
        """The layout of some rows (a mask, or positions in ascending order), and of what they use."""
        if rows.dtype == np.bool_:
            starts = np.cumsum([0, *(np.count_nonzero(rows[first:end]) for first, end in pairwise(self.rows))])
        elif (np.diff(rows) < 0).any():
            return None
        else:
            starts = np.searchsorted(rows, self.rows)
        there = [*np.flatnonzero(np.diff(starts)).tolist(), len(self)]

        def of(bounds: Any) -> tuple[int, ...]:
            return tuple(int(bounds[place]) for place in there)

        requests = None if self.requests is None else (*of((*self.requests[:-1], n_requests))[:-1], n_requests)
        return Layout(
            of(starts),
            of(np.searchsorted(contexts, self.contexts)),
            None if self.clusters is None or clusters is None else of(np.searchsorted(clusters, self.clusters)),
            requests,
        )

    def check(self, n_rows: int, context_index: npt.NDArray[Any], n_contexts: int) -> None:
        """Refuse bounds that do not fit a log, or shards that share a context."""
        if self.rows[0] != 0 or self.rows[-1] != n_rows or (np.diff(self.rows) <= 0).any():
            raise LogError(f"Shards must divide the {n_rows} rows, none of them empty, but they begin at {self.rows}.")
        if len(self.contexts) != len(self.rows) or self.contexts[0] != 0 or self.contexts[-1] != n_contexts:
            raise LogError(f"Shards must divide the {n_contexts} contexts as they divide the rows.")
        for number in range(len(self)):
            own = context_index[self.rows[number] : self.rows[number + 1]]
            if own.min() < self.contexts[number] or own.max() >= self.contexts[number + 1]:
                raise LogError(f"A row of shard {number} has the context of another shard. Make shards with `sharded`.")

    def with_clusters(self, cluster: npt.NDArray[Any] | None) -> "Layout | None":
        """The same shards with these clusters; None where a cluster lies in two shards, so that they are none."""
        if cluster is None:
            return replace(self, clusters=None)
        starts = np.array(self.rows[:-1])
        low, high = np.minimum.reduceat(cluster, starts), np.maximum.reduceat(cluster, starts)
        if (low != np.concatenate(([0], high[:-1] + 1))).any():
            return None
        return replace(self, clusters=(0, *(high + 1).tolist()))


def shard_of(units: Hashes, shards: int) -> Positions:
    """The shard of each unit, by a keyed hash of its content."""
    if isinstance(shards, bool) or not isinstance(shards, int | np.integer) or not 1 <= shards <= MOST_SHARDS:
        raise ParameterError(f"shards must be a whole number from 1 to {MOST_SHARDS}, but it is {shards!r}.")
    return np.asarray((uniform(units, KEY) * shards).astype(np.int64))


def unit_hashes(log: "LoggedData") -> Hashes:
    """The hash of each row's unit: its cluster, or the features of its context."""
    if log.cluster is not None:
        return np.asarray(log.cluster_hashes[log.cluster])
    return np.asarray((log.context_hashes if log.candidates is None else log._feature_hashes)[log.context_index])


def arranged(log: "LoggedData", shards: int) -> "LoggedData":
    """The same rows in so many shards (fewer where some would be empty), in canonical order."""
    shard = shard_of(unit_hashes(log), shards)
    order = _row_order(log, shard)
    shard, context = shard[order], log.context_index[order]
    first = np.concatenate(([True], (np.diff(shard) != 0) | (np.diff(context) != 0)))  # rows of a context are together
    ends = np.append(np.flatnonzero(np.diff(shard)) + 1, log.n_rows)
    index = np.cumsum(first) - 1
    changes: dict[str, Any] = {"context_index": index.astype(np.int32), "contexts": log.contexts.take(context[first])}
    changes["context_hashes"] = log.context_hashes[context[first]]
    for name in ("action", "reward", "logging_prob", "timestamp", "row_weight", "position"):
        values = getattr(log, name)
        changes[name] = None if values is None else values[order]
    clusters = requests = None
    if log.cluster is not None:
        named, changes["cluster"] = _renumbered(log.cluster[order], shard, log.cluster_hashes)
        vocabulary = log.cluster_vocabulary or Vocabulary(range(len(log.cluster_hashes)))
        changes["cluster_vocabulary"] = trusted(Vocabulary, _ids=vocabulary.ids.gather(pl.Series(named)))
        clusters = _bounds(changes["cluster"], ends)
    if log.request is not None:
        _, changes["request"] = _renumbered(log.request[order], shard, None)
        requests = _bounds(changes["request"], ends)
    if log.kept is not None:
        changes["kept"] = log.kept[order]
    layout = Layout((0, *ends.tolist()), _bounds(changes["context_index"], ends), clusters, requests)
    sealed = {name: owned(values) if isinstance(values, np.ndarray) else values for name, values in changes.items()}
    return log._changed_rows(layout=layout, **sealed)


def _row_order(log: "LoggedData", shard: Positions) -> Positions:
    """Rows by shard, by the hash of their context, by what they say; rows that say the same by what is kept of them."""
    rank = np.empty(log.n_contexts, dtype=np.int64)
    rank[np.argsort(log.context_hashes, kind="stable")] = np.arange(log.n_contexts)
    place = shard * log.n_contexts + rank[log.context_index]
    said = content_hashes(log)
    if log.kept is None:
        return np.asarray(np.lexsort((said, place)))
    plain = log.kept.select(pl.selectors.by_dtype(pl.String, pl.Boolean) | pl.selectors.numeric())
    names = [f"{number}" for number in range(plain.width)]
    keys = pl.DataFrame({"place": place, "said": said}).hstack(
        plain.rename(dict(zip(plain.columns, names, strict=True)))
    )
    ordered = keys.with_row_index("row").sort(["place", "said", *names], maintain_order=True, nulls_last=True)
    return ordered["row"].to_numpy().astype(np.int64)


def content_hashes(log: "LoggedData") -> Hashes:
    """A hash of everything that each row says, but for what is kept beside it."""
    said = mixed(log.row_hashes)
    if log.cluster is not None:
        said ^= mixed(log.cluster_hashes)[log.cluster]
    for name in ("logging_prob", "row_weight", "position"):
        values = getattr(log, name)
        if values is not None:
            said = mixed(said) ^ number_hashes(values)
    return said


def _renumbered(codes: npt.NDArray[Any], shard: Positions, hashes: Hashes | None) -> tuple[Positions, npt.NDArray[Any]]:
    """Codes numbered by shard and hash, or by first appearance; and the former code of each."""
    distinct, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(first) if hashes is None else np.lexsort((hashes[distinct], shard[first]))
    rank = np.empty(len(distinct), dtype=np.int32)
    rank[order] = np.arange(len(distinct), dtype=np.int32)
    return np.asarray(distinct[order]), rank[inverse]


def _bounds(codes: npt.NDArray[Any], ends: npt.NDArray[Any]) -> tuple[int, ...]:
    """Where the codes of each shard end, which lie behind those of the shards before."""
    largest = np.maximum.reduceat(codes, np.concatenate(([0], ends[:-1])))
    return (0, *(largest + 1).tolist())


def shard_view(log: AnyLog, number: int) -> AnyLog:
    """One shard as a log of its own: slices of the whole, its codes counted from 0."""
    layout = log.layout
    if layout is None or not 0 <= number < len(layout):
        count = 1 if layout is None else len(layout)
        raise ParameterError(f"The log has {count} shards, numbered from 0, but shard {number!r} was asked for.")
    source = vars(log).get("_source")
    known = {} if source is None else {"_source": source.of(number)}  # refuses a damaged one
    rows = slice(layout.rows[number], layout.rows[number + 1])
    contexts = slice(layout.contexts[number], layout.contexts[number + 1])
    parts: dict[str, Any] = {"layout": None, "contexts": log.contexts.take(contexts)}
    for name in _PLAIN:
        values = getattr(log, name)
        parts[name] = None if values is None else values[rows]
    parts["context_index"] = owned(log.context_index[rows] - np.int32(contexts.start))
    if log.cluster is not None and layout.clusters is not None:
        clusters = slice(layout.clusters[number], layout.clusters[number + 1])
        parts["cluster"] = owned(log.cluster[rows] - np.int32(clusters.start))
        if log.cluster_vocabulary is not None:
            ids = log.cluster_vocabulary.ids.slice(clusters.start, clusters.stop - clusters.start)
            parts["cluster_vocabulary"] = trusted(Vocabulary, _ids=ids)
        if "cluster_hashes" in vars(log):
            parts["cluster_hashes"] = log.cluster_hashes[clusters]
    if log.request is not None and layout.requests is not None:
        parts["request"] = owned(log.request[rows] - np.int32(layout.requests[number]))
    parts["kept"] = None if log.kept is None else log.kept.slice(rows.start, rows.stop - rows.start)
    for name in ("context_hashes", "_feature_hashes"):
        if name in vars(log):
            parts[name] = vars(log)[name][contexts]
    return trusted(type(log), **log._fields | parts | known)


_PLAIN: Sequence[str] = ("action", "reward", "logging_prob", "timestamp", "row_weight", "position")
