"""`offpolicy reproduce`: rerun a table or figure of the paper, with the printed numbers beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offpolicy.cli.options import AsJson, Config
from offpolicy.errors import ParameterError

if TYPE_CHECKING:
    from markupsafe import Markup

    from offpolicy.paper import Recipe
    from offpolicy.results import Chart


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="A recipe, a set of them, or a .toml file; see --list.", show_default=False
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="Folder that holds the data sets; OFFPOLICY_DATA unless given.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, max=1_000, help="Final runs; taken from the recipe unless given.")
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option("--trials", min=1, help="Settings tried for each line; taken from the recipe unless given."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Use the recipe's small budget.")] = False,
    redraw: Annotated[
        str | None,
        typer.Option("--redraw", help="What each seed redraws: all, or policy for π alone as in the paper."),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", help="Folder for results and tables; reproduction/NAME unless given.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=0, help="Worker processes; one per core unless given, 0 runs in this process."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the recipes and stop.")] = False,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Rerun a table or figure of the paper and write it with the paper's numbers beside ours.

    OUT/results.jsonl holds every finished piece: rerun a killed command to resume it. The tables are OUT/NAME.md,
    NAME.tex and NAME.html. Each recipe of a set has its own folder in OUT.
    """
    from offpolicy.cli.printing import lines, print_json

    if list_:
        _list(as_json)
        return
    if name is None:
        raise ParameterError("Name a recipe; offpolicy reproduce --list shows them.")
    if redraw not in (None, "all", "policy"):
        raise ParameterError(f"--redraw must be all or policy, but it is {redraw!r}.")
    from offpolicy.engine import available_cores
    from offpolicy.paper import Budget
    from offpolicy.paper import reproduce as run

    folder = Path(out).expanduser() if out else Path("reproduction") / Path(name).stem
    files = run(
        name,
        folder,
        page,
        data=data,
        budget=Budget(seeds, trials, quick, redraw),  # type: ignore[arg-type]
        workers=available_cores() if workers is None else workers,
    )
    if as_json:
        print_json({recipe: {"files": [str(path) for path in paths]} for recipe, paths in files.items()})
    else:
        lines("Written", [str(path) for paths in files.values() for path in paths])


def page(recipe: "Recipe", sections: "Sequence[Markup]", rows: Sequence[dict[str, Any]]) -> str:
    """The page of a recipe, with its figure where it has one."""
    from offpolicy.report import reproduction_page

    return reproduction_page(recipe.title, sections, charts(recipe, rows))


def charts(recipe: "Recipe", rows: Sequence[dict[str, Any]]) -> "list[Chart]":
    """The charts of a recipe that is a figure."""
    from offpolicy.report import grid_charts, profile_charts

    if recipe.figure == "grid":
        labels = dict.fromkeys(row["label"] for row in rows)
        return [
            chart
            for label in labels
            for chart in grid_charts([row for row in rows if row["label"] == label], recipe.columns, label)
        ]
    return profile_charts(rows) if recipe.figure == "frequency" else []


def _list(as_json: bool) -> None:
    from offpolicy.cli.printing import print_json, table
    from offpolicy.paper import known_recipes, load_recipe

    titles = {name: load_recipe(name).title for name in known_recipes()}
    if as_json:
        print_json(titles)
    else:
        table("Recipes", ("name", "what"), titles.items())
