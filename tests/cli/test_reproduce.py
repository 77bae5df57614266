"""`offpolicy reproduce` end to end on the toy study, and the page of results."""

import json
from pathlib import Path

import pytest

from offpolicy.cli import main
from offpolicy.cli.reproduction_page import NOT_RUN, refreshed_page, section, source_of, taken
from offpolicy.paper.recipe import known_recipes, load_recipe
from offpolicy.paper.reproduce import recipe_folders
from offpolicy.paper.runner import run
from offpolicy.paper.studies import STUDIES
from toy_study import ToyStudy, plan

PAGE = Path(__file__).parents[2] / "docs" / "reproduction.md"
RECIPE = """# offpolicy reproduce toy.toml
title = "Toys"
study = "toy"
columns = ["P@5"]
ours = "better"
[quick]
seeds = 2
trials = 3
"""


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(STUDIES.rows, "toy", ToyStudy)
    path = tmp_path / "toy.toml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


def command(*words: str | Path) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["reproduce", *map(str, words)])
    return int(stopped.value.code or 0)


def test_a_recipe_runs_and_prints_one_object(toys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert command(toys, "--quick", "--out", out, "--workers", "0", "--json") == 0
    files = json.loads(capsys.readouterr().out)["toy"]["files"]
    assert [Path(file).name for file in files] == ["results.jsonl", "toy.md", "toy.tex", "toy.html"]
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert {row["seed"] for row in rows if row["stage"] == "measure"} == {0, 1}
    assert "over 2 seeds" in (out / "toy.md").read_text()


def test_options_may_stand_in_a_file(toys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "options.toml"
    config.write_text(f'seeds = 3\ntrials = 2\nout = "{tmp_path}/there"\nworkers = 0\n')
    assert command(toys, "--config", config) == 0
    assert "over 3 seeds" in (tmp_path / "there" / "toy.md").read_text()
    assert "toy.html" in capsys.readouterr().out


def test_errors_are_one_paragraph(toys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (("no_such",), "There is no recipe"),
        ((), "Name a recipe"),
        ((toys, "--redraw", "some"), "--redraw must be all or policy"),
    ):
        assert command(*words) == 1
        printed = capsys.readouterr().err
        assert said in printed
        assert printed.count("\n") == 1
    command(toys, "--quick", "--out", tmp_path / "out", "--workers", "0")
    assert command(toys, "--quick", "--trials", "9", "--out", tmp_path / "out", "--workers", "0") == 1
    assert "trials = 3, not 9" in capsys.readouterr().err


def test_the_list_names_every_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--list", "--json") == 0
    assert set(json.loads(capsys.readouterr().out)) == set(known_recipes())


def test_a_table_is_made_from_the_results_of_a_recipe_that_lists_it(tmp_path: Path) -> None:
    assert source_of("controls", tmp_path) is None
    assert section(load_recipe("controls"), tmp_path) == NOT_RUN
    run({tmp_path: plan()}, workers=0)
    rows = (tmp_path / "results.jsonl").read_text()
    (tmp_path / "synthetic.jsonl").write_text(rows.replace('"low"', '"\\u03c4 = 1"').replace('"better"', '"uips"'))
    assert source_of("controls", tmp_path) == "synthetic"
    assert "| Better & \\<best> |" in section(load_recipe("controls"), tmp_path)
    assert (
        taken([{"seconds": 90.0}, {"seconds": 120.0}], "toy")
        == "Time: 4 minutes of one core for all lines of `toy`.\n\n"
    )


def test_the_page_is_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert refreshed_page(text, PAGE.parent / "results" / "reproduction") == text, (
        "run python -m offpolicy.cli.reproduction_page"
    )


def test_the_recipes_of_a_set_have_a_folder_each(tmp_path: Path) -> None:
    found = recipe_folders(load_recipe("core"), tmp_path)
    assert {folder.name: recipe.name for folder, recipe in found.items()} == {
        name: name for name in ("coat", "synthetic", "ope")
    }
    assert recipe_folders(load_recipe("coat"), tmp_path) == {tmp_path: load_recipe("coat")}
