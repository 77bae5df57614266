"""Data whose log is biased and whose test is not: a log to learn from, and users with labelled candidates to rank."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from offpolicy.checks import Range, check_number
from offpolicy.errors import LogError
from offpolicy.log import Codes, FeatureTable, LoggedData, owned, sealed
from offpolicy.seeding import generator

FRACTION = Range(0.0, 1.0, include_low=False, include_high=False)


@dataclass(frozen=True, eq=False)
class CandidateLists:
    """Users, each with the actions to rank for them and which of those are positive; every array is read-only.

    Those of user i are `action[offsets[i] : offsets[i + 1]]`; an action is at most once in a list.
    """

    contexts: FeatureTable  # the table that `context_index` points into: all contexts of the log and of the lists
    context_index: Codes  # (users,)
    offsets: npt.NDArray[np.int64]  # (users + 1,)
    action: Codes  # (candidates,)
    label: npt.NDArray[np.bool_]  # (candidates,)

    def __post_init__(self) -> None:
        """Seal every array and check that they fit together."""
        dtypes = {"context_index": np.int32, "offsets": np.int64, "action": np.int32, "label": np.bool_}
        for name, dtype in dtypes.items():
            object.__setattr__(self, name, sealed(getattr(self, name), dtype))
        n_users, offsets, index = len(self.context_index), self.offsets, self.context_index
        if len(offsets) != n_users + 1 or offsets[0] != 0 or offsets[-1] != len(self.action):
            raise LogError(
                f"Lists of {n_users} users need offsets from 0 to {len(self.action)}, but they are {offsets}."
            )
        if (np.diff(offsets) < 1).any():
            raise LogError(f"Every user needs a candidate, but user {int(np.argmin(np.diff(offsets)))} has none.")
        if len(self.label) != len(self.action):
            raise LogError(f"There are {len(self.action)} candidates but {len(self.label)} labels. Give one each.")
        if n_users and (index.min() < 0 or index.max() >= self.contexts.n_rows):
            raise LogError(f"context_index must lie in 0..{self.contexts.n_rows - 1}, the entries of contexts.")
        self._check_distinct()

    def _check_distinct(self) -> None:
        keys = np.sort(self._pairs)
        twice = np.flatnonzero(keys[1:] == keys[:-1])
        if twice.size:
            user, action = divmod(int(keys[twice[0]]), 1 << 32)
            raise LogError(f"The list of context {user} holds action {action} twice. Drop one of the two.")

    @property
    def _pairs(self) -> npt.NDArray[np.int64]:
        return self.context_index.astype(np.int64)[self.owner] * (1 << 32) + self.action

    @classmethod
    def from_rows(cls, contexts: FeatureTable, context: Any, action: Any, label: Any) -> "CandidateLists":
        """Lists from one row per candidate, in any order; users and candidates come out in ascending order."""
        context, action = np.asarray(context, dtype=np.int32), np.asarray(action, dtype=np.int32)
        order = np.lexsort((action, context))
        users, sizes = np.unique(context, return_counts=True)
        offsets = np.concatenate(([0], np.cumsum(sizes)))
        return cls(contexts, users, offsets, owned(action[order]), owned(np.asarray(label, dtype=np.bool_)[order]))

    @property
    def n_users(self) -> int:
        """The number of lists."""
        return len(self.context_index)

    @property
    def owner(self) -> npt.NDArray[np.int64]:
        """The list 0..users-1 that each candidate belongs to."""
        return np.repeat(np.arange(self.n_users), np.diff(self.offsets))

    @cached_property
    def positives(self) -> npt.NDArray[np.int64]:
        """How many positive candidates each user has."""
        return owned(np.add.reduceat(self.label, self.offsets[:-1], dtype=np.int64))  # (users,); no list is empty

    def take(self, users: Any) -> "CandidateLists":
        """The lists of these users (positions or a mask), over the same contexts."""
        chosen = np.arange(self.n_users)[users]
        sizes = np.diff(self.offsets)[chosen]
        offsets = np.concatenate(([0], np.cumsum(sizes)))
        rows = np.repeat(self.offsets[chosen] - offsets[:-1], sizes) + np.arange(offsets[-1])
        return CandidateLists(
            self.contexts, self.context_index[chosen], offsets, owned(self.action[rows]), owned(self.label[rows])
        )


@dataclass(frozen=True, eq=False)
class RankingData:
    """A biased log, and unbiased lists of candidates over the same contexts and actions."""

    train: LoggedData
    lists: CandidateLists

    def split(
        self, valid_fraction: float, seed: int, *, by_positives: bool = False
    ) -> tuple[CandidateLists, CandidateLists]:
        """Validation and test lists: disjoint users, about this fraction of them (at least one) in validation.

        With `by_positives` the fraction holds among the users of each number of positives, at least one of each.
        """
        check_number("valid_fraction", valid_fraction, FRACTION)
        strata = self.lists.positives if by_positives else np.zeros(self.lists.n_users, dtype=np.int64)
        order = generator(seed, "ranking-split").permutation(self.lists.n_users)
        chosen = np.zeros(self.lists.n_users, dtype=np.bool_)
        for stratum in np.unique(strata):
            members = order[strata[order] == stratum]
            chosen[members[: max(1, round(valid_fraction * len(members)))]] = True
        if chosen.all():
            raise LogError(
                f"A validation part of {valid_fraction:g} leaves none of the {self.lists.n_users} users to test on. "
                "Choose a smaller fraction."
            )
        return self.lists.take(chosen), self.lists.take(~chosen)

    def with_positives(self) -> "RankingData":
        """The same log; only the lists of users with a positive both in the log and in their list."""
        liked = np.zeros(self.train.n_contexts, dtype=np.bool_)
        liked[self.train.context_index[self.train.reward > 0]] = True
        return RankingData(self.train, self.lists.take(liked[self.lists.context_index] & (self.lists.positives > 0)))
