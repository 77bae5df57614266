"""Two workers against one, one thread each: the fit of β̂ and training over the shards of a store.

Run: python benchmarks/scale_engine.py [--json] [--contexts 128000] [--engines local,ray]
A warm-up of each engine on a small log comes first, so that starting processes and importing is not measured.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from figures import Figure
from offpolicy import LoggedData, fit_logging_policy, learn_policy
from offpolicy.engine import Engine, make_engine
from offpolicy.log import write_store
from offpolicy.propensity import FitConfig

ACTIONS, WIDTH, ROWS_A_CONTEXT, SHARDS = 2_000, 16, 10, 64
LIMITS = {"fit": 1.6, "train": 1.6}


def log_of(contexts: int, actions: int = ACTIONS) -> LoggedData:
    """A softmax logger over many actions."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(contexts, WIDTH)).astype(np.float32)
    tastes = 0.4 * draw.normal(size=(WIDTH, actions)).astype(np.float32)
    action = np.empty((contexts, ROWS_A_CONTEXT), dtype=np.int64)
    for start in range(0, contexts, 1000):
        chances = np.exp(x[start : start + 1000] @ tastes).cumsum(1)
        for row, line in enumerate(chances):
            action[start + row] = np.searchsorted(line, draw.random(ROWS_A_CONTEXT) * line[-1] * 0.999999)
    index = np.repeat(np.arange(contexts), ROWS_A_CONTEXT)
    chosen = action.ravel()
    reward = (draw.random(len(chosen)) < 1 / (1 + np.exp(-(x[index] * tastes.T[chosen]).sum(1)))).astype(float)
    return LoggedData.from_arrays(x, chosen, reward, context_index=index, actions=actions).sharded(SHARDS)


def fit(log: LoggedData, engine: Engine) -> Any:
    """β̂ over all shards."""
    return fit_logging_policy(log, "linear", config=FitConfig(ridge=1.0), engine=engine)


def train(log: LoggedData, engine: Engine) -> Any:
    """One epoch."""
    return learn_policy(log, "snips", epochs=1, logging_policy="popularity", engine=engine)


JOBS: dict[str, Callable[[LoggedData, Engine], Any]] = {"fit": fit, "train": train}


def seconds(job: str, log: LoggedData, engine: Engine) -> float:
    """How long a job takes."""
    start = time.perf_counter()
    JOBS[job](log, engine)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--contexts", type=int, default=128_000)
    parser.add_argument("--engines", default="local,ray")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        log = write_store(log_of(given.contexts), Path(folder) / "store")
        small = log_of(300, 10)
        for name in given.engines.split(","):
            took: dict[tuple[str, int], float] = {}
            for workers in (1, 2):
                with make_engine(name, workers) as engine:
                    for job in JOBS:
                        seconds(job, small, engine)
                    for job in JOBS:
                        took[job, workers] = min(seconds(job, log, engine) for _ in range(2))
            for job, limit in LIMITS.items():
                facts = {"one": round(took[job, 1], 2), "two": round(took[job, 2], 2), "contexts": given.contexts}
                ratio = took[job, 1] / took[job, 2]
                Figure(f"scale.two_workers_{job}.{name}", ratio, limit, "at least", facts).show(given.json)


if __name__ == "__main__":
    main()
