"""Columns beside folders, levels of comparisons, names that look like markup, and how sure the report sounds."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from offpolicy.artifacts import load_policy
from offpolicy.drawing import chance
from offpolicy.log import read_log
from offpolicy.report.html import render_report
from offpolicy.results import by_certainty, parse_results
from offpolicy.workflows.holdout import Holdout
from report_results import comparison, policy, results
from small_log import a_frame, run

COLUMNS = ("--context", "segment", "--context", "age", "--action", "item", "--reward", "click")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("columns")
    a_frame(600).write_parquet(made / "log.parquet")
    found = run(
        "learn", made / "log.parquet", *COLUMNS, "--out", made / "run", "--epochs", "2", "--no-propensity-models"
    )
    assert found.code == 0, found.err
    return made


def test_a_column_beside_a_learned_policy_is_read_on_the_held_out_rows(folder: Path) -> None:
    asked = ("evaluate", folder / "log.parquet", "--policy", folder / "run", "--policy", "better")
    found = run(*asked, "--propensity", "pscore", "--json", "--no-propensity-models").json
    rule = Holdout.from_json((load_policy(folder / "run" / "policy").metadata.model_extra or {})["held_out"])
    assert rule is not None
    log = read_log(folder / "log.parquet", context=["segment", "age"], action="item", reward="click")
    rows = rule.divide(log)[2]
    frame = pl.read_parquet(folder / "log.parquet")[rows.tolist()]
    weight = (frame["better"] / frame["pscore"]).to_numpy()
    expected = float((weight * frame["click"].to_numpy()).sum() / weight.sum())
    estimates = found["evaluation"]["policies"]["better"]["estimates"]
    snips = next(each for each in estimates if each["name"] == "snips")
    assert snips["value"] == pytest.approx(expected, rel=1e-9)
    assert found["log"]["rows"] == len(rows) < 600


def test_comparisons_are_at_the_level_that_was_asked_for(folder: Path) -> None:
    widths = {}
    for level in ("0.8", "0.99"):
        asked = ("evaluate", folder / "log.parquet", *COLUMNS, "--policy", "better", "--compare", "uniform")
        found = run(*asked, "--level", level, "--json", "--no-propensity-models").json["evaluation"]
        assert found["level"] == float(level)
        for one in found["comparisons"]:
            widths[level, one["reference"]] = one["high"] - one["low"]
    for reference in ("logging", "uniform"):
        assert widths["0.99", reference] > 1.5 * widths["0.8", reference]


def test_a_policy_named_like_markup_is_printed_as_it_is(folder: Path) -> None:
    asked = ("evaluate", folder / "log.parquet", *COLUMNS, "--policy", "[red]x=better", "--no-propensity-models")
    said = run(*asked).out
    assert said.count("[red]x") >= 3  # values, differences and verdict


def test_the_report_orders_candidates_by_what_is_certain_and_references_last() -> None:
    plain = results()
    plain["evaluation"]["policies"] = {
        "timid": policy("timid", 0.40),
        "best": policy("best", 0.42),
        "reference": policy("reference", 0.50) | {"reference": True},
        "bold": policy("bold", 0.60) | {"interval": policy("bold", 0.60)["interval"] | {"low": 0.1}},
    }
    plain["evaluation"]["best"] = "best"
    plain["evaluation"]["comparisons"] = [comparison("best", 0.1, 0.97)]
    found = parse_results(plain, "here").evaluation
    assert found is not None
    assert [name for name, _ in by_certainty(found)] == ["best", "timid", "bold", "reference"]


@pytest.mark.parametrize(
    ("probability", "words"), [(0.9999, "> 99 %"), (0.97, "97 %"), (0.5, "50 %"), (0.03, "3 %"), (0.001, "< 1 %")]
)
def test_a_chance_is_said_in_words_that_are_never_certain(probability: float, words: str) -> None:
    assert chance(probability) == words
    plain = results()
    plain["evaluation"]["comparisons"] = [comparison("uips", 0.134, probability)]
    page = render_report(plain)
    assert f"with a {words.replace('>', '&gt;').replace('<', '&lt;')} chance that “uips” is the better one" in page


def test_an_id_cannot_end_the_embedded_script() -> None:
    plain = results()
    plain["risky_actions"][0]["action"] = "</script ><b>x</b><!--"
    page = render_report(plain)
    assert "</script >" not in page
    assert "<b>x</b>" not in page
    assert "<!--" not in page.split('id="results">')[1]
    assert np.char.count(page, "</script>").item() == 2
