"""`docs/learning.md`, its tables written from recorded results: `python -m offpolicy.cli.learning_page`."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from offpolicy.atomic import write_atomic
from offpolicy.learning import METHODS
from offpolicy.paper import Row, load_recipe, make_table, markdown, measured, read_rows, with_tables
from offpolicy.tuning import describe, search_space

Floats = npt.NDArray[np.float64]
COAT_LINES = ("ce", "bips_cap", "shrinkage", "uips")
NO_ROWS = "No rows yet.\n"


def refreshed_page(text: str, results: Path) -> str:
    """The page with its three tables regenerated."""
    tables = {
        "methods": methods_table(),
        "synthetic": worlds_table(read_rows(results / "linear_worlds.jsonl")),
        "coat": coat_table(read_rows(results / "coat.jsonl")),
    }
    return with_tables(text, tables)


def methods_table() -> str:
    """Every learner in Markdown: its weight, what it maximises, what it needs, and where tuning looks."""
    lines = [
        "| name | label | weight | maximises | needs | searched besides the learning rate |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in METHODS.items():
        needs = {
            "β̂": row.needs_logging_policy,
            "U": row.needs_uncertainty,
            "q̂": row.uses_reward_model,
            "recorded β*": "recorded_log_ratio" in row.inputs,
        }
        listed = ", ".join(need for need, asked in needs.items() if asked) or "–"
        weight = f"`{row.weight}`" if row.weight else "1"
        maximises = row.formula.name.replace("_", " ") + (", exact gradient" if row.gradient == "exact" else "")
        cells = (f"`{name}`", row.label, weight, maximises, listed, describe(search_space(row)[1:]) or "–")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def worlds_table(rows: Sequence[Row]) -> str:
    """True values in Markdown, best first: mean ± s.d. over seeds; differences: mean ± s.e. (seeds above zero)."""
    runs = measured(rows)
    values, logging, best = (_by_line(runs, column) for column in ("value", "logging", "best"))
    if not values:
        return NO_ROWS
    labels = {row["line"]: row["label"] for row in runs}
    settings = {row["line"]: row["settings"] for row in rows if row["stage"] == "measure"}
    lines = [
        "| method | seeds | true value | − logging policy | − CE | − BIPS-Cap | tuned |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in sorted(values, key=lambda name: -np.mean(list(values[name].values()))):
        mine = values[name]
        gaps = [_difference(mine, other) for other in (logging[name], values.get("ce", {}), values.get("bips_cap", {}))]
        cells = [labels[name], str(len(mine)), _spread(np.array(list(mine.values()))), *gaps]
        tuned = ", ".join(f"{key} {value:.3g}" for key, value in settings[name].items())
        lines.append(f"| {' | '.join(cells)} | {tuned} |")
    longest = max(values, key=lambda name: len(values[name]))
    for label, column in (("logging policy", logging[longest]), ("best possible", best[longest])):
        lines.append(f"| *{label}* | {len(column)} | {_spread(np.array(list(column.values())))} | | | | |")
    return "\n".join(lines) + "\n"


def coat_table(rows: Sequence[Row]) -> str:
    """Four lines of the reproduction's table of Coat, beside the paper's numbers."""
    if not rows:
        return NO_ROWS
    recipe = load_recipe("coat")
    aside = tuple(line for line in recipe.aside if line in COAT_LINES)
    return markdown(make_table(replace(recipe, lines=COAT_LINES, aside=aside, absent={}), rows))


def _by_line(runs: Sequence[Row], column: str) -> dict[str, dict[int, float]]:
    """line -> seed -> number."""
    numbers: dict[str, dict[int, float]] = {}
    for row in runs:
        numbers.setdefault(row["line"], {})[row["seed"]] = row[column]
    return numbers


def _spread(values: Floats) -> str:
    deviation = float(values.std(ddof=1)) if len(values) > 1 else float("nan")
    return f"{values.mean():.4f} ± {deviation:.4f}"


def _difference(mine: Mapping[int, float], other: Mapping[int, float]) -> str:
    """Mean paired difference over the common seeds, its standard error, and on how many seeds it is positive."""
    seeds = sorted(mine.keys() & other.keys())
    gaps = np.array([mine[seed] - other[seed] for seed in seeds])
    if len(gaps) < 2 or not gaps.any():
        return "–"
    error = gaps.std(ddof=1) / len(gaps) ** 0.5
    return f"{gaps.mean():+.4f} ± {error:.4f} ({(gaps > 0).sum()}/{len(gaps)})"


if __name__ == "__main__":
    page = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/learning.md")
    write_atomic(page, refreshed_page(page.read_text(encoding="utf-8"), page.parent / "results" / "reproduction"))
