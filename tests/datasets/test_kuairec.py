from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpolicy.datasets.kuairec import load_kuairec
from offpolicy.errors import LogError, ParameterError
from offpolicy.log import BagColumn, CategoricalColumn
from shared_data import write

HEADER = "user_id,video_id,play_duration,video_duration,time,date,timestamp,watch_ratio\n"
# user, video, timestamp, watch ratio
WATCHES = [
    (0, 7, 10.0, 0.7),
    (0, 3, 12.5, 0.69999),
    (0, 5, 11.0, 2.5),
    (0, 7, 9.0, 0.1),
    (4, 1300, 20.0, 0.9),
    (4, 3, 21.0, 1.0),
    (4, 1300, 22.0, 0.8),
    (4, 5, 21.5, 0.75),
    (9, 5, 30.0, 0.0),
]
BIG = HEADER + "".join(f"{u},{v},1,1,2020-07-05 00:00:00,20200705,{t},{w}\n" for u, v, t, w in WATCHES)
SMALL = HEADER + "4,3,1,1,,,,0.9\n4,7,1,1,,,,0.2\n0,1300,1,1,x,20200705,1.5,0.7\n"
ITEMS = 'video_id,feat\n3,"[27, 9]"\n5,[8]\n7,[]\n1225,[4]\n1300,"[9,1]"\n'
FILES = {
    "kuairec/data/big_matrix.csv": BIG,
    "kuairec/data/small_matrix.csv": SMALL,
    "kuairec/data/item_categories.csv": ITEMS,
}


def load(root: Path, **options: Any) -> Any:
    return load_kuairec(root, check_counts=False, **options)


def bags(column: Any) -> list[list[Any]]:
    assert isinstance(column, BagColumn)
    parts = np.split(column.codes, column.offsets[1:-1])
    return [column.vocabulary.decode(part) for part in parts]


def test_small_files_row_by_row(tmp_path: Path) -> None:
    data = load(write(tmp_path, FILES))
    log = data.train
    user = log.contexts["user"]
    assert isinstance(user, CategoricalColumn)
    assert user.vocabulary.to_list() == [0, 4, 9]
    assert user.vocabulary.decode(log.context_index) == [u for u, *_ in WATCHES]
    assert log.actions.vocabulary.decode(log.action) == [v for _, v, *_ in WATCHES]
    assert log.reward.tolist() == [1, 0, 1, 0, 1, 1, 1, 1, 0]
    assert log.timestamp.tolist() == [int(t * 1e6) for *_, t, _ in WATCHES]
    lists = data.lists
    assert lists.contexts is log.contexts
    assert user.vocabulary.decode(lists.context_index) == [0, 4]
    assert log.actions.vocabulary.decode(lists.action) == [1300, 3, 7]
    assert lists.label.tolist() == [True, True, False]


def test_videos_nobody_was_shown_are_no_actions_and_unlisted_ones_have_no_category(tmp_path: Path) -> None:
    log = load(write(tmp_path, FILES)).train
    assert log.actions.vocabulary.to_list() == [3, 5, 7, 1300]
    assert bags(log.actions.features["categories"]) == [[27, 9], [8], [], [9, 1]]
    write(tmp_path, {"kuairec/data/item_categories.csv": ITEMS.replace("5,[8]\n", "")})
    assert bags(load(tmp_path).train.actions.features["categories"]) == [[27, 9], [], [], [9, 1]]


def test_the_old_edition_gives_the_same_codes(tmp_path: Path) -> None:
    """Ids after 1225 are one less in the new edition, and its item file has no 1225."""
    old = load(write(tmp_path / "old", {name.replace("categories", "feat"): text for name, text in FILES.items()}))
    files = {name: text.replace("1225,[4]\n", "").replace("1300", "1299") for name, text in FILES.items()}
    new = load(write(tmp_path / "new", files))
    assert old.train.actions.vocabulary.to_list()[-1] == new.train.actions.vocabulary.to_list()[-1] + 1
    assert np.array_equal(old.train.action, new.train.action)
    assert old.train.actions.features == new.train.actions.features
    assert old.lists.action.tolist() == new.lists.action.tolist()


def test_history_is_the_last_positives_without_padding(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    assert bags(load(tmp_path).train.contexts["history"]) == [[7, 5], [3, 5, 1300], []]
    assert bags(load(tmp_path, history=2).train.contexts["history"]) == [[7, 5], [5, 1300], []]
    assert list(load(tmp_path, history=0).train.contexts) == ["user"]
    with pytest.raises(ParameterError, match="history"):
        load(tmp_path, history=-1)


def test_unobserved_pairs_may_be_negatives(tmp_path: Path) -> None:
    data = load(write(tmp_path, FILES), unobserved="negative")
    assert data.lists.offsets.tolist() == [0, 3, 6]
    assert data.train.actions.vocabulary.decode(data.lists.action) == [3, 7, 1300] * 2
    assert data.lists.label.tolist() == [False, False, True, True, False, False]


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "big_matrix",
            "watch_ratio",
            "ratio",
            r"big_matrix\.csv has no column 'watch_ratio'\. Its columns are: user_id",
        ),
        ("big_matrix", "0.69999", "much", r"line 3, column 'watch_ratio' must hold a finite number, but it is 'much'"),
        ("big_matrix", "0.69999", "nan", r"line 3, column 'watch_ratio' .* 'nan'"),
        ("big_matrix", "0.69999", "", r"line 3, column 'watch_ratio' .* ''"),
        (
            "big_matrix",
            "4,1300,1",
            "4,1300.5,1",
            r"line 6, column 'video_id' must hold an integer, but it is '1300\.5'",
        ),
        ("big_matrix", "20200705,30.0", "20200705,", r"line 10, column 'timestamp' must hold a finite number, .* ''"),
        ("big_matrix", ",0.69999", ",0.69999,1", r"line 3 has 9 fields, but the header has 8"),
        ("small_matrix", ",,0.2", "", r"small_matrix\.csv: line 3, column 'watch_ratio' .* ''"),
        ("small_matrix", SMALL, HEADER, "holds no rows"),
        ("small_matrix", SMALL, "", r"no column 'user_id'\. Its columns are: none"),
        ("small_matrix", "4,7,", "4,3,", "holds action .* twice"),
        ("item_categories", "[27, 9]", "27 and 9", r"item_categories\.csv: line 2 must hold .* '27 and 9'"),
        ("item_categories", "5,[8]", "3,[8]", r"line 3 lists the video 3 again"),
        ("item_categories", "feat", "tags", r"no column 'feat'"),
        ("item_categories", '"[27, 9]"', "[27, 9]", r"item_categories\.csv cannot be read: .*fields"),
    ],
)
def test_broken_files_are_told(tmp_path: Path, file: str, old: str, new: str, message: str) -> None:
    files = dict(FILES)
    name = f"kuairec/data/{file}.csv"
    assert old in files[name]
    files[name] = files[name].replace(old, new)
    with pytest.raises(LogError, match=message):
        load(write(tmp_path, files))


def test_missing_files_and_other_counts_are_told(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    with pytest.raises(LogError, match=r"holds 9 rows, 3 users, 4 videos, but .* 12,530,806 rows, 7,176 users, 10,728"):
        load_kuairec(tmp_path)
    (tmp_path / "kuairec/data/item_categories.csv").unlink()
    with pytest.raises(LogError, match=r"item_categories\.csv or item_feat\.csv was not found .*kuairec\.com"):
        load_kuairec(tmp_path)
