"""Tables, frames, CSV, Markdown and notebooks say what the schema holds, and nothing in them runs."""

import csv
import io
import re
from typing import Any

import pandas as pd
import polars as pl
import pytest

from offpolicy.errors import ParameterError
from offpolicy.results import Evaluation, Results, Table, parse_results, table_of
from report_results import results


def evaluation() -> Evaluation:
    found = parse_results(results(), "here").evaluation
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["polars", "pandas"])
def test_a_frame_holds_what_json_holds(kind: str) -> None:
    found = evaluation()
    frame = found.to_frame(kind=kind)
    assert isinstance(frame, pl.DataFrame if kind == "polars" else pd.DataFrame)
    plain_frame = frame if isinstance(frame, pl.DataFrame) else pl.from_pandas(frame)
    rows: list[dict[str, Any]] = plain_frame.to_dicts()
    plain = found.to_json()
    first = [row for row in rows if row["by"] is None and row["reward"] == "click"]
    assert first[0]["value"] == plain["logging"]["value"]
    for row in first[1:]:
        policy = plain["policies"][row["policy"]]
        assert (row["value"], row["low"], row["high"]) == (
            policy["value"],
            policy["interval"]["low"],
            policy["interval"]["high"],
        )
        (compared,) = [
            c for c in plain["comparisons"] if (c["candidate"], c["reference"]) == (row["policy"], "logging")
        ]
        assert (row["difference"], row["p_value"]) == (compared["difference"], compared["adjusted_p_value"])
        assert row["finding"] == policy["preflight"]["verdict"]["answer"]
    outcomes = [row for row in rows if row["reward"] != "click"]
    assert [(r["reward"], r["policy"], r["difference"], r["finding"]) for r in outcomes] == [
        (o["reward"], o["policy"], o["difference"], o["finding"]) for o in plain["outcomes"] if o["reward"] != "click"
    ]
    parts = [row for row in rows if row["by"] is not None]
    assert [(r["by"], r["segment"], r["rows"], r["difference_high"]) for r in parts] == [
        (s["column"], s["segment"], s["rows"], s["difference_high"]) for s in plain["segments"]
    ]


def test_estimates_comparisons_and_checks_have_their_tables() -> None:
    found = evaluation()
    estimates = found.to_frame("estimates")
    assert estimates.filter(pl.col("estimator").is_not_null()).height == sum(
        len(one.intervals) for policy in found.policies.values() for one in policy.estimates
    )
    assert found.to_frame("comparisons")["difference"].to_list() == [c.difference for c in found.comparisons]
    assert found.to_frame("checks").height == 12
    with pytest.raises(ParameterError, match="values, comparisons, estimates, checks"):
        found.to_frame("nothing")


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "  =1+1", "-5\n"])
def test_no_spreadsheet_runs_a_cell(text: str) -> None:
    written = Table(("policy", "value"), ((text, -0.5),)).to_csv()
    (head, row) = list(csv.reader(io.StringIO(written, newline="")))
    assert head == ["policy", "value"]
    assert row == [f"'{text}".replace("\r", " "), "-0.5"]


def test_csv_reads_back() -> None:
    table = table_of(evaluation())
    frame = pl.read_csv(io.StringIO(table.to_csv()))
    assert frame.columns == list(table.head)
    assert frame["value"].to_list() == pytest.approx([row[table.head.index("value")] for row in table.rows])
    assert "'=cmd|' /C calc'!A0" in frame["segment"].to_list()


def test_markdown_keeps_its_shape_whatever_a_name_holds() -> None:
    table = Table(("policy", "empty", "value"), (("a|b`<i>*", None, 0.123456), ("line\nbreak", None, -1.0)))
    lines = table.to_markdown().splitlines()
    assert len(lines) == 4
    assert lines[0] == "| policy | value |"
    assert lines[1] == "|---|---:|"
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in lines)
    assert "\\<i\\>" in lines[2]


def test_notebooks_show_results_and_escape_names() -> None:
    plain = results()
    plain["evaluation"]["policies"]["<b>x</b>"] = plain["evaluation"]["policies"].pop("greedy")
    found = parse_results(plain, "here")
    assert found.evaluation is not None
    page = found.evaluation._repr_html_()
    assert "&lt;b&gt;x&lt;/b&gt;" in page
    assert "<b>x" not in page
    assert page.count("<tr>") == 1 + len(table_of(found.evaluation).rows)
    assert "Best: uips 0.447 (0.385 to 0.497), answerable." in page


def test_reprs_are_short() -> None:
    found = parse_results(results(), "here")
    assert (
        repr(found.evaluation) == "Evaluation(uips 0.4473, popularity 0.335, greedy 0.41; logging 0.3132; best 'uips')"
    )
    assert repr(evaluation()["uips"]) == "PolicyResult('uips': 0.4473, 0.3853 to 0.4973, answerable)"
    assert len(repr(found)) < 150
    assert isinstance(found, Results)


@pytest.mark.parametrize("what", ["values", "sensitivity", "balance", "calibration"])
def test_plots_are_pictures_that_bring_their_style(what: str, tmp_path: Any) -> None:
    chart = evaluation().plot(what)
    shown = chart._repr_html_()
    assert 'src="data:image/svg+xml;base64,' in shown
    saved = chart.save(tmp_path / "chart.svg").read_text(encoding="utf-8")
    assert saved.startswith("<svg xmlns=")
    assert "--accent" in saved
    import xml.etree.ElementTree as Tree

    Tree.fromstring(saved)
    if what == "values":
        assert "0.447 (0.385 to 0.497)" in saved
    with pytest.raises(ParameterError, match="no chart"):
        evaluation().plot("pie")
    with pytest.raises(ParameterError, match="no policy"):
        evaluation().plot("values", "stranger")
