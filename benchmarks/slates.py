"""How far estimators of slates are from the truth, by what users look at: bias and RMSE with hidden propensities.

Slates of 4 of 10 actions, 20,000 requests, four kinds of users (tests/slate_worlds.py); β̂ is a linear softmax among the
actions not yet shown. Each estimator should be the best where its assumption is the strongest that holds.

    PYTHONPATH=tests python benchmarks/slates.py [--json] [--logs 10] [--requests 20000]
"""

import argparse
import json

import numpy as np

from offpolicy.estimators import ESTIMATORS
from offpolicy.evaluation import PolicyRows, chosen_user_model, with_slates
from offpolicy.propensity import fit_logging_policy
from offpolicy.rewards import PooledRewardModel
from slate_worlds import USERS, SlateWorld, Users

NAMES = ("sips", "rips", "cascade_dr", "iips", "pseudo_inverse")


def errors(users: Users, logs: int, requests: int) -> tuple[dict[str, list[float]], list[str]]:
    """Errors of every estimator, one a log, and the user model that `auto` would take."""
    world = SlateWorld.make(users)
    truth = world.value(world.target)
    found: dict[str, list[float]] = {name: [] for name in NAMES}
    models = []
    for seed in range(logs):
        log = world.log(requests, seed)
        beta = fit_logging_policy(log, "linear")
        rows = PolicyRows.of(log, world.target, beta, reward_model=PooledRewardModel.fit(log))
        rows = with_slates(rows, world.target, beta)
        models.append(chosen_user_model([rows]))
        for name in NAMES:
            if not rows.unavailable(ESTIMATORS[name]):
                found[name].append(rows.clustered(ESTIMATORS[name]).value - truth)
    return found, models


def main() -> None:
    """Print the table, or one JSON line a figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--logs", type=int, default=10)
    parser.add_argument("--requests", type=int, default=20_000)
    asked = parser.parse_args()
    for users in USERS:
        found, models = errors(users, asked.logs, asked.requests)
        for name, values in found.items():
            if not values:  # the pseudo-inverse needs positions that are filled independently
                continue
            bias, rmse = float(np.mean(values)), float(np.sqrt(np.mean(np.square(values))))
            if asked.json:
                for figure, value in (("bias", bias), ("rmse", rmse)):
                    print(json.dumps({"name": f"slates.{users}.{name}.{figure}", "value": value}), flush=True)
            else:
                print(f"{users:12} {name:15} bias {bias:+.4f}  rmse {rmse:.4f}", flush=True)
        if not asked.json:
            print(f"{users:12} auto takes {sorted(set(models))}", flush=True)


if __name__ == "__main__":
    main()
