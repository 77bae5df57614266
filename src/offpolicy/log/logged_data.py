"""The frozen log: rows of (context, action, reward) that point at contexts stored once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from offpolicy.drawing import facts_html
from offpolicy.errors import LogError, ParameterError
from offpolicy.log.actions import ActionTable, coded_actions
from offpolicy.log.arrays import context_table, deduplicated
from offpolicy.log.assignment import Rows, Unit, checked_folds, checked_fractions, part_of_rows, part_of_units
from offpolicy.log.candidates import Candidates
from offpolicy.log.features import FeatureTable
from offpolicy.log.hashing import (
    uniform,
)
from offpolicy.log.ids import owned, trusted
from offpolicy.log.log_arrays import LogArrays
from offpolicy.log.mapped import AT_ONCE, gathered
from offpolicy.log.rewards import checked_range, data_range, rescaled, to_unit, winsorised
from offpolicy.log.rules import (
    ROW_ARRAYS,
    compacted,
    integer_times,
)
from offpolicy.log.shards import SHARDS, arranged, unit_hashes
from offpolicy.log.slates import coded_positions, slate_contexts
from offpolicy.log.summary import summary
from offpolicy.log.vocabulary import Vocabulary

if TYPE_CHECKING:
    from offpolicy.log.store import StoreShard


@dataclass(frozen=True, eq=False, repr=False)
class LoggedData(LogArrays):
    """A log that cannot be built wrong; every array is read-only.

    `reward` is always stored in [0, 1]; `reward_range` remembers the user's own scale.
    """

    def __repr__(self) -> str:
        """The size of the log and the kinds of its features."""
        return f"LoggedData({self.n_rows} rows, {self.n_actions} actions, contexts={self.contexts!r})"

    def _repr_html_(self) -> str:
        """For notebooks: the facts of the summary."""
        return facts_html("A log", self.summary())

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
    def store(self) -> Path | None:
        """The prepared folder that holds exactly this log, by which any process can open it; None: it is in memory."""
        source: StoreShard | None = vars(self).get("_source")
        return source.path if source is not None and source.number is None else None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle what comes from a store as its path, anything else as it is."""
        source: StoreShard | None = vars(self).get("_source")
        return super().__reduce_ex__(protocol) if source is None else source.reopening()

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
        part = part_of_rows(self, shares, by, f"split {seed}")
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
        return part_of_rows(self, checked_folds(k), by, f"folds {seed}")

    def row_folds(self, k: int, seed: int = 0) -> Rows:
        """The fold 0..k-1 of each row, rows of one group in any of them: for what is known of groups already seen.

        Rows that say the same are told apart by how many came before, else they would all share a fold.
        """
        return part_of_units(self.row_identities, checked_folds(k), f"{self.lineage}row folds {seed}")

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

    def summary(self) -> dict[str, Any]:
        """Plain facts about the log, ready for JSON; rewards on the user's scale."""
        return summary(self)


def _pieces(values: npt.NDArray[Any]) -> Iterator[tuple[npt.NDArray[Any], int]]:
    """A long array in pieces, and where each begins."""
    return ((values[start : start + AT_ONCE], start) for start in range(0, len(values), AT_ONCE))
