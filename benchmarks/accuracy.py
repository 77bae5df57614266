"""How far off are the estimates? RMSE of every estimator over the settings of the coverage benchmark, from its runs.

Run: python benchmarks/accuracy.py [--json] [--runs 100] [--settings 0,1,...] [--out runs/coverage.jsonl] [--table]

`auto` is compared with the best single estimator of each setting, known only with hindsight, and with SNIPS; all have
the same estimated propensities. RMSE is over all runs of a setting, whatever the verdict said; settings with hidden
information, where every estimator is wrong alike, are left out. Missing runs are computed and kept in --out, as by
coverage.py.
"""

from collections import defaultdict
from typing import Any

import numpy as np

from coverage import EVERY, PLAIN, collect, options_of_runs, summarise
from figures import Figure

ORACLE = "snips, true propensities"
LIMITS = {"best": 1.15, "snips": 0.8}


def root_mean_squares(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per setting: RMSE of `auto`, of every single estimator and of SNIPS with the true propensities."""
    answerable = {row["setting"]: row["answerable"] for row in summarise(runs)}
    by_setting: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        by_setting[run["setting"]].append(run)
    table = []
    for number, mine in sorted(by_setting.items()):
        if EVERY[number].hidden:
            continue
        errors = {name: [run["intervals"][name][2] - run["truth"] for run in mine] for name in ("auto", *PLAIN, ORACLE)}
        rmse = {name: float(np.sqrt(np.mean(np.square(values)))) for name, values in errors.items()}
        best = min(PLAIN, key=lambda name: rmse[name])
        name = EVERY[number].name
        table.append({"setting": name, "runs": len(mine), "answerable": answerable[name], "best": best, "rmse": rmse})
    return table


def ratio(table: list[dict[str, Any]], name: str, other: str) -> float:
    """Geometric mean over settings of one RMSE over another; `best` is each setting's own best single estimator."""
    pairs = [(row["rmse"][name], row["rmse"][row["best"] if other == "best" else other]) for row in table]
    return float(np.exp(np.mean([np.log(mine / theirs) for mine, theirs in pairs]))) if pairs else float("nan")


def figures(table: list[dict[str, Any]]) -> list[Figure]:
    """`auto` against the best and against SNIPS, over all settings and over the answerable ones."""
    answerable = [row for row in table if row["answerable"]]
    parts = {"": table, "_answerable": answerable}
    return [
        Figure(
            f"accuracy.auto_over_{other}{suffix}",
            ratio(rows, "auto", other),
            limit,
            facts={"settings": len(rows), "runs": min((row["runs"] for row in rows), default=0)},
            note=f"geometric mean over {len(rows)} settings",
        )
        for suffix, rows in parts.items()
        for other, limit in LIMITS.items()
    ]


def markdown(table: list[dict[str, Any]]) -> str:
    """RMSE × 1,000 per setting and estimator, the best single estimator in bold; geometric means over it below."""
    names = ["auto", *PLAIN, ORACLE]
    lines = ["| setting | runs | " + " | ".join(names) + " |", "|" + "---|" * (len(names) + 2)]
    for row in table:
        cells = [_cell(row, name) for name in names]
        verdict = "" if row["answerable"] else " **refused**"
        lines.append(f"| {row['setting']}{verdict} | {row['runs']} | " + " | ".join(cells) + " |")
    means = [f"{ratio(table, name, 'best'):.2f}" for name in names]
    lines.append("| *relative to the best* | | " + " | ".join(means) + " |")
    return "\n".join(lines)


def _cell(row: dict[str, Any], name: str) -> str:
    said = f"{1000 * row['rmse'][name]:.1f}"
    return f"**{said}**" if name == row["best"] else said


def main() -> None:
    options = options_of_runs(__doc__)
    chosen = [int(s) for s in options.settings.split(",")]
    table = root_mean_squares(collect(options.out, chosen, options.runs, options.workers))
    if options.table:
        print(markdown(table))
    for figure in figures(table):
        figure.show(options.json)


if __name__ == "__main__":
    main()
