"""`offpolicy doctor`: environment, columns, costs and fixes in seconds, and a summary without any data."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from offpolicy.cli import main
from offpolicy.workflows import LogSpec, run_doctor
from offpolicy.workflows.doctor import MOST_ROWS, START

SECRET = ("hush", "Zanzibar", "42424", "private")


def frame(n: int) -> pl.DataFrame:
    random = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "hush_age": random.normal(42424.0, 1.0, n),
            "hush_city": random.choice(["Zanzibar", "Oslo"], n),
            "item": random.choice(["private-a", "private-b", "private-c"], n),
            "click": random.integers(0, 2, n),
        }
    )


def printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 0
    return capsys.readouterr().out


def test_the_log_is_taken_as_the_other_commands_take_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame(500).write_parquet(tmp_path / "private.parquet")
    found: dict[str, Any] = json.loads(printed(["doctor", str(tmp_path / "private.parquet"), "--json"], capsys))
    assert found["log"]["columns"] == {
        "item": "action",
        "click": "reward",
        "hush_age": "numeric",
        "hush_city": "categorical",
    }
    assert (found["log"]["rows"], found["log"]["rows_read"], found["log"]["actions"]) == (500, 500, 3)
    assert found["environment"]["versions"]["polars"] == pl.__version__
    assert found["environment"]["extras"]["sklearn"] is True


@pytest.mark.parametrize("form", ["parquet", "csv", "csv.gz", "ndjson"])
def test_of_a_large_log_the_first_rows_are_read_and_all_are_counted(
    tmp_path: Path, form: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr("offpolicy.workflows.doctor.MOST_BYTES", 1000)
    monkeypatch.setattr("offpolicy.workflows.doctor.MOST_ROWS", 1000)
    path = tmp_path / f"log.{form}"
    rows = frame(20_000)
    match form:
        case "parquet":
            rows.write_parquet(path)
        case "ndjson":
            rows.write_ndjson(path)
        case _:
            rows.write_csv(path, compression="gzip" if form.endswith("gz") else "uncompressed")
    log = run_doctor(LogSpec(str(path)))["log"]
    assert log["rows_read"] == 1000 + (form == "ndjson")
    assert log["rows"] == pytest.approx(20_000, rel=0 if form == "parquet" else 0.25)
    assert MOST_ROWS > 1000


def test_costs_grow_with_rows_and_actions(tmp_path: Path) -> None:
    costs = []
    for n, items in ((1_000, 2), (1_000, 50), (4_000, 50)):
        frame(n).with_columns(item=pl.int_range(n) % items).write_parquet(tmp_path / "log.parquet")
        costs.append(run_doctor(LogSpec(str(tmp_path / "log.parquet")))["log"]["costs"]["evaluate_seconds"])
    assert costs == sorted(costs)
    assert costs[2] - START == pytest.approx(4 * (costs[1] - START), abs=3)


def test_problems_come_with_the_options_that_fix_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = frame(300).with_columns(
        click=pl.col("click") * 3, hush_age=pl.Series([None] + [1.5, 2.5, 3.5] * 100)[:300]
    )
    broken.write_csv(tmp_path / "log.csv")
    shown = printed(["doctor", str(tmp_path / "log.csv")], capsys)
    assert "--missing hush_age=indicator --reward-range 0,3" in shown or (
        "--reward-range 0,3" in shown and "--missing" in shown
    )
    assert "problems: 2, fixed by --missing, --reward-range" in shown


def test_a_log_that_cannot_be_read_is_part_of_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hush.csv").write_text("hush_a,hush_b\nZanzibar,42424\n")
    shown = printed(["doctor", str(tmp_path / "hush.csv")], capsys)
    assert "has no column whose name suggests the action. Name it with --action" in shown
    summary = run_doctor(LogSpec(str(tmp_path / "hush.csv")))["summary"]
    assert "cannot be read (raised in roles.py:" in summary
    assert not any(word in summary for word in SECRET)


@pytest.mark.parametrize("reward", [1, 3])
def test_the_summary_holds_no_name_no_value_and_no_path(tmp_path: Path, reward: int) -> None:
    rows = frame(400).with_columns(click=pl.col("click") * reward)
    rows.write_parquet(tmp_path / "private.parquet")
    summary = run_doctor(LogSpec(str(tmp_path / "private.parquet")))["summary"]
    assert "400 rows" in summary
    assert "1 action, 1 reward, 1 numeric, 1 categorical" in summary
    words = (*SECRET, *rows.columns, str(tmp_path), "Oslo", "click")
    assert not [word for word in words if word in summary]


HOSTILE = ("[bold]hush[/bold]", "hush\n- injected", "\x1b[31mhush", "<script>hush</script>", "hush`${HOME}`")


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_out_of_the_summary_and_off_the_terminal(
    tmp_path: Path, name: str, broken: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = frame(200).rename({"hush_age": name, "hush_city": "numeric"})
    rows = rows.with_columns(item=pl.lit(name) + pl.col("item"), numeric=pl.lit(name) + pl.col("numeric"))
    if broken:
        rows = rows.with_columns(pl.Series(name, [float("nan"), *[1.0] * 199]), click=pl.lit(name))
    folder = tmp_path / "hush <b>"
    folder.mkdir()
    rows.write_parquet(folder / "hush.parquet")
    shown = printed(["doctor", str(folder / "hush.parquet"), "--action", "item", "--reward", "click"], capsys)
    assert "\x1b[31m" not in shown
    summary = run_doctor(LogSpec(str(folder / "hush.parquet"), action="item", reward="click"))["summary"]
    assert not [word for word in (*SECRET, "injected", "script", "HOME", "\x1b", "[bold]") if word in summary]
    assert all(line.startswith("- ") for line in summary.splitlines())
    assert ("cannot be read" in summary or "problems: 2" in summary) is broken


def test_without_a_log_it_tells_of_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(["doctor"], capsys)
    assert "Environment" in shown
    assert "The log" not in shown
