from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpolicy.datasets import xmc
from offpolicy.datasets.xmc import load_xmc, read_xmc
from offpolicy.errors import LogError
from shared_data import shared_data, write

TRAIN = "3 4 5\n1,4 0:1 3:0.5\n 2:2e-1\n0\n"
TEST = "2 4 5\n2 1:-1\n4,0 0:1 1:1 2:1 3:1\n"


def test_small_files_cell_by_cell(tmp_path: Path) -> None:
    data = load_xmc("tiny", write(tmp_path, {"tiny/train.txt": TRAIN, "tiny/test.txt": TEST}))
    assert data.train_features.toarray() == pytest.approx(np.array([[1, 0, 0, 0.5], [0, 0, 0.2, 0], [0, 0, 0, 0]]))
    assert data.train_labels.toarray().tolist() == [[0, 1, 0, 0, 1], [0] * 5, [1, 0, 0, 0, 0]]
    assert data.test_features.toarray().tolist() == [[0, -1, 0, 0], [1, 1, 1, 1]]
    assert data.test_labels.toarray().tolist() == [[0, 0, 1, 0, 0], [1, 0, 0, 0, 1]]


def slow(text: str) -> tuple[Any, Any]:
    """The format by the letter, a field at a time."""
    header, *lines = text.split("\n")
    rows, features, labels = map(int, header.split())
    x, y = np.zeros((rows, features), np.float32), np.zeros((rows, labels), np.float32)
    for row, line in enumerate(lines[:rows]):
        head, *pairs = line.split(" ")
        for label in filter(None, head.split(",")):
            y[row, int(label)] = 1
        for pair in filter(None, pairs):
            index, value = pair.split(":")
            x[row, int(index)] += np.float32(value)
    return x, y


row = st.tuples(
    st.lists(st.integers(0, 6), unique=True),
    st.dictionaries(st.integers(0, 8), st.floats(-9, 9, width=32), max_size=5),
)


@given(
    rows=st.lists(row, min_size=1, max_size=9), ending=st.sampled_from(["", "\n", "\n\n\n"]), lines=st.integers(1, 4)
)
def test_any_file_reads_as_the_slow_reader_reads_it(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], ending: str, lines: int
) -> None:
    body = "\n".join(
        ",".join(map(str, labels)) + "".join(f" {index}:{value!r}" for index, value in features.items())
        for labels, features in rows
    )
    body = body if body.split("\n")[-1] else body + " "  # a last row of nothing needs its space
    text = f"{len(rows)} 9 7\n{body}"
    path = tmp_path_factory.mktemp("xmc") / "a.txt"
    path.write_text(text + ending)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(xmc, "BLOCK_LINES", lines)
        features, labels = read_xmc(path)
    x, y = slow(text)
    assert np.array_equal(features.toarray(), x)
    assert np.array_equal(labels.toarray(), y)


def test_odd_but_legal_lines(tmp_path: Path) -> None:
    text = "4 3 3\r\n0:1 2:1\r\n1,1 0:1  2:1 \r\n\r\n2\r\n"
    features, labels = read_xmc(write(tmp_path, {"a.txt": text}) / "a.txt")
    assert features.toarray().tolist() == [[1, 0, 1], [1, 0, 1], [0, 0, 0], [0, 0, 0]]
    assert labels.toarray().tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1 must hold three positive integers"),
        ("3 4\n", r"line 1 must hold three positive integers.* '3 4'"),
        ("1,2 3:4\n", "line 1 must hold three"),
        ("1 4 5\n5 0:1\n", r"line 2 must hold labels in 0\.\.4, .* '5'"),
        ("2 4 5\n1 0:1\n1;2 0:1\n", r"line 3 must hold labels .* '1;2'"),
        ("2 4 5\n1 0:1\n1 4:1\n", r"line 3 must hold feature:value with features in 0\.\.3, but it holds '4:1'"),
        ("1 4 5\n1 -1:1\n", r"line 2 .* '-1:1'"),
        ("1 4 5\n1 0:x\n", r"line 2 .* '0:x'"),
        ("1 4 5\n1 0:nan\n", r"line 2 .* '0:nan'"),
        ("1 4 5\n1 0:1:2\n", r"line 2 .* '0:1:2'"),
        ("1 4 5\n1 0\n", r"line 2 .* '0'"),
        ("3 4 5\n1 0:1\n", "promises 3 rows, but 1 follow"),
        ("1 4 5\n1 0:1\n2 0:1\n", "promises 1 rows, but 2 follow"),
    ],
)
@pytest.mark.parametrize("lines", [1, 100])
def test_broken_files_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str, lines: int
) -> None:
    monkeypatch.setattr(xmc, "BLOCK_LINES", lines)
    with pytest.raises(LogError, match=message):
        read_xmc(write(tmp_path, {"a.txt": text}) / "a.txt")


def test_missing_files_other_counts_and_unlike_files_are_told(tmp_path: Path) -> None:
    write(tmp_path, {"wiki10-31k/wiki10_train.txt": TRAIN, "wiki10-31k/wiki10_test.txt": TEST})
    with pytest.raises(LogError, match=r"3 rows, 4 features, 5 labels, but .* 14,146 rows, 101,938 features, 30,938"):
        load_xmc("Wiki10-31K", tmp_path)
    assert load_xmc("Wiki10-31K", tmp_path, check_counts=False).test_labels.shape == (2, 5)
    with pytest.raises(LogError, match=r"train\.txt or delicious_train\.txt was not found .*XMLRepository"):
        load_xmc("delicious", tmp_path)
    write(tmp_path, {"odd/train.txt": TRAIN, "odd/test.txt": "1 4 6\n0 0:1\n"})
    with pytest.raises(LogError, match="two files of one data set"):
        load_xmc("odd", tmp_path)


def test_the_real_data() -> None:
    data = load_xmc("delicious", shared_data("delicious"))
    assert data.train_features.shape == (12_920, 500)
    assert data.test_labels.shape == (3_185, 983)
    empty = [int((part.getnnz(1) == 0).sum()) for part in (data.train_labels, data.test_labels)]
    assert empty == [10, 4]
    text = (shared_data("delicious") / "delicious/test.txt").read_text()
    x, y = slow(text)
    assert np.array_equal(data.test_features.toarray(), x)
    assert np.array_equal(data.test_labels.toarray(), y)
