"""Wiki10-31K and its family: documents as sparse words with sparse labels, in the text form of extreme classification.

The first line is `rows features labels`; every other line is `label,label feature:value feature:value`, and begins
with a space where a row has no label.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy.sparse import csr_matrix

from offpolicy.datasets.location import check_known_counts, find_data
from offpolicy.errors import LogError

Csr: TypeAlias = Any  # scipy has no types
BLOCK_LINES = 2_048  # lines parsed at a time; bounds the memory that text takes

Shape: TypeAlias = dict[str, int]


def _known(train: int, test: int, features: int, labels: int) -> tuple[Shape, Shape]:
    rest = {"features": features, "labels": labels}
    return {"rows": train, **rest}, {"rows": test, **rest}


KNOWN = {"wiki10-31k": _known(14_146, 6_616, 101_938, 30_938), "delicious": _known(12_920, 3_185, 500, 983)}
"""Sizes of the train and test files that the experiments use."""


@dataclass(frozen=True)
class XmcData:
    """Documents and their labels; `*_features` are (rows, features) floats, `*_labels` (rows, labels) of 0 and 1."""

    train_features: Csr
    train_labels: Csr
    test_features: Csr
    test_labels: Csr


def load_xmc(name: str = "Wiki10-31K", data: str | Path | None = None, *, check_counts: bool = True) -> XmcData:
    """The data set in the folder called `name`: `train.txt` and `test.txt`, or `wiki10_train.txt` and so on.

    Counts are checked for the data sets whose counts are known here (`KNOWN`); any other name is read as it is.
    """
    short = name.lower().split("-")[0]
    train_path, test_path = find_data(
        name, [("train.txt", f"{short}_train.txt"), ("test.txt", f"{short}_test.txt")], data
    )
    parts = {path: read_xmc(path) for path in (train_path, test_path)}
    shapes = {path: _shape(*matrices) for path, matrices in parts.items()}
    known = KNOWN.get(name.lower())
    if check_counts and known is not None:
        for (path, shape), expected in zip(shapes.items(), known, strict=True):
            check_known_counts(path, shape, expected)
    train, test = shapes[train_path], shapes[test_path]
    if (train["features"], train["labels"]) != (test["features"], test["labels"]):
        raise LogError(f"{train_path} has {train} but {test_path} has {test}. Use two files of one data set.")
    return XmcData(*parts[train_path], *parts[test_path])


def _shape(features: Csr, labels: Csr) -> Shape:
    return {"rows": features.shape[0], "features": features.shape[1], "labels": labels.shape[1]}


def read_xmc(path: Path) -> tuple[Csr, Csr]:
    """Features and labels of one file, a block of lines at a time; a label named twice counts once."""
    feature_parts: list[pl.DataFrame] = []
    label_parts: list[pl.DataFrame] = []
    with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        n_rows, n_features, n_labels = _header(path, lines.readline())
        seen = 0
        for block in _blocks(lines):
            first_line = seen + 2
            label_text, feature_text = _fields(block)
            label_parts.append(_labels(path, label_text, n_labels, first_line).with_columns(pl.col("row") + seen))
            feature_parts.append(
                _features(path, feature_text, n_features, first_line).with_columns(pl.col("row") + seen)
            )
            seen += len(block)
    if seen != n_rows:
        raise LogError(f"{path}: the header promises {n_rows} rows, but {seen} follow it. Fetch the file again.")
    labels = pl.concat(label_parts).unique(maintain_order=True)
    ones = np.ones(len(labels), dtype=np.float32)
    label_matrix = csr_matrix((ones, _places(labels)), shape=(n_rows, n_labels))
    features = pl.concat(feature_parts)
    return csr_matrix((features["value"].to_numpy(), _places(features)), shape=(n_rows, n_features)), label_matrix


def _header(path: Path, line: str) -> tuple[int, int, int]:
    fields = line.split()
    if len(fields) != 3 or not all(field.isdecimal() and int(field) > 0 for field in fields):
        raise LogError(
            f"{path}: line 1 must hold three positive integers, the numbers of rows, features and labels, but it is "
            f"{line.strip()[:80]!r}. Check that this is a file in the XMC text form."
        )
    rows, features, labels = map(int, fields)
    return rows, features, labels


def _blocks(lines: Iterator[str]) -> Iterator[pl.Series]:
    """The lines without their ends, some at a time; empty lines at the end of the file are none."""
    pending = 0
    while block := list(islice(lines, BLOCK_LINES)):
        text = [line.rstrip("\r\n") for line in block]
        kept = len(text)
        while kept and not text[kept - 1]:
            kept -= 1
        if kept:
            yield pl.Series("line", [""] * pending + text[:kept])
            pending = 0
        pending += len(text) - kept


def _fields(block: pl.Series) -> tuple[pl.Series, pl.Series]:
    """The label field and the rest of each line; a line whose first field holds a colon has no labels."""
    parts = block.str.splitn(" ", 2).struct
    first, rest = parts.field("field_0").fill_null(""), parts.field("field_1").fill_null("")
    unlabelled = first.str.contains(":", literal=True)
    labels = first.zip_with(~unlabelled, pl.repeat("", len(first), eager=True))
    return labels, rest.zip_with(~unlabelled, block)


def _exploded(text: pl.Series, separator: str) -> pl.DataFrame:
    """One row per field: its line within the block, and its text."""
    frame = pl.DataFrame({"row": np.arange(len(text), dtype=np.int64), "field": text.str.split(separator)})
    return frame.explode("field").filter(pl.col("field") != "")


def _labels(path: Path, text: pl.Series, n_labels: int, first_line: int) -> pl.DataFrame:
    frame = _exploded(text, ",").with_columns(pl.col("field").cast(pl.Int32, strict=False).alias("column"))
    bad = ~pl.col("column").is_between(0, n_labels - 1).fill_null(False)
    _refuse(path, frame.filter(bad), f"labels in 0..{n_labels - 1}, separated by commas", first_line)
    return frame.select("row", "column")


def _features(path: Path, text: pl.Series, n_features: int, first_line: int) -> pl.DataFrame:
    parts = pl.col("field").str.splitn(":", 2).struct
    frame = _exploded(text, " ").with_columns(
        parts.field("field_0").cast(pl.Int32, strict=False).alias("column"),
        parts.field("field_1").cast(pl.Float32, strict=False).alias("value"),
    )
    good = pl.col("column").is_between(0, n_features - 1) & pl.col("value").is_finite()
    _refuse(
        path, frame.filter(~good.fill_null(False)), f"feature:value with features in 0..{n_features - 1}", first_line
    )
    return frame.select("row", "column", "value")


def _refuse(path: Path, bad: pl.DataFrame, rule: str, first_line: int) -> None:
    if len(bad):
        row, field = bad.row(0)[:2]
        raise LogError(f"{path}: line {first_line + row} must hold {rule}, but it holds {field[:80]!r}. Fix the line.")


def _places(frame: pl.DataFrame) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    return frame["row"].to_numpy(), frame["column"].to_numpy()
