"""read_log on bad input: each complaint names file, column, row and value, and says what to do."""

import gzip
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offpolicy.errors import LogError, OffPolicyError, ParameterError
from offpolicy.log import read_log

GOOD = pl.DataFrame(
    {
        "user": [1, 2, 3, 4],
        "age": [0.5, 1.5, 2.5, 3.5],
        "item": ["a", "b", "a", "b"],
        "reward": [0.0, 1.0, 1.0, 0.0],
        "prob": [0.5, 0.5, 0.25, 1.0],
        "group": [1, 1, 2, 2],
        "time": [1, 2, 3, 4],
    }
)
ROLES: dict[str, Any] = {
    "context": ["user", "age"],
    "action": "item",
    "reward": "reward",
    "propensity": "prob",
    "cluster": "group",
    "timestamp": "time",
}


def complaint(source: Any, **changes: Any) -> str:
    """The one-paragraph message that reading this source raises."""
    with pytest.raises(OffPolicyError) as caught:
        read_log(source, **ROLES | changes)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith((".", "?"))
    return message


BAD_VALUES = [
    ("reward", [0.0, 1.0, float("nan"), 0.0], "row 3 (counted from 1) holds nan", "'drop'"),
    ("reward", [0.0, float("inf"), 1.0, 0.0], "row 2 (counted from 1) holds inf", "'drop'"),
    ("reward", [0.0, None, 1.0, 0.0], "row 2 (counted from 1) holds null", "'drop'"),
    ("reward", [0.0, 1.0, 1.0, 4.0], "row 4 (counted from 1) holds 4.0", "reward_range="),
    ("reward", ["0", "1", "1", "0"], "row 1 (counted from 1) holds '0'", "Convert"),
    ("prob", [0.5, 0.0, 0.5, 0.5], "row 2 (counted from 1) holds 0.0", "drop the row"),
    ("prob", [0.5, 1.0, 1.5, 0.5], "row 3 (counted from 1) holds 1.5", "drop the row"),
    ("prob", [0.5, 1.0, None, 0.5], "row 3 (counted from 1) holds null", "'drop'"),
    ("age", [0.5, float("nan"), 1.0, 1.0], "row 2 (counted from 1) holds nan", "indicator"),
    ("age", [0.5, 1.0, 1.0, float("-inf")], "row 4 (counted from 1) holds -inf", "indicator"),
    ("age", [0.5, 1.0, None, 1.0], "row 3 (counted from 1) holds null", "indicator"),
    ("age", [[0.5], [1.0], [0.5, 1.0], [0.5]], "row 3 (counted from 1) holds [0.5, 1.0]", "Fix the vector"),
    ("age", [[0.5], [1.0], None, [0.5]], "row 3 (counted from 1) holds null", "indicator"),
    (
        "age",
        [[0.5], [float("nan")], [0.5], [0.5]],
        "row 2 (counted from 1) holds [nan] (1 of 4 rows, 25.0%)",
        "indicator",
    ),
    ("item", ["a", "b", None, "b"], "row 3 (counted from 1) holds null", "'drop'"),
    ("item", [0.5, 1.0, 2.0, 3.0], "row 1 (counted from 1) holds 0.5", "Convert"),
    ("item", ["a", "a", "a", "a"], "single action, 'a'", "actions="),
    ("group", [1, None, 2, 2], "row 2 (counted from 1) holds null", "'drop'"),
    ("time", [1, 2, None, 4], "row 3 (counted from 1) holds null", "'drop'"),
    ("time", [True, False, True, True], "of type Boolean", "Convert"),
]


@pytest.mark.parametrize(("column", "values", "fact", "remedy"), BAD_VALUES)
def test_bad_values_in_a_frame_and_a_file(
    tmp_path: Path, column: str, values: list[Any], fact: str, remedy: str
) -> None:
    frame = GOOD.with_columns(pl.Series(column, values, strict=False))
    path = tmp_path / "log.parquet"
    frame.write_parquet(path)
    for source, name in ((frame, "the frame"), (path, str(path))):
        message = complaint(source)
        for part in (name, repr(column), fact, remedy):
            assert part in message


def test_the_right_file_of_a_glob_is_named_with_its_own_row(tmp_path: Path) -> None:
    for number, rewards in enumerate(([0.0] * 4, [0.0] * 4, [0.0, 0.0, 7.0, 0.0])):
        GOOD.with_columns(reward=pl.Series(rewards)).write_parquet(tmp_path / f"part-{number}.parquet")
    message = complaint(str(tmp_path / "*.parquet"))
    assert "part-2.parquet" in message
    assert "row 3 (counted from 1) holds 7.0" in message
    GOOD.with_columns(age=pl.Series([1.0, float("nan"), 1.0, 1.0])).write_parquet(tmp_path / "part-1.parquet")
    GOOD.write_parquet(tmp_path / "part-2.parquet")
    message = complaint(str(tmp_path / "*.parquet"))
    assert "part-1.parquet" in message
    assert "row 2 (counted from 1) holds nan" in message


def test_files_that_disagree_are_named(tmp_path: Path) -> None:
    first, second = tmp_path / "a.parquet", tmp_path / "b.parquet"
    GOOD.write_parquet(first)
    GOOD.with_columns(pl.col("user").cast(pl.String)).write_parquet(second)
    message = complaint([first, second])
    assert str(second) in message
    assert "'user' is of type String" in message
    GOOD.drop("age").write_parquet(second)
    assert f"{second} has no column 'age'" in complaint([first, second])
    GOOD.write_csv(tmp_path / "c.csv")
    assert "c.csv is CSV" in complaint([first, tmp_path / "c.csv"])


def test_a_missing_column_gets_a_suggestion() -> None:
    message = complaint(GOOD, reward="rewrad")
    assert "no column 'rewrad'" in message
    assert "Did you mean 'reward'?" in message
    assert "user, age, item, reward, prob, group, time" in message
    assert "Did you mean 'age'?" in complaint(GOOD.lazy(), context=["Age"])


def test_duplicate_columns(tmp_path: Path) -> None:
    twice = pd.concat([GOOD.to_pandas(), GOOD.to_pandas()[["age"]]], axis=1)
    assert "the column 'age' more than once" in complaint(twice)
    table = pa.Table.from_arrays([*GOOD.to_arrow().columns, pa.array([1, 2, 3, 4])], [*GOOD.columns, "age"])
    assert "the column 'age' more than once" in complaint(table)
    pq.write_table(table, tmp_path / "log.parquet")
    message = complaint(tmp_path / "log.parquet")
    assert "log.parquet" in message
    assert "two columns of one name" in message
    (tmp_path / "log.csv").write_text("user,age,age,item,reward\n1,2,3,a,0\n")
    message = complaint(tmp_path / "log.csv")
    assert "log.csv" in message
    assert "'age' more than once" in message


def test_one_column_cannot_play_two_roles() -> None:
    with pytest.raises(ParameterError, match="'reward' cannot be both reward and context"):
        read_log(GOOD, **ROLES | {"context": ["user", "reward"]})


def test_empty_logs(tmp_path: Path) -> None:
    assert "the frame holds no rows" in complaint(GOOD.head(0))
    for name, text in (("h.csv", "user,age,item,reward,prob,group,time\n"), ("e.csv", ""), ("e.ndjson", "")):
        path = tmp_path / name
        path.write_text(text)
        message = complaint(path)
        assert str(path) in message
        assert "no rows" in message or "empty" in message


def test_broken_parquet_files(tmp_path: Path) -> None:
    whole = tmp_path / "whole.parquet"
    pl.concat([GOOD] * 1000).write_parquet(whole)
    data = whole.read_bytes()
    broken = tmp_path / "broken.parquet"
    middle = len(data) // 2
    for content, said in (
        (data[:middle], "truncated"),
        (b"user,age\n1,2\n", "not a Parquet file"),
        (b"", "empty"),
        (data[:4] + b"\x00" * (len(data) - 12) + data[-8:], "cannot be read as PARQUET"),
        (data[:40] + b"\xff" * 400 + data[440:], "cannot be read as PARQUET"),
    ):
        broken.write_bytes(content)
        message = complaint(broken)
        assert str(broken) in message
        assert said in message


def test_unreadable_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "No such file" in complaint(tmp_path / "nothing.parquet")
    assert "No file matches" in complaint(str(tmp_path / "*.parquet"))
    assert "is a folder" in complaint(tmp_path)
    assert "is an address" in complaint("https://example.org/log.parquet")
    (tmp_path / "log.xlsx").write_bytes(b"PK\x03\x04\x00\x00")
    assert "binary but not Parquet" in complaint(tmp_path / "log.xlsx")
    (tmp_path / "log.csv.gz").write_bytes(gzip.compress(HEAD.encode() * 99)[:-9])
    assert "log.csv.gz cannot be read as CSV" in complaint(tmp_path / "log.csv.gz")
    assert "list of files is empty" in complaint([])

    def denied(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    message = complaint(tmp_path / "secret.parquet")
    assert "secret.parquet cannot be opened: Permission denied" in message


def test_a_source_of_the_wrong_type() -> None:
    with pytest.raises(ParameterError, match="source must be a path"):
        read_log(42, **ROLES)
    with pytest.raises(ParameterError, match="actions must be a path"):
        read_log(GOOD, **ROLES, actions=3.5)
    with pytest.raises(ParameterError, match="kinds is not valid"):
        read_log(GOOD, **ROLES, kinds="numeric")  # type: ignore[arg-type]
    assert "no column 'user'" in complaint(pd.DataFrame([[1, 2], [3, 4]]))


HEAD = "user,age,item,reward,prob,group,time\n"
LINES = ["1,0.5,a,0,0.5,1,1", "2,1.5,b,1,0.5,1,2", "3,2.5,a,1,0.5,2,3", "4,3.5,b,0,0.5,2,4"]


@pytest.mark.parametrize(
    ("old", "new", "column", "fact"),
    [
        ("3,2.5,a", "3,unknown,a", "age", "row 3 (counted from 1; line 4) holds 'unknown'"),
        ("3,2.5,a", "x3,2.5,a", "user", "row 3 (counted from 1; line 4) holds 'x3'"),
        ("3,2.5,a", "3,,a", "age", "row 3 (counted from 1; line 4) holds null"),
        ("3,2.5,a", "3,nan,a", "age", "row 3 (counted from 1; line 4) holds nan"),
        ("3,2.5,a,1", "3,2.5,a,yes", "reward", "row 3 (counted from 1; line 4) holds 'yes'"),
        ("3,2.5,a,1", "3,2.5,a,", "reward", "row 3 (counted from 1; line 4) holds null"),
        ("3,2.5,a,1", "3,2.5,a,2", "reward", "row 3 (counted from 1; line 4) holds 2.0"),
        ("3,2.5,a,1,0.5", "3,2.5,a,1,0", "prob", "row 3 (counted from 1; line 4) holds 0.0"),
        ("3,2.5,a,1,0.5,2,3", "3,2.5,a,1,0.5,2,soon", "time", "row 3 (counted from 1; line 4) holds 'soon'"),
        ("3,2.5,a,1,0.5,2,3", "3,2.5,a,1,0.5,two,3", "group", "row 3 (counted from 1; line 4) holds 'two'"),
        ("3,2.5,a", "3,2.5,", "item", "row 3 (counted from 1; line 4) holds null"),
    ],
)
def test_bad_values_in_csv_are_named_with_their_line(
    tmp_path: Path, old: str, new: str, column: str, fact: str
) -> None:
    text = HEAD + "\n".join(LINES).replace(old, new) + "\n"
    plain, packed = tmp_path / "log.csv", tmp_path / "log.csv.gz"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    for path in (plain, packed):
        message = complaint(path)
        for part in (str(path), repr(column), fact):
            assert part in message


def test_line_numbers_count_quoted_line_breaks(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text('city,item,reward\n"New\nYork",1,0\n"Los\nAngeles",2,1\nRome,1,9\n')
    message = complaint(path, context=["city"], propensity=None, cluster=None, timestamp=None)
    assert "row 3 (counted from 1; line 6) holds 9.0" in message


def test_a_mixed_csv_column_says_how_to_mend_it(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(HEAD + "\n".join(LINES).replace("2,1.5", "two,1.5"))
    message = complaint(path)
    assert "mixes numbers with other text" in message
    assert "kinds={'user': 'categorical'}" in message
    assert read_log(path, **ROLES, kinds={"user": "categorical"}).n_rows == 4


def test_broken_csv_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(HEAD + LINES[0] + "\n" + LINES[1] + ",9,9\n" + LINES[2] + "\n")
    message = complaint(path)
    assert str(path) in message
    assert "row 2 (counted from 1; line 3) has 9 fields and the header 7" in message
    path.write_bytes((HEAD + LINES[0].replace("a", "é") + "\n" + LINES[1]).encode("latin-1"))
    assert f"{path} is not UTF-8: line 2 holds the byte 0xe9" in complaint(path)
    path.write_bytes(gzip.compress((HEAD + "\n".join(LINES)).encode())[:-20])
    assert "log.csv" in complaint(path)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (['{"u":1,"item":1,"reward":0}', '{"u":"x","item":2,"reward":1}'], "column 'u' mixes numbers with strings"),
        (['{"u":"1","item":1,"reward":0}', '{"u":2,"item":2,"reward":1}'], "row 2 (counted from 1) holds 2"),
        (['{"u":1,"item":1,"reward":0}', '{"u":2,"item":2,'], "row 2 (counted from 1) holds"),
        (['{"u":1,"item":1,"reward":0}', "[1]"], "row 2 (counted from 1) holds [1]"),
        (['{"u":1,"item":1,"reward":0}', '{"u":{"x":1},"item":2,"reward":1}'], "row 2 (counted from 1) holds"),
        (['{"u":1,"item":1,"reward":0}', '{"u":2,"item":2}'], "row 2 (counted from 1) holds null"),
        (['{"u":1,"item":1,"reward":0}', '{"u":2,"item":2,"reward":1.5}'], "row 2 (counted from 1) holds 1.5"),
    ],
)
def test_bad_ndjson(tmp_path: Path, lines: list[str], said: str) -> None:
    path = tmp_path / "log.ndjson"
    path.write_text("\n".join(lines))
    message = complaint(path, context=["u"], propensity=None, cluster=None, timestamp=None)
    assert str(path) in message
    assert said in message


def test_mixed_objects_in_pandas() -> None:
    frame = GOOD.to_pandas()
    frame["user"] = [1, 2, "x", 4]
    message = complaint(frame)
    assert "the frame: column 'user' mixes types" in message
    assert "row 3 (counted from 1) holds 'x'" in message


def test_wrong_kinds() -> None:
    assert "'user' must hold vectors" in complaint(GOOD, kinds={"user": "embedding"})
    assert "'user' must hold bags" in complaint(GOOD, kinds={"user": "bag"})
    assert "row 1 (counted from 1) holds 0.5" in complaint(GOOD, kinds={"age": "categorical"})
    assert "Declare it categorical" in complaint(GOOD, kinds={"item": "numeric"})
    words = GOOD.with_columns(age=pl.Series(["1", "2", "three", "4"]))
    assert "row 3 (counted from 1) holds 'three'" in complaint(words, kinds={"age": "numeric"})
    vectors = GOOD.with_columns(age=pl.Series(["1 2", "2 3", "3 x", "4 5"]))
    assert "row 3 (counted from 1) holds '3 x'" in complaint(vectors, kinds={"age": "embedding"})
    spans = GOOD.with_columns(age=pl.Series([b"1", b"2", b"3", b"4"]))
    assert "column 'age' holds Binary" in complaint(spans)


def test_actions_that_do_not_fit(tmp_path: Path) -> None:
    message = complaint(GOOD, actions=["a", "c"])
    assert "'item' must hold one of the 2 ids in actions" in message
    assert "row 2 (counted from 1) holds 'b'" in message
    assert "at least two actions" in complaint(GOOD, actions=["a"])
    table = tmp_path / "items.csv"
    table.write_text("item,price\na,1.5\nb,2.5\na,3.5\n")
    message = complaint(GOOD, actions=table)
    assert str(table) in message
    assert "row 3 (counted from 1; line 4) holds 'a'" in message
    table.write_text("id,price\na,1.5\n")
    assert "no column 'item'" in complaint(GOOD, actions=table)
    table.write_text("item,price\na,1.5\nb,\n")
    assert "row 2 (counted from 1; line 3) holds null" in complaint(GOOD, actions=table)


def test_a_broken_lazy_frame_is_reported() -> None:
    with pytest.raises(LogError, match="cannot be evaluated"):
        read_log(GOOD.lazy().with_columns(pl.col("nothing")), **ROLES)


def test_timestamps_that_are_no_dates(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    GOOD.with_columns(time=pl.Series(["soon", "later", "now", "never"])).write_csv(path)
    message = complaint(path)
    assert "'time' must hold timestamps" in message
    assert "holds 'soon'" in message
