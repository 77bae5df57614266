"""Reproduce the paper: recipes, studies, the runner, statistics and tables."""

from offpolicy.paper.formats import markdown
from offpolicy.paper.json_lines import Row, read_rows
from offpolicy.paper.marked_pages import with_tables
from offpolicy.paper.recipe import Recipe, known_recipes, load_recipe
from offpolicy.paper.reproduce import Budget, reproduce
from offpolicy.paper.tables import make_table, measured

__all__ = [
    "Budget",
    "Recipe",
    "Row",
    "known_recipes",
    "load_recipe",
    "make_table",
    "markdown",
    "measured",
    "read_rows",
    "reproduce",
    "with_tables",
]
