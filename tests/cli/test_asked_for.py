"""`offpolicy evaluate` with segments, guarantee, groups and sensitivity: as in Python, in text, JSON and report."""

from pathlib import Path

import polars as pl
import pytest

from offpolicy import evaluate, read_log
from offpolicy.report.html import render_report
from small_log import ACTIONS, a_frame, refused, run

COLUMNS = ("--context", "segment", "--context", "age", "--action", "item", "--reward", "click", "--cluster", "user")
ASKED = (*COLUMNS, "--policy", "uniform", "--logging-model", "linear", "--no-propensity-models")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("asked")
    a_frame(400).write_parquet(made / "log.parquet")
    pl.DataFrame({"item": ACTIONS, "drink": ["hot", "hot", "cold", "cold"]}).write_csv(made / "actions.csv")
    return made


def test_segments_are_those_of_the_library(folder: Path) -> None:
    found = run("evaluate", folder / "log.parquet", *ASKED, "--by", "segment", "--json").json
    log = read_log(folder / "log.parquet", context=["segment", "age"], action="item", reward="click", cluster="user")
    own = evaluate(log, {"uniform": "uniform"}, "linear", by="segment")
    names = ("segment", "rows", "value", "difference", "difference_low")
    listed = [[one[name] for name in names] for one in found["evaluation"]["segments"]]
    assert listed == [[getattr(one, name) for name in names] for one in own.segments]
    assert sum(one["rows"] for one in found["evaluation"]["segments"]) == 400
    page = render_report(found)
    assert "<h3>By segment</h3>" in page
    assert all(f'<th scope="row">s{number}</th>' in page for number in range(3))


def test_text_shows_segments_guarantee_and_sensitivity(folder: Path) -> None:
    found = run("evaluate", folder / "log.parquet", *ASKED, "--by", "age", "--guaranteed", "--sensitivity")
    assert found.code == 0, found.err
    assert "By age (95% intervals that hold for all segments at once)" in found.out
    assert "with 95% confidence the value of the policy is at least" in found.out
    assert "If the logger used something these columns do not hold, this number is wrong" in found.out


def test_guarantee_and_sensitivity_are_in_json_and_report(folder: Path) -> None:
    asked = ("evaluate", folder / "log.parquet", *ASKED, "--guaranteed", "--sensitivity", "--json")
    found = run(*asked).json
    policy = found["evaluation"]["policies"]["uniform"]
    ends = policy["propensity_intervals"]["guaranteed"]
    assert ends["low"] <= policy["value"] <= ends["high"]
    assert {one["column"] for one in policy["sensitivity"]["columns"]} == {"segment", "age"}
    page = render_report(found)
    for sentence in (policy["guarantee"], policy["sensitivity"]["sentence"]):
        assert len(sentence) > 50
        assert sentence in page


def test_groups_of_actions_bring_their_estimators(folder: Path) -> None:
    asked = ("evaluate", folder / "log.parquet", *ASKED, "--actions", folder / "actions.csv", "--json")
    found = run(*asked, "--action-groups", "drink").json["evaluation"]["policies"]["uniform"]
    assert {"mips", "offcem"} <= {one["name"] for one in found["estimates"]}
    plain = run(*asked).json["evaluation"]["policies"]["uniform"]
    assert not {"mips", "offcem"} & {one["name"] for one in plain["estimates"]}


@pytest.mark.parametrize("wrong", [("--by", "nowhere"), ("--by", "time"), ("--action-groups", "nowhere")])
def test_unknown_columns_are_refused(folder: Path, wrong: tuple[str, str]) -> None:
    said = refused("evaluate", folder / "log.parquet", *ASKED, *wrong)
    assert wrong[1] in said
