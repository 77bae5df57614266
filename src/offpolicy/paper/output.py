"""The output of a run: the tables in every format, and the rows that figures are drawn from."""

from collections.abc import Callable, Sequence
from pathlib import Path

from markupsafe import Markup

from offpolicy.atomic import write_atomic
from offpolicy.paper.formats import html, latex, markdown
from offpolicy.paper.json_lines import Row, read_rows
from offpolicy.paper.recipe import Recipe, load_recipe
from offpolicy.paper.tables import Table, make_table, measured

RESULTS = "results.jsonl"
Page = Callable[[Recipe, Sequence[Markup], Sequence[Row]], str]
"""Makes the HTML page from a recipe, the sections of its tables, and its measured rows."""


def tables(recipe: Recipe, rows: Sequence[Row]) -> list[Table]:
    """The recipe's own table and those that can be made from the same rows; a figure has none."""
    if recipe.figure:
        return []
    return [make_table(one, rows) for one in (recipe, *map(load_recipe, recipe.tables))]


def write_tables(recipe: Recipe, folder: Path, page: Page) -> list[Path]:
    """Write NAME.md, NAME.tex and NAME.html from the results in a folder."""
    rows = read_rows(folder / RESULTS)
    made = tables(recipe, rows)
    texts = {
        "md": "\n".join(
            f"{'#' * min(place, 2)} {table.title}\n\n{markdown(table)}" for place, table in enumerate(made, 1)
        ),
        "tex": "\n".join(latex(table) for table in made),
        "html": page(recipe, [html(table) for table in made], measured(rows)),
    }
    if not made:
        texts = {"html": texts["html"]}
    paths = []
    for ending, text in texts.items():
        paths.append(folder / f"{recipe.name}.{ending}")
        write_atomic(paths[-1], text)
    return paths
