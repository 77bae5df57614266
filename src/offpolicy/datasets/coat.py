"""Coat shopping ratings: 290 users rated 24 coats they chose and 16 coats chosen at random, among 300."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from offpolicy.datasets.location import check_known_counts, find_data
from offpolicy.datasets.number_file import read_numbers
from offpolicy.datasets.ranking_data import CandidateLists, RankingData
from offpolicy.errors import LogError
from offpolicy.log import ActionTable, CategoricalColumn, FeatureTable, LoggedData, Vocabulary

FILES = ("train.ascii", "test.ascii", "user_features.ascii", "item_features.ascii")
USER_FEATURES = ("gender", "age", "location", "fashion_interest")
ITEM_FEATURES = ("gender", "jacket_type", "color", "on_front_page")
COUNTS = {"train.ascii": 6_960, "test.ascii": 4_640}
LIKED = 3
"""A rating above this one is a positive."""


def load_coat(data: str | Path | None = None, *, check_counts: bool = True) -> RankingData:
    """The self-selected ratings as a log, the randomly assigned ones as candidate lists; reward = rating > 3.

    Users and items go by their line and column in the files, from 0. Each has four categorical features, whose values
    are the positions within their one-hot block.
    """
    train_path, test_path, user_path, item_path = find_data("Coat", FILES, data)
    user_features, items = _features(user_path, USER_FEATURES), _features(item_path, ITEM_FEATURES)
    shape = (user_features.n_rows, items.n_rows)
    ids = np.arange(shape[0], dtype=np.int32)
    users = FeatureTable({"user": CategoricalColumn(ids, Vocabulary(ids)), **user_features})
    ratings = {path: _ratings(path, shape) for path in (train_path, test_path)}
    if check_counts:
        for path, table in ratings.items():
            found = {"users": shape[0], "items": shape[1], "ratings": int((table > 0).sum())}
            check_known_counts(path, found, {"users": 290, "items": 300, "ratings": COUNTS[path.name]})
    user, item = np.nonzero(ratings[train_path])
    reward = ratings[train_path][user, item] > LIKED
    actions = ActionTable(Vocabulary(range(shape[1])), items)
    log = LoggedData.from_arrays(users, item, reward, context_index=user, actions=actions)
    user, item = np.nonzero(ratings[test_path])
    return RankingData(log, CandidateLists.from_rows(users, user, item, ratings[test_path][user, item] > LIKED))


def _ratings(path: Path, shape: tuple[int, int]) -> npt.NDArray[np.float64]:
    table = read_numbers(path, None, [(0, 5)])
    if table.shape != shape:
        raise LogError(
            f"{path} holds {table.shape[0]} lines of {table.shape[1]} ratings, but the feature files list {shape[0]} "
            f"users and {shape[1]} items. Use files of one edition."
        )
    if not table.any():
        raise LogError(f"{path} holds no ratings: every value is 0. Fetch the file again.")
    return table


def _features(path: Path, features: Sequence[str]) -> FeatureTable:
    """One categorical column per one-hot block."""
    table = read_numbers(path, None, [(0, 1)])
    columns: dict[str, CategoricalColumn] = {}
    for feature, block in zip(features, _blocks(path, table, len(features)), strict=True):
        columns[feature] = CategoricalColumn(table[:, block].argmax(1), Vocabulary(range(block.stop - block.start)))
    return FeatureTable(columns)


def _blocks(path: Path, table: npt.NDArray[np.float64], n_blocks: int) -> list[slice]:
    """Consecutive columns of which exactly one is 1 in every line; there must be as many blocks as features."""
    sums = table.sum(1)
    if (sums != n_blocks).any():
        line = int(np.argmax(sums != n_blocks))
        raise LogError(f"{path}: line {line + 1} must hold {n_blocks} ones, but it holds {sums[line]:g}. Fix the line.")
    running = table.cumsum(1)  # (lines, columns)
    low, high = running.min(0), running.max(0)
    # The first column up to which every line has k ones ends block k.
    ends = [
        int(np.argmax((low == k) & (high == k))) + 1 for k in range(1, n_blocks) if ((low == k) & (high == k)).any()
    ]
    if len(ends) != n_blocks - 1:
        raise LogError(
            f"{path}: its {table.shape[1]} columns must be {n_blocks} one-hot blocks, but only {len(ends) + 1} "
            "can be told apart. Some line has a 1 in the wrong block; fetch the file again."
        )
    return [slice(start, stop) for start, stop in zip([0, *ends], [*ends, table.shape[1]], strict=True)]
