"""Recipes are read strictly, and every one that comes with the package can be planned."""

from pathlib import Path

import pytest

from offpolicy.errors import ParameterError
from offpolicy.paper.plan import Plan
from offpolicy.paper.recipe import FOLDER, known_recipes, load_recipe
from offpolicy.paper.studies import STUDIES
from toy_study import STUDIES as TOYS

GOOD = 'title = "T"\nstudy = "toy"\ncolumns = ["P@5"]\n'


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_recipe_of_ones_own(tmp_path: Path) -> None:
    text = GOOD + 'ours = "better"\n[quick]\nseeds = 2\n[parts]\n"a" = { lift = 0.5 }\n[absent]\nX = "why"\n'
    recipe = load_recipe(written(tmp_path, text))
    assert (recipe.name, recipe.ours, recipe.seeds) == ("mine", ("better",), 10)
    plan = Plan.of(recipe, TOYS, quick=True)
    assert (plan.seeds, plan.trials, plan.validations) == (2, 50, 2)
    assert Plan.of(recipe, TOYS, seeds=7, quick=True).seeds == 7
    assert plan.arguments("a") == {"data": None, "redraw": "all", "lift": 0.5}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("title =", "not valid TOML"),
        ('study = "toy"', "has no title"),
        (GOOD + "sedes = 3", "Did you mean 'seeds'"),
        (GOOD + "seeds = 0", "'seeds' to a whole number above 0, but it is 0"),
        (GOOD + "seeds = true", "whole number"),
        (GOOD + 'better = "bigger"', "one of 'higher', 'lower'"),
        (GOOD + "lines = [1]", "list of names"),
        (GOOD + "parts = 3", "'parts' to a table"),
        (GOOD + '[parts]\n"a" = 3', "'parts.a' to a table"),
        (GOOD + '[quick]\nseeds = "x"', "'quick.seeds'"),
        ('title = "T"\nstudy = "toy"', "names no columns"),
        ('title = "T"', "either a study or"),
        (GOOD + 'lines = ["plain"]\nours = ["better"]', "'better' apart"),
    ],
)
def test_a_wrong_recipe_is_refused_in_one_paragraph(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ParameterError, match=said) as caught:
        load_recipe(written(tmp_path, text))
    assert "\n\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("toy", "joy"), "study 'joy'"),
        (GOOD + "[arguments]\nlifts = 1", "argument 'lifts', which it does not take"),
        (GOOD + 'lines = ["plane"]', "line 'plane'"),
    ],
)
def test_a_recipe_that_does_not_fit_its_study_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        Plan.of(load_recipe(written(tmp_path, text)), TOYS)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ParameterError, match=r"Did you mean coat\? Recipes: .*synthetic"):
        load_recipe("coats")
    with pytest.raises(ParameterError, match="cannot be read"):
        load_recipe("nowhere.toml")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_the_first_line_is_the_command(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith(f"# offpolicy reproduce {path.stem}")
    recipe = load_recipe(path.stem)
    for other in (*recipe.tables, *recipe.recipes):
        shared = load_recipe(other)
        if other in recipe.tables:
            assert set(shared.lines) <= set(recipe.lines)
            assert shared.parts.items() <= recipe.parts.items()
            assert shared.arguments == recipe.arguments


@pytest.mark.parametrize("name", known_recipes())
def test_every_recipe_fits_its_study(name: str) -> None:
    recipe = load_recipe(name)
    if recipe.study in STUDIES:
        plan = Plan.of(recipe, STUDIES)
        labels = [plan.labels(part) for part in recipe.parts]
        assert all(line in each for each in labels for line in (*recipe.lines, *recipe.ours, *recipe.aside))
        assert not set(recipe.absent) & {label for each in labels for label in each.values()}
