"""Every example runs from top to bottom; notebooks are stored without outputs."""

import json
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


def run_notebook(path: Path) -> dict[str, Any]:
    """Run the code of all cells, in order, in one namespace; what it holds in the end."""
    found: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), found)
    return found


def test_there_is_an_example() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    code = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_from_a_log_to_a_decision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = run_notebook(next(path for path in EXAMPLES if path.stem == "from_log_to_decision"))
    interval = found["candidate"].interval
    assert interval.low <= found["truth"] <= interval.high
    assert found["truth"] > found["found"].logging.value
    assert found["candidate"].preflight.verdict.answerable
    assert (tmp_path / "run" / "report.html").stat().st_size > 50_000
    check_shown(found)


class Balanced(HTMLParser):
    """HTML in which every element that is opened is closed; how many of each there are."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: Counter[str] = Counter()
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] += 1
        if tag not in ("br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_shown(names: dict[str, Any]) -> None:
    """What a notebook shows of each object is sound HTML, and frames hold what JSON does."""
    for name in ("log", "beta", "learned", "found"):
        assert Balanced(names[name]._repr_html_()).count["tr"] >= 3, name
        assert len(repr(names[name])) < 400, name
    assert Balanced(names["found"].plot()._repr_html_()).count["img"] == 1
    plain, frame = names["found"].to_json(), names["found"].to_frame()
    for name, policy in plain["policies"].items():
        row = frame.row(by_predicate=pl.col("policy") == name, named=True)
        ends = policy["interval"]
        assert (row["value"], row["low"], row["high"]) == (policy["value"], ends["low"], ends["high"])


def test_the_loop_from_a_log_without_propensities_to_one_with_them(tmp_path: Path) -> None:
    code = EXAMPLES[0].with_name("loop.py")
    found: dict[str, Any] = {"__name__": "loop", "__file__": str(code)}
    exec(compile(code.read_text(encoding="utf-8"), str(code), "exec"), found)
    estimated, first, second = found["main"](tmp_path)
    for one in (estimated, first, second):
        half = (one["high"] - one["low"]) / 2  # of a 95 % interval: one draw may be just outside
        assert abs(one["value"] - one["truth"]) < 1.5 * half, one
    width = {one["round"]: one["high"] - one["low"] for one in (estimated, first, second)}
    assert width[first["round"]] < 0.8 * width[estimated["round"]]  # the same policy, as many rows
    assert first["propensity_part"] < 0.5 * estimated["propensity_part"]
    shown = pl.read_parquet(tmp_path / "old.parquet")["bought"].mean()
    assert isinstance(shown, float)
    for one in (first, second):
        assert one["truth"] > shown + 0.1  # far better than the old system, again and again
