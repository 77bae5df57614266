from pathlib import Path

import numpy as np
import pytest

from offpolicy.datasets.coat import load_coat
from offpolicy.errors import LogError
from offpolicy.log import CategoricalColumn, FeatureTable
from shared_data import shared_data, write

USERS = "1 0 0 1 0 1 1 0\r\n0 1 1 0 1 0 0 1\r\n1 0 1 0 0 1 0 1\r\n"
ITEMS = "0 1 1 0 0 1 0 1 0\n1 0 0 1 0 0 1 0 1\n1 0 0 0 1 1 0 1 0\n0 1 1 0 0 0 1 0 1\n"
FILES = {
    "coat/train.ascii": "0 5 0 3\n4 0 0 0\n0 0 1 2\n",
    "coat/test.ascii": "4 0 3 0\n5 5 0 0\n0 1 0 4\n",
    "coat/user_features.ascii": USERS,
    "coat/item_features.ascii": ITEMS,
}


def codes(table: FeatureTable | None, name: str) -> list[int]:
    assert table is not None
    column = table[name]
    assert isinstance(column, CategoricalColumn)
    assert column.vocabulary.to_list() == list(range(len(column.vocabulary)))
    return [int(code) for code in column.codes]


def test_small_files_cell_by_cell(tmp_path: Path) -> None:
    data = load_coat(write(tmp_path, FILES), check_counts=False)
    log = data.train
    assert log.context_index.tolist() == [0, 0, 1, 2, 2]
    assert log.action.tolist() == [1, 3, 0, 2, 3]
    assert log.reward.tolist() == [1, 0, 1, 0, 0]
    assert log.logging_prob is None
    assert codes(log.contexts, "user") == [0, 1, 2]
    assert codes(log.contexts, "gender") == [0, 1, 0]
    assert codes(log.contexts, "age") == [1, 0, 0]
    assert codes(log.contexts, "location") == [1, 0, 1]
    assert codes(log.contexts, "fashion_interest") == [0, 1, 1]
    assert list(log.contexts) == ["user", "gender", "age", "location", "fashion_interest"]
    assert log.actions.vocabulary.to_list() == [0, 1, 2, 3]
    assert codes(log.actions.features, "jacket_type") == [0, 1, 2, 0]
    assert codes(log.actions.features, "on_front_page") == [0, 1, 0, 1]
    lists = data.lists
    assert lists.contexts is log.contexts
    assert lists.context_index.tolist() == [0, 1, 2]
    assert lists.action.tolist() == [0, 2, 0, 1, 1, 3]
    assert lists.label.tolist() == [True, False, True, True, False, True]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("train.ascii", "0 5 0 3\n4 0 7 0\n0 0 1 2\n", r"train\.ascii: line 2, value 3 must be an integer in 0\.\.5"),
        ("test.ascii", "4 0 3\n5 5 0\n0 1 0\n", r"3 lines of 3 ratings, .* 3 users and 4 items"),
        ("test.ascii", "0 0 0 0\n" * 3, "no ratings"),
        ("user_features.ascii", USERS.replace("1 0 0 1 0 1 1 0", "1 0 0 1 0 1 1 1"), r"line 1 must hold 4 ones, .* 5"),
        ("user_features.ascii", USERS.replace("1 0 0 1 0 1 1 0", "1 1 0 0 0 1 1 0"), "4 one-hot blocks, but only"),
        ("item_features.ascii", ITEMS.replace("0 1", "0 2", 1), r"item_features\.ascii: line 1, value 2"),
    ],
)
def test_broken_files_are_told(tmp_path: Path, file: str, text: str, message: str) -> None:
    write(tmp_path, FILES | {f"coat/{file}": text})
    with pytest.raises(LogError, match=message):
        load_coat(tmp_path, check_counts=False)


def test_missing_files_and_other_counts_are_told(tmp_path: Path) -> None:
    with pytest.raises(
        LogError, match=r"holds 3 users, 4 items, 5 ratings, but .* 290 users, 300 items, 6,960 ratings"
    ):
        load_coat(write(tmp_path, FILES))
    (tmp_path / "coat/item_features.ascii").unlink()
    with pytest.raises(LogError, match=r"item_features\.ascii was not found"):
        load_coat(tmp_path)


def test_the_real_data() -> None:
    root = shared_data("coat")
    data = load_coat(root)
    assert (data.train.n_rows, data.train.n_contexts, data.train.n_actions) == (6960, 290, 300)
    assert len(data.lists.action) == 4640
    assert np.diff(data.lists.offsets).tolist() == [16] * 290
    sizes = [len(c.vocabulary) for c in data.train.contexts.values() if isinstance(c, CategoricalColumn)]
    assert sizes == [290, 2, 6, 3, 3]
    features = data.train.actions.features
    assert features is not None
    assert [len(c.vocabulary) for c in features.values() if isinstance(c, CategoricalColumn)] == [2, 16, 13, 2]
    ratings = np.loadtxt(root / "coat/train.ascii")
    assert data.train.reward.sum() == (ratings > 3).sum()
    one_hot = np.loadtxt(root / "coat/item_features.ascii")
    decoded = np.concatenate(
        [np.eye(len(c.vocabulary))[c.codes] for c in features.values() if isinstance(c, CategoricalColumn)], axis=1
    )
    assert np.array_equal(decoded, one_hot)
