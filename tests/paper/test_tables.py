"""Tables say what the rows say, beside the paper's numbers, and are safe in every format."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from offpolicy.cli.reproduce import page
from offpolicy.paper.formats import html, latex, markdown, tex
from offpolicy.paper.json_lines import read_rows
from offpolicy.paper.output import RESULTS, write_tables
from offpolicy.paper.recipe import Recipe
from offpolicy.paper.runner import run
from offpolicy.paper.statistics import Column, compared
from offpolicy.paper.tables import PAPER, Table, make_table, number, paper_numbers, signed
from toy_study import RECIPE, plan


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    run({folder: plan()}, workers=0)
    return folder


def table_of(folder: Path, recipe: Recipe = RECIPE) -> Table:
    return make_table(recipe, read_rows(folder / RESULTS))


def test_cells_hold_the_mean_and_spread_of_the_rows(folder: Path) -> None:
    table = table_of(folder)
    assert table.groups == (("low", ("P@5", "NDCG@5")), ("high", ("P@5", "NDCG@5")))
    cells = dict(table.lines)
    noise = [0.01 * ((seed * 7 + len("plain")) % 5) for seed in range(3)]
    mean = 0.5 + sum(noise) / 3
    deviation = (sum((one - sum(noise) / 3) ** 2 for one in noise) / 2) ** 0.5
    assert cells["Plain"][0].text == f"{mean:.4f} ± {deviation:.1g}"
    assert cells["Plain"][3].text.startswith(f"{(mean + 1) / 2:.4f} ±")


def test_marks_skip_what_stands_aside(folder: Path) -> None:
    marks = {label: [cell.mark for cell in cells] for label, cells in table_of(folder).lines}
    assert marks == {
        "Truth": [""] * 4,
        "Plain": [""] * 4,
        "Better & <best>": ["best"] * 4,
        "Nothing_to tune": ["second"] * 4,
    }
    worst = table_of(folder, replace(RECIPE, better="lower"))
    assert dict(worst.lines)["Plain"][0].mark == "best"


def test_tests_are_against_the_best_baseline_with_holm_over_columns(folder: Path) -> None:
    rows = read_rows(folder / RESULTS)
    columns = []
    for part in ("low", "high"):
        for metric in RECIPE.columns:
            values: dict[str, dict[int, float]] = {}
            for row in rows:
                if row["stage"] == "measure" and row["part"] == part:
                    values.setdefault(row["line"], {})[row["seed"]] = row["found"][0][metric]
            columns.append(Column(values, {}))
    expected = compared(columns, "better", ["plain", "fixed"])
    tests = dict(table_of(folder).tests)
    label = "Better & <best>"
    for title, field in (("p, paired", "paired"), ("p, paired, Holm", "holm"), ("p, Welch", "welch")):
        shown = [cell.text for cell in tests[f"{label}: {title}"]]
        assert shown == [f"{getattr(one, field):.2g}" for one in expected]
    first = expected[0]
    assert first is not None
    assert tests[f"{label} − best baseline"][0].text == f"{signed(first.difference)} (Nothing_to tune; {first.wins}/3)"


def test_subsets_are_groups_and_missing_numbers_are_dashes(folder: Path) -> None:
    table = table_of(folder, replace(RECIPE, subsets=("rare",), parts={"low": {}}))
    assert table.groups == (("rare", ("P@5", "NDCG@5")),)
    plain = dict(table.lines)["Plain"]
    assert plain[0].text.startswith("-0.4")
    assert plain[1].text == "–"


def test_the_papers_numbers_stand_beside_ours(folder: Path) -> None:
    rows = read_rows(folder / RESULTS)
    for row in rows:
        row["line"] = {"better": "uips", "plain": "ce"}.get(row["line"], row["line"])
        row["part"] = "Coat"
    recipe = replace(RECIPE, paper="real", parts={"Coat": {}}, lines=("ce", "uips"), ours=("uips",), aside=())
    table = make_table(recipe, rows)
    cells = dict(table.lines)
    assert cells["Better & <best>"][0].paper == "0.2877 ± 0.003"
    assert cells["Plain"][1].paper == "0.4529 ± 0.007"
    assert dict(table.tests)["Better & <best>: p, Student"][0].paper == "2e-02"
    assert "0.2877 ± 0.003" in markdown(table)
    assert "0.2877 ± 0.003" in html(table)
    assert r"0.2877 $\pm$ 0.003" in latex(table)


def test_lines_that_do_not_apply_stay_with_the_reason(folder: Path) -> None:
    table = table_of(folder, replace(RECIPE, absent={"IPS-GT": "unknown <truth> & 100 %"}))
    assert "| IPS-GT | *unknown \\<truth> & 100 %* |" in markdown(table)
    assert r"IPS-GT & \multicolumn{4}{l}{\emph{unknown <truth> \& 100 \%}} \\" in latex(table)
    assert "unknown &lt;truth&gt; &amp; 100 %" in html(table)


def test_markdown_has_as_many_cells_in_every_row(folder: Path) -> None:
    lines = [line for line in markdown(table_of(folder)).splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in lines} == {6}
    assert any("**1.7" in line and "<u>" not in line for line in lines)


def test_latex_is_balanced_and_escaped(folder: Path) -> None:
    text = latex(table_of(folder))
    body = text.split(r"\midrule")[1]
    assert all(row.count("&") - row.count(r"\&") == 4 for row in body.splitlines() if row.endswith(r"\\"))
    bare = text.replace(r"\{", "").replace(r"\}", "")
    assert bare.count("{") == bare.count("}")
    assert text.count("$") % 2 == 0
    assert r"Better \& <best>" in text
    assert r"Nothing\_to tune" in text
    assert tex(r"β̂_50% \x{}^~#$ τ") == (
        r"$\hat\beta$\_50\% \textbackslash{}x\{\}\textasciicircum{}\textasciitilde{}\#\$ $\tau$"
    )


class Tags(HTMLParser):
    """Whether tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag not in ("meta", "circle", "line", "rect", "path", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked_page(text: str) -> set[str]:
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert "best" not in tags.seen
    assert not re.search(r'(src|href)="?http', text)
    return tags.seen


def test_the_page_is_whole_and_needs_no_network(folder: Path) -> None:
    files = write_tables(RECIPE, folder, page)
    assert [path.name for path in files] == ["toy.md", "toy.tex", "toy.html"]
    assert "Better &amp; &lt;best&gt;" in files[2].read_text()
    assert "table" in checked_page(files[2].read_text())


def test_figures_are_drawn_from_rows() -> None:
    grid = [
        {"gamma": gamma, "lam": lam, "P@5": gamma * lam * sign / 1000, "seed": seed, "label": label}
        for label, sign in (("one", 1), ("other", -1))
        for gamma in (0.1, 25.0)
        for lam in (1.0, 20.0, 50.0)
        for seed in (0, 1)
    ]
    drawn = page(Recipe("g", "G <1>", study="s", columns=("P@5",), figure="grid"), [], grid)
    checked_page(drawn)
    assert drawn.count("<title>") == 1 + 2 * 6
    assert (
        "<b>one: P@5 by γ and λ.</b> From 0.0001 (palest) to 1.2500 (darkest), the highest at γ = 25, λ = 50" in drawn
    )
    assert "<b>other: P@5 by γ and λ.</b> From -1.2500 (palest) to -0.0001 (darkest), the highest at γ = 0.1" in drawn
    buckets = [
        {"log_frequency": x, "logging_prob": 0.1 * x, "uncertainty": 1 / x, "rows": 10, "actions": 2}
        for x in (0.5, 1.0, 2.5)
    ]
    drawn = page(Recipe("f", "F", study="s", figure="frequency"), [], buckets)
    checked_page(drawn)
    assert drawn.count("<svg") == 2


def test_the_papers_numbers_are_the_printed_ones() -> None:
    document = json.loads(PAPER.read_text(encoding="utf-8"))
    assert set(document) >= {"synthetic", "subsets", "ope_mse", "real", "dr_synthetic", "dr_real", "ipsun_synthetic"}
    assert paper_numbers("synthetic")["uips"]["τ = 0.5"]["NDCG@5"] == [0.6113, 0.003]
    assert paper_numbers("ope_mse")["shrinkage"]["τ = 2"]["MSE"] == [0.2952, 3e-05]
    assert paper_numbers("no such table") == {}


def test_numbers_are_short() -> None:
    assert [number(x) for x in (0.5, 0.0, -12.3, 1e-5, 2e6)] == ["0.5000", "0.0000", "-12.3000", "1.00e-05", "2.00e+06"]
    assert [signed(x) for x in (0.1, -0.1)] == ["+0.1000", "−0.1000"]


def test_the_budget_is_told_where_something_was_tuned(folder: Path) -> None:
    rows = read_rows(folder / RESULTS)
    said = "4 trials per line, the best 2 settings compared again on as many further draws"
    assert any(note.startswith(said) for note in make_table(RECIPE, rows).notes)
    fixed = [row for row in rows if row["line"] == "fixed"]
    assert not any("trials" in note for note in make_table(RECIPE, fixed).notes)
