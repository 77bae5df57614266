"""CSV files as spreadsheets and databases write them: the same log as one written plainly, or a stated refusal."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import offpolicy.log.prepare as preparing
from offpolicy import learn_policy, load_policy, save_policy
from offpolicy.errors import LogError
from offpolicy.log import BagColumn, CategoricalColumn, prepare_log, read_log, read_rows
from offpolicy.log.schema import LogSchema

ROWS = 700
ROLES: dict[str, Any] = {
    "context": ["score", "price", "day", "age", "city"],
    "action": "item",
    "reward": "revenue",
    "cluster": "user",
    "reward_range": (0, 1e4),
    "missing": {"score": "indicator", "revenue": "drop"},
}


def plain() -> pl.DataFrame:
    draw = np.random.default_rng(3)
    return pl.DataFrame(
        {
            "score": [None if i % 11 == 5 else f"{x:.3f}" for i, x in enumerate(draw.normal(0, 50, ROWS))],
            "price": [f"{x:.1f}" for x in draw.uniform(1, 9, ROWS)],
            "day": [f"2025-{m:02}-{d:02}" for m, d in draw.integers((1, 1), (13, 29), (ROWS, 2))],
            "age": [None if i % 7 == 3 else str(x) for i, x in enumerate(draw.integers(18, 80, ROWS))],
            "city": [None if x == 3 else ("Köln", "NA", "Ys")[x] for x in draw.integers(0, 4, ROWS)],
            "item": [("1,5", "12.03.2024", "5 %")[x] for x in draw.integers(0, 3, ROWS)],
            "user": [str(9007199254740993 + x) for x in draw.integers(0, 40, ROWS)],
            "revenue": [None if i % 13 == 2 else f"{x:.2f}" for i, x in enumerate(draw.gamma(1, 900, ROWS))],
        }
    )


def european(value: str) -> str:
    """1234567.89 as 1.234.567,89."""
    return f"{float(value):,.{len(value.partition('.')[2])}f}".translate(str.maketrans(",.", ".,"))


def american(value: str) -> str:
    return f"{float(value):,.{len(value.partition('.')[2])}f}"


def dotted(value: str) -> str:
    year, month, day = value.split("-")
    return f"{int(day)}.{month}.{year}"


def slashed(value: str) -> str:
    year, month, day = value.split("-")
    return f"{month}/{int(day)}/{year}"


def spelled(frame: pl.DataFrame, words: dict[str, str], **ways: Callable[[str], str]) -> pl.DataFrame:
    """The frame with every value of some columns written in another way, and words where values are missing."""
    columns = {
        name: [words.get(name) if x is None else ways.get(name, str)(x) for x in frame[name]] for name in frame.columns
    }
    return pl.DataFrame(columns)


SPELLED = {
    ";": spelled(
        plain(),
        {"score": "-", "age": "NULL", "revenue": "n/a"},
        score=european,
        price=european,
        day=dotted,
        revenue=lambda value: f"{european(value)} €",
    ),
    ",": spelled(
        plain(),
        {"score": "NA", "age": "\\N", "revenue": "null"},
        score=american,
        day=slashed,
        revenue=lambda value: f"${american(value)}",
    ),
    "\t": spelled(plain(), {"score": "None", "age": "?"}, price=european, revenue=lambda value: f"{value} EUR"),
    "|": spelled(plain(), {}, day=lambda value: value.replace("-", "/"), price=lambda value: f" {value}%"),
}


@pytest.mark.parametrize("mark", SPELLED)
def test_a_log_is_the_same_however_its_numbers_and_dates_are_spelled(
    mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain().write_csv(tmp_path / "plain.csv")
    SPELLED[mark].write_csv(tmp_path / "own.csv", separator=mark)
    expected = read_log(tmp_path / "plain.csv", **ROLES)
    assert read_log(tmp_path / "own.csv", **ROLES) == expected
    (tmp_path / "own.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + (tmp_path / "own.csv").read_bytes()))
    assert read_log(tmp_path / "own.csv.gz", **ROLES) == expected
    monkeypatch.setattr(preparing, "LEAST_PIECE", 4096)
    monkeypatch.setattr(preparing, "PIECES", 2**14)
    store = prepare_log(tmp_path / "own.csv", tmp_path / "store", shards=3, memory=64 * 2**20, **ROLES)
    assert store == expected.sharded(3)


def test_how_columns_were_read_is_said(tmp_path: Path) -> None:
    SPELLED[";"].write_csv(tmp_path / "log.csv", separator=";")
    assert read_rows(tmp_path / "log.csv", LogSchema(**ROLES)).notes[:5] == (
        "score: read as numbers with a decimal comma; '-' read as missing",
        "price: read as numbers with a decimal comma",
        "day: read as dates with the day first",
        "age: 'NULL' read as missing",
        "revenue: read as numbers with a decimal comma in €; 'n/a' read as missing",
    )


def ids_of(tmp_path: Path, values: list[str], mark: str = ",", **more: Any) -> set[Any]:
    """The ids in a log whose column x holds these values, over and over."""
    item, click = ["a", "b"] * 20, [0, 1] * 20
    frame = pl.DataFrame({"x": (values * 40)[:40], "item": item, "click": click})
    frame.write_csv(tmp_path / "log.csv", separator=mark)
    column = read_log(tmp_path / "log.csv", context=["x"], action="item", reward="click", **more).contexts["x"]
    assert isinstance(column, CategoricalColumn | BagColumn)
    return set(column.vocabulary.ids)


LEFT_ALONE = {
    "a list, not a decimal comma": (["3,17", "4,22", "5,8"], ","),
    "telephone numbers": (["06 123 456", "07 654 321"], ";"),
    "ids in groups": (["12.345.678", "98.765.432"], ";"),
    "days or months first": (["03/04/2025", "05/06/2025"], ","),
    "thousands or decimals": (["1,234", "5,678"], "\t"),
    "two currencies": (["5 €", "7 $"], ","),
    "shares and numbers": (["5 %", "7 %", "0.07"], ","),
    "words between words": (["NA", "DE", "FR"], ","),
    "no such date": (["31.02.2025", "01.03.2025"], ";"),
    "versions": (["1.2.3", "1.10.0"], ";"),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_might_be_something_else_is_left_as_it_is(name: str, tmp_path: Path) -> None:
    values, mark = LEFT_ALONE[name]
    assert ids_of(tmp_path, values, mark) == set(values)


def test_what_is_declared_is_left_as_it_is(tmp_path: Path) -> None:
    assert ids_of(tmp_path, ["1,5", "2,7"], ";", kinds={"x": "bag"}) == {1, 2, 5, 7}
    assert ids_of(tmp_path, ["1,5", "2,7"], ";", kinds={"x": "categorical"}) == {"1,5", "2,7"}


@pytest.mark.parametrize("said", ["day and month cannot be told apart", "may be decimal or between thousands"])
def test_what_cannot_be_told_apart_is_said(said: str, tmp_path: Path) -> None:
    values, mark = LEFT_ALONE["days or months first" if "day" in said else "thousands or decimals"]
    ids_of(tmp_path, values, mark)
    notes = read_rows(tmp_path / "log.csv", LogSchema(context=["x"], action="item", reward="click")).notes
    assert said in notes[0]


def test_other_encodings_are_named_with_the_command_that_converts_them(tmp_path: Path) -> None:
    text = "ort,item,click\nKöln,a,1\nWien,b,0\n"
    (tmp_path / "log.csv").write_bytes(text.encode("cp1252"))
    for encoding, said in (("cp1252", "line 2 holds the byte 0xf6"), ("utf-16", "it is UTF-16")):
        (tmp_path / "log.csv").write_bytes(text.encode(encoding))
        with pytest.raises(LogError, match=f"is not UTF-8: {said}.*iconv -f .* -t UTF-8 > utf8-log.csv"):
            read_log(tmp_path / "log.csv", context=["ort"], action="item", reward="click")


def test_a_policy_takes_requests_spelled_like_its_log(tmp_path: Path) -> None:
    """The same probabilities from a plain file of requests and from one with decimal commas and other dates."""
    plain().write_csv(tmp_path / "plain.csv")
    SPELLED[";"].write_csv(tmp_path / "own.csv", separator=";")
    log = read_log(tmp_path / "own.csv", **ROLES)
    metadata = {"roles": {"missing": ROLES["missing"]}}
    learned = learn_policy(log, method="dm", logging_policy="popularity", epochs=2)
    saved = load_policy(save_policy(learned, log, tmp_path / "policy", metadata=metadata))
    tops = [saved.recommend(tmp_path / name, k=3, keep=["price"]) for name in ("plain.csv", "own.csv")]
    assert tops[0].drop("price").equals(tops[1].drop("price"))
