"""Finding data sets, counting them, and the lists that ranking sets share."""

from pathlib import Path

import numpy as np
import pytest

from offpolicy.datasets.location import check_known_counts, find_data
from offpolicy.datasets.number_file import read_numbers
from offpolicy.datasets.ranking_data import CandidateLists, RankingData
from offpolicy.errors import LogError, ParameterError
from offpolicy.log import CategoricalColumn, FeatureTable, LoggedData, Vocabulary
from shared_data import write


def test_files_are_found_in_their_folder_or_in_the_folder_given(tmp_path: Path) -> None:
    inside = write(tmp_path, {"coat/train.ascii": "1", "coat/test.ascii": "1"})
    assert find_data("Coat", ("train.ascii", "test.ascii"), inside) == (
        tmp_path / "coat/train.ascii",
        tmp_path / "coat/test.ascii",
    )
    assert find_data("Coat", ("test.ascii",), str(tmp_path / "coat")) == (tmp_path / "coat/test.ascii",)


def test_the_argument_wins_over_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for side in ("left", "right"):
        write(tmp_path / side, {"jester/ratings_full.csv": "1"})
    monkeypatch.setenv("OFFPOLICY_DATA", str(tmp_path / "left"))
    assert find_data("Jester", ("ratings_full.csv",))[0].parts[-3] == "left"
    assert find_data("Jester", ("ratings_full.csv",), tmp_path / "right")[0].parts[-3] == "right"


def test_one_of_several_names_is_enough(tmp_path: Path) -> None:
    write(tmp_path, {"KuaiRec/data/b.csv": "1", "KuaiRec/data/new.csv": "1"})
    assert [path.name for path in find_data("KuaiRec", ("b.csv", ("new.csv", "old.csv")), tmp_path)] == [
        "b.csv",
        "new.csv",
    ]
    with pytest.raises(LogError, match=r"the file older\.csv or old\.csv was not found in .*data\."):
        find_data("KuaiRec", ("b.csv", ("older.csv", "old.csv")), tmp_path)


def test_a_missing_file_says_what_where_and_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OFFPOLICY_DATA", raising=False)
    with pytest.raises(
        LogError, match=r"Coat: no folder .* was given\. Get the data from https.*--data.*OFFPOLICY_DATA"
    ):
        find_data("Coat", ("train.ascii",))
    with pytest.raises(LogError, match=r"train\.ascii was not found in .*coat, .*Get the data from https.*--data"):
        find_data("Coat", ("train.ascii",), tmp_path)
    write(tmp_path, {"coat/train.ascii": "1"})
    with pytest.raises(LogError, match=r"the file test\.ascii was not found in [^,]*coat\. Get"):
        find_data("Coat", ("train.ascii", "test.ascii"), tmp_path)


def test_counts_of_any_known_edition_pass(tmp_path: Path) -> None:
    check_known_counts(tmp_path, {"rows": 2}, {"rows": 1}, {"rows": 2})
    with pytest.raises(LogError, match=r"holds 3,000 rows, but .* have 1 rows or 2 rows\. .*check_counts=False"):
        check_known_counts(tmp_path, {"rows": 3000}, {"rows": 1}, {"rows": 2})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2\n3,x\n", r"line 2, value 2 must be an integer in 0\.\.5, but it is 'x'"),
        ("1,2\n\n3,9\n", r"line 3, value 2 must be an integer in 0\.\.5, but it is '9'"),
        ("1,2\n3,1.5\n", r"line 2, value 2 .* '1\.5'"),
        ("1,nan\n", r"line 1, value 2 .* 'nan'"),
        ("1,\n", r"line 1, value 2 .* ''"),
        ("1,2\n3\n", r"line 2 must hold 2 values, but it holds 1"),
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("1,2\n\xff,3\n", r"line 2, value 1"),
    ],
)
def test_broken_numbers_are_told_by_line_and_value(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "numbers.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(LogError, match=message):
        read_numbers(path, ",", [(0, 5)])


def test_each_column_may_have_its_own_bounds(tmp_path: Path) -> None:
    path = write(tmp_path, {"a.txt": "9\t5\r\n8\t1\r\n"}) / "a.txt"
    assert read_numbers(path, "\t", [(1, 9), (1, 5)]).tolist() == [[9, 5], [8, 1]]
    with pytest.raises(LogError, match=r"line 1, value 1 must be an integer in 1\.\.5"):
        read_numbers(path, "\t", [(1, 5), (1, 5)])
    with pytest.raises(LogError, match=r"line 1 must hold 3 values, but it holds 2"):
        read_numbers(path, "\t", [(1, 9), (1, 5), (1, 5)])


def ranking_data(n_users: int = 40, seed: int = 0) -> RankingData:
    random = np.random.default_rng(seed)
    ids = np.arange(n_users, dtype=np.int32)
    contexts = FeatureTable({"user": CategoricalColumn(ids, Vocabulary(ids))})
    shown = random.random((n_users, 10)) < 0.5
    shown[:, 0] = True
    liked = random.random((n_users, 10)) < 0.3
    user, action = np.nonzero(shown)
    log_user, log_action = np.nonzero(random.random((n_users, 10)) < 0.4)
    log = LoggedData.from_arrays(contexts, log_action, liked[log_user, log_action], context_index=log_user, actions=10)
    shuffled = random.permutation(len(user))
    user, action = user[shuffled], action[shuffled]
    return RankingData(log, CandidateLists.from_rows(contexts, user, action, liked[user, action]))


def test_lists_from_rows_hold_every_row_in_order() -> None:
    contexts = FeatureTable({"user": CategoricalColumn(np.arange(5, dtype=np.int32), Vocabulary("abcde"))})
    lists = CandidateLists.from_rows(contexts, [3, 1, 3, 3], [7, 2, 0, 5], [True, False, False, True])
    assert lists.context_index.tolist() == [1, 3]
    assert lists.offsets.tolist() == [0, 1, 4]
    assert lists.action.tolist() == [2, 0, 5, 7]
    assert lists.label.tolist() == [False, False, True, True]
    assert lists.positives.tolist() == [0, 2]
    assert lists.take([1]).action.tolist() == [0, 5, 7]
    assert lists.take([1, 0]).action.tolist() == [0, 5, 7, 2]
    with pytest.raises(ValueError, match="read-only"):
        lists.label[0] = True


def test_broken_lists_are_refused() -> None:
    contexts = FeatureTable({"user": CategoricalColumn(np.arange(2, dtype=np.int32), Vocabulary("ab"))})
    with pytest.raises(LogError, match="context 1 holds action 4 twice"):
        CandidateLists.from_rows(contexts, [1, 0, 1], [4, 4, 4], [True, True, False])
    with pytest.raises(LogError, match=r"0\.\.1"):
        CandidateLists.from_rows(contexts, [2], [4], [True])
    with pytest.raises(LogError, match="user 1 has none"):
        CandidateLists(contexts, *map(np.array, ([0, 1], [0, 1, 1], [3], [True])))
    with pytest.raises(LogError, match="offsets"):
        CandidateLists(contexts, *map(np.array, ([0, 1], [0, 1, 3], [3, 4], [True, True])))
    with pytest.raises(LogError, match="1 labels"):
        CandidateLists(contexts, *map(np.array, ([0, 1], [0, 1, 2], [3, 4], [True])))


def test_a_split_parts_users_and_nothing_is_lost() -> None:
    data = ranking_data()
    validation, test = data.split(0.25, seed=3)
    assert (validation.n_users, test.n_users) == (10, 30)
    both = np.concatenate([validation.context_index, test.context_index])
    assert sorted(both) == list(range(40))
    assert validation.label.sum() + test.label.sum() == data.lists.label.sum()
    assert np.array_equal(data.split(0.25, seed=3)[0].context_index, validation.context_index)
    assert not np.array_equal(data.split(0.25, seed=4)[0].context_index, validation.context_index)
    assert data.split(1e-6, seed=0)[0].n_users == 1
    with pytest.raises(LogError, match="leaves none"):
        data.split(0.999, seed=0)
    with pytest.raises(ParameterError, match="valid_fraction"):
        data.split(1.0, seed=0)


def test_a_stratified_split_takes_from_every_number_of_positives() -> None:
    data = ranking_data(200)
    validation, _ = data.split(0.05, seed=0, by_positives=True)
    for number in np.unique(data.lists.positives):
        members = int((data.lists.positives == number).sum())
        assert int((validation.positives == number).sum()) == max(1, round(0.05 * members))


def test_users_with_positives_by_brute_force() -> None:
    data = ranking_data()
    liked = set(data.train.context_index[data.train.reward > 0].tolist())
    kept = [u for u, n in zip(range(40), data.lists.positives, strict=True) if n and u in liked]
    assert data.with_positives().lists.context_index.tolist() == kept
