"""The frozen log: rows of (context, action, reward) that point at contexts stored once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from offpolicy.drawing import facts_html
from offpolicy.errors import LogError, ParameterError
from offpolicy.log.actions import ActionTable, coded_actions
from offpolicy.log.arrays import context_table, deduplicated
from offpolicy.log.assignment import Rows, checked_folds, checked_fractions, part_in_time, part_of_units
from offpolicy.log.batches import LogBatch, batches_of
from offpolicy.log.candidates import Candidates
from offpolicy.log.features import FeatureTable, Vocabulary, trusted
from offpolicy.log.hashing import (
    Hashes,
    digest,
    mixed,
    number_hashes,
    occurrence,
    table_hashes,
    uniform,
    vocabulary_hashes,
)
from offpolicy.log.ids import Codes, owned
from offpolicy.log.instants import calendar_times
from offpolicy.log.mapped import AT_ONCE, gathered, joined, mapped_file
from offpolicy.log.rewards import checked_range, data_range, rescaled, to_unit, winsorised
from offpolicy.log.rules import (
    ROW_ARRAYS,
    check_clusters,
    check_offered,
    check_within,
    compacted,
    integer_times,
    sealed_rows,
    used_of,
)
from offpolicy.log.shards import SHARDS, Layout, arranged, shard_view, unit_hashes
from offpolicy.log.slates import check_nested, check_slates, coded_positions, slate_contexts, slate_table

if TYPE_CHECKING:
    from offpolicy.log.store import StoreShard

Unit: TypeAlias = Literal["context", "cluster", "time", "row"]
FloatOrArray = TypeVar("FloatOrArray", float, npt.NDArray[np.float64])


@dataclass(frozen=True, eq=False, repr=False)
class LoggedData:
    """A log that cannot be built wrong; every array is read-only.

    `reward` is always stored in [0, 1]; `reward_range` remembers the user's own scale.
    """

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

    def __repr__(self) -> str:
        """The size of the log and the kinds of its features."""
        return f"LoggedData({self.n_rows} rows, {self.n_actions} actions, contexts={self.contexts!r})"

    def _repr_html_(self) -> str:
        """For notebooks: the facts of the summary."""
        return facts_html("A log", self.summary())

    def __eq__(self, other: object) -> bool:
        """Whether every array, table and vocabulary is equal."""
        if not isinstance(other, LoggedData):
            return NotImplemented
        plain = ("contexts", "actions", "reward_range", "cluster_vocabulary", "layout")
        if any(getattr(self, name) != getattr(other, name) for name in plain):
            return False
        pairs = [(getattr(self, name), getattr(other, name)) for name in ROW_ARRAYS]
        same = all(a is b or (a is not None and b is not None and np.array_equal(a, b)) for a, b in pairs)
        return same and (self.kept is None) == (other.kept is None) and self._kept.equals(other._kept)

    @staticmethod
    def from_arrays(
        contexts: Any,
        action: Any,
        reward: Any,
        *,
        context_index: Any = None,
        actions: Any = None,
        logging_prob: Any = None,
        cluster: Any = None,
        timestamp: Any = None,
        reward_range: tuple[float, float] = (0.0, 1.0),
        row_weight: Any = None,
        candidates: Any = None,
        keep: Mapping[str, Any] | None = None,
        request: Any = None,
        position: Any = None,
    ) -> "LoggedData":
        """Build a log from arrays.

        `contexts` is a matrix (one vector per context), a mapping from names to arrays, or a `FeatureTable`; with
        `context_index` it holds the distinct contexts, without it one entry per row, which is then de-duplicated
        exactly. `actions` is the number of actions K (then `action` holds codes 0..K-1), a sequence of ids, a
        `Vocabulary` or an `ActionTable` (then `action` holds ids), or None (the distinct ids of `action`).
        `reward` is on the scale of `reward_range` and is rescaled to [0, 1]. `row_weight` says how many events each row
        stands for (1/keep probability in a log that keeps a share of its rows). `candidates` are the actions on offer
        in each entry of `contexts`: a list of ids each, or `Candidates`. `keep` holds more columns of the rows (other
        rewards, keys, what to break down by). Where requests show several actions, `request` and `position` say which
        row is which: the position joins the contexts, requests are the clusters unless others are given, and what
        stands above is no candidate (unless a request shows an action twice). Arrays are copied.
        """
        table = context_table(contexts)
        if candidates is not None and actions is None:
            actions = Vocabulary.of([*action, *(one for ids in candidates for one in ids)])
        action_table, codes = coded_actions(action, actions)
        if candidates is not None:
            given = isinstance(candidates, Candidates)
            sets = candidates if given else Candidates.of_lists(candidates, action_table.vocabulary)
            table = FeatureTable(dict(table), sets)
        if (request is None) != (position is None):
            raise LogError("A slate needs both the request and the position of each row. Give both or neither.")
        requests, places = None, None
        if request is not None:
            vocabulary = Vocabulary.of(request)
            requests, named = owned(vocabulary.encode(request)), vocabulary.to_list()
            places = coded_positions(requests, position, lambda code: repr(named[code]))
            rows = table if context_index is None else table.take(np.asarray(context_index))
            table = slate_contexts(rows, requests, places, codes, action_table.vocabulary)
            context_index, cluster = None, request if cluster is None else cluster
        if context_index is None:
            table, context_index = deduplicated(table)
        low, high = checked_range(reward_range)
        clusters = None if cluster is None else Vocabulary.of(cluster)
        if clusters is not None and clusters.ids.null_count():
            raise LogError("cluster must hold an id in every row, but it holds null. Fill it in or drop the row.")
        return LoggedData(
            contexts=table,
            context_index=context_index,
            action=codes,
            reward=rescaled(np.asarray(reward), low, high),
            actions=action_table,
            logging_prob=logging_prob,
            cluster=None if clusters is None else owned(clusters.encode(cluster)),
            timestamp=integer_times(timestamp),
            reward_range=(low, high),
            cluster_vocabulary=clusters,
            row_weight=row_weight,
            request=requests,
            position=places,
            kept=pl.DataFrame({name: np.asarray(values) for name, values in keep.items()}) if keep else None,
        )

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

    def take(self, rows: Any) -> "LoggedData":
        """The log of these rows (positions or a mask): unused contexts go, vocabularies stay."""
        kept = np.asarray(rows)
        if kept.dtype == np.bool_ and kept.shape != (self.n_rows,):
            raise ParameterError(f"A mask needs {self.n_rows} entries, one per row, but its shape is {kept.shape}.")
        if kept.dtype != np.bool_ and kept.dtype.kind not in "iu" and kept.size:
            raise ParameterError(f"rows must be a mask or integer positions, but they are {kept.dtype}.")
        kept = kept if kept.dtype == np.bool_ else kept.astype(np.int64)
        if kept.dtype != np.bool_ and kept.size and (kept.min() < -self.n_rows or kept.max() >= self.n_rows):
            raise ParameterError(
                f"Row positions must be below {self.n_rows}, the number of rows, but they span "
                f"{kept.min()}..{kept.max()}."
            )
        changed: dict[str, Any] = {
            name: None if values is None else gathered(values, kept)
            for name, values in ((name, getattr(self, name)) for name in ROW_ARRAYS)
        }
        used, changed["context_index"] = compacted(changed["context_index"], self.n_contexts)
        used_clusters = None
        if self.cluster is not None:
            used_clusters, changed["cluster"] = compacted(changed["cluster"], int(self.cluster.max()) + 1)
            if self.cluster_vocabulary is not None:
                ids = self.cluster_vocabulary.ids.gather(used_clusters)
                changed["cluster_vocabulary"] = trusted(Vocabulary, _ids=ids)
        if self.kept is not None:
            changed["kept"] = self.kept.filter(kept) if kept.dtype == np.bool_ else self.kept[kept]
        if not len(changed["action"]):
            raise LogError("A log needs at least one row, but this one is empty.")
        changed["contexts"] = self.contexts if len(used) == self.n_contexts else self.contexts.take(used)
        for name in ("context_hashes", "_feature_hashes"):  # hashes are not worked out again for a part
            if name in self.__dict__:
                changed[name] = gathered(self.__dict__[name], used)
        if self.cluster is not None and "cluster_hashes" in self.__dict__:
            changed["cluster_hashes"] = gathered(self.cluster_hashes, used_clusters)
        if self.layout is not None:
            places = kept if kept.dtype == np.bool_ else kept % self.n_rows
            requests = 0 if self.request is None else int(self.request.max()) + 1
            changed["layout"] = self.layout.taken(places, used, used_clusters, requests)
        return trusted(LoggedData, **self._fields | changed)

    @property
    def _fields(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def store(self) -> Path | None:
        """The prepared folder that holds exactly this log, by which any process can open it; None: it is in memory."""
        source: StoreShard | None = vars(self).get("_source")
        return source.path if source is not None and source.number is None else None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle what comes from a store as its path, anything else as it is."""
        source: StoreShard | None = vars(self).get("_source")
        return super().__reduce_ex__(protocol) if source is None else source.reopening()

    @property
    def shard_rows(self) -> tuple[int, ...] | None:
        """Where the rows of each shard begin, from 0 to the number of rows; None: the log is one shard."""
        return None if self.layout is None else self.layout.rows

    @property
    def n_shards(self) -> int:
        """The number of shards: one, unless the log was divided or comes from a store."""
        return 1 if self.layout is None else len(self.layout)

    @property
    def shards(self) -> Iterator["LoggedData"]:
        """The shards in order, each a log of its own that shares its arrays with this one; none holds nothing."""
        return map(self.shard, range(self.n_shards))

    def shard(self, number: int) -> "LoggedData":
        """One shard; a unit (cluster, or context) is never in two of them."""
        return self if self.layout is None and number == 0 else shard_view(self, number)

    def sharded(self, shards: int = SHARDS) -> "LoggedData":
        """The same rows in this many shards (or fewer, where some would be empty), as a store would hold them.

        Units go to shards by a keyed hash. Rows are ordered by what they say, never by their place in a file.
        """
        return arranged(self, shards)

    @property
    def undivided(self) -> "LoggedData":
        """The same rows in the same order as one shard."""
        return self if self.layout is None else self._changed_rows(layout=None)

    def of_share(self, share: float, key: str) -> npt.NDArray[np.bool_]:
        """Which rows belong to a share of the units, by a keyed hash of what the units are."""
        return self._joined((uniform(unit_hashes(shard), key) < share for shard in self.shards), self.n_rows, np.bool_)

    def renamed_reward(
        self, name: str, reward_range: tuple[float, float], treated: tuple[str, ...] = ()
    ) -> "LoggedData":
        """The same arrays, said to hold another reward of this range."""
        return self._changed_rows(reward_name=name, reward_range=reward_range, treated=(*self.treated, *treated))

    def with_unit_reward(self, reward: npt.NDArray[np.float64]) -> "LoggedData":
        """The same rows with these rewards, which lie in [0, 1]."""
        return self._changed_rows(reward=owned(reward))

    def selected(self, kept: npt.NDArray[np.bool_]) -> "LoggedData":
        """Some of the rows or none, without what is kept beside them; contexts and all codes stay: for sums alone."""
        rows = {name: values[kept] for name in ROW_ARRAYS if (values := getattr(self, name)) is not None}
        return self._changed_rows(kept=None, layout=None, **rows)

    def _changed_rows(self, **changes: Any) -> "LoggedData":
        """Rows that were checked before in another order."""
        return trusted(LoggedData, **self._fields | changes)

    def _changed(self, **changes: Any) -> "LoggedData":
        """The same contexts and clusters, so the same hashes of them, with other fields."""
        kept = {name: self.__dict__[name] for name in ("context_hashes", "cluster_hashes") if name in self.__dict__}
        made = replace(self, **changes)
        for name, hashes in kept.items():
            object.__setattr__(made, name, hashes)
        return made

    def split(self, fractions: Sequence[float], by: Unit | None = None, seed: int = 0) -> tuple["LoggedData", ...]:
        """Disjoint logs of about these fractions of the groups; a group is never on two sides.

        Groups are clusters when there are some and contexts otherwise, unless `by` says which. The side of a group is
        a function of its id (or the context's content) and the seed: appended, dropped or shuffled rows move no other.
        By cluster, a context that occurs in two clusters may occur on both sides: the cluster is the unit then. By
        time, the parts follow each other, `fractions` count rows, and rows of one instant stay together. By row is for
        contexts that are ids: nothing is learned of an id that is on the other side as a whole.
        """
        return tuple(part for _, part in self.divide(fractions, by, seed))

    def divide(
        self, fractions: Sequence[float], by: Unit | None = None, seed: int = 0
    ) -> list[tuple[Rows, "LoggedData"]]:
        """As `split`, with the positions of each part's rows in this log."""
        shares = checked_fractions(fractions)
        part = self._parts(shares, by, f"split {seed}")
        named = "/".join(f"{share:g}" for share in shares)
        parts = []
        for number in range(len(shares)):
            kept = self._joined((some == number for some, _ in _pieces(part)), self.n_rows, np.bool_)
            places = (np.flatnonzero(some) + start for some, start in _pieces(kept))
            rows = self._joined(places, int(np.count_nonzero(kept)), np.int64)
            lineage = f"{self.lineage}split {seed} {named} part {number};"
            parts.append((rows, trusted(LoggedData, **{**vars(self.take(kept)), "lineage": lineage})))
        return parts

    def folds(self, k: int, by: Unit | None = None, seed: int = 0) -> Rows:
        """The fold 0..k-1 of each row for cross-fitting; rows of one group share a fold (groups as in `split`)."""
        return self._parts(checked_folds(k), by, f"folds {seed}")

    def row_folds(self, k: int, seed: int = 0) -> Rows:
        """The fold 0..k-1 of each row, rows of one group in any of them: for what is known of groups already seen.

        Rows that say the same are told apart by how many came before, else they would all share a fold.
        """
        return part_of_units(self._row_identities, checked_folds(k), f"{self.lineage}row folds {seed}")

    @property
    def _row_identities(self) -> Hashes:
        return mixed(self.row_hashes) + occurrence(self.row_hashes)

    def _parts(self, shares: Sequence[float], by: Unit | None, key: str) -> Rows:
        if by == "time":
            return part_in_time(self._unit(by), shares)
        if by == "row":
            return part_of_units(self._row_identities, shares, self.lineage + key)
        unit = self._unit(by)
        present = np.flatnonzero(used_of(unit, int(unit.max()) + 1))
        hashes = self.cluster_hashes
        if by == "context" or self.cluster is None:
            hashes = self.context_hashes if self.candidates is None else np.unique(self._feature_hashes)
        part: Rows = np.zeros(int(present[-1]) + 1, dtype=np.int64)
        part[present] = part_of_units(hashes[present], shares, self.lineage + key)
        pieces = (part[unit[start : start + AT_ONCE]] for start in range(0, len(unit), AT_ONCE))
        return joined(pieces, len(unit), np.int64, mapped_file(self.action))

    def _unit(self, by: Unit | None) -> npt.NDArray[Any]:
        if by is None:
            return self.cluster_index
        contexts = self.context_index if self.candidates is None else self._feature_unit[self.context_index]
        units = {"context": contexts, "cluster": self.cluster, "time": self.timestamp}
        if by not in units:
            raise ParameterError(f"by must be context, cluster, time or row, but it is {by!r}.")
        unit = units[by]
        if unit is None:
            column = "timestamp" if by == "time" else by
            raise ParameterError(f"A split by {by} needs a {column}, but this log has none. Read the log with one.")
        return unit

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

    def same_as(self, other: "LoggedData") -> bool:
        """Whether another log holds the same rows in the same order."""
        return self is other or self.fingerprint == other.fingerprint

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

    def _joined(self, pieces: Iterator[npt.NDArray[Any]], n: int, dtype: Any) -> npt.NDArray[Any]:
        """What is worked out of each shard as one array; that of a store is mapped from a file too."""
        return joined(pieces, n, dtype, mapped_file(self.action))

    def with_actions(self, actions: ActionTable) -> "LoggedData":
        """The same rows under another action table: ids are matched, codes and features are the table's."""
        if actions is self.actions:
            return self
        codes = actions.vocabulary.encode(self.actions.vocabulary.ids)
        used = self.action_count > 0
        if self.candidates is not None:
            used = used | (np.bincount(self.candidates.codes, minlength=self.n_actions) > 0)
        missing = np.flatnonzero((codes < 0) & used)
        if missing.size:
            named = ", ".join(map(repr, self.actions.vocabulary.decode(missing[:5].tolist())))
            raise LogError(
                f"The log holds {missing.size} actions that the table does not, such as {named}. Give a table with all "
                "actions of the log."
            )
        contexts = self.contexts
        if self.candidates is not None:
            contexts = FeatureTable(dict(contexts), self.candidates.recoded(actions.vocabulary))
        return self._changed(action=owned(codes[self.action]), actions=actions, contexts=contexts)

    def weighted(self, row_weight: Any) -> "LoggedData":
        """The same rows, each standing for so many events; None takes every row for one."""
        return self._changed(row_weight=row_weight)

    def without_propensities(self) -> "LoggedData":
        """The same log with its logging probabilities forgotten."""
        return self._changed(logging_prob=None)

    @property
    def _kept(self) -> pl.DataFrame:
        return pl.DataFrame() if self.kept is None else self.kept

    def kept_column(self, name: str, option: str = "keep") -> pl.Series:
        """A column that was kept beside the rows."""
        if name not in self._kept.columns:
            known = ", ".join(self._kept.columns) or "none"
            raise ParameterError(f"The log keeps no column {name!r} (kept: {known}). Read it with {option}=[{name!r}].")
        return self._kept.get_column(name)

    def with_reward(self, name: str, winsorise: float = 0.0) -> "LoggedData":
        """The same rows with a kept column for their reward; its range is [0, 1], or that of the data."""
        column = self.kept_column(name)
        if not column.dtype.is_numeric() and column.dtype != pl.Boolean:
            raise ParameterError(f"The reward {name!r} must hold numbers, but it is of type {column.dtype}.")
        values = column.cast(pl.Float64).fill_null(np.nan).to_numpy()
        if not np.isfinite(values).all():
            row = int(np.argmin(np.isfinite(values)))
            raise LogError(
                f"The reward {name!r} must hold a number in every row, but row {row + 1} (counted from 1) holds "
                f"{column[row]}. Read the log with missing={{{name!r}: 'drop'}} or 'zero' (--missing {name}=drop), or "
                "fix the value."
            )
        values, treated = winsorised(name, values, winsorise)
        low, high = data_range(values)
        changes = {"reward": to_unit(values, low, high), "reward_range": (low, high), "reward_name": name}
        return self._changed(**changes, treated=(*self.treated, *treated))

    @cached_property
    def instants(self) -> npt.NDArray[np.datetime64] | None:
        """The time of each row in the calendar; None without times, or where they are no dates."""
        return None if self.timestamp is None else calendar_times(self.timestamp)

    def reward_to_user_scale(self, value: FloatOrArray) -> FloatOrArray:
        """A reward or value in [0, 1] on the user's own scale."""
        low, high = self.reward_range
        return low + value * (high - low)

    def summary(self) -> dict[str, Any]:
        """Plain facts about the log, ready for JSON; rewards on the user's scale."""
        counts = [np.bincount(one.context_index, minlength=one.n_contexts).astype(np.int32) for one in self.shards]
        per_context = np.concatenate(counts)
        facts = {
            "rows": self.n_rows,
            "contexts": self.n_contexts,
            "rows_per_context_median": float(np.median(per_context)),
            "actions": self.n_actions,
            "actions_never_logged": int((self.action_count == 0).sum()),
            "reward_mean": float(self.reward_to_user_scale(self.mean_reward)),
            "reward_range": list(self.reward_range),
            "reward_name": self.reward_name,
            "reward_binary": all(bool(((one.reward == 0.0) | (one.reward == 1.0)).all()) for one in self.shards),
            "propensities_recorded": self.logging_prob is not None,
            "clusters": None if self.cluster is None else int(self.cluster.max()) + 1,
            "timestamps_recorded": self.timestamp is not None,
            "context_features": {name: column.kind for name, column in self.contexts.items()},
            "action_features": {name: column.kind for name, column in (self.actions.features or {}).items()},
        }
        if self.request is not None and self.position is not None:
            positions = int(self.position.max()) + 1
            facts["slates"] = {"requests": len(np.unique(self.request)), "positions": positions}
        return facts if self.candidates is None else facts | {"candidates": self._offered(self.candidates)}

    def _offered(self, candidates: Candidates) -> dict[str, Any]:
        """Facts about the candidate sets."""
        sizes = candidates.sizes[self.context_index]
        features: Mapping[str, Any] = candidates.features or {}
        return {
            "sets": len(np.unique(candidates.hashes)),
            "least": int(sizes.min()),
            "median": float(np.median(sizes)),
            "most": int(sizes.max()),
            "rows_without_choice": int((sizes == 1).sum()),
            "features": {name: column.kind for name, column in features.items()},
        }


def _pieces(values: npt.NDArray[Any]) -> Iterator[tuple[npt.NDArray[Any], int]]:
    """A long array in pieces, and where each begins."""
    return ((values[start : start + AT_ONCE], start) for start in range(0, len(values), AT_ONCE))
