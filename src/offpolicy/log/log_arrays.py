"""The arrays of a log: checked when they are put together, counted, and known by what they say."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from offpolicy.errors import LogError
from offpolicy.log.actions import ActionTable
from offpolicy.log.assignment import Rows
from offpolicy.log.batches import LogBatch, batches_of
from offpolicy.log.candidates import Candidates
from offpolicy.log.features import FeatureTable
from offpolicy.log.hashing import (
    Hashes,
    digest,
    mixed,
    number_hashes,
    occurrence,
    table_hashes,
    vocabulary_hashes,
)
from offpolicy.log.ids import Codes, owned
from offpolicy.log.instants import calendar_times
from offpolicy.log.mapped import joined, mapped_file
from offpolicy.log.rewards import checked_range
from offpolicy.log.rules import (
    ROW_ARRAYS,
    check_clusters,
    check_offered,
    check_within,
    sealed_rows,
)
from offpolicy.log.shards import Layout, shard_view
from offpolicy.log.slates import check_nested, check_slates, slate_table
from offpolicy.log.vocabulary import Vocabulary

FloatOrArray = TypeVar("FloatOrArray", float, npt.NDArray[np.float64])


@dataclass(frozen=True, eq=False, repr=False)
class LogArrays:
    """The rows of a log, which point at contexts stored once; every array is read-only."""

    contexts: FeatureTable  # the distinct contexts
    context_index: Codes  # (rows,) position in `contexts`
    action: Codes  # (rows,) code in `actions.vocabulary`
    reward: npt.NDArray[np.float64]  # (rows,) in [0, 1]
    actions: ActionTable
    logging_prob: npt.NDArray[np.float64] | None = None  # (rows,) in (0, 1]
    cluster: Codes | None = None  # (rows,) codes 0..C-1, each used
    timestamp: npt.NDArray[np.int64] | None = None  # (rows,)
    reward_range: tuple[float, float] = (0.0, 1.0)
    cluster_vocabulary: Vocabulary | None = None
    row_weight: npt.NDArray[np.float64] | None = None  # (rows,) how many events each stands for; None: one
    request: Codes | None = None  # (rows,) the slate that each row belongs to, where requests show several actions
    position: Codes | None = None  # (rows,) its place there, from 0 at the top, without gaps
    lineage: str = ""
    """The splits this log is a part of, so that splitting a part again is independent of the earlier split."""
    kept: pl.DataFrame | None = None
    """Other columns of the rows: more rewards, keys, what to break down by. Nothing is estimated from them unasked."""
    reward_name: str = "reward"
    treated: tuple[str, ...] = ()
    """What was done to the data on reading, in words."""
    frames: Literal["polars", "pandas"] = "polars"
    """The kind of frame it was read from, which results come as."""
    layout: Layout | None = None
    """Where its shards begin; None: it is one."""

    def __post_init__(self) -> None:
        """Seal every array and check every rule, so that no other code needs to check again."""
        low, high = checked_range(self.reward_range)
        object.__setattr__(self, "reward_range", (low, high))
        if self.n_rows == 0:
            raise LogError("A log needs at least one row, but this one is empty.")
        for name, dtype in ROW_ARRAYS.items():
            values = getattr(self, name)
            if values is not None:
                object.__setattr__(self, name, sealed_rows(name, values, dtype, len(self.context_index)))
        check_within("context_index", self.context_index, 0, self.n_contexts - 1)
        check_within("action", self.action, 0, self.n_actions - 1)
        check_within("reward", self.reward, 0.0, 1.0)
        if self.logging_prob is not None:
            check_within("logging_prob", self.logging_prob, np.nextafter(0.0, 1.0), 1.0)
        if self.row_weight is not None:
            check_within("row_weight", self.row_weight, 0.0, np.finfo(np.float64).max)
            if not self.row_weight.any():
                raise LogError("row_weight is zero in every row: the log stands for no event at all.")
        check_clusters(self.cluster, self.cluster_vocabulary)
        if (self.request is None) != (self.position is None):
            raise LogError("A slate needs both the request and the position of each row. Give both or neither.")
        if self.request is not None and self.position is not None:
            check_slates(self.request, self.position)
            check_nested(self.request, self.cluster)
        if self.candidates is not None:
            check_offered(self.candidates, self.actions, self.context_index, self.action)
        if self.kept is not None and self.kept.height != self.n_rows:
            raise LogError(
                f"Kept columns must have {self.n_rows} values, one per row, but they have {self.kept.height}."
            )
        if self.layout is not None:
            self.layout.check(self.n_rows, self.context_index, self.n_contexts)
            object.__setattr__(self, "layout", self.layout.with_clusters(self.cluster))

    def __eq__(self, other: object) -> bool:
        """Whether every array, table and vocabulary is equal."""
        if not isinstance(other, LogArrays):
            return NotImplemented
        plain = ("contexts", "actions", "reward_range", "cluster_vocabulary", "layout")
        if any(getattr(self, name) != getattr(other, name) for name in plain):
            return False
        pairs = [(getattr(self, name), getattr(other, name)) for name in ROW_ARRAYS]
        same = all(a is b or (a is not None and b is not None and np.array_equal(a, b)) for a, b in pairs)
        return same and (self.kept is None) == (other.kept is None) and self._kept.equals(other._kept)

    @property
    def n_rows(self) -> int:
        """The number of logged decisions."""
        return len(self.context_index)

    @property
    def n_contexts(self) -> int:
        """The number of distinct contexts."""
        return self.contexts.n_rows

    @property
    def n_actions(self) -> int:
        """The number of actions there are, logged or not."""
        return len(self.actions)

    @property
    def candidates(self) -> Candidates | None:
        """The actions on offer in each context; None where every context offers them all."""
        return self.contexts.candidates

    @property
    def width(self) -> int:
        """The columns of an array of (contexts, what may be chosen): all actions, or the largest set of candidates."""
        return self.n_actions if self.candidates is None else self.candidates.width

    @cached_property
    def row_place(self) -> Rows | Codes:
        """The column of each row's action in such an array: its code, or its place among the candidates."""
        return self.action if self.candidates is None else self.candidates.places(self.context_index, self.action)

    @property
    def cluster_index(self) -> Codes:
        """The unit of independence of each row: its cluster, or its context when no cluster was given.

        Contexts that differ in their candidates alone are one unit.
        """
        if self.cluster is not None:
            return self.cluster
        return self.context_index if self.candidates is None else self._feature_unit[self.context_index]

    @cached_property
    def _feature_unit(self) -> Codes:
        """The contexts with equal features, numbered."""
        _, unit = np.unique(self._feature_hashes, return_inverse=True)
        return owned(unit.astype(np.int32))

    @cached_property
    def _feature_hashes(self) -> Hashes:
        return owned(table_hashes(dict(self.contexts), self.n_contexts))

    @property
    def n_events(self) -> float:
        """The number of events the rows stand for."""
        return float(self.n_rows if self.row_weight is None else self.row_weight.sum())

    @cached_property
    def action_weight(self) -> npt.NDArray[np.float64]:
        """The events in which each action was logged."""
        if self.layout is not None:
            return owned(np.add.reduce([shard.action_weight for shard in self.shards]))
        return owned(np.bincount(self.action, self.row_weight, self.n_actions).astype(np.float64))

    @cached_property
    def context_weight(self) -> npt.NDArray[np.float64]:
        """The events of each context."""
        if self.layout is not None:
            return self._joined((shard.context_weight for shard in self.shards), self.n_contexts, np.float64)
        return owned(np.bincount(self.context_index, self.row_weight, self.n_contexts).astype(np.float64))

    @property
    def outcome(self) -> npt.NDArray[np.float64]:
        """What a decision leads to, in [0, 1]: its reward; in slates those from its position on, over the longest."""
        if self.request is None or self.position is None:
            return self.reward
        table = slate_table(self.request, self.position, self.reward)
        return owned((table[:, ::-1].cumsum(1)[:, ::-1] / table.shape[1])[self.request, self.position])

    @property
    def mean_reward(self) -> float:
        """The mean reward of an event, in [0, 1]."""
        if self.layout is not None and self.row_weight is not None:
            return float(sum(one.mean_reward * one.n_events for one in self.shards) / self.n_events)
        return float(np.average(self.reward, weights=self.row_weight))

    @cached_property
    def action_count(self) -> npt.NDArray[np.int64]:
        """How often each action was logged, in rows; a row that stands for no event does not count."""
        if self.layout is not None:
            return owned(np.add.reduce([shard.action_count for shard in self.shards]))
        action = self.action if self.row_weight is None else self.action[self.row_weight > 0]
        return owned(np.bincount(action, minlength=self.n_actions))  # (actions,)

    @property
    def shard_rows(self) -> tuple[int, ...] | None:
        """Where the rows of each shard begin, from 0 to the number of rows; None: the log is one shard."""
        return None if self.layout is None else self.layout.rows

    @property
    def n_shards(self) -> int:
        """The number of shards: one, unless the log was divided or comes from a store."""
        return 1 if self.layout is None else len(self.layout)

    @property
    def shards(self) -> Iterator[Self]:
        """The shards in order, each a log of its own that shares its arrays with this one; none holds nothing."""
        return map(self.shard, range(self.n_shards))

    def shard(self, number: int) -> Self:
        """One shard; a unit (cluster, or context) is never in two of them."""
        return self if self.layout is None and number == 0 else shard_view(self, number)

    def batches(self, budget: int | None = None, width: int | None = None) -> Iterator[LogBatch]:
        """The log in pieces: some contexts and every row that points at them, within a budget of bytes.

        A context takes `width` numbers of 8 bytes, one an action (or candidate) unless given. This is the one way
        through a log. A batch lies within a shard.
        """
        if self.layout is not None:
            return self._batches_of_shards(self.layout, budget, width)
        return batches_of(self.context_index, self.action, self.row_place, self.n_contexts, width or self.width, budget)

    def _batches_of_shards(self, layout: Layout, budget: int | None, width: int | None) -> Iterator[LogBatch]:
        for number, shard in enumerate(self.shards):
            for batch in shard.batches(budget, width or self.width):
                yield batch.moved(layout.rows[number], layout.contexts[number])

    @cached_property
    def context_hashes(self) -> Hashes:
        """A hash of each distinct context's content, the same wherever the context occurs."""
        return owned(table_hashes(self.contexts, self.n_contexts))

    @cached_property
    def cluster_hashes(self) -> Hashes:
        """A hash of each cluster's id; of each context where there are no clusters."""
        if self.cluster is None:
            return self.context_hashes if self.candidates is None else np.unique(self._feature_hashes)
        vocabulary = self.cluster_vocabulary or Vocabulary(range(int(self.cluster.max()) + 1))
        return owned(vocabulary_hashes(vocabulary))

    @property
    def row_hashes(self) -> Hashes:
        """A hash of what each row says: context, action, reward, instant; the same in any later version of the log."""
        if self.layout is not None:
            return self._joined((shard.row_hashes for shard in self.shards), self.n_rows, np.uint64)
        action = mixed(vocabulary_hashes(self.actions.vocabulary))[self.action]
        hashes = mixed(self.context_hashes[self.context_index] + action) ^ number_hashes(
            self.reward_to_user_scale(self.reward)
        )
        return owned(hashes if self.timestamp is None else mixed(hashes) ^ mixed(self.timestamp))

    @property
    def row_identities(self) -> Hashes:
        """A hash of each row that tells those apart which say the same, by how many came before."""
        return mixed(self.row_hashes) + occurrence(self.row_hashes)

    @property
    def duplicates(self) -> npt.NDArray[np.bool_]:
        """Which rows say exactly what an earlier row of the same cluster says: context, action, reward, instant."""
        if self.layout is not None:
            return self._joined((shard.duplicates for shard in self.shards), self.n_rows, np.bool_)
        hashes = self.row_hashes if self.cluster is None else mixed(self.row_hashes) ^ self.cluster_hashes[self.cluster]
        return np.asarray(occurrence(hashes) > 0)

    @cached_property
    def rows_fingerprint(self) -> str:
        """A digest of what the rows say, in order; the same whatever the vocabulary's order and the rows' weights."""
        if self.layout is not None:
            return digest(np.array([shard.rows_fingerprint for shard in self.shards]))
        return digest(self.row_hashes)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of everything the log holds, row by row: equal logs, and only they, have equal fingerprints."""
        features = self.actions.features
        about = (
            vocabulary_hashes(self.actions.vocabulary),
            None if features is None else table_hashes(features, features.n_rows),
            np.array(self.reward_range),
        )
        if self.layout is not None:
            return digest(*about, np.array([shard.rows_digest for shard in self.shards]))
        clusters = None if self.cluster is None else self.cluster_hashes
        return digest(self.context_hashes, *about, clusters, *(getattr(self, name) for name in ROW_ARRAYS))

    @property
    def rows_digest(self) -> str:
        """A digest of every array of a shard."""
        clusters = None if self.cluster is None else self.cluster_hashes
        return digest(self.context_hashes, clusters, *(getattr(self, name) for name in ROW_ARRAYS))

    def same_as(self, other: "LogArrays") -> bool:
        """Whether another log holds the same rows in the same order."""
        return self is other or self.fingerprint == other.fingerprint

    def _joined(self, pieces: Iterator[npt.NDArray[Any]], n: int, dtype: Any) -> npt.NDArray[Any]:
        """What is worked out of each shard as one array; that of a store is mapped from a file too."""
        return joined(pieces, n, dtype, mapped_file(self.action))

    @property
    def _kept(self) -> pl.DataFrame:
        return pl.DataFrame() if self.kept is None else self.kept

    @property
    def _fields(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def instants(self) -> npt.NDArray[np.datetime64] | None:
        """The time of each row in the calendar; None without times, or where they are no dates."""
        return None if self.timestamp is None else calendar_times(self.timestamp)

    def reward_to_user_scale(self, value: FloatOrArray) -> FloatOrArray:
        """A reward or value in [0, 1] on the user's own scale."""
        low, high = self.reward_range
        return low + value * (high - low)
