from pathlib import Path

import numpy as np
import pytest

from offpolicy.datasets.yahoo_r3 import STEM, load_yahoo_r3
from offpolicy.errors import LogError
from offpolicy.log import CategoricalColumn
from shared_data import write

SURVEY = "5\t5\t4\t3\t5\t5\t2\n5\t4\t4\t4\t1\t5\t1\n"
FILES = {
    f"yahoo_r3/{STEM}-train.txt": "1\t14\t5\n1\t1000\t1\n2\t3\t4\n7\t14\t3\n",
    f"yahoo_r3/{STEM}-test.txt": "2\t14\t5\n1\t49\t1\n1\t1000\t4\n",
    f"yahoo_r3/{STEM}-survey-answers.txt": SURVEY,
}


def test_small_files_keep_the_ids_of_the_files(tmp_path: Path) -> None:
    data = load_yahoo_r3(write(tmp_path, FILES), check_counts=False)
    log = data.train
    user = log.contexts["user"]
    assert isinstance(user, CategoricalColumn)
    assert user.vocabulary.to_list() == [1, 2, 7]
    assert user.vocabulary.decode(log.context_index) == [1, 1, 2, 7]
    assert log.actions.vocabulary.to_list() == [3, 14, 49, 1000]
    assert log.actions.vocabulary.decode(log.action) == [14, 1000, 3, 14]
    assert log.reward.tolist() == [1, 0, 1, 0]
    lists = data.lists
    assert user.vocabulary.decode(lists.context_index) == [1, 2]
    assert log.actions.vocabulary.decode(lists.action) == [49, 1000, 14]
    assert lists.label.tolist() == [False, True, True]


def test_answers_belong_to_the_user_of_their_line_and_null_to_the_others(tmp_path: Path) -> None:
    contexts = load_yahoo_r3(write(tmp_path, FILES), check_counts=False).train.contexts
    assert list(contexts) == ["user", *(f"answer_{n}" for n in range(1, 8))]
    expected = {1: [5, 5, None], 2: [5, 4, None], 5: [5, 1, None], 7: [2, 1, None]}
    for question, answers in expected.items():
        column = contexts[f"answer_{question}"]
        assert isinstance(column, CategoricalColumn)
        assert column.vocabulary.decode(column.codes) == answers


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("train", "1\t14\t5\n1\t15\t6\n", r"train\.txt: line 2, value 3 must be an integer in 1\.\.5, but it is '6'"),
        ("train", "1\t14\t5\n0\t15\t3\n", r"line 2, value 1 must be an integer in 1\.\."),
        ("test", "1\t14\n", r"test\.txt: line 1 must hold 3 values, but it holds 2"),
        ("test", "1\t14\t2\n1\t14\t3\n", "holds action .* twice"),
        ("survey-answers", "1\t2\t3\n", r"survey-answers\.txt: line 1 must hold 7 values"),
        ("survey-answers", SURVEY.replace("3", "x"), r"survey-answers\.txt: line 1, value 4"),
    ],
)
def test_broken_files_are_told(tmp_path: Path, file: str, text: str, message: str) -> None:
    write(tmp_path, FILES | {f"yahoo_r3/{STEM}-{file}.txt": text})
    with pytest.raises(LogError, match=message):
        load_yahoo_r3(tmp_path, check_counts=False)


def test_missing_files_and_other_counts_are_told(tmp_path: Path) -> None:
    with pytest.raises(
        LogError, match=r"4 ratings, 3 users, 3 songs, but .* 311,704 ratings, 15,400 users, 1,000 songs"
    ):
        load_yahoo_r3(write(tmp_path, FILES))
    (tmp_path / f"yahoo_r3/{STEM}-survey-answers.txt").unlink()
    with pytest.raises(LogError, match=r"survey-answers\.txt was not found .*signed agreement"):
        load_yahoo_r3(tmp_path)


def test_files_of_the_published_size_pass(tmp_path: Path) -> None:
    """Files written with the published counts, at full size."""
    random = np.random.default_rng(0)
    extra = 311_704 - 15_400 * 20
    train = [
        (user, song) for user in range(1, 15_401) for song in 1 + (user * 37 + np.arange(20 + (user <= extra))) % 1000
    ]
    test = [(user, song) for user in range(1, 5_401) for song in 1 + (user * 53 + np.arange(10)) % 1000]
    text = [
        "".join(f"{u}\t{s}\t{r}\n" for (u, s), r in zip(p, random.integers(1, 6, len(p)), strict=True))
        for p in (train, test)
    ]
    answers = "\n".join("\t".join(map(str, row)) for row in random.integers(1, 6, (5_400, 7)))
    write(tmp_path, dict(zip(FILES, [*text, answers], strict=True)))
    data = load_yahoo_r3(tmp_path)
    assert (data.train.n_rows, data.train.n_contexts, data.train.n_actions) == (311_704, 15_400, 1_000)
    assert (data.lists.n_users, len(data.lists.action)) == (5_400, 54_000)
    assert data.train.actions.vocabulary.to_list() == list(range(1, 1001))
