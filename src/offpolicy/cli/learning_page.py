"""`docs/learning.md`, its tables written from recorded results: `python -m offpolicy.cli.learning_page`."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

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
    """The page with its tables regenerated."""
    best = results / ".." / "defaults_best.json"
    runs = read_rows(results / ".." / "defaults.jsonl")
    tables = {
        "methods": methods_table(),
        "defaults": defaults_table(runs, json.loads(best.read_text(encoding="utf-8")) if best.exists() else {}),
        "ablation": ablation_table(runs),
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


def defaults_table(rows: Sequence[Row], best: Mapping[str, Mapping[str, Any]]) -> str:
    """The default and single methods in every setting: true values, means over logs that were searched in hindsight."""
    lines = [
        "| setting | seeds | searched | logging | best in hindsight | auto | share | chosen | covered | below logging "
        "| uips | bips_cap | uips_dr | dm |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for number in sorted({row["setting"] for row in rows}):
        own = [row for row in rows if row["setting"] == number and f"{number}/{row['seed']}" in best]
        runs = [row for row in own if row["job"] == "auto"]
        if not runs:
            continue
        found = [best[f"{number}/{row['seed']}"] for row in runs]
        shares = [
            (run["value"] - run["logging"]) / (one["value"] - run["logging"])
            for run, one in zip(runs, found, strict=True)
        ]
        cells = [f"{number} {runs[0]['name']}", str(len(runs)), " ".join(str(one["trainings"]) for one in found)]
        cells.append(_mean(row["logging"] for row in runs))
        cells += [_mean(one["value"] for one in found), _mean(row["value"] for row in runs), f"{np.mean(shares):.2f}"]
        cells.append(", ".join(sorted({row["method"] for row in runs})))
        cells.append(f"{sum(row['covered'] for row in runs)}/{len(runs)}")
        cells.append(str(sum(row["value"] < row["logging"] for row in runs)))
        for method in ("uips", "bips_cap", "uips_dr", "dm"):
            cells.append(_mean(row["value"] for row in own if row["job"] == method and "value" in row))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n" if len(lines) > 2 else NO_ROWS


def ablation_table(rows: Sequence[Row]) -> str:
    """What U is worth: values with it less values with an uninformed U on the same logs, mean ± s.e. over settings."""
    values = {(row["setting"], row["seed"], row["job"]): row["value"] for row in rows if "value" in row}
    lines = [
        "| method | U replaced by | logs | settings | value with U − without | settings ahead |",
        "|---|---|---|---|---|---|",
    ]
    for method in ("uips", "uips_dr"):
        for change, label in (("permuted", "U permuted over rows"), ("by_frequency", "1/√n(a)")):
            gaps: dict[int, list[float]] = {}
            for (number, seed, job), value in values.items():
                if job == f"{method}_{change}" and (number, seed, method) in values:
                    gaps.setdefault(number, []).append(values[number, seed, method] - value)
            if len(gaps) < 2:
                continue
            means = np.array([np.mean(each) for each in gaps.values()])
            error = means.std(ddof=1) / len(means) ** 0.5
            cells = (f"`{method}`", label, str(sum(map(len, gaps.values()))), str(len(gaps)))
            lines.append(
                f"| {' | '.join(cells)} | {means.mean():+.4f} ± {error:.4f} | {(means > 0).sum()}/{len(means)} |"
            )
    return "\n".join(lines) + "\n" if len(lines) > 2 else NO_ROWS


def _mean(values: Iterable[float]) -> str:
    found = list(values)
    return f"{np.mean(found):.3f}" if found else "–"


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
