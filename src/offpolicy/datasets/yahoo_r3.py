"""Yahoo! R3: ratings of 1,000 songs that 15,400 users chose, and of 10 random songs by each of 5,400 of them."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from offpolicy.datasets.location import check_known_counts, find_data
from offpolicy.datasets.number_file import read_numbers
from offpolicy.datasets.ranking_data import CandidateLists, RankingData
from offpolicy.log import ActionTable, CategoricalColumn, FeatureTable, LoggedData, Vocabulary

STEM = "ydata-ymusic-rating-study-v1_0"
FILES = (f"{STEM}-train.txt", f"{STEM}-test.txt", f"{STEM}-survey-answers.txt")
TRAIN = {"ratings": 311_704, "users": 15_400, "songs": 1_000}
TEST = {"ratings": 54_000, "users": 5_400, "songs": 1_000}
LARGEST_ID = 2**31 - 1
QUESTIONS = 7
RATING = [(1, LARGEST_ID), (1, LARGEST_ID), (1, 5)]  # user, song, rating
ANSWERS = [(0, LARGEST_ID)] * QUESTIONS
LIKED = 3
"""A rating above this one is a positive."""


def load_yahoo_r3(data: str | Path | None = None, *, check_counts: bool = True) -> RankingData:
    """The self-selected ratings as a log, the ratings of random songs as candidate lists; reward = rating > 3.

    Users and songs keep the ids of the files, which begin at 1. The answers to the seven survey questions are
    categorical features (`answer_1` to `answer_7`), null for the users who were not asked.
    """
    train_path, test_path, survey_path = find_data("Yahoo! R3", FILES, data)
    train, test = (read_numbers(path, "\t", RATING).astype(np.int64) for path in (train_path, test_path))
    answers = read_numbers(survey_path, "\t", ANSWERS).astype(np.int64)
    if check_counts:
        check_known_counts(train_path, _counts(train), TRAIN)
        check_known_counts(test_path, _counts(test), TEST)
        check_known_counts(survey_path, {"users": len(answers)}, {"users": TEST["users"]})
    users = Vocabulary.of(np.concatenate([train[:, 0], test[:, 0]]))
    songs = Vocabulary.of(np.concatenate([train[:, 1], test[:, 1]]))
    contexts = _contexts(users, answers)
    log = LoggedData(
        contexts=contexts,
        context_index=users.encode(train[:, 0]),
        action=songs.encode(train[:, 1]),
        reward=(train[:, 2] > LIKED).astype(np.float64),
        actions=ActionTable(songs),
    )
    index, action = users.encode(test[:, 0]), songs.encode(test[:, 1])
    return RankingData(log, CandidateLists.from_rows(contexts, index, action, test[:, 2] > LIKED))


def _counts(table: npt.NDArray[np.int64]) -> dict[str, int]:
    return {"ratings": len(table), "users": len(np.unique(table[:, 0])), "songs": len(np.unique(table[:, 1]))}


def _contexts(users: Vocabulary, answers: npt.NDArray[np.int64]) -> FeatureTable:
    """Every user's id and answers; line n of the survey is user n, and null stands for users without a line."""
    columns = {"user": CategoricalColumn(np.arange(len(users), dtype=np.int32), users)}
    ids = users.ids.to_numpy()
    asked = ids <= len(answers)
    for question in range(QUESTIONS):
        given = answers[np.where(asked, ids - 1, 0), question]
        values = pl.select(pl.when(pl.Series(asked)).then(pl.Series(given))).to_series()
        vocabulary = Vocabulary.of(values)
        columns[f"answer_{question + 1}"] = CategoricalColumn(vocabulary.encode(values), vocabulary)
    return FeatureTable(columns)
