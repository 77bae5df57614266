"""Inputs as they come, made by hand: each is read as stated, or refused with the message that says what to do."""

import gzip
import json
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from offpolicy.errors import LogError, OffPolicyError
from offpolicy.log import LoggedData, NumericColumn, read_log
from offpolicy.workflows.log_spec import LogSpec
from offpolicy.workflows.prepare import resolve

N = 12
PLAIN = pl.DataFrame(
    {
        "age": [20.0 + i for i in range(N)],
        "city": ["Rome", "Bonn", "Oslo"] * 4,
        "item": ["a", "b", "b", "a"] * 3,
        "click": [0, 1, 1, 0, 0, 1] * 2,
    }
)
CSV = PLAIN.write_csv()
LINES = PLAIN.write_ndjson()


def with_column(**values: Any) -> pl.DataFrame:
    return PLAIN.with_columns(**{name: pl.Series(name, one, strict=False) for name, one in values.items()})


def at(row: int, value: Any, column: str = "age") -> pl.DataFrame:
    """The plain log with another value in one row, counted from 1."""
    values = PLAIN[column].to_list()
    values[row - 1] = value
    return with_column(**{column: values})


def every(value: Any) -> list[Any]:
    return [value] * N


MISSING_AGE = "column 'age' must hold a number in every row, but row 3 (counted from 1) holds {} (1 of 12 rows, 8.3%)"
MISSING_FIX = "Give --missing age=indicator"
PENDING = "but row 2 (counted from 1) holds {} (1 of 12 rows, 8.3%: feedback not yet in). Give --missing click=drop"

REFUSED: dict[str, tuple[Any, tuple[str, ...]]] = {
    "a missing number": (at(3, None), (MISSING_AGE.format("null"), MISSING_FIX)),
    "not a number": (at(3, float("nan")), (MISSING_AGE.format("nan"), MISSING_FIX)),
    "infinity": (at(3, float("inf")), (MISSING_AGE.format("inf"), MISSING_FIX)),
    "1e308": (at(3, 1e308), (MISSING_AGE.format("1e+308, beyond ±1e+100"), MISSING_FIX)),
    "-1e308": (at(3, -1e308), (MISSING_AGE.format("-1e+308, beyond ±1e+100"), MISSING_FIX)),
    "a pending reward": (at(2, None, "click"), (PENDING.format("null"),)),
    "a reward that is no number": (
        PLAIN.with_columns(click=pl.Series([0.0, float("nan"), *[1.0] * 10])),
        (PENDING.format("nan"),),
    ),
    "no action": (at(2, None, "item"), ("'item' must hold an id in every row", "--missing item=drop")),
    "rewards out of range": (with_column(click=[0.0, 120.5] * 6), ("row 2", "holds 120.5", "--reward-range 0,120.5")),
    "negative rewards": (with_column(click=[0.0, -3.0] * 6), ("holds -3.0", "--reward-range -3,1")),
    "rewards as other words": (
        ("log.csv", with_column(click=["no", "maybe"] * 6).write_csv().encode()),
        ("must hold numbers", "row 2", "'maybe'"),
    ),
    "rewards as words": (with_column(click=["no", "yes"] * 6), ("must hold numbers", "Convert")),
    "no reward at all": (with_column(click=[None] * N), ("'click' holds no reward at all",)),
    "one action only": (with_column(item=every("a")), ("single action, 'a'",)),
    "actions as fractions": (with_column(item=[0.5, 1.5] * 6), ("'item' must hold ids", "holds 0.5")),
    "vectors of two lengths": (
        with_column(age=[[1.0, 2.0]] * 11 + [[1.0]]),
        ("vectors of one length (the first has 2)", "row 12"),
    ),
    "a missing vector": (
        with_column(age=[[1.0, 2.0]] * 11 + [None]),
        ("'age' must hold a vector of numbers in every row, but row 12", "--missing age=indicator"),
    ),
    "a vector with a hole": (
        with_column(age=[[1.0, 2.0]] * 11 + [[1.0, None]]),
        ("row 12 (counted from 1) holds [1.0, None] (1 of 12", "--missing age=indicator"),
    ),
    "lists of lists": (with_column(age=[[[1], [2]]] * N), ("holds List(List(Int64))", "--exclude age")),
    "bytes": (with_column(age=[b"x"] * N), ("holds Binary", "--exclude age")),
    "objects": (with_column(age=[{"a": 1}] * N), ("holds Struct", "--exclude age")),
    "three problems at once": (
        at(3, None).with_columns(click=pl.Series([None, *[2.0] * 11]), item=pl.Series(["a", None, *["b"] * 10])),
        (
            "has 3 problems.",
            "1. column 'item'",
            "2. column 'click' must hold rewards in [0, 1]",
            "3. column 'age'",
            "All at once: --missing item=drop --reward-range 0,2 --missing age=indicator",
        ),
    ),
    "an empty frame": (PLAIN.head(0), ("holds no rows",)),
    "an empty file": (("log.csv", b""), ("log.csv is empty",)),
    "0 bytes of Parquet": (("log.parquet", b""), ("empty (0 bytes)",)),
    "0 bytes of NDJSON": (("log.ndjson", b""), ("it holds no rows",)),
    "0 bytes of nothing known": (("log.dat", b""), ("is empty",)),
    "a header alone": (("log.csv", CSV.splitlines()[0].encode()), ("holds no rows",)),
    "CSV called Parquet": (("log.parquet", CSV.encode()), ("is not a Parquet file: it begins with",)),
    "half a Parquet file": (("log.parquet", b"PAR1" + b"\0" * 40), ("is truncated",)),
    "a spreadsheet": (("log.xlsx", b"PK\x03\x04\0\0"), ("binary but not Parquet",)),
    "200,000 brackets": (("log.ndjson", b"[" * 200_000), ("row 1 (counted from 1) holds '[[[[", "not a JSON object")),
    "a nested value": (("log.ndjson", LINES.encode() + b'{"age":' + b"[" * 200_000), ("row 13 (counted from 1)",)),
    "a JSON array": (("log.ndjson", json.dumps(PLAIN.to_dicts()).encode()), ("not a JSON object",)),
    "half a line of JSON": (("log.ndjson", (LINES + '{"age": 3').encode()), ("row 13 (counted from 1) holds",)),
    "numbers and words in JSON": (
        ("log.ndjson", LINES.replace("23.0", '"old"').encode()),
        ("column 'age'", "row 4 (counted from 1) holds"),
    ),
    "an open quotation": (("log.csv", CSV.replace("Bonn", '"Bonn', 1).encode()), ("log.csv cannot be read as CSV",)),
    "fields too many": (
        ("log.csv", CSV.replace("Bonn", "Bonn,1,2", 1).encode()),
        ("row 2 (counted from 1; line 3) has 6 fields and the header 4",),
    ),
    "a word among numbers": (
        ("log.csv", CSV.replace("22.0", "old").encode()),
        ("mixes numbers with other text", "row 3 (counted from 1; line 4) holds 'old'"),
    ),
    "an empty field": (
        ("log.csv", CSV.replace("22.0", "").encode()),
        ("row 3 (counted from 1; line 4) holds null", MISSING_FIX),
    ),
    "the same name twice": (("log.csv", CSV.replace("age", "city", 1).encode()), ("'city' more than once",)),
    "a broken gzip": (("log.csv.gz", gzip.compress(CSV.encode())[:-9]), ("log.csv.gz cannot be read as CSV",)),
    "a column misspelt": (PLAIN.rename({"age": "Age"}), ("no column 'age'", "Did you mean 'Age'?")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_message_that_helps(tmp_path: Path, name: str) -> None:
    given, said = REFUSED[name]
    source: Any = given
    if isinstance(given, tuple):
        source = tmp_path / given[0]
        source.write_bytes(given[1])
    with pytest.raises(OffPolicyError) as caught:
        read_log(source, context=["age", "city"], action="item", reward="click")
    error = caught.value
    message = error.typed() if isinstance(error, LogError) else str(error)
    for part in said:
        assert part in message
    assert "Traceback" not in message


def ages(log: LoggedData) -> list[float]:
    column = log.contexts["age"]
    assert isinstance(column, NumericColumn)
    return [float(one) for one in column.values[log.context_index]]


def levels(log: LoggedData, column: str) -> list[Any]:
    one = log.contexts[column]
    return one.vocabulary.decode(one.codes[log.context_index])  # type: ignore[union-attr]


DAYS = [date(2026, 1, 1) + timedelta(days=i) for i in range(N)]  # the first is a Thursday
READ: dict[str, tuple[Any, dict[str, Any], Callable[[LoggedData], Any], Any]] = {
    "missing, dropped": (at(3, None), {"missing": "drop"}, ages, [20.0, 21.0, *(23.0 + i for i in range(9))]),
    "missing, as zero": (at(3, None), {"missing": "zero"}, lambda log: ages(log)[2], 0.0),
    "missing, flagged": (
        at(3, None),
        {"missing": "indicator"},
        lambda log: levels(log, "age:missing").index("missing"),
        2,
    ),
    "1e308, as zero": (at(3, 1e308), {"missing": {"age": "zero"}}, lambda log: ages(log)[2], 0.0),
    "pending, dropped": (at(2, None, "click"), {"missing": {"click": "drop"}}, lambda log: log.n_rows, 11),
    "pending, as zero": (at(2, None, "click"), {"missing": {"click": "zero"}}, lambda log: log.reward[1], 0.0),
    "two holes in one row": (
        at(3, None).with_columns(click=pl.Series([0, 1, None, *[1] * 9])),
        {"missing": "drop"},
        lambda log: log.n_rows,
        11,
    ),
    "null is a city": (at(3, None, "city"), {}, lambda log: levels(log, "city")[2], None),
    "null is no city": (at(3, None, "city"), {"missing": {"city": "drop"}}, lambda log: log.n_rows, 11),
    "decimals": (with_column(age=[Decimal("1.25")] * N), {}, lambda log: set(ages(log)), {1.25}),
    "booleans": (with_column(age=[True, False] * 6), {}, lambda log: levels(log, "age")[:2], [True, False]),
    "booleans in CSV": (
        ("log.csv", with_column(age=[True, False] * 6).write_csv().encode()),
        {},
        lambda log: levels(log, "age")[:2],
        [True, False],
    ),
    "booleans as pandas writes them": (
        ("log.csv", with_column(age=["True", None, "False"] * 4).write_csv().encode()),
        {},
        lambda log: levels(log, "age")[:3],
        [True, None, False],
    ),
    "rewards as pandas writes them": (
        ("log.csv", with_column(click=["True", "False", None] * 4).write_csv().encode()),
        {"missing": {"click": "drop"}},
        lambda log: log.reward.tolist(),
        [1.0, 0.0] * 4,
    ),
    "rewards as PostgreSQL writes them": (
        ("log.csv", with_column(click=["t", "f"] * 6).write_csv().encode()),
        {},
        lambda log: log.reward.tolist(),
        [1.0, 0.0] * 6,
    ),
    "rewards as people write them": (
        ("log.csv", with_column(click=["Yes", "no "] * 6).write_csv().encode()),
        {},
        lambda log: log.reward.tolist(),
        [1.0, 0.0] * 6,
    ),
    "true among other words": (
        with_column(city=["true", "false", "perhaps"] * 4),
        {},
        lambda log: levels(log, "city")[:3],
        ["true", "false", "perhaps"],
    ),
    "enums": (
        PLAIN.with_columns(pl.col("city").cast(pl.Enum(["Bonn", "Oslo", "Rome"]))),
        {},
        lambda log: levels(log, "city")[:2],
        ["Rome", "Bonn"],
    ),
    "dates": (with_column(age=DAYS), {}, lambda log: levels(log, "age:weekday")[:3], ["Thu", "Fri", "Sat"]),
    "dates as days": (
        with_column(age=DAYS).rename({"age": "age:days"}).rename({"age:days": "age"}),
        {"context": ["age:days"]},
        lambda log: np.diff(np.asarray(log.contexts["age:days"].values)).tolist(),  # type: ignore[union-attr]
        [1.0] * 11,
    ),
    "dates with times": (
        with_column(age=[datetime(2026, 1, 1, 7 + i) for i in range(N)]),
        {},
        lambda log: levels(log, "age:hour")[:2],
        ["07h", "08h"],
    ),
    "times of day": (with_column(age=[time(9, 30)] * N), {}, lambda log: set(levels(log, "age:hour")), {"09h"}),
    "durations": (with_column(age=[timedelta(seconds=90)] * N), {}, lambda log: set(ages(log)), {90.0}),
    "dates in CSV": (
        ("log.csv", with_column(age=DAYS).write_csv().encode()),
        {},
        lambda log: levels(log, "age:weekday")[0],
        "Thu",
    ),
    "dates of a zone": (
        with_column(age=[f"2026-01-0{1 + i % 3}T0{i % 10}:30:00Z" for i in range(N)]),
        {},
        lambda log: levels(log, "age:hour")[:3],
        ["00h", "01h", "02h"],
    ),
    "a missing vector, as zero": (
        with_column(age=[[1.0, 2.0]] * 11 + [None]),
        {"missing": "zero"},
        lambda log: log.contexts["age"].values[log.context_index[11]].tolist(),  # type: ignore[union-attr]
        [0.0, 0.0],
    ),
    "Windows lines": (("log.csv", CSV.replace("\n", "\r\n").encode()), {}, lambda log: log.n_rows, N),
    "a byte-order mark": (("log.csv", b"\xef\xbb\xbf" + CSV.encode()), {}, lambda log: log.n_rows, N),
    "semicolons": (("log.csv", CSV.replace(",", ";").encode()), {}, lambda log: log.n_rows, N),
    "empty lines at the end": (("log.csv", (CSV + "\n\n").encode()), {}, lambda log: log.n_rows, N),
    "ids spelt with zeros": (
        with_column(city=["007", "07", "7"] * 4),
        {},
        lambda log: levels(log, "city")[:3],
        ["007", "07", "7"],
    ),
}


@pytest.mark.parametrize("name", READ)
def test_read_as_stated(tmp_path: Path, name: str) -> None:
    given, options, look, expected = READ[name]
    source: Any = given
    if isinstance(given, tuple):
        source = tmp_path / given[0]
        source.write_bytes(given[1])
    log = read_log(source, **{"context": ["age", "city"], "action": "item", "reward": "click", **options})
    assert look(log) == expected


def test_there_are_sixty_of_them() -> None:
    assert len(REFUSED) + len(READ) >= 60


def resolved(tmp_path: Path, frame: pl.DataFrame, **given: Any) -> LogSpec:
    path = tmp_path / "log.parquet"
    frame.write_parquet(path)
    return resolve(LogSpec(str(path), **given))


def a_shop(rows: int = 3000) -> pl.DataFrame:
    random = np.random.default_rng(0)
    item, click = random.integers(0, 20, rows), random.random(rows) < 0.2
    start = np.datetime64("2026-09-01T00:00:00", "ms") + 1000 * random.integers(0, 10**6, rows).astype(
        "timedelta64[ms]"
    )
    return pl.DataFrame(
        {
            "row_id": np.arange(rows),
            "token": [f"{i * 7919 % 10007:08x}" for i in range(rows)],
            "event_time": start,
            "country": random.choice(["at", "fr", "jp"], rows),
            "item_id": item,
            "item_name": [f"the item {i}" for i in item],
            "price": (item % 7) * 1.5,
            "click": click.astype(np.int64),
            "purchased": (click & (random.random(rows) < 0.5)).astype(np.int64),
            "seconds_on_page": np.where(click, random.gamma(2, 10, rows).round(1), 0.0),
            "answered_at": pl.Series(start + np.timedelta64(9000, "ms")).scatter(np.flatnonzero(~click), None),
            "unused": pl.Series([None] * rows, dtype=pl.Float64),
            "pscore_old": random.random(rows),
        }
    )


def test_columns_that_came_after_or_describe_the_item_are_not_context(tmp_path: Path) -> None:
    found = resolved(tmp_path, a_shop())
    assert found.context == ("country",)
    said = "\n".join(found.notes)
    for column, why in {
        "row_id": "a row number",
        "token": "an id: 3,000 different values",
        "item_name": "describes the action",
        "price": "describes the action",
        "purchased": "looks like an outcome",
        "seconds_on_page": "predicts the reward almost perfectly",
        "answered_at": "a time after the decision",
        "unused": "holds no value",
        "pscore_old": "looks like a probability",
    }.items():
        assert any(line.startswith(f"left out: {column} (") and why in line for line in said.splitlines()), column


def test_what_is_named_is_taken_and_its_leaks_are_told(tmp_path: Path) -> None:
    found = resolved(tmp_path, a_shop(), context=("country", "seconds_on_page", "price"))
    assert found.context == ("country", "seconds_on_page", "price")
    told = [note for note in found.notes if note.startswith("context ")]
    assert len(told) == 2
    assert "context seconds_on_page: it predicts the reward almost perfectly" in told[0]
    assert "context price: it describes the action" in told[1]


def test_a_column_that_a_deterministic_logger_looked_at_stays_and_is_named(tmp_path: Path) -> None:
    frame = a_shop().with_columns(item_id=pl.col("country").replace_strict({"at": 1, "fr": 2, "jp": 1}))
    frame = frame.select("country", "item_id", "click")
    found = resolved(tmp_path, frame)
    assert found.context == ("country",)
    assert any("country: it gives the action away" in note for note in found.notes)


def test_excluded_columns_are_neither_context_nor_a_role(tmp_path: Path) -> None:
    frame = a_shop().with_columns(age=pl.lit(3.0))
    found = resolved(tmp_path, frame, exclude=("country", "click"), reward="purchased")
    assert found.context == ("seconds_on_page", "age")  # which no longer gives the reward away
    with pytest.raises(LogError, match=r"--exclude: .* no column 'contry'. Did you mean 'country'"):
        resolved(tmp_path, frame, exclude=("contry",))


def test_dropped_rows_are_counted_in_the_rows_of_the_source(tmp_path: Path) -> None:
    frame = at(3, None).with_columns(click=pl.Series([0, 1, 1, None, *[1] * 8]))
    read = resolved(tmp_path, frame, missing={"*": "drop"}).read()
    assert read.rows is not None
    assert read.rows.tolist() == [0, 1, *range(4, N)]
    assert read.notes == (
        "click: missing in 1 of 12 rows (8.3%), these rows are left out (feedback not yet in)",
        "age: missing in 1 of 12 rows (8.3%), these rows are left out",
    )


@pytest.mark.parametrize("how", ["zero", "indicator"])
def test_flags_and_fillings_equal_those_made_by_hand(how: str) -> None:
    frame = at(3, None).with_columns(age=pl.Series([None, *range(1, 6), None, *range(7, 12)], dtype=pl.Float64))
    log = read_log(frame, context=["age"], action="item", reward="click", missing=how)  # type: ignore[arg-type]
    by_hand = frame.with_columns(
        pl.col("age").fill_null(0.0),
        **{"age:missing": pl.when(pl.col("age").is_null()).then(pl.lit("missing")).otherwise(pl.lit("present"))},
    )
    columns = ["age", "age:missing"] if how == "indicator" else ["age"]
    assert log == read_log(by_hand, context=columns, action="item", reward="click")


def test_missing_values_of_actions_are_told_with_their_options_and_treated_alike(tmp_path: Path) -> None:
    table = pl.DataFrame({"item": ["a", "b", None], "price": [1.5, None, 2.0], "made": ["2024-01-01", None, None]})
    table.write_csv(tmp_path / "actions.csv")
    frame = pl.DataFrame({"age": [1.0, 2.0] * 6, "item": ["a", "b", "b"] * 4, "click": [0, 1] * 6})
    given = {"context": ["age"], "action": "item", "reward": "click", "actions": tmp_path / "actions.csv"}
    with pytest.raises(LogError) as told:
        read_log(frame, **given)  # type: ignore[arg-type]
    assert [one.typed for one in told.value.fixes or ()] == [
        "--missing item=drop",
        "--missing price=indicator",
        "--missing made=indicator",
    ]
    asked = {"item": "drop", "price": "indicator", "made": "zero"}
    log = read_log(frame, **given, missing=asked)  # type: ignore[arg-type]
    assert log.actions.vocabulary.to_list() == ["a", "b"]
    assert log.actions.features is not None
    assert list(log.actions.features) == ["price", "price:missing", "made:weekday", "made:days"]
    price = log.actions.features["price"]
    assert isinstance(price, NumericColumn)
    assert price.values.tolist() == [1.5, 0.0]


def test_an_action_of_left_out_rows_alone_is_no_stranger(tmp_path: Path) -> None:
    frame = pl.DataFrame({"age": [1.0, 2.0] * 6, "item": [*["a", "b", "b"] * 3, "a", "b", "new"]})
    frame = frame.with_columns(click=pl.Series([0, 1] * 5 + [0, None]))
    log = read_log(frame, context=["age"], action="item", reward="click", actions=["a", "b"], missing="drop")
    assert log.n_rows == 11
    assert log.actions.vocabulary.to_list() == ["a", "b"]
    with pytest.raises(LogError, match="must hold one of the 2 ids in actions, but row 12"):
        read_log(frame, context=["age"], action="item", reward="click", actions=["a", "b"], missing={"click": "zero"})
