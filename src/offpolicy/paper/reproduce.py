"""The entry point: run a recipe or a set of them, then write the tables."""

from dataclasses import dataclass
from pathlib import Path

from offpolicy.errors import ParameterError
from offpolicy.paper.output import RESULTS, Page, write_tables
from offpolicy.paper.plan import Plan
from offpolicy.paper.recipe import Recipe, Redraw, load_recipe
from offpolicy.paper.runner import run
from offpolicy.paper.studies import STUDIES, Study
from offpolicy.registry import Registry


@dataclass(frozen=True)
class Budget:
    """What the user may change of a recipe; None leaves it as the recipe says."""

    seeds: int | None = None
    trials: int | None = None
    quick: bool = False
    redraw: Redraw | None = None


def reproduce(
    name: str,
    out: Path,
    page: Page,
    *,
    data: str | None = None,
    budget: Budget | None = None,
    workers: int = 2,
    studies: Registry[type[Study]] = STUDIES,
) -> dict[str, list[Path]]:
    """Run what is not yet run and write the tables; returns the files of each recipe.

    A recipe writes into `out`, the recipes of a set into a folder each inside it.
    """
    asked = budget or Budget()
    folders = recipe_folders(load_recipe(name), out)
    plans = {
        folder: Plan.of(
            recipe,
            studies,
            quick=asked.quick,
            seeds=asked.seeds,
            trials=asked.trials,
            redraw=asked.redraw,
            data=data,
        )
        for folder, recipe in folders.items()
    }
    run(plans, workers)
    return {recipe.name: [folder / RESULTS, *write_tables(recipe, folder, page)] for folder, recipe in folders.items()}


def recipe_folders(recipe: Recipe, out: Path) -> dict[Path, Recipe]:
    """Which recipe writes into which folder."""
    if not recipe.recipes:
        return {out: recipe}
    inside = {out / name: load_recipe(name) for name in recipe.recipes}
    nested = next((one.name for one in inside.values() if one.recipes), None)
    if nested is not None:
        raise ParameterError(f"The set {recipe.name} names {nested}, which is a set itself. Name its recipes.")
    return inside
