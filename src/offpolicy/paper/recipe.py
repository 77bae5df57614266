"""Recipes: TOML files that say what is measured for a table or figure of the paper, and how it is shown.

The first line of a recipe is the command that runs it. A recipe with `recipes` is a set: it runs others.
"""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from offpolicy.errors import ParameterError

FOLDER = Path(__file__).parent / "recipes"
Redraw = Literal["all", "policy"]


@dataclass(frozen=True)
class Recipe:
    """One table or figure; the fields are the keys of the file."""

    name: str
    title: str
    study: str = ""
    """Name of the study."""
    columns: tuple[str, ...] = ()
    """Metrics shown, for each part."""
    better: Literal["higher", "lower"] = "higher"
    paper: str = ""
    """Key of the paper's printed numbers."""
    seeds: int = 10
    trials: int = 50
    quick: Mapping[str, int] = field(default_factory=dict)
    """Seeds and trials with --quick."""
    redraw: Redraw = "all"
    """What each seed redraws: data, β̂, U and π, or π alone as the paper does."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the study in every part."""
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"": {}})
    """Groups of columns by the name printed; the values are arguments of the study."""
    lines: tuple[str, ...] = ()
    """Lines of the table by their names in the study; without any, all."""
    subsets: tuple[str, ...] = ()
    """Subsets of the test set, each a group of columns; without any, the whole."""
    ours: tuple[str, ...] = ()
    """Lines that are tested against the best of the baselines."""
    aside: tuple[str, ...] = ()
    """Lines that are neither ours nor baselines: the true propensities, the controls."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Labels of lines that do not apply here, each with the reason."""
    figure: Literal["", "grid", "frequency"] = ""
    note: str = ""
    """Notes under the table."""
    tables: tuple[str, ...] = ()
    """Recipes whose tables can be made from the same results."""
    recipes: tuple[str, ...] = ()
    """Recipes that a set runs."""


def known_recipes(folder: Path = FOLDER) -> tuple[str, ...]:
    """Names of the recipes that come with the package."""
    return tuple(sorted(path.stem for path in folder.glob("*.toml")))


def load_recipe(name: str, folder: Path = FOLDER) -> Recipe:
    """The recipe of that name, or in that file if the name ends with .toml."""
    path = Path(name).expanduser() if name.endswith(".toml") else folder / f"{name}.toml"
    if not name.endswith(".toml") and name not in known_recipes(folder):
        near = difflib.get_close_matches(name, known_recipes(folder), n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ParameterError(f"There is no recipe {name!r}.{hint} Recipes: {', '.join(known_recipes(folder))}.")
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ParameterError(f"The recipe {path} cannot be read: {error.strerror}. Check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ParameterError(f"The recipe {path} is not valid TOML: {error}. Fix the file.") from None
    return parse_recipe(path.stem, document, str(path))


def parse_recipe(name: str, document: Mapping[str, Any], source: str) -> Recipe:
    """A recipe from the keys of its file, each checked by the annotation of its field."""
    known = {one.name: one for one in fields(Recipe) if one.name != "name"}
    checked: dict[str, Any] = {}
    for key, value in document.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Its keys are: {', '.join(known)}."
            raise ParameterError(f"The recipe {source} sets {key!r}, which is not a key of a recipe.{hint}")
        checked[key] = _checked(source, key, value, known[key].type)
    if "title" not in checked:
        raise ParameterError(f'The recipe {source} has no title. Add one: title = "...".')
    recipe = Recipe(name=name, **checked)
    if bool(recipe.study) == bool(recipe.recipes):
        raise ParameterError(f"The recipe {source} must name either a study or, for a set, recipes.")
    if recipe.study and not recipe.columns and not recipe.figure:
        raise ParameterError(f'The recipe {source} names no columns. Add them: columns = ["NDCG@5"].')
    unknown = [line for line in (*recipe.ours, *recipe.aside) if recipe.lines and line not in recipe.lines]
    if unknown:
        raise ParameterError(
            f"The recipe {source} sets {unknown[0]!r} apart, which is not among its lines. Add it there."
        )
    return recipe


def _checked(source: str, key: str, value: Any, kind: Any) -> Any:
    """A value as the annotation of its field asks."""
    if get_origin(kind) is Literal:
        fits, asked = value in get_args(kind), f"one of {', '.join(repr(one) for one in get_args(kind) if one)}"
    elif kind is int:
        fits, asked = isinstance(value, int) and not isinstance(value, bool) and value > 0, "a whole number above 0"
    elif kind is str:
        fits, asked = isinstance(value, str), "text"
    elif get_origin(kind) is tuple:
        value = [value] if isinstance(value, str) else value
        fits = isinstance(value, list) and all(isinstance(one, str) for one in value)
        value, asked = tuple(value) if fits else value, "a list of names"
    else:
        fits, asked, inner = isinstance(value, dict), "a table", get_args(kind)[1]
        if fits and inner is not Any:
            value = {name: _checked(source, f"{key}.{name}", one, inner) for name, one in value.items()}
    if not fits:
        raise ParameterError(f"The recipe {source} must set {key!r} to {asked}, but it is {value!r}.")
    return value
