"""`docs/reproduction.md`, its tables written from recorded results: `python -m offpolicy.cli.reproduction_page`.

Results of the recipe NAME are docs/results/reproduction/NAME.jsonl (its results.jsonl) and, for the time it took,
NAME.timings.jsonl beside it.
"""

import sys
from pathlib import Path

from offpolicy.atomic import write_atomic
from offpolicy.cli.reproduce import charts
from offpolicy.paper import (
    Recipe,
    Row,
    known_recipes,
    load_recipe,
    make_table,
    markdown,
    measured,
    read_rows,
    with_tables,
)

NOT_RUN = "*Not run yet.*\n"


def refreshed_page(text: str, results: Path) -> str:
    """The page with the table of every recipe on it regenerated."""
    recipes = [load_recipe(name) for name in known_recipes() if f"<!-- {name} -->\n" in text]
    return with_tables(text, {recipe.name: section(recipe, results) for recipe in recipes})


def section(recipe: Recipe, results: Path) -> str:
    """The section of one recipe: the time it took and its table or figures."""
    source = source_of(recipe.name, results)
    if source is None:
        return NOT_RUN
    rows = read_rows(results / f"{source}.jsonl")
    said = taken(read_rows(results / f"{source}.timings.jsonl"), source)
    if recipe.figure:
        drawn = charts(recipe, measured(rows))
        links = [
            f"![{chart.title}](results/reproduction/{name})\n\n{chart.caption}\n"
            for name, chart in zip(figure_names(recipe, len(drawn)), drawn, strict=True)
        ]
        return said + "\n".join(links)
    return said + markdown(make_table(recipe, rows))


def source_of(name: str, results: Path) -> str | None:
    """Whose results a table is made from: its own recipe's, or those of one that lists it."""
    listing = [other for other in known_recipes() if name in load_recipe(other).tables]
    return next((one for one in (name, *listing) if (results / f"{one}.jsonl").exists()), None)


def taken(timings: list[Row], source: str) -> str:
    """How long a run took, on one core."""
    if not timings:
        return ""
    minutes = sum(row["seconds"] for row in timings) / 60
    shown = f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.1f} hours"
    return f"Time: {shown} of one core for all lines of `{source}`.\n\n"


def figure_names(recipe: Recipe, count: int) -> list[str]:
    """Files of a recipe's charts."""
    return [f"{recipe.name}-{number + 1}.svg" for number in range(count)]


def write_figures(results: Path) -> None:
    """The charts of every figure that has results, as SVG files beside them."""
    for recipe in map(load_recipe, known_recipes()):
        path = results / f"{recipe.name}.jsonl"
        if recipe.figure and path.exists():
            drawn = charts(recipe, measured(read_rows(path)))
            for name, chart in zip(figure_names(recipe, len(drawn)), drawn, strict=True):
                write_atomic(results / name, chart.standalone())


if __name__ == "__main__":
    page = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reproduction.md")
    folder = page.parent / "results" / "reproduction"
    write_figures(folder)
    write_atomic(page, refreshed_page(page.read_text(encoding="utf-8"), folder))
