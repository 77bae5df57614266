"""Do the intervals cover? Coverage and width of every main interval over simulated settings with hidden propensities.

Run: python benchmarks/coverage.py [--json] [--runs 100] [--settings 0,1,...] [--out runs/coverage.jsonl] [--table]

Every run draws a log, hides its propensities, estimates them as `evaluate` does, and asks for the target's value. A
setting is answerable if the verdict says so in most runs. Coverage is over the runs that were answered; widths are
medians, relative to the interval of SNIPS with the true propensities. Finished runs are kept in --out and not
computed again. Every run has a world of its own. Settings with hidden information count in `hidden_safe` alone (refused
or covered). Constants were set on the even settings of worlds 0 and 1.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from figures import arguments
from jester_setting import Jester, JesterSetting
from offpolicy.engine import Job, WorkerPool
from offpolicy.estimators import ESTIMATORS
from offpolicy.evaluation.auto import auto_estimate, logging_estimate
from offpolicy.evaluation.clusters import ClusteredDifference
from offpolicy.evaluation.comparison import compare
from offpolicy.evaluation.hyper import GAMMA, chosen_lambdas, log_driven
from offpolicy.evaluation.intervals import INTERVALS
from offpolicy.evaluation.preflight import preflight
from offpolicy.evaluation.propensities import under_model
from offpolicy.evaluation.rows import PolicyRows
from offpolicy.propensity import FitConfig, fit_logging_policy, repeat_test
from offpolicy.rewards.pooled import PooledRewardModel
from offpolicy.threads import set_threads
from offpolicy.uncertainty import row_uncertainty
from production import PRODUCTION, Production, ProductionWorld
from settings import SETTINGS, Setting, World

LEVEL = 0.95
EVERY = (*SETTINGS, *PRODUCTION, Jester())
"""The settings by number: the synthetic ones of the first round, loggers as production has them, and Jester."""
PLAIN = (
    "ips",
    "snips",
    "dr",
    "sndr",
    "dm",
    "shrinkage",
    "clipped",
    "uips",
    "snuips",
    "uips_tight",
    "uips_dr",
    "minvar",
)
AS_OBP = ("snips", "sndr")
"""What a competent user of Open Bandit Pipeline would run: its SNIPW and SNDR, with β̂ by multinomial logistic
regression (the formula and penalty of scikit-learn's default)."""
BINS = (0.025, 0.1, 0.3, 0.5, 0.7, 0.9, 0.975)
"""Edges of the bins of claimed probabilities."""
PAIRS = (("target", "logging"), ("rival", "logging"), ("target", "rival"))
LIMITS = {
    "coverage.worst_answerable": 0.93,
    "coverage.worst_difference": 0.92,
    "coverage.median_width_ratio": 1.6,
    "coverage.worst_width_ratio": 2.5,
    "coverage.answerable_share": 0.85,
    "coverage.hidden_safe": 0.9,
}


def world_of(number: int, world_seed: int) -> tuple[World | ProductionWorld | JesterSetting, dict[str, float]]:
    """The world of a setting and the true values of its policies."""
    setting = EVERY[number]
    match setting:
        case Setting():
            return (world := World(setting, world_seed)), world.truths()
        case Production():
            return (made := ProductionWorld(setting, world_seed)), made.truths()
        case Jester():
            return (jester := JesterSetting(setting, world_seed)), jester.truths()


def one_run(task: tuple[int, int]) -> dict[str, Any]:
    """All intervals of one log."""
    number, seed = task
    set_threads(1)
    world, truths = world_of(number, seed)
    log = world.log(seed)
    hidden = log.without_propensities()
    beta = fit_logging_policy(hidden, "auto", seed=seed)
    scorer = beta.whole.scorer
    model = PooledRewardModel.fit(hidden, None if scorer is None else scorer.design)
    asked = [ESTIMATORS[name] for name in PLAIN]
    targets = world.targets()
    every = PolicyRows.of_all(
        hidden, targets, beta, uncertainty=row_uncertainty(beta), reward_model=model, estimators=asked, support=True
    )
    rows, estimates = every["target"], {name: auto_estimate(one, LEVEL) for name, one in every.items()}
    estimate = estimates["target"]
    repeats = repeat_test(beta, seed=seed)
    verdicts = {name: preflight(one, estimates[name], repeats) for name, one in every.items()}
    judged = verdicts["target"]
    true_beta = fit_logging_policy(log, "recorded")
    true = PolicyRows.of_all(log, targets, true_beta, estimators=[ESTIMATORS["snips"]])
    true_rows = true["target"]
    lam = chosen_lambdas(rows)
    bare = rows.clustered(ESTIMATORS["ips"])
    found = {
        "auto": [estimate.interval.low, estimate.interval.high, estimate.value],
        "snips, true propensities": _normal(true_rows.clustered(ESTIMATORS["snips"])),
        "ips + bootstrap": _ends(INTERVALS["bootstrap"](bare, LEVEL, kind="percentile", clip=False)),
    }
    for row in asked:
        found[row.name] = _normal(rows.clustered(row, **log_driven(row, lam, GAMMA)))
    plain = under_model(rows, fit_logging_policy(hidden, "linear", config=FitConfig(ridge=1.0, seed=seed), seed=seed))
    for name in AS_OBP:
        found[f"{name}, logistic β̂"] = _normal(plain.clustered(ESTIMATORS[name]))
    return {
        "setting": number,
        "seed": seed,
        "truth": truths["target"],
        "answer": judged.verdict.answer,
        "failed": [check.name for check in judged.checks if not check.passed],
        "checks": {check.name: check.value for check in judged.checks},
        "model": beta.model,
        "lam": estimate.lam,
        "views": [[view.value, view.jackknife_error] for view in estimate.views],
        "parts": [estimate.interval.sampling, estimate.interval.propensity],
        "intervals": found,
        "differences": [
            _difference(pair, estimates | {"logging": logging_estimate(rows)}, true, truths, verdicts) for pair in PAIRS
        ],
    }


def _difference(pair: tuple[str, str], estimates: Any, true: Any, truths: Any, verdicts: Any) -> dict[str, Any]:
    """The interval of a difference, and the width of that of SNIPS with the true propensities."""
    (one,) = compare({pair[0]: estimates[pair[0]]}, estimates[pair[1]], pair[1], LEVEL)
    first, second = (
        true["target"].on_policy() if name == "logging" else true[name].clustered(ESTIMATORS["snips"]) for name in pair
    )
    oracle = INTERVALS["normal"](ClusteredDifference(first, second), LEVEL, clip=False)
    return {
        "pair": " − ".join(pair),
        "truth": truths[pair[0]] - truths[pair[1]],
        "low": one.low,
        "high": one.high,
        "probability": one.probability_of_improvement,
        "reference": oracle.high - oracle.low,
        "answered": all(verdicts[name].verdict.answerable for name in pair if name in verdicts),
    }


def _ends(interval: Any) -> list[float]:
    return [interval.low, interval.high, interval.centre]


def _normal(terms: Any) -> list[float]:
    return _ends(INTERVALS["normal"](terms, LEVEL, clip=False))


def collect(path: Path, settings: list[int], runs: int, workers: int) -> list[dict[str, Any]]:
    """Finished runs from the file, and the missing ones computed and appended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    have = {(run["setting"], run["seed"]) for run in done}
    tasks = [(s, seed) for seed in range(runs) for s in settings if (s, seed) not in have]
    jobs = [Job(one_run, (task,), rank=task[1], name=f"setting {task[0]}, seed {task[1]}") for task in tasks]
    with WorkerPool(workers) as pool, path.open("a") as file:
        for finished in pool.work(jobs):
            file.write(json.dumps(finished.result) + "\n")
            file.flush()
            done.append(finished.result)
    return [run for run in done if run["setting"] in settings and run["seed"] < runs]


def summarise(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per setting: verdicts, coverage and relative width of every interval, over all runs and over answered ones."""
    by_setting: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        by_setting[run["setting"]].append(run)
    table = []
    for number, mine in sorted(by_setting.items()):
        answered = [run for run in mine if run["answer"] == "answerable"]
        answerable = len(answered) >= len(mine) / 2
        judged = answered if answerable else mine
        reference = float(np.median([_width(run, "snips, true propensities") for run in mine]))
        rows = {
            name: {
                "coverage": float(np.mean([_covers(run, name) for run in judged])),
                "width_ratio": _ratio(float(np.median([_width(run, name) for run in judged])), reference),
                "rmse": float(np.sqrt(np.mean([(run["intervals"][name][2] - run["truth"]) ** 2 for run in judged]))),
            }
            for name in mine[0]["intervals"]
        }
        table.append(
            {
                "setting": EVERY[number].name,
                "hidden": EVERY[number].hidden,
                "repeated": EVERY[number].repeated,
                "safe": float(np.mean([run["answer"] != "answerable" or _covers(run, "auto") for run in mine])),
                "runs": len(mine),
                "answered": len(answered) / len(mine),
                "answerable": answerable,
                "methods": rows,
                "differences": [_covered_difference(mine, place) for place in range(len(PAIRS))],
            }
        )
    return table


def _covered_difference(runs: list[dict[str, Any]], place: int) -> dict[str, Any]:
    """Coverage and relative width of one pair's difference, over the runs that were answered for both."""
    found = [run["differences"][place] for run in runs]
    answered = [one for one in found if one["answered"]]
    answerable = len(answered) >= len(found) / 2
    judged = answered if answerable else found
    width = float(np.median([one["high"] - one["low"] for one in judged]))
    return {
        "pair": found[0]["pair"],
        "answered": len(answered) / len(found),
        "answerable": answerable,
        "coverage": float(np.mean([one["low"] <= one["truth"] <= one["high"] for one in judged])),
        "width_ratio": _ratio(width, float(np.median([one["reference"] for one in found]))),
    }


def reliability(runs: list[dict[str, Any]]) -> list[dict[str, float]]:
    """In bins of the probability of improvement that was claimed: its mean, how often it was true, and of how many."""
    honest = [run for run in runs if not EVERY[run["setting"]].hidden]
    claims = [one for run in honest for one in run["differences"] if one["answered"]]
    claimed = np.array([one["probability"] for one in claims])
    true = np.array([one["truth"] > 0 for one in claims])
    bins = np.searchsorted(BINS, claimed, side="right")
    parts = [bins == b for b in np.unique(bins)]
    return [{"claimed": float(claimed[p].mean()), "true": float(true[p].mean()), "n": int(p.sum())} for p in parts]


def _ratio(width: float, reference: float) -> float | None:
    """Relative width; None where either interval is unbounded in most runs."""
    return width / reference if np.isfinite(width) and np.isfinite(reference) else None


def _covers(run: dict[str, Any], name: str) -> bool:
    low, high, _ = run["intervals"][name]
    return bool(low <= run["truth"] <= high)


def _width(run: dict[str, Any], name: str) -> float:
    low, high, _ = run["intervals"][name]
    return float(high - low)


def markdown(table: list[dict[str, Any]]) -> str:
    """Coverage (relative width) per setting and interval."""
    names = list(table[0]["methods"])
    pairs = [one["pair"] for one in table[0]["differences"]]
    lines = ["| setting | runs | answered | " + " | ".join(names + pairs) + " |"]
    lines.append("|" + "---|" * (len(names) + len(pairs) + 3))
    for row in table:
        cells = [f"{row['methods'][n]['coverage']:.2f} ({_shown(row['methods'][n]['width_ratio'])})" for n in names]
        cells += [
            f"{d['coverage']:.2f} ({_shown(d['width_ratio'])})" + ("" if d["answerable"] else " refused")
            for d in row["differences"]
        ]
        verdict = "" if row["answerable"] else " **refused**"
        lines.append(
            f"| {row['setting']}{verdict} | {row['runs']} | {row['answered']:.0%} | " + " | ".join(cells) + " |"
        )
    return "\n".join(lines)


def _shown(ratio: float | None) -> str:
    return "∞" if ratio is None else f"{ratio:.2f}"


def options_of_runs(description: str | None) -> argparse.Namespace:
    """Which runs of which settings, and where they are kept."""
    parser = arguments(description)
    parser.add_argument("--table", action="store_true", help="the table in Markdown")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--settings", default=",".join(map(str, range(len(EVERY)))))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/coverage.jsonl"))
    return parser.parse_args()


def main() -> None:
    options = options_of_runs(__doc__)
    settings = [int(s) for s in options.settings.split(",")]
    runs = collect(options.out, settings, options.runs, options.workers)
    table = summarise(runs)
    figures = figures_of(table)
    if options.json:
        for row in [*table, *({"reliability": one} for one in reliability(runs))]:
            print(json.dumps(row))
    if options.table:
        print(markdown(table))
        print("| claimed | true | n |\n|---|---|---|")
        for one in reliability(runs):
            print(f"| {one['claimed']:.2f} | {one['true']:.2f} | {one['n']} |")
    for name, value in figures.items():
        figure = {"figure": name, "value": round(value, 3), "limit": LIMITS[name], "runs": options.runs}
        print(json.dumps(figure) if options.json else f"{name} = {value:.3f} (limit {LIMITS[name]:.3g})")


def figures_of(table: list[dict[str, Any]]) -> dict[str, float]:
    """The figures that are held to limits."""
    honest = [row for row in table if not row["hidden"]]
    answerable = [row for row in honest if row["answerable"]]
    ratios = [row["methods"]["auto"]["width_ratio"] or 0.0 for row in answerable]
    differences = [one["coverage"] for row in honest for one in row["differences"] if one["answerable"]]
    return {
        "coverage.worst_answerable": min((row["methods"]["auto"]["coverage"] for row in answerable), default=0.0),
        "coverage.worst_difference": min(differences, default=0.0),
        "coverage.median_width_ratio": float(np.median(ratios)) if ratios else 0.0,
        "coverage.worst_width_ratio": max(ratios, default=0.0),
        "coverage.answerable_share": len(answerable) / max(len(honest), 1),
        "coverage.hidden_safe": min((row["safe"] for row in table if row["hidden"] and row["repeated"]), default=1.0),
    }


if __name__ == "__main__":
    main()
