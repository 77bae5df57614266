"""Does `learn_policy` with its defaults find what a search in hindsight would? Worlds with known truth.

Run: python benchmarks/defaults.py [--json] [--seeds 3] [--settings 0,1,...] [--jobs auto,single,grid,ablation]
     [--out runs/defaults.jsonl] [--best docs/results/defaults_best.json]

A job learns from one log and records the true value of the policy. `auto` is the default; `single` are methods with
their own defaults; `grid` is the search in hindsight, every method over λ, caps and steps (all of it on seed 0, the
jobs that led there on further seeds); the best true value of `grid` and `single` on each log is stored in --best;
`ablation` takes from U what it knows (permuted over rows, or 1/√n(a) instead); `cost` compares processor times.
Finished jobs are kept in --out and not run again. Constants may be set on the even settings; the odd ones only report.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from figures import Figure, arguments
from offpolicy.errors import OffPolicyError
from offpolicy.evaluation import Evaluator, Options
from offpolicy.learning import held_out_unit, learn_policy
from offpolicy.log import LoggedData
from offpolicy.models import has_many_ids
from offpolicy.nuisances import Nuisances
from offpolicy.seeding import torch_generator
from offpolicy.threads import set_threads
from problems import SETTINGS, Ids, Problem, name_of, problem

LIMITS = {
    "defaults.mean_share": 0.95,
    "defaults.worst_share": 0.85,
    "defaults.below_logging": 0.02,
    "defaults.uips_wins": 0.8,
    "defaults.coverage": 0.93,
    "defaults.cost_ratio": 4.0,
}
SHORT_LIST = 8
"""Of the search, whole on seed 0, so many leading jobs of a setting are run on further seeds."""
SINGLE = ("uips", "bips_cap", "uips_dr", "dm")
GRID: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ce", {}),
    ("wll", {}),
    ("ls_lin", {}),
    *(("bips_cap", {"cap": cap}) for cap in (10.0, 100.0)),
    ("shrinkage", {"lam": 1e4}),
    ("snips", {}),
    *(("uips", {"lam": lam}) for lam in (1.0, 1e3, 1e5)),
    *(("uips_dr", {"lam": lam}) for lam in (10.0, 1e3)),
    ("dm", {}),
    ("dr", {}),
    ("potec", {}),
)
STEPS = ({"learning_rate": 0.02, "epochs": 40}, {"learning_rate": 0.1, "epochs": 15})


@lru_cache(maxsize=1)
def nuisances(number: int, seed: int) -> Nuisances:
    """Of the whole log, for jobs that name a method."""
    log = problem(number, seed).log
    return Nuisances(log, model="auto" if isinstance(SETTINGS[number], Ids) else "linear", seed=seed)


def jobs(kind: str, number: int, seed: int) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """The jobs of a kind on one log, by name."""
    quiet: dict[str, Any] = {"seed": seed, "show_progress": False}

    def named(method: str, **given: Any) -> Callable[[], dict[str, Any]]:
        def run() -> dict[str, Any]:
            one = problem(number, seed)
            learned = learn_policy(one.log, method, nuisances=nuisances(number, seed), **quiet, **given)
            return {"value": one.value(learned)}

        return run

    if kind == "auto":
        yield "auto", lambda: _auto(problem(number, seed), quiet)
    if kind == "cost":
        yield "cost", lambda: _cost(problem(number, seed).log, quiet)
    if kind == "single":
        yield from ((method, named(method)) for method in SINGLE)
    if kind == "grid":
        own: list[dict[str, Any]] = [*STEPS]
        if isinstance(SETTINGS[number], Ids):
            own += [{**steps, "scorer": "two_tower"} for steps in STEPS]
        for method, hyper in GRID:
            for steps in own:
                given = {**hyper, **steps}
                yield f"{method} {json.dumps(given)}", named(method, **given)
    if kind == "ablation":
        for method in ("uips", "uips_dr"):
            for change in (_permuted, _by_frequency):
                yield f"{method}{change.__name__}", partial(_ablated, number, seed, method, change, quiet)


def _auto(one: Problem, quiet: dict[str, Any]) -> dict[str, Any]:
    learned = learn_policy(one.log, **quiet)
    value, choice = one.value(learned), learned.choice
    assert choice is not None
    chosen = next(each for each in choice.candidates if each.chosen)
    assert chosen.low is not None
    assert chosen.high is not None
    facts: dict[str, Any] = {"method": choice.method, "recommendation": choice.recommendation}
    facts["candidates"] = {each.method: [each.value, each.gain, each.gain_low] for each in choice.candidates}
    return {"value": value, "covered": chosen.low <= value <= chosen.high, **facts}


def _cost(log: LoggedData, quiet: dict[str, Any]) -> dict[str, Any]:
    """Processor time of the default against that of a single method that is evaluated on held-out rows as well."""
    learn_policy(log, "ce", epochs=1, **quiet)  # what the first training of a process imports is neither's
    start = time.process_time()
    learn_policy(log, **quiet)
    middle = time.process_time()
    train, held = log.split((0.8, 0.2), by=held_out_unit(log), seed=quiet["seed"])
    model = "auto" if has_many_ids(log.contexts) else "linear"
    learned = learn_policy(train, "uips", nuisances=Nuisances(train, model=model), **quiet)
    _ = Evaluator(Nuisances(held, model=model), {"uips": learned.policy}, options=Options()).evaluation
    return {"ratio": (middle - start) / (time.process_time() - middle)}


def _permuted(u: Tensor, log: LoggedData, seed: int) -> Tensor:
    return u[torch.randperm(len(u), generator=torch_generator(seed, "permuted"))]


def _by_frequency(u: Tensor, log: LoggedData, seed: int) -> Tensor:
    count = torch.from_numpy(np.maximum(log.action_count, 1).astype(np.float64))
    return count[torch.from_numpy(log.action.astype(np.int64))].rsqrt()


def _ablated(
    number: int, seed: int, method: str, change: Callable[[Tensor, LoggedData, int], Tensor], quiet: dict[str, Any]
) -> dict[str, Any]:
    one, known = problem(number, seed), nuisances(number, seed)
    other = change(known.uncertainty(), one.log, seed)
    rewards = known.cross_fitted_rewards("spectral" if isinstance(SETTINGS[number], Ids) else "linear")
    given: dict[str, Any] = {"logging_policy": known.logging_policy, "uncertainty": other, "reward_model": rewards}
    return {"value": one.value(learn_policy(one.log, method, **given, **quiet))}


def run(kinds: list[str], numbers: list[int], seeds: int, out: Path) -> list[dict[str, Any]]:
    """Run what is missing; every finished job is a line of the file."""
    out.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(row["setting"], row["seed"], row["job"]) for row in rows}
    for number in numbers:
        for seed in range(seeds):
            for kind in kinds:
                asked = _short_list(rows, number) if kind == "grid" and seed > 0 else None
                for name, job in jobs(kind, number, seed):
                    if (number, seed, name) in done or (asked is not None and name not in asked):
                        continue
                    start = time.perf_counter()
                    try:
                        found = job()
                    except OffPolicyError as error:
                        found = {"error": str(error)[:200]}
                    row = {"setting": number, "name": name_of(number), "seed": seed, "kind": kind, "job": name, **found}
                    row |= {"logging": problem(number, seed).logging, "seconds": round(time.perf_counter() - start, 2)}
                    rows.append(row)
                    with out.open("a") as file:
                        file.write(json.dumps(row) + "\n")
    return rows


def _short_list(rows: list[dict[str, Any]], number: int) -> list[str]:
    """The jobs of a setting that led the search on seed 0."""
    searched = [row for row in rows if (row["setting"], row["seed"], row["kind"]) == (number, 0, "grid")]
    searched.sort(key=lambda row: -row.get("value", -1.0))
    return [row["job"] for row in searched[:SHORT_LIST]]


def best_values(rows: list[dict[str, Any]], stored: Path) -> dict[str, dict[str, Any]]:
    """The best true value in hindsight of each log, kept in a file with how many trainings it was chosen from."""
    best: dict[str, dict[str, Any]] = json.loads(stored.read_text()) if stored.exists() else {}
    counts = [row for row in rows if row["kind"] in ("grid", "single") and "value" in row]
    trainings = Counter(f"{row['setting']}/{row['seed']}" for row in counts)
    for row in counts:
        key = f"{row['setting']}/{row['seed']}"
        if row["value"] > best.get(key, {"value": -1})["value"]:
            best[key] = {"value": row["value"], "job": row["job"], "logging": row["logging"]}
        best[key]["trainings"] = max(trainings[key], best[key].get("trainings", 0))
    stored.parent.mkdir(parents=True, exist_ok=True)
    stored.write_text(json.dumps(best, indent=1, sort_keys=True) + "\n")
    return best


def figures(rows: list[dict[str, Any]], best: dict[str, dict[str, Any]]) -> Iterator[Figure]:
    """What the runs say."""
    auto = [row for row in rows if row["kind"] == "auto" and "value" in row]
    share: dict[int, list[float]] = {}
    searched: list[float] = []
    for row in auto:
        known = best.get(f"{row['setting']}/{row['seed']}")
        if known is not None:
            gap = known["value"] - row["logging"]
            share.setdefault(row["setting"], []).append((row["value"] - row["logging"]) / gap)
            searched += share[row["setting"]][-1:] if known["trainings"] >= len(GRID) else []
    means = {number: float(np.mean(each)) for number, each in share.items()}
    if means:
        note = ", ".join(f"{number}: {mean:.2f}" for number, mean in sorted(means.items()))
        facts: dict[str, Any] = {"settings": len(means), "whole_search_only": round(float(np.mean(searched or [0])), 3)}
        facts["by_setting"] = {str(k): round(v, 3) for k, v in sorted(means.items())}
        yield Figure("defaults.mean_share", float(np.mean(list(means.values()))), 0.95, "at least", facts, note)
        yield Figure("defaults.worst_share", min(means.values()), LIMITS["defaults.worst_share"], "at least")
    if auto:
        shipped = [row for row in auto if row["recommendation"] != "logging"]
        below, runs = np.mean([row["value"] < row["logging"] for row in shipped]), {"runs": len(auto)}
        yield Figure("defaults.below_logging", float(below), LIMITS["defaults.below_logging"], facts=runs)
        covered = float(np.mean([row["covered"] for row in auto]))
        yield Figure("defaults.coverage", covered, LIMITS["defaults.coverage"], "at least", runs)
    values = {(row["setting"], row["seed"], row["job"]): row["value"] for row in rows if "value" in row}
    wins = _wins(values, "uips", "bips_cap")
    if wins:
        counted = {"settings": len(wins)}
        yield Figure("defaults.uips_wins", float(np.mean(wins)), LIMITS["defaults.uips_wins"], "at least", counted)
    for method in ("uips", "uips_dr"):
        for other in (method + "_permuted", method + "_by_frequency"):
            gaps = [values[k, s, method] - v for (k, s, job), v in values.items() if job == other]
            if gaps:
                won = {"settings_won": float(np.mean(_wins(values, method, other)))}
                yield Figure(f"defaults.{method}_over_{other}", float(np.mean(gaps)), facts=won, digits=4)
    costs = [row["ratio"] for row in rows if "ratio" in row]
    if costs:
        yield Figure("defaults.cost_ratio", float(np.median(costs)), LIMITS["defaults.cost_ratio"])


def _wins(values: dict[tuple[int, int, str], float], mine: str, other: str) -> list[bool]:
    """By setting: whether the mean over seeds of one job is above that of another."""
    gaps: dict[int, list[float]] = {}
    for (number, seed, job), value in values.items():
        if job == mine and (number, seed, other) in values:
            gaps.setdefault(number, []).append(value - values[number, seed, other])
    return [float(np.mean(each)) > 0 for each in gaps.values()]


def main() -> None:
    """Run what is asked for and print the figures."""
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--settings", default=",".join(map(str, range(len(SETTINGS)))))
    parser.add_argument("--jobs", default="auto,single,grid,ablation,cost")
    parser.add_argument("--out", type=Path, default=Path("runs/defaults.jsonl"))
    parser.add_argument("--best", type=Path, default=Path("docs/results/defaults_best.json"))
    asked = parser.parse_args()
    set_threads(1)
    numbers = [int(number) for number in asked.settings.split(",")]
    rows = run(asked.jobs.split(","), numbers, asked.seeds, asked.out)
    for figure in figures(rows, best_values(rows, asked.best)):
        figure.show(asked.json)


if __name__ == "__main__":
    main()
