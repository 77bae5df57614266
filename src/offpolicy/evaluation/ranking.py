"""Ranking metrics P@K, R@K and NDCG@K, over candidate lists or over all actions, in sums that merge.

Rankings are by descending score; of equal scores the action with the lower code comes first. All metrics come from
`TopHits`, which positions at the top of each user's ranking hold a positive:

    P@K = hits / K,  R@K = hits / positives,  NDCG@K = Σ_j hit_j / log2(j + 1)  over its largest possible value,
                                                       Σ 1 / log2(j + 1) over j = 1..min(positives, K)
"""

from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offpolicy.checks import Range, check_choice, check_number
from offpolicy.datasets import CandidateLists
from offpolicy.errors import ParameterError
from offpolicy.log import FeatureTable, pieces
from offpolicy.models import best_first
from offpolicy.policies import Policy

NoPositives: TypeAlias = Literal["zero", "drop"]
"""A user without positives counts as 0 in every mean, or does not count."""
ShortLists: TypeAlias = Literal["k", "length"]
"""P@K divides by K always, or by the number of candidates where that is smaller."""

Integers: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
K_RANGE = Range(1, 2**31, integer=True)


@dataclass(frozen=True, eq=False)
class ActionSets:
    """A set of actions for each of many users: that of user i is `actions[offsets[i] : offsets[i + 1]]`, ascending."""

    offsets: Integers  # (users + 1,)
    actions: Integers

    @classmethod
    def from_rows(cls, user: Any, action: Any, n_users: int) -> Self:
        """Sets from pairs in any order; a pair may repeat."""
        user, action = np.asarray(user, dtype=np.int64), np.asarray(action, dtype=np.int64)
        stride = int(action.max(initial=0)) + 1
        owner, kept = np.divmod(np.unique(user * stride + action), stride)
        return cls(np.searchsorted(owner, np.arange(n_users + 1)), kept)

    @classmethod
    def from_csr(cls, matrix: Any) -> Self:
        """The non-zero columns of each row of a scipy sparse matrix."""
        user, action = matrix.nonzero()
        return cls.from_rows(user, action, matrix.shape[0])

    @property
    def n_users(self) -> int:
        """The number of sets."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Integers:
        """How many actions each set has."""
        return np.diff(self.offsets)

    @property
    def owner(self) -> Integers:
        """The user of each entry of `actions`."""
        return np.repeat(np.arange(self.n_users), self.sizes)

    def part(self, users: slice) -> "ActionSets":
        """The sets of consecutive users."""
        start, stop, _ = users.indices(self.n_users)
        ends = self.offsets[start : stop + 1]
        return ActionSets(ends - ends[0], self.actions[ends[0] : ends[-1]])

    def contain(self, user: Integers, action: Integers) -> npt.NDArray[np.bool_]:
        """Whether each action is in the set of its user."""
        if not len(self.actions) or not action.size:
            return np.zeros(action.shape, dtype=np.bool_)
        stride = max(int(self.actions.max()), int(action.max())) + 1
        known, asked = self.owner * stride + self.actions, user * stride + action
        contained: npt.NDArray[np.bool_] = known[np.searchsorted(known, asked).clip(max=len(known) - 1)] == asked
        return contained

    def without(self, other: "ActionSets") -> "ActionSets":
        """Each set without the actions of the other one."""
        owner, kept = self.owner, ~other.contain(self.owner, self.actions)
        return ActionSets(np.searchsorted(owner[kept], np.arange(self.n_users + 1)), self.actions[kept])


@dataclass(frozen=True, eq=False)
class TopHits:
    """Which of the first places of each user's ranking hold a positive."""

    user: Integers  # (users,) any distinct numbers; they pair the users of two rankings
    hits: npt.NDArray[np.bool_]  # (users, places)
    positives: Integers  # (users,) of all candidates, also those ranked below
    candidates: Integers  # (users,)

    @classmethod
    def of_lists(cls, scores: Any, lists: CandidateLists, places: int) -> Self:
        """Rank every user's own candidates; `scores` are in the order of `lists.action`."""
        score = np.asarray(scores, dtype=np.float64)
        if score.shape != lists.action.shape:
            raise ParameterError(f"There are {len(lists.action)} candidates, but scores of shape {score.shape}.")
        _refuse_nan(np.isnan(score).any())
        owner = lists.owner
        order = np.lexsort((lists.action, -score, owner))
        place = np.arange(len(order)) - lists.offsets[owner]
        top = place < places
        hits = np.zeros((lists.n_users, places), dtype=np.bool_)
        hits[owner[top], place[top]] = lists.label[order[top]]
        return cls(lists.context_index.astype(np.int64), hits, lists.positives, np.diff(lists.offsets))

    @classmethod
    def of_all(
        cls,
        scores: Tensor,
        positives: ActionSets,
        places: int,
        *,
        excluded: ActionSets | None = None,
        user: Integers | None = None,
    ) -> Self:
        """Rank all actions by a tile of scores, (users, actions), except the excluded ones; users count from 0."""
        n_users, n_actions = scores.shape
        candidates = np.full(n_users, n_actions)
        if excluded is not None:
            positives, candidates = positives.without(excluded), candidates - excluded.sizes
            scores = scores.clamp(min=torch.finfo(scores.dtype).min)  # a copy; nothing else is at −∞ now
            scores[torch.from_numpy(excluded.owner), torch.from_numpy(excluded.actions)] = -torch.inf
        top = top_actions(scores, places).numpy()
        return cls.of_top(top, positives, candidates, user=user)

    @classmethod
    def of_top(
        cls, top: npt.NDArray[Any], positives: ActionSets, candidates: Any, *, user: Integers | None = None
    ) -> Self:
        """From the best actions of each user, (users, places), best first; users count from 0 unless named."""
        n_users = len(top)
        if positives.n_users != n_users:
            raise ParameterError(f"There are rankings of {n_users} users, but positives of {positives.n_users}.")
        rows = np.broadcast_to(np.arange(n_users)[:, None], top.shape)
        hits = positives.contain(rows, top.astype(np.int64))
        named = np.arange(n_users) if user is None else np.asarray(user, dtype=np.int64)
        return cls(named, hits, positives.sizes, np.broadcast_to(candidates, n_users).astype(np.int64))


def _refuse_nan(has_nan: Any) -> None:
    if has_nan:
        raise ParameterError("Scores must be numbers to rank by, but some are NaN. Look for a diverged model.")


def top_actions(scores: Tensor, places: int) -> Tensor:
    """The best actions of each row of scores, best first; of equal scores the lower code, exactly."""
    _refuse_nan(bool(scores.amax(1).isnan().any()))  # the largest is NaN where any is
    return best_first(scores, min(places, scores.shape[1]))[0]


@dataclass(frozen=True, eq=False)
class Ranking:
    """Mean metrics, and those of every user that counts, in ascending order of `user`."""

    k: int
    precision: float
    recall: float
    ndcg: float
    without_positives: int
    """Users without a positive; whether they count in the means is the accumulator's `no_positives`."""
    user: Integers
    user_precision: Floats
    user_recall: Floats
    user_ndcg: Floats

    @property
    def means(self) -> dict[str, float]:
        """The means by their usual names."""
        return {f"P@{self.k}": self.precision, f"R@{self.k}": self.recall, f"NDCG@{self.k}": self.ndcg}

    @property
    def by_user(self) -> dict[str, Floats]:
        """The metrics of every user by the same names."""
        return dict(zip(self.means, (self.user_precision, self.user_recall, self.user_ndcg), strict=True))

    def summary(self) -> dict[str, float]:
        """The means, and how many users they are over; ready for JSON."""
        return {**self.means, "users": len(self.user), "users_without_positives": self.without_positives}


class RankingSums:
    """Accumulates users in any order; `finish` gives the same numbers however they were batched."""

    def __init__(self, k: int = 5, *, no_positives: NoPositives = "zero", short_lists: ShortLists = "k") -> None:
        """No users seen yet."""
        check_number("k", k, K_RANGE)
        check_choice("no_positives", no_positives, ("zero", "drop"))
        check_choice("short_lists", short_lists, ("k", "length"))
        self.k, self.no_positives, self.short_lists = k, no_positives, short_lists
        self._users: list[Integers] = []
        self._metrics: list[Floats] = []  # (users, 3)
        self._positives: list[Integers] = []

    def add(self, batch: TopHits) -> None:
        """Take in users that were not seen before; rankings deeper than K are cut."""
        places = batch.hits.shape[1]
        if places < self.k and (batch.candidates > places).any():
            raise ParameterError(f"Metrics at {self.k} need the first {self.k} places, but only {places} were ranked.")
        hits = batch.hits[:, : self.k]
        discount = 1 / np.log2(np.arange(2, self.k + 2))
        ideal = np.concatenate(([0.0], np.cumsum(discount)))[np.minimum(batch.positives, self.k)]
        n_hits = hits.sum(1)
        short = np.minimum(batch.candidates, self.k) if self.short_lists == "length" else self.k
        gain = (hits * discount[: hits.shape[1]]).sum(1)  # row by row, so that batching cannot change a bit
        some = batch.positives > 0
        metrics = np.zeros((len(hits), 3))
        np.divide(n_hits, short, out=metrics[:, 0], where=np.broadcast_to(short, n_hits.shape) != 0)
        np.divide(n_hits, batch.positives, out=metrics[:, 1], where=some)
        np.divide(gain, ideal, out=metrics[:, 2], where=some)
        self._users.append(batch.user)
        self._metrics.append(metrics)
        self._positives.append(batch.positives)

    def merge(self, other: Self) -> None:
        """Take in the users another accumulator has seen."""
        mine, theirs = ((each.k, each.no_positives, each.short_lists) for each in (self, other))
        if mine != theirs:
            raise ParameterError(
                f"Only equal metrics can be merged, but (k, no_positives, short_lists) are {mine}, {theirs}."
            )
        self._users += other._users
        self._metrics += other._metrics
        self._positives += other._positives

    def finish(self) -> Ranking:
        """Means over all users seen."""
        user = np.concatenate([*self._users, np.empty(0, np.int64)])
        order = np.argsort(user, kind="stable")
        user = user[order]
        if (user[1:] == user[:-1]).any():
            twice = user[int(np.argmax(user[1:] == user[:-1]))]
            raise ParameterError(f"User {twice} was added twice. Number the users of all batches without repetition.")
        positives = np.concatenate([*self._positives, np.empty(0, np.int64)])[order]
        metrics = np.concatenate([*self._metrics, np.empty((0, 3))])[order]
        counts = positives > 0 if self.no_positives == "drop" else np.ones(len(user), dtype=np.bool_)
        if not counts.any():
            raise ParameterError(f"There is nothing to average: none of the {len(user)} users counts.")
        kept = metrics[counts]
        precision, recall, ndcg = (float(np.ascontiguousarray(column).mean()) for column in kept.T)
        without = int((positives == 0).sum())
        return Ranking(self.k, precision, recall, ndcg, without, user[counts], *np.ascontiguousarray(kept.T))


def rank_lists(policy: Policy, lists: CandidateLists, sums: RankingSums | None = None) -> Ranking:
    """How well a policy's probabilities order every user's own candidates; P@5, R@5, NDCG@5 unless `sums` differs."""
    sums = sums or RankingSums()
    owner = lists.owner
    scores = np.empty(len(owner))
    for tile in pieces(lists.n_users, len(policy.actions)):
        log_probs = policy.log_probs(lists.contexts.take(lists.context_index[tile]))
        rows = slice(int(lists.offsets[tile.start]), int(lists.offsets[tile.stop]))
        index = torch.from_numpy(owner[rows] - tile.start), torch.from_numpy(lists.action[rows].astype(np.int64))
        scores[rows] = log_probs[index].double().numpy()
    sums.add(TopHits.of_lists(scores, lists, sums.k))
    return sums.finish()


def rank_all(
    policy: Policy,
    contexts: FeatureTable,
    positives: ActionSets,
    sums: RankingSums | None = None,
    *,
    excluded: ActionSets | None = None,
) -> Ranking:
    """How well a policy's probabilities order all actions of each context, a tile of contexts at a time.

    Excluded actions, such as the positives of training, are neither ranked nor positives.
    """
    sums = sums or RankingSums()
    if positives.n_users != contexts.n_rows:
        raise ParameterError(f"There are {contexts.n_rows} contexts, but positives of {positives.n_users}.")
    for tile in pieces(contexts.n_rows, len(policy.actions)):
        scores = policy.log_probs(contexts.take(tile))
        hidden = None if excluded is None else excluded.part(tile)
        user = np.arange(tile.start, tile.stop)
        sums.add(TopHits.of_all(scores, positives.part(tile), sums.k, excluded=hidden, user=user))
    return sums.finish()
