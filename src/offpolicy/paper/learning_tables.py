"""The table of learned policies on synthetic worlds whose truth is known, and the page it stands on.

    python -m offpolicy.paper.learning_tables run --out rows.jsonl
    python -m offpolicy.paper.learning_tables show --out rows.jsonl
    python -m offpolicy.paper.learning_tables docs

Each finished piece is one line of JSON; the same command goes on where a killed one stopped.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from offpolicy.atomic import write_atomic
from offpolicy.engine import Job, WorkerPool
from offpolicy.errors import LogError
from offpolicy.learning import METHODS
from offpolicy.paper.formats import markdown
from offpolicy.paper.json_lines import Row, append_rows, read_rows
from offpolicy.paper.learning_runs import ENTRIES, learn_synthetic, tune_synthetic
from offpolicy.paper.marked_pages import with_tables
from offpolicy.paper.recipe import load_recipe
from offpolicy.paper.tables import make_table
from offpolicy.tuning import describe, search_space

WORKERS = 2


@dataclass(frozen=True)
class Experiment:
    """A table: its lines, how one of them is tuned, and how all are learned for a seed."""

    names: tuple[str, ...]
    seeds: int
    trials: int
    tune: Callable[..., Row]
    learn: Callable[..., list[Row]]

    def run(self, path: Path, workers: int = WORKERS) -> None:
        """Tune what is not tuned, learn what is not learned, seed by seed."""
        missing = [name for name in self.names if name not in self.tuned(path)]
        with WorkerPool(workers) as pool:
            for done in pool.work([Job(self.tune, (name, self.trials)) for name in missing]):
                append_rows(path, [done.result])
            tuned = self.tuned(path)
            finished = {(row["method"], row["seed"]) for row in read_rows(path) if "seed" in row}
            jobs = []
            for seed in range(self.seeds):
                left = {name: tuned[name] for name in self.names if (name, seed) not in finished}
                if left:
                    jobs.append(Job(self.learn, (seed, left, self.trials)))
            for done in pool.work(jobs):
                append_rows(path, done.result)

    def tuned(self, path: Path) -> dict[str, Mapping[str, Any]]:
        """The settings found so far; rows of another budget are refused."""
        rows = read_rows(path)
        other = {row["trials"] for row in rows} - {self.trials}
        if other:
            raise LogError(f"{path} holds rows of {other.pop()} trials, not {self.trials}. Choose another file.")
        return {row["method"]: row["tuned"] for row in rows if "tuned" in row}


Floats = npt.NDArray[np.float64]


def _columns(rows: Sequence[Row], column: str) -> dict[str, dict[int, float]]:
    """method -> seed -> number."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if "seed" in row:
            found.setdefault(row["method"], {})[row["seed"]] = row[column]
    return found


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


def _settings(rows: Sequence[Row]) -> dict[str, str]:
    return {
        row["method"]: ", ".join(f"{name} {value:.3g}" for name, value in row["tuned"].items())
        for row in rows
        if "tuned" in row
    }


def synthetic_table(rows: Sequence[Row]) -> str:
    """True values in Markdown, best first: mean ± s.d. over seeds; differences: mean ± s.e. (seeds above zero)."""
    values, logging = _columns(rows, "value"), _columns(rows, "logging")
    best = _columns(rows, "best")
    if not values:
        return "No rows yet.\n"
    settings = _settings(rows)
    lines = [
        "| method | seeds | true value | − logging policy | − CE | − BIPS-Cap | tuned |",
        "|---|---|---|---|---|---|---|",
    ]
    ranked = sorted(values, key=lambda name: -np.mean(list(values[name].values())))
    for name in ranked:
        mine = values[name]
        gaps = [_difference(mine, other) for other in (logging[name], values.get("ce", {}), values.get("bips_cap", {}))]
        cells = [ENTRIES[name].label, str(len(mine)), _spread(np.array(list(mine.values()))), *gaps]
        lines.append(f"| {' | '.join(cells)} | {settings.get(name, '')} |")
    longest = max(values, key=lambda name: len(values[name]))
    for label, column in (("logging policy", logging[longest]), ("best possible", best[longest])):
        lines.append(f"| *{label}* | {len(column)} | {_spread(np.array(list(column.values())))} | | | | |")
    return "\n".join(lines) + "\n"


COAT_LINES = ("ce", "bips_cap", "shrinkage", "uips")


def coat_table(rows: Sequence[Row]) -> str:
    """Four lines of the reproduction's table of Coat, beside the paper's numbers."""
    if not rows:
        return "No rows yet.\n"
    recipe = load_recipe("coat")
    aside = tuple(line for line in recipe.aside if line in COAT_LINES)
    return markdown(make_table(replace(recipe, lines=COAT_LINES, aside=aside, absent={}), rows))


def methods_table() -> str:
    """Every learner in Markdown: its weight, what it climbs, what it needs, and where tuning looks."""
    lines = [
        "| name | label | weight | climbs | needs | searched besides the learning rate |",
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
        climbs = row.climbs.name.replace("_", " ") + (", exact gradient" if row.gradient == "exact" else "")
        cells = (f"`{name}`", row.label, weight, climbs, listed, describe(search_space(row)[1:]) or "–")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def refreshed_page(text: str, results: Path) -> str:
    """The page with its three tables made anew."""
    tables = {
        "methods": methods_table(),
        "synthetic": synthetic_table(read_rows(results / "learning_synthetic.jsonl")),
        "coat": coat_table(read_rows(results / "reproduction" / "coat.jsonl")),
    }
    return with_tables(text, tables)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="learning_tables", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("verb", choices=("run", "show", "docs"), help="docs refreshes docs/learning.md")
    parser.add_argument("--seeds", type=int, default=10, help="how often everything is drawn anew")
    parser.add_argument("--trials", type=int, default=20, help="settings tried for each method")
    parser.add_argument("--out", type=Path, help="file of rows, one JSON object a line; for docs the page")
    parser.add_argument(
        "--methods", nargs="+", choices=tuple(ENTRIES), default=tuple(ENTRIES), help="only these, for now"
    )
    parser.add_argument("--workers", type=int, default=WORKERS, help="processes; 0 works in this one")
    given = parser.parse_args(arguments)
    if given.verb == "docs":
        page: Path = given.out or Path("docs/learning.md")
        write_atomic(page, refreshed_page(page.read_text(encoding="utf-8"), page.parent / "results"))
        return
    path = given.out or Path("learning_synthetic.jsonl")
    if given.verb == "run":
        table = Experiment(tuple(given.methods), given.seeds, given.trials, tune_synthetic, learn_synthetic)
        table.run(path, given.workers)
    print(synthetic_table(read_rows(path)), end="")


if __name__ == "__main__":
    main()
