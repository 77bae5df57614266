"""Rows that were written twice: counted, named, dropped on request, and never a reason of a verdict by themselves."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from offpolicy import evaluate, read_log
from offpolicy.log import LoggedData
from offpolicy.workflows.inspect import run_inspect
from offpolicy.workflows.log_spec import LogSpec
from small_log import run

N = 600
RANDOM = np.random.default_rng(4)
AGE = RANDOM.normal(size=N).round(6)
FRAME = pl.DataFrame(
    {
        "age": AGE,
        "item": np.where(RANDOM.random(N) < 1 / (1 + np.exp(-AGE)), "a", "b"),
        "click": (RANDOM.random(N) < 0.4).astype(int),
        "user": np.arange(N) // 2,
        "time": np.arange(N),
        "pi": np.full(N, 0.5),
    }
)
ROLES: dict[str, Any] = {"context": ["age"], "action": "item", "reward": "click"}


def repeated(*rows: int) -> pl.DataFrame:
    return pl.concat([FRAME, FRAME[list(rows)]])


def test_duplicates_are_equal_rows_of_one_cluster_at_one_time() -> None:
    frame = repeated(3, 3, 17).with_columns(other=pl.Series(range(N + 3)), late=pl.Series([*range(N), 3, N, 17]))
    expected = np.arange(N + 3) >= N
    assert (read_log(frame, **ROLES).duplicates == expected).all()
    assert (read_log(frame, **ROLES, cluster="user", timestamp="time").duplicates == expected).all()
    assert not read_log(frame, **ROLES, cluster="other").duplicates.any()
    assert read_log(frame, **ROLES, timestamp="late").duplicates.nonzero()[0].tolist() == [N, N + 2]


def test_dropping_gives_the_log_that_was_written_once() -> None:
    once = read_log(FRAME, **ROLES, cluster="user", timestamp="time")
    dropped = read_log(repeated(5, 9, 9), **ROLES, cluster="user", timestamp="time", drop_duplicates=True)
    assert dropped == once


@pytest.mark.parametrize("row", [0, 311])
def test_one_duplicated_row_changes_no_verdict(row: int, tmp_path: Path) -> None:
    logs: list[LoggedData] = [read_log(frame, **ROLES) for frame in (FRAME, repeated(row))]
    verdicts = [evaluate(log, "uniform", "linear", estimators=("snips",))["policy"].preflight.verdict for log in logs]
    assert verdicts[0].answer == "answerable"
    assert verdicts[1] == verdicts[0]
    advice = []
    for number, frame in enumerate((FRAME, repeated(row))):
        path = tmp_path / f"{number}.parquet"
        frame.write_parquet(path)
        found = run_inspect(LogSpec(str(path), context=("age",), action="item", reward="click"))
        assert found["facts"]["duplicates"] == number
        advice.append(found["advice"])
    named = [said for said in advice[1] if said.startswith("1 row is an exact copy of an earlier one")]
    assert len(named) == 1
    assert [said for said in advice[1] if said not in named] == advice[0]


def test_the_command_drops_them_and_says_how_many(tmp_path: Path) -> None:
    repeated(1, 2, 2).sample(fraction=1.0, shuffle=True, seed=1).write_parquet(tmp_path / "log.parquet")
    columns = ("--context", "age", "--action", "item", "--reward", "click", "--logging-model", "linear")
    asked = (tmp_path / "log.parquet", "--policy", "pi", *columns, "--no-propensity-models", "--drop-duplicates")
    found = json.loads(run("evaluate", *asked, "--json").out)
    assert found["log"]["rows"] == N
    assert "Dropped 3 of 603 rows, exact copies of earlier ones." in found["run"]["notes"]
    inspected = run("inspect", tmp_path / "log.parquet", *columns[:6], "--drop-duplicates", "--json").json
    assert inspected["facts"]["duplicates"] == 0
    assert "Dropped 3 of 603 rows, exact copies of earlier ones." in inspected["inferred"]
