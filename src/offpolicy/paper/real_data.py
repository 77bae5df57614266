"""Evaluation on real rewards: Open Bandit data against the on-policy value, Jester against the known truth.

Run: python -m offpolicy.paper.real_data --data DIR [--seeds 30] [--out FILE]

Open Bandit data: one shop logged by Thompson sampling and by a uniformly random policy. Each policy's value is
estimated from the other's log with the propensities hidden, and with the recorded ones, beside the mean reward of its
own log.
Jester: users rated every joke, so logs are simulated by a policy whose propensities are hidden, on real rewards.
"""

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from offpolicy.datasets import Campaign, JesterDesign, JesterWorld, load_jester, load_obd, simulate_log
from offpolicy.evaluation import evaluate
from offpolicy.log import EmbeddingColumn, LoggedData
from offpolicy.policies import EpsilonGreedyPolicy, LinearSoftmaxPolicy, Policy, UniformPolicy
from offpolicy.progress import progress
from offpolicy.propensity import fit_logging_policy
from offpolicy.results import Evaluation

SHOWN = ("ips", "snips", "dr", "sndr", "snuips")
SIZES = (1, 5)
"""Rows a user in the logs simulated from Jester."""


def open_bandit(data: str | Path | None = None, campaign: Campaign = "men", seed: int = 0) -> list[dict[str, Any]]:
    """Each policy's value from the other's log, beside the mean reward of its own log.

    The random policy is known exactly. Thompson sampling is not: the model of it that was fitted to its own log stands
    for it, so its row says how far two estimates agree rather than how good one is.
    """
    bts, random = (load_obd(policy, campaign, data) for policy in ("bts", "random"))
    hidden = {"bts": bts.without_propensities(), "random": random.without_propensities()}
    fitted = {name: fit_logging_policy(log, "auto", seed=seed) for name, log in hidden.items()}
    uniform, sampling = UniformPolicy(random.actions), fitted["bts"]
    questions = (("random", "bts", uniform, bts, random), ("bts, modelled", "random", sampling, random, bts))
    rows = []
    for name, logged_by, target, log, own in questions:
        mean, low, high = _mean_reward(own)
        about = {"policy": name, "logged_by": logged_by, "clicks": int(log.reward.sum())}
        truth = {"on_policy": mean, "on_policy_low": low, "on_policy_high": high}
        options: dict[str, Any] = {"estimators": SHOWN, "seed": seed}
        answers = {
            "hidden": evaluate(hidden[logged_by], {name: target}, fitted[logged_by], **options),
            "recorded": evaluate(log, {name: target}, "recorded", **options),
        }
        for propensities, found in answers.items():
            rows.append(about | {"propensities": propensities} | _told(found, name) | truth)
    return rows


def _told(found: Evaluation, name: str) -> dict[str, Any]:
    one = found[name]
    estimates = {each.name: [each.value, *_ends(each.intervals["normal"])] for each in one.estimates}
    return {
        "logging_model": found.logging.model,
        "value": one.value,
        "low": one.interval.low,
        "high": one.interval.high,
        "sampling": one.interval.sampling,
        "propensity": one.interval.propensity,
        "answer": one.preflight.verdict.answer,
        "reasons": list(one.preflight.verdict.reasons),
        "flips_at": one.sensitivity.flips_at,
        "estimates": estimates,
    }


def _ends(interval: Any) -> tuple[float, float]:
    return interval.low, interval.high


def _mean_reward(log: LoggedData, z: float = 1.96) -> tuple[float, float, float]:
    """The mean reward and its 95 % interval over clusters."""
    mean = float(log.reward.mean())
    residual = np.bincount(log.cluster_index, log.reward - mean)
    error = float(np.sqrt(np.square(residual).sum())) / log.n_rows
    return mean, max(mean - z * error, 0.0), mean + z * error


def jester_targets(world: JesterWorld) -> dict[str, Policy]:
    """Two policies worth asking about: a softmax of scores fitted to all ratings, and 0.1-greedy on them."""
    column = world.log.contexts["x"]
    assert isinstance(column, EmbeddingColumn)
    states = np.column_stack([column.values.astype(np.float64), np.ones(world.log.n_contexts)])
    fitted = np.linalg.lstsq(states, world.rewards, rcond=None)[0].T
    spread = float((states @ fitted.T).std())
    weights, bias = torch.from_numpy(fitted[:, :-1].copy()), torch.from_numpy(fitted[:, -1].copy())
    softmax = LinearSoftmaxPolicy("x", weights, bias, temperature=spread)
    return {"softmax": softmax, "0.1-greedy": EpsilonGreedyPolicy(softmax, 0.1)}


def jester_seed(ratings: npt.NDArray[np.float64], seed: int, rows_per_user: int) -> list[dict[str, Any]]:
    """All intervals for both targets on one simulated log, propensities hidden; SNIPS with the true ones beside."""
    world = simulate_log(ratings, seed, JesterDesign(rows_per_user=rows_per_user))
    targets = jester_targets(world)
    shown: dict[str, Any] = {"intervals": ("normal", "bootstrap"), "seed": seed}
    hidden = evaluate(world.log.without_propensities(), targets, "auto", estimators=SHOWN, **shown)
    recorded = evaluate(world.log, targets, "recorded", estimators=("snips",), **shown)
    rows = []
    for name, target in targets.items():
        one, estimates = hidden[name], {each.name: each for each in hidden[name].estimates}
        found = {
            "auto": [one.value, *_ends(one.interval)],
            "snips, true propensities": [
                recorded[name].estimates[0].value,
                *_ends(recorded[name].estimates[0].intervals["normal"]),
            ],
            "ips + bootstrap": [estimates["ips"].value, *_ends(estimates["ips"].intervals["bootstrap"])],
        }
        found |= {key: [each.value, *_ends(each.intervals["normal"])] for key, each in estimates.items()}
        common = {"target": name, "seed": seed, "rows_per_user": rows_per_user, "truth": world.value(target)}
        rows.append(common | {"answer": one.preflight.verdict.answer, "intervals": found})
    return rows


def summarise_jester(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per target, size and method: bias, RMSE, coverage and mean width over seeds."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["target"], row["rows_per_user"]].append(row)
    table = []
    for (target, size), mine in groups.items():
        answered = float(np.mean([row["answer"] == "answerable" for row in mine]))
        truth = np.array([row["truth"] for row in mine])
        for method in mine[0]["intervals"]:
            value, low, high = np.array([row["intervals"][method] for row in mine]).T
            table.append(
                {
                    "target": target,
                    "rows_per_user": size,
                    "seeds": len(mine),
                    "answered": answered,
                    "method": method,
                    "bias": float((value - truth).mean()),
                    "rmse": float(np.sqrt(np.square(value - truth).mean())),
                    "coverage": float(((low <= truth) & (truth <= high)).mean()),
                    "width": float((high - low).mean()),
                }
            )
    return table


def jester_markdown(table: list[dict[str, Any]]) -> str:
    """One row a target, size and method."""
    lines = [
        "| target | rows a user | answered | method | bias | RMSE | coverage | width |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in table:
        numbers = " | ".join(f"{row[name]:.3f}" for name in ("bias", "rmse", "coverage", "width"))
        start = f"| {row['target']} | {row['rows_per_user']} | {row['answered']:.0%} | {row['method']}"
        lines.append(f"{start} | {numbers} |")
    return "\n".join(lines)


def open_bandit_markdown(rows: list[dict[str, Any]]) -> str:
    """One row a question, in clicks per thousand."""
    lines = [
        "| policy | log | propensities | estimate | interval | SNIPS | on its own log | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            *(row["policy"], f"{row['logged_by']}, {row['clicks']} clicks"),
            *(f"{row['propensities']} ({row['logging_model']})", _per_thousand(row["value"])),
            f"{_per_thousand(row['low'])} to {_per_thousand(row['high'])}",
            " to ".join(_per_thousand(v) for v in row["estimates"]["snips"][1:]),
            f"{_per_thousand(row['on_policy'])} ({_per_thousand(row['on_policy_low'])} to "
            f"{_per_thousand(row['on_policy_high'])})",
            row["answer"] + ("" if not row["reasons"] else ": " + "; ".join(row["reasons"])),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _per_thousand(value: float) -> str:
    return f"{1000 * value:.1f}"


def main(arguments: list[str] | None = None) -> None:
    """The command line: rows to a file if one is named, tables to standard output."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", help="folder that holds the data sets; OFFPOLICY_DATA unless given")
    parser.add_argument("--seeds", type=int, default=30, help="logs simulated from Jester")
    parser.add_argument("--out", type=Path, help="JSON lines with every row")
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    bandit = open_bandit(options.data)
    print("Open Bandit data, clicks per thousand:\n\n" + open_bandit_markdown(bandit), flush=True)
    ratings = load_jester(options.data)
    rows: list[dict[str, Any]] = []
    with progress("jester", options.seeds * len(SIZES)) as advance:
        for size in SIZES:
            for seed in range(options.seeds):
                rows += jester_seed(ratings, seed, size)
                advance(f"{size} rows a user")
    print("\nJester:\n\n" + jester_markdown(summarise_jester(rows)))
    if options.out:
        options.out.write_text("".join(json.dumps(row) + "\n" for row in [*bandit, *rows]), encoding="utf-8")


if __name__ == "__main__":
    main()
