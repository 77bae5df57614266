"""How well are propensities estimated where the logger is no softmax? Ten simulated loggers, two sizes.

Run: python benchmarks/propensity.py [--json] [--seeds 5] [--first 0] [--sizes 20,500] [--loggers 0,1,...]
     [--out runs/propensity.jsonl] [--table]

For each logger: the share of the gap between popularity and the truth that β̂ closes in the likelihood of fresh rows;
the RMSE of the value `evaluate` reports over that of SNIPS with the true propensities, and over that of SNIPS with
scikit-learn's multinomial logistic regression, fitted and used on the same rows as a user would; and how often the
repeat test says that the logger knew more than the columns. Every seed draws a new logger, log and target. Families and
constants were tried on loggers of seed 0 and of seeds 100 and up; seeds 1 to 4 are fresh. Finished runs are kept in
--out.
"""

import functools
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from figures import Figure, arguments
from loggers import HIDDEN, LOGGERS, LoggerWorld
from offpolicy.engine import Job, WorkerPool
from offpolicy.estimators import ESTIMATORS
from offpolicy.evaluation.auto import auto_estimate
from offpolicy.evaluation.preflight import preflight
from offpolicy.evaluation.rows import PolicyRows
from offpolicy.log import LoggedData
from offpolicy.models import DesignMatrix
from offpolicy.policies import logged_log_prob
from offpolicy.propensity import fit_logging_policy, repeat_test
from offpolicy.rewards import PooledRewardModel
from offpolicy.uncertainty import row_uncertainty

ROWS = {20: 20_000, 500: 50_000}
TEST_ROWS = 10_000
LIMITS = {20: 0.8, 500: 0.65}
FEWEST_RUNS = 3
"""Runs below which a ratio of root mean square errors says nothing, and is not in the table."""


@functools.cache
def world_of(logger: int, n_actions: int, seed: int) -> tuple[LoggerWorld, float]:
    world = LoggerWorld(LOGGERS[logger], n_actions, ROWS[n_actions], seed)
    return world, world.truth()


def one_run(task: tuple[int, int, int]) -> dict[str, Any]:
    """Everything about one log."""
    logger, n_actions, seed = task
    world, truth = world_of(logger, n_actions, seed)
    log, fresh = world.log(ROWS[n_actions], "log"), world.log(TEST_ROWS, "fresh")
    hidden = log.without_propensities()
    beta = fit_logging_policy(hidden, "auto", seed=seed)
    assert fresh.logging_prob is not None
    popularity = np.log((log.action_weight + 1) / (log.n_events + log.n_actions))[fresh.action].mean()
    true = np.log(fresh.logging_prob).mean()
    found = float(logged_log_prob(beta.whole.policy, fresh).mean())
    rows = PolicyRows.of(
        hidden,
        world,
        beta,
        uncertainty=row_uncertainty(beta),
        reward_model=PooledRewardModel.fit(hidden, None),
        support=True,
    )
    estimate = auto_estimate(rows)
    repeats = repeat_test(beta, seed=seed)
    return {
        "logger": logger,
        "actions": n_actions,
        "seed": seed,
        "gap_closed": (found - popularity) / (true - popularity),
        "likelihoods": [float(popularity), found, float(true)],
        "made_of": beta.description,
        "truth": truth,
        "value": estimate.value,
        "interval": [estimate.interval.low, estimate.interval.high],
        "answer": preflight(rows, estimate, repeats).verdict.answer,
        "oracle": _snips(log, world, None),
        "plain": _snips(log, world, _logistic(log)),
        "own_snips": rows.clustered(ESTIMATORS["snips"]).value,
        "repeat_ratio": None if repeats is None else repeats.ratio,
        "flagged": None if repeats is None else repeats.flagged,
    }


def _snips(log: LoggedData, world: LoggerWorld, logging_prob: Any) -> float:
    """Σ wr/Σ w with the recorded propensities, or with others."""
    prob: Any = log.logging_prob if logging_prob is None else logging_prob
    target = logged_log_prob(world, log).exp().numpy()
    weight = target / np.maximum(prob, 1e-12)
    return float((weight * log.reward).sum() / weight.sum())


def _logistic(log: LoggedData) -> Any:
    from sklearn.linear_model import LogisticRegression

    features = DesignMatrix.fit(log.contexts).encode(log.contexts).numpy()[log.context_index]
    model = LogisticRegression(max_iter=100).fit(features, log.action)
    probs = model.predict_proba(features)
    return probs[np.arange(log.n_rows), np.searchsorted(model.classes_, log.action)]


def collect(path: Path, tasks: list[tuple[int, int, int]]) -> list[dict[str, Any]]:
    """Finished runs from the file, and the missing ones computed and appended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    have = {(run["logger"], run["actions"], run["seed"]) for run in done}
    jobs = [Job(one_run, (task,), name=str(task)) for task in tasks if task not in have]
    with WorkerPool(2) as pool, path.open("a") as file:
        for finished in pool.work(jobs):
            file.write(json.dumps(finished.result) + "\n")
            file.flush()
            done.append(finished.result)
    return [run for run in done if (run["logger"], run["actions"], run["seed"]) in set(tasks)]


def summarise(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a logger and size."""
    groups: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        groups[run["actions"], run["logger"]].append(run)
    table = []
    for (n_actions, logger), mine in sorted(groups.items()):

        def rmse(name: str, mine: list[dict[str, Any]] = mine) -> float:
            return math.sqrt(float(np.mean([(run[name] - run["truth"]) ** 2 for run in mine])))

        flags = [run["flagged"] for run in mine if run["flagged"] is not None]
        table.append(
            {
                "logger": LOGGERS[logger],
                "actions": n_actions,
                "gap_closed": float(np.mean([run["gap_closed"] for run in mine])),
                "worst_seed": min(run["gap_closed"] for run in mine),
                "value_error": rmse("value") / rmse("oracle"),
                "over_plain": rmse("value") / rmse("plain"),
                "snips_error": rmse("own_snips") / rmse("oracle"),
                "covered": float(np.mean([run["interval"][0] <= run["truth"] <= run["interval"][1] for run in mine])),
                "answered": float(np.mean([run["answer"] == "answerable" for run in mine])),
                "flagged": float(np.mean(flags)) if flags else None,
                "repeat_ratio": float(np.mean([run["repeat_ratio"] for run in mine if run["repeat_ratio"]] or [1.0])),
                "runs": len(mine),
            }
        )
    return table


def show_table(table: list[dict[str, Any]]) -> None:
    """Markdown."""
    print("| logger | K | gap closed (worst seed) | value error / oracle | / logistic | repeat ratio | flagged |")
    print("|---|---|---|---|---|---|---|")
    for row in table:
        errors = f"{row['value_error']:.2f} | {row['over_plain']:.2f}" if row["runs"] >= FEWEST_RUNS else "– | –"
        flagged = "–" if row["flagged"] is None else f"{row['flagged']:.0%}"
        print(
            f"| {row['logger']} | {row['actions']} | {row['gap_closed']:.2f} ({row['worst_seed']:.2f}) | "
            f"{errors} | {row['repeat_ratio']:.2f} | {flagged} |"
        )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--sizes", default=",".join(map(str, ROWS)), help="numbers of actions")
    parser.add_argument("--loggers", default=",".join(map(str, range(len(LOGGERS)))))
    parser.add_argument("--out", type=Path, default=Path("runs/propensity.jsonl"))
    parser.add_argument("--table", action="store_true", help="print the table as Markdown")
    options = parser.parse_args()
    sizes, loggers = ([int(i) for i in text.split(",")] for text in (options.sizes, options.loggers))
    seeds = range(options.first, options.first + options.seeds)
    table = summarise(collect(options.out, [(i, k, seed) for seed in seeds for k in sizes for i in loggers]))
    if options.table:
        show_table(table)
    for row in table:
        facts = {name: round(v, 3) if isinstance(v, float) else v for name, v in row.items()}
        Figure("propensity.gap_closed", row["gap_closed"], facts=facts).show(options.json)
    known = [row for row in table if row["logger"] != HIDDEN]
    for k in sizes:
        name = "propensity.worst_gap_closed" + ("" if k == sizes[0] else f"_{k}")
        mine = [row["gap_closed"] for row in known if row["actions"] == k]
        if mine:
            Figure(name, min(mine), LIMITS[k], "at least").show(options.json)
    trees = [row["gap_closed"] for row in table if row["logger"] == "ε-greedy on a tree"]
    if trees:
        Figure("propensity.gap_closed_trees", min(trees), 0.9, "at least").show(options.json)
    if known:
        Figure("propensity.worst_value_error", max(row["value_error"] for row in known), 2.0).show(options.json)
    Figure("propensity.worst_over_plain", max(row["over_plain"] for row in table), 1.1).show(options.json)
    for name, rows, bound, limit in (
        ("propensity.hidden_flagged", [r for r in table if r["logger"] == HIDDEN], "at least", 0.95),
        ("propensity.others_flagged", known, "at most", 0.1),
    ):
        flags = [row["flagged"] for row in rows if row["flagged"] is not None]
        if flags:
            Figure(name, float(np.mean(flags)), limit, bound).show(options.json)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
