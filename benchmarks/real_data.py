"""Differences on real logs: Open Bandit data, each policy against the one that logged, propensities hidden.

Run: python benchmarks/real_data.py [--json] [--data DIR]

The truth is known up to its own error: the difference of the mean clicks of the two logs. Thompson sampling is
represented by a model of it. (Jester, whose truth is exact, is a setting of coverage.py.)
"""

import argparse
import json
from typing import Any

import numpy as np

from offpolicy import evaluate
from offpolicy.datasets import load_obd
from offpolicy.evaluation import clustered_mean
from offpolicy.policies import UniformPolicy
from offpolicy.propensity import fit_logging_policy

PER_THOUSAND = 1000.0


def rows(data: str | None) -> list[dict[str, Any]]:
    """The difference of each policy to the one that logged, in clicks per thousand, and what both logs say of it."""
    logs = {name: load_obd(name, "men", data) for name in ("bts", "random")}
    fitted = {name: fit_logging_policy(log.without_propensities(), "auto") for name, log in logs.items()}
    targets: dict[str, Any] = {"random": UniformPolicy(logs["random"].actions), "bts": fitted["bts"]}
    table = []
    for name, logged_by in (("random", "bts"), ("bts", "random")):
        found = evaluate(logs[logged_by].without_propensities(), {name: targets[name]}, fitted[logged_by])
        difference = next(one for one in found.comparisons if one.candidate == name)
        (mine, own), (other, error) = (
            clustered_mean(logs[one].reward, logs[one].cluster_index) for one in (name, logged_by)
        )
        table.append(
            {
                "policy": name,
                "log": logged_by,
                "model": found.logging.model,
                "difference": PER_THOUSAND * difference.difference,
                "low": PER_THOUSAND * difference.low,
                "high": PER_THOUSAND * difference.high,
                "probability_of_improvement": difference.probability_of_improvement,
                "measured": PER_THOUSAND * (mine - other),
                "measured_error": PER_THOUSAND * float(np.hypot(own, error)),
                "covered": bool(difference.low <= mine - other <= difference.high),
                "verdict": found[name].preflight.verdict.answer,
            }
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--data", help="the folder that holds obd/")
    options = parser.parse_args()
    for row in rows(options.data):
        if options.json:
            print(json.dumps(row))
        else:
            print(
                f"{row['policy']} − {row['log']}: {row['difference']:.1f} ({row['low']:.1f} to {row['high']:.1f}) per "
                f"thousand, measured {row['measured']:.1f} ± {row['measured_error']:.1f}; {row['verdict']}"
            )


if __name__ == "__main__":
    main()
