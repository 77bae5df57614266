"""Ranking metrics: hand-made lists, loops written from the definitions, ties, conventions and laws."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from offpolicy.datasets.ranking_data import CandidateLists
from offpolicy.errors import ParameterError
from offpolicy.evaluation.ranking import (
    ActionSets,
    Ranking,
    RankingSums,
    TopHits,
    rank_all,
    rank_lists,
    top_actions,
)
from offpolicy.log import CategoricalColumn, FeatureTable, Vocabulary
from offpolicy.log.batches import BATCH_BYTES
from offpolicy.policies import TabularPolicy

Lists = list[list[tuple[int, float, bool]]]  # per user: action, score, label


def contexts(n: int) -> FeatureTable:
    return FeatureTable({"user": CategoricalColumn(np.arange(n, dtype=np.int32), Vocabulary(range(n)))})


def candidate_lists(users: Lists) -> tuple[CandidateLists, np.ndarray]:
    offsets = np.cumsum([0, *map(len, users)])
    flat = [entry for entries in users for entry in entries]
    action, score, label = zip(*flat, strict=True)
    index, codes = np.arange(len(users), dtype=np.int32), np.array(action, dtype=np.int32)
    return CandidateLists(contexts(len(users)), index, offsets, codes, np.array(label)), np.array(score)


def ranked(users: Lists, k: int = 5, **options: Any) -> Ranking:
    lists, scores = candidate_lists(users)
    sums = RankingSums(k, **options)
    sums.add(TopHits.of_lists(scores, lists, k))
    return sums.finish()


def slow(users: Lists, k: int, drop: bool = False, by_length: bool = False) -> tuple[float, float, float]:
    """The definitions, one user and one place at a time."""
    rows = []
    for entries in users:
        order = sorted(entries, key=lambda entry: (-entry[1], entry[0]))
        positives = sum(label for *_, label in entries)
        if positives == 0:
            rows += [] if drop else [(0.0, 0.0, 0.0)]
            continue
        hits, gain = 0, 0.0
        for place, (_, _, label) in enumerate(order[:k], start=1):
            if label:
                hits += 1
                gain += 1 / math.log2(place + 1)
        best = sum(1 / math.log2(place + 1) for place in range(1, min(positives, k) + 1))
        rows.append((hits / (min(k, len(entries)) if by_length else k), hits / positives, gain / best))
    precision, recall, ndcg = (sum(column) / len(rows) for column in zip(*rows, strict=True))
    return precision, recall, ndcg


def test_a_list_by_hand() -> None:
    entries = [(0, 0.9, False), (1, 0.8, True), (2, 0.7, False), (3, 0.6, True), (4, 0.5, False), (5, 0.4, True)]
    result = ranked([entries])
    assert result.precision == pytest.approx(2 / 5)
    assert result.recall == pytest.approx(2 / 3)
    dcg = 1 / math.log2(3) + 1 / math.log2(5)
    assert result.ndcg == pytest.approx(dcg / (1 + 1 / math.log2(3) + 1 / math.log2(4)))
    assert result.summary() == {
        "P@5": result.precision,
        "R@5": result.recall,
        "NDCG@5": result.ndcg,
        "users": 1,
        "users_without_positives": 0,
    }


def test_more_positives_than_places() -> None:
    result = ranked([[(a, -a, True) for a in range(10)]], k=3)
    assert (result.precision, result.ndcg) == (1.0, 1.0)
    assert result.recall == pytest.approx(0.3)


def test_of_equal_scores_the_lower_action_comes_first() -> None:
    entries = [(7, 1.0, True), (2, 1.0, False), (5, 1.0, False), (9, 2.0, False)]
    assert ranked([entries], k=3).precision == 0.0
    assert ranked([[(1, 1.0, True), *entries[1:]]], k=2).precision == 0.5
    everything = torch.tensor([[1.0, 3.0, 3.0, 1.0, 3.0, -torch.inf], [0.0] * 6])
    assert top_actions(everything, 4).tolist() == [[1, 2, 4, 0], [0, 1, 2, 3]]
    assert top_actions(everything, 2).tolist() == [[1, 2], [0, 1]]
    assert top_actions(everything, 9).tolist() == [[1, 2, 4, 0, 3, 5], [0, 1, 2, 3, 4, 5]]


def test_users_without_positives_count_as_zero_or_not_at_all() -> None:
    good, none = [(0, 1.0, True), (1, 0.0, False)], [(0, 1.0, False), (1, 0.0, False)]
    zero = ranked([good, none, none], k=2)
    drop = ranked([good, none, none], k=2, no_positives="drop")
    assert (zero.ndcg, drop.ndcg) == pytest.approx((1 / 3, 1))
    assert (zero.precision, drop.precision) == pytest.approx((1 / 6, 1 / 2))
    assert (zero.recall, drop.recall) == pytest.approx((1 / 3, 1))
    assert zero.user.tolist() == [0, 1, 2]
    assert drop.user.tolist() == [0]
    assert zero.without_positives == drop.without_positives == 2
    assert zero.user_ndcg.tolist() == [1, 0, 0]
    with pytest.raises(ParameterError, match="none of the 2 users counts"):
        ranked([none, none], no_positives="drop")


def test_short_lists_divide_by_k_or_by_their_length() -> None:
    users = [[(0, 1.0, True), (1, 0.0, False)]]
    assert ranked(users, k=5).precision == pytest.approx(1 / 5)
    assert ranked(users, k=5, short_lists="length").precision == pytest.approx(1 / 2)


entry = st.tuples(st.integers(0, 12), st.integers(0, 3).map(float), st.booleans())
some_users = st.lists(st.lists(entry, min_size=1, max_size=9, unique_by=lambda e: e[0]), min_size=1, max_size=6)


@given(users=some_users, k=st.integers(1, 7), drop=st.booleans(), by_length=st.booleans())
def test_lists_agree_with_the_loop(users: Lists, k: int, drop: bool, by_length: bool) -> None:
    assume(not drop or any(label for entries in users for *_, label in entries))
    options = {"no_positives": "drop" if drop else "zero", "short_lists": "length" if by_length else "k"}
    result = ranked(users, k, **options)
    assert (result.precision, result.recall, result.ndcg) == pytest.approx(slow(users, k, drop, by_length))


@given(users=some_users, k=st.integers(1, 7), seed=st.integers(0, 9))
def test_the_order_of_candidates_and_users_does_not_matter(users: Lists, k: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    shuffled = [[entries[i] for i in random.permutation(len(entries))] for entries in users]
    left, right = ranked(users, k), ranked(shuffled, k)
    assert left.summary() == right.summary()
    lists, scores = candidate_lists(users)
    sums = RankingSums(k)
    for user in random.permutation(lists.n_users):
        part = RankingSums(k)
        rows = slice(lists.offsets[user], lists.offsets[user + 1])
        part.add(TopHits.of_lists(scores[rows], lists.take([user]), k))
        sums.merge(part)
    merged = sums.finish()
    assert merged.summary() == left.summary()
    assert np.array_equal(merged.user_ndcg, left.user_ndcg)


@given(users=some_users, k=st.integers(1, 7))
def test_a_perfect_ranking_has_ndcg_one_and_nothing_is_better(users: Lists, k: int) -> None:
    assume(any(label for entries in users for *_, label in entries))
    perfect = ranked([[(a, float(label), label) for a, _, label in e] for e in users], k, no_positives="drop")
    assert perfect.user_ndcg == pytest.approx(1.0)
    given_scores = ranked(users, k, no_positives="drop")
    for name in ("user_precision", "user_recall", "user_ndcg"):
        assert (getattr(given_scores, name) <= getattr(perfect, name) + 1e-12).all()
        assert (getattr(given_scores, name) >= 0).all()


@given(users=some_users, k=st.integers(1, 7))
def test_only_the_order_of_scores_matters(users: Lists, k: int) -> None:
    moved = [[(a, math.exp(score) - 7, label) for a, score, label in entries] for entries in users]
    assert ranked(moved, k).summary() == ranked(users, k).summary()


tiles = st.tuples(st.integers(1, 5), st.integers(2, 9)).flatmap(
    lambda shape: st.tuples(
        st.lists(
            st.lists(st.sampled_from([-math.inf, 0.0, 0.5, 1.0]), min_size=shape[1], max_size=shape[1]),
            min_size=shape[0],
            max_size=shape[0],
        ),
        *(
            st.lists(
                st.lists(st.booleans(), min_size=shape[1], max_size=shape[1]), min_size=shape[0], max_size=shape[0]
            )
            for _ in range(2)
        ),
    )
)


@given(tile=tiles, k=st.integers(1, 7), hide=st.booleans())
def test_all_actions_agree_with_lists_of_all_actions(tile: Any, k: int, hide: bool) -> None:
    scores, labels, hidden = (np.array(part) for part in tile)
    hidden = hidden & hide
    assume((~hidden).any(1).all())
    positives, excluded = (ActionSets.from_csr(csr_matrix(part)) for part in (labels, hidden))
    sums = RankingSums(k, short_lists="length")
    sums.add(TopHits.of_all(torch.from_numpy(scores), positives, k, excluded=excluded if hide else None))
    listed: Lists = [
        [(a, s, bool(x)) for a, (s, x, h) in enumerate(zip(*user, strict=True)) if not h]
        for user in zip(scores.tolist(), labels, hidden, strict=True)
    ]
    result = sums.finish()
    assert result.summary() == ranked(listed, k, short_lists="length").summary()
    assert (result.precision, result.recall, result.ndcg) == pytest.approx(slow(listed, k, by_length=True))


def test_tops_given_as_lists_agree_with_scores() -> None:
    random = np.random.default_rng(0)
    scores = torch.from_numpy(random.random((30, 50)))
    positives = ActionSets.from_csr(csr_matrix(random.random((30, 50)) < 0.1))
    deep, given_top = RankingSums(5), RankingSums(5)
    deep.add(TopHits.of_all(scores, positives, 20))  # deeper than needed
    order = np.argsort(-scores.numpy(), axis=1)[:, :5]
    given_top.add(TopHits.of_top(order, positives, 50))
    assert deep.finish().summary() == given_top.finish().summary()


def test_policies_are_ranked_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    probs = random.dirichlet(np.ones(20), 40)
    policy = TabularPolicy("user", torch.from_numpy(probs))
    labels = random.random((40, 20)) < 0.2
    hidden = random.random((40, 20)) < 0.2
    positives, excluded = (ActionSets.from_csr(csr_matrix(part)) for part in (labels, hidden))
    shown = random.random((40, 20)) < 0.5
    shown[:, 0] = True
    user, action = np.nonzero(shown)
    lists = CandidateLists.from_rows(contexts(40), user, action, labels[user, action]).take(random.permutation(40)[:33])

    def everything() -> list[Ranking]:
        return [
            rank_lists(policy, lists, RankingSums(3)),
            rank_all(policy, contexts(40), positives, RankingSums(3, no_positives="drop")),
            rank_all(policy, contexts(40), positives, excluded=excluded),
        ]

    whole = everything()
    monkeypatch.setattr("offpolicy.log.batches.BATCH_BYTES", 20 * 8 * 7)  # seven contexts a tile
    assert BATCH_BYTES > 20 * 8 * 40
    for left, right in zip(whole, everything(), strict=True):
        assert left.summary() == right.summary()
        assert np.array_equal(left.user_recall, right.user_recall)
    listed: Lists = [
        [(int(a), probs[u, a], bool(labels[u, a])) for a in np.flatnonzero(shown[u])] for u in lists.context_index
    ]
    assert (whole[0].precision, whole[0].recall, whole[0].ndcg) == pytest.approx(slow(listed, 3))
    assert whole[0].user.tolist() == sorted(lists.context_index)
    full: Lists = [[(a, probs[u, a], bool(labels[u, a])) for a in range(20)] for u in range(40)]
    assert whole[1].ndcg == pytest.approx(slow(full, 3, drop=True)[2])
    kept: Lists = [[full[u][a] for a in np.flatnonzero(~hidden[u])] for u in range(40)]
    assert whole[2].ndcg == pytest.approx(slow(kept, 5)[2])


def test_sets_from_rows_drop_repetitions_and_keep_empty_users() -> None:
    sets = ActionSets.from_rows([3, 1, 3, 3], [4, 0, 2, 4], 5)
    assert sets.offsets.tolist() == [0, 0, 1, 1, 3, 3]
    assert sets.actions.tolist() == [0, 2, 4]
    assert sets.part(slice(2, 5)).offsets.tolist() == [0, 0, 2, 2]
    assert ActionSets.from_rows([], [], 2).sizes.tolist() == [0, 0]
    assert sets.contain(np.array([3, 3, 0, 4]), np.array([4, 3, 4, 2])).tolist() == [True, False, False, False]


def test_mistakes_are_told() -> None:
    lists, scores = candidate_lists([[(0, 1.0, True), (1, 0.0, False)]])
    positives = ActionSets.from_rows([0], [1], 1)
    with pytest.raises(ParameterError, match=r"NaN"):
        TopHits.of_lists(scores * np.nan, lists, 5)
    with pytest.raises(ParameterError, match=r"NaN"):
        TopHits.of_all(torch.tensor([[0.0, torch.nan]]), positives, 5)
    with pytest.raises(ParameterError, match=r"2 candidates"):
        TopHits.of_lists(scores[:1], lists, 5)
    with pytest.raises(ParameterError, match=r"2 users, but positives of 1"):
        TopHits.of_all(torch.zeros(2, 3), positives, 5)
    with pytest.raises(ParameterError, match=r"first 5 places, but only 2"):
        RankingSums(5).add(TopHits.of_all(torch.zeros(1, 9), positives, 2))
    with pytest.raises(ParameterError, match=r"nothing to average"):
        RankingSums().finish()
    with pytest.raises(ParameterError, match=r"Only equal metrics"):
        RankingSums(5).merge(RankingSums(6))
    twice = RankingSums(2)
    twice.add(TopHits.of_lists(scores, lists, 2))
    twice.add(TopHits.of_lists(scores, lists, 2))
    with pytest.raises(ParameterError, match=r"User 0 was added twice"):
        twice.finish()
    for wrong in ({"k": 0}, {"no_positives": "skip"}, {"short_lists": "never"}):
        options: dict[str, Any] = dict(wrong)
        with pytest.raises(ParameterError):
            RankingSums(**options)
