"""A table from recorded rows: our numbers, the paper's beside them, marks and tests; no torch, no study."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from offpolicy.paper.json_lines import Row
from offpolicy.paper.recipe import Recipe
from offpolicy.paper.statistics import Cell, Column, Comparison, compared

PAPER = Path(__file__).parent / "paper.json"
"""The paper's printed numbers: table -> line -> group of columns -> metric -> [mean, spread]; p:line -> [p]."""
Mark = Literal["", "best", "second"]


@dataclass(frozen=True)
class Shown:
    """The content of a cell: our number, its mark, and the paper's number."""

    text: str
    mark: Mark = ""
    paper: str = ""


@dataclass(frozen=True)
class Table:
    """Everything a format needs to print a table."""

    name: str
    title: str
    groups: tuple[tuple[str, tuple[str, ...]], ...]
    """Names of the groups of columns with their metrics."""
    lines: tuple[tuple[str, tuple[Shown, ...]], ...]
    """Label and cells."""
    tests: tuple[tuple[str, tuple[Shown, ...]], ...]
    absent: tuple[tuple[str, str], ...]
    """Labels of lines that do not apply, each with the reason."""
    notes: tuple[str, ...]


@cache
def paper_numbers(name: str) -> Mapping[str, Any]:
    """What the paper prints in one table; empty for an unknown name."""
    numbers: Mapping[str, Any] = json.loads(PAPER.read_text(encoding="utf-8")).get(name, {})
    return numbers


def measured(rows: Iterable[Row]) -> list[Row]:
    """The rows of metrics in final runs, each with its part, line, label and seed."""
    return [
        {"part": row["part"], "line": row["line"], "label": row["label"], "seed": row["seed"], **found}
        for row in rows
        if row["stage"] == "measure"
        for found in row["found"]
    ]


def make_table(recipe: Recipe, rows: Sequence[Row]) -> Table:
    """The recipe's table from the rows of a results file."""
    found = [row for row in measured(rows) if not recipe.lines or row["line"] in recipe.lines]
    labels = {row["line"]: row["label"] for row in found}
    lines = [line for line in (recipe.lines or labels) if line in labels]
    places = [(part, subset) for part in recipe.parts for subset in (recipe.subsets or (None,))]
    names = [_group_name(recipe, *place) for place in places]
    columns = [_column(found, recipe, *place, metric) for place in places for metric in recipe.columns]
    paper = paper_numbers(recipe.paper)
    keys = [(name, metric) for name in names for metric in recipe.columns]
    marked = [line for line in lines if line not in recipe.aside]
    baselines = [line for line in marked if line not in recipe.ours]
    marks = [column.ranked(marked)[:2] for column in columns]
    shown = []
    for line in lines:
        cells = []
        for column, (name, metric), ranked in zip(columns, keys, marks, strict=True):
            place = ranked.index(line) if line in ranked else 2
            printed = paper.get(line, {}).get(name, {}).get(metric, ())
            mark: tuple[Mark, ...] = ("best", "second", "")
            cells.append(Shown(_cell(column.cell(line)), mark[place], spread_text(*printed) if printed else ""))
        shown.append((labels[line], tuple(cells)))
    tests = [
        test
        for line in recipe.ours
        if line in labels
        for test in _tests(labels, line, compared(columns, line, baselines), [_p(paper, line, *key) for key in keys])
    ]
    return Table(
        recipe.name,
        recipe.title,
        tuple((name, recipe.columns) for name in names),
        tuple(shown),
        tuple(tests),
        tuple(recipe.absent.items()),
        _notes(recipe, rows, found),
    )


def _group_name(recipe: Recipe, part: str, subset: str | None) -> str:
    if subset is None:
        return part
    return subset if len(recipe.parts) == 1 else f"{part}, {subset}"


def _column(rows: Sequence[Row], recipe: Recipe, part: str, subset: str | None, metric: str) -> Column:
    values: dict[str, dict[int, float]] = {}
    clusters: dict[str, list[list[float]]] = {}
    for row in rows:
        if row["part"] == part and row.get("subset") == subset and row.get(metric) is not None:
            values.setdefault(row["line"], {})[row["seed"]] = row[metric]
            if metric in row.get("clusters", {}):
                clusters.setdefault(row["line"], []).append(row["clusters"][metric])
    means = {line: [float(one) for one in np.mean(each, axis=0)] for line, each in clusters.items()}
    return Column(values, means, recipe.better)


def _tests(
    labels: Mapping[str, str], line: str, comparisons: Sequence[Comparison | None], paper: Sequence[str]
) -> list[tuple[str, tuple[Shown, ...]]]:
    """A line for each test of one of ours against the best baseline; none where there is nothing to test."""
    if not any(comparisons):
        return []
    label = labels[line]
    gaps = [
        Shown("–" if one is None else f"{signed(one.difference)} ({labels[one.baseline]}; {one.wins}/{one.seeds})")
        for one in comparisons
    ]
    lines = [(f"{label} − best baseline", tuple(gaps))]
    for title, field in (
        ("p, paired", "paired"),
        ("p, paired, Holm", "holm"),
        ("p, Welch", "welch"),
        ("p, Student", "student"),
        ("p, by context", "clustered"),
    ):
        ps = [None if one is None else getattr(one, field) for one in comparisons]
        printed = paper if field == "student" else [""] * len(ps)
        if any(p is not None for p in ps):
            cells = tuple(
                Shown("–" if p is None else f"{p:.2g}", paper=said) for p, said in zip(ps, printed, strict=True)
            )
            lines.append((f"{label}: {title}", cells))
    return lines


def _p(paper: Mapping[str, Any], line: str, group: str, metric: str) -> str:
    printed = paper.get(f"p:{line}", {}).get(group, {}).get(metric, ())
    return f"{printed[0]:.0e}" if printed else ""


def _notes(recipe: Recipe, rows: Sequence[Row], found: Sequence[Row]) -> tuple[str, ...]:
    seeds = len({row["seed"] for row in found})
    config = rows[0]["config"] if rows else {}
    drawn = {
        "policy": "only π is redrawn for each seed",
        "all": "data or their split, β̂, U and π are redrawn for each seed",
    }
    said = [f"Mean ± standard deviation over {seeds} seeds; {drawn[config.get('redraw', recipe.redraw)]}."]
    if any(one["trials"] for row in rows if row["stage"] == "tune" for one in row["found"]):
        said.append(
            f"{config['trials']} trials per line, the best {config['validations']} settings compared again on as many "
            "further draws, chosen on validation data only."
        )
    diverged = sorted({(row["label"], row["part"], row["seed"]) for row in found if "diverged" in row})
    if diverged:
        listed = "; ".join(f"{label}, {part}, seed {seed}" for label, part, seed in diverged)
        said.append(f"Trainings that diverged, which the means leave out: {listed}.")
    if recipe.paper:
        said.append("In brackets: the paper's number.")
    if len(recipe.columns) and recipe.ours:
        said.append(
            "Bold: best; underlined: second best. Difference to the best baseline: its label and on how many seeds "
            "ours is better. Tests are two-sided; Holm's correction is over the columns of this table."
        )
    return (*said, *((recipe.note,) if recipe.note else ()))


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    return number(cell.mean) if cell.deviation is None else spread_text(cell.mean, cell.deviation)


def spread_text(mean: float, deviation: float | None = None) -> str:
    """A mean and its spread."""
    return number(mean) if deviation is None else f"{number(mean)} ± {deviation:.1g}"


def number(value: float) -> str:
    """Four decimals where they say something, else three digits and a power of ten."""
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.4f}"
    return f"{value:.2e}"


def signed(value: float) -> str:
    """With its sign, the typographic minus included."""
    return ("+" if value >= 0 else "−") + number(abs(value))
