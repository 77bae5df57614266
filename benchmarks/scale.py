"""A log beyond memory: evaluate and learn over stores of 10 and 40 million rows, and with two workers against one.

Stores of N rows x 2,000 actions x N/20 contexts are generated shard by shard, of as many rows each (kept in --folder
and used again). Each measurement is a process of its own, one thread a worker; its peak is that of anonymous memory of
all of its processes, which unlike mapped files the system cannot drop. Beside the seconds stand CPU seconds, of the
driver and its busiest worker one after the other: how long it takes at most where nothing else runs (`..._cpu`).
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from figures import Figure, arguments
from offpolicy.log import (
    ActionTable,
    CategoricalColumn,
    EmbeddingColumn,
    FeatureTable,
    LoggedData,
    LogSchema,
    StoreWriter,
    Vocabulary,
    is_store,
)

ACTIONS, WIDTH, ROWS_A_CONTEXT = 2_000, 8, 20
SIZES = (10_000_000, 40_000_000)
FEWEST_SHARDS, ROWS_A_SHARD = 64, 156_250
"""Memory is that of a shard, so that a larger log gets more of them."""
WARM_UP = 128_000
"""Rows of the store that workers begin with."""
AT_ONCE = 2_000
"""Contexts of which all actions are drawn at a time."""
WEIGHTS = np.random.default_rng(0).normal(size=(WIDTH, ACTIONS)).astype(np.float32)
SCHEMA = LogSchema(context=("x", "segment"), action="action", reward="reward")
MEMORY = "1GB"
LIMITS = {"peak_gb": 1.3, "memory_growth": 1.10, "time_growth": 1.15}
COMMANDS = {
    "offpolicy evaluate": ("evaluate", "{store}", "--policy", "uniform", "--memory", MEMORY),
    "offpolicy learn": (
        *("learn", "{store}", "--method", "uips", "--epochs", "1"),
        *("--out", "{out}/run", "--memory", MEMORY),
    ),
}
JOBS = ("evaluate", "fit", "train")
FASTER = {"evaluate": 1.7, "fit": 1.6, "train": 1.6, "epoch": 1.6}


def store_of(rows: int, folder: Path) -> Path:
    """A store of so many rows, generated a shard at a time unless it is there."""
    target = folder / f"{rows}.store"
    if is_store(target):
        return target
    writer = StoreWriter(target, [], {})
    actions = ActionTable(Vocabulary(range(ACTIONS)))
    segments = Vocabulary([f"s{number}" for number in range(10)])
    shard, shards = None, max(FEWEST_SHARDS, rows // ROWS_A_SHARD)
    for number in range(shards):
        shard = _shard(number, rows // ROWS_A_CONTEXT // shards, actions, segments)
        writer.add(shard, number)
    assert shard is not None
    about = {"command": "benchmark", "sources": [], "notes": [], "keep": [], "shard_count": shards}
    writer.finish(shard, about | {"schema": SCHEMA.model_dump(mode="json")})
    return target


def _shard(number: int, contexts: int, actions: ActionTable, segments: Vocabulary) -> LoggedData:
    draw = np.random.default_rng((1, number))
    x = draw.normal(size=(contexts, WIDTH)).astype(np.float32)
    action = np.empty((contexts, ROWS_A_CONTEXT), dtype=np.int32)
    for start in range(0, contexts, AT_ONCE):
        scores = np.exp(0.5 * x[start : start + AT_ONCE] @ WEIGHTS).cumsum(1)
        places = draw.random((len(scores), ROWS_A_CONTEXT)).astype(np.float32) * scores[:, -1:] * 0.999999
        for row, (line, wanted) in enumerate(zip(scores, places, strict=True)):
            action[start + row] = np.searchsorted(line, wanted)
    segment = draw.integers(0, len(segments), contexts).astype(np.int32)
    chosen = action.ravel()
    index = np.repeat(np.arange(contexts, dtype=np.int32), ROWS_A_CONTEXT)
    chance = 0.1 + 0.4 / (1 + np.exp(-(x[index] * WEIGHTS.T[chosen]).sum(1)))
    table = FeatureTable({"x": EmbeddingColumn(x), "segment": CategoricalColumn(segment, segments)})
    reward = (draw.random(len(chosen)) < chance).astype(np.float64)
    log = LoggedData(table, index, chosen, reward, actions)
    return log.sharded(1).shard(0)


def work(job: str, store: str, engine: Any) -> dict[str, float]:
    """Do a job over a store: its seconds, and of learning also those of its epoch."""
    import torch

    from offpolicy import evaluate, fit_logging_policy, learn_policy, open_store
    from offpolicy.cli import main as main_of_commands
    from offpolicy.policies import LinearSoftmaxPolicy, UniformPolicy

    torch.set_num_threads(1)
    log, epoch = open_store(store, verify=False), {}
    weights = torch.from_numpy(WEIGHTS.T.copy())
    start = time.perf_counter()
    if job in COMMANDS:
        with tempfile.TemporaryDirectory(dir=Path(store).parent) as out, suppress(SystemExit):
            sys.argv = ["offpolicy", *(one.format(store=store, out=out) for one in COMMANDS[job])]
            main_of_commands()
    elif job == "evaluate":
        policies = {
            "uniform": UniformPolicy(log.actions),
            "sharper": LinearSoftmaxPolicy("x", 0.7 * weights, torch.zeros(ACTIONS), table=log.actions),
            "other": LinearSoftmaxPolicy("x", 0.5 * weights.flip(0), torch.zeros(ACTIONS), table=log.actions),
        }
        evaluate(log, policies, "linear", engine=engine)
    elif job == "fit":
        fit_logging_policy(log, "linear", engine=engine)
    else:
        epoch = {"epoch": learn_policy(log, "uips", epochs=1, engine=engine).history[0]["seconds"]}
    return {"seconds": time.perf_counter() - start, **epoch}


def child(job: str, store: str, name: str, workers: int) -> None:
    """Do a job and print its seconds, its longest chain of CPU seconds and its peak of anonymous memory."""
    from offpolicy.engine import make_engine

    with Peak() as peak, make_engine(None if name == "none" else name, workers) as engine:
        if name != "none":
            work(job, str(store_of(WARM_UP, Path(store).parent)), engine)  # workers start and import
        before, driver = {pid: _cpu(pid) for pid in engine.pids}, time.process_time()
        found = work(job, store, engine)
        busiest = max((_cpu(pid) - cpu for pid, cpu in before.items()), default=0.0)
        found["cpu"] = time.process_time() - driver + busiest
    print(json.dumps({**found, "peak": peak.bytes}))


def _cpu(process: int) -> float:
    """CPU seconds of a process so far."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


class Peak:
    """The most anonymous memory that this process and those it started have together while a block runs."""

    def __enter__(self) -> "Peak":
        """Begin to watch."""
        self.bytes, self._done = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Watch no more."""
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.05):
            self.bytes = max(self.bytes, sum(map(_anonymous, _family(os.getpid()))))


def _family(process: int) -> list[int]:
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        children = []
    return [process, *(other for one in children for other in _family(int(one)))]


def _anonymous(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def measured(job: str, store: Path, engine: str = "none", workers: int = 1) -> dict[str, float]:
    """Seconds and peak of a job in a process of its own."""
    words = [sys.executable, __file__, "--child", job, str(store), engine, str(workers)]
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "POLARS_MAX")}
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | threads, check=False)
    if done.returncode:
        raise SystemExit(f"{job} over {store} failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(f"{job} {store.name} {engine} {workers}: {found}", file=sys.stderr, flush=True)
    return found


def growth(jobs: list[str], folder: Path, sizes: tuple[int, int], as_json: bool) -> None:
    """Memory and time from the smaller to the larger store."""
    for job in jobs:
        small, large = (measured(job, store_of(rows, folder)) for rows in sizes)
        facts = {"job": job, "rows": list(sizes), "seconds": [round(small["seconds"]), round(large["seconds"])]}
        values = {
            "peak_gb": large["peak"] / 1e9,
            "memory_growth": large["peak"] / small["peak"],
            "time_growth": (large["seconds"] / sizes[1]) / (small["seconds"] / sizes[0]),
        }
        for name, value in values.items():
            Figure(f"scale.{name}", value, LIMITS[name], facts=facts, note=job).show(as_json)


def two_workers(given: Any) -> None:
    """How much faster two workers are than one, the best of several runs in turn."""
    store = store_of(given.workers_rows, given.folder)
    for engine, job in product(given.engines, given.two):
        runs = [[measured(job, store, engine, workers) for workers in (1, 2)] for _ in range(given.repeat)]
        for kind, name in {"seconds": job, "epoch": "epoch", "cpu": f"{job}_cpu"}.items():
            if kind in runs[0][0]:
                one, two = (min(run[place][kind] for run in runs) for place in (0, 1))
                facts = {"engine": engine, "rows": given.workers_rows, "seconds": [round(one, 1), round(two, 1)]}
                figure = f"scale.two_workers_{name}"
                Figure(figure, one / two, FASTER.get(name), "at least", facts, engine).show(given.json)


def main() -> None:
    """Measure what was asked for."""
    parser = arguments(__doc__)
    parser.add_argument("--folder", type=Path, default=Path("build/scale"), help="where the stores are")
    parser.add_argument("--sizes", type=int, nargs=2, default=SIZES, help="rows of the smaller and the larger store")
    parser.add_argument("--workers-rows", type=int, default=SIZES[0], help="rows of the store for two workers")
    growing = ["evaluate", "train", *COMMANDS]
    parser.add_argument("--jobs", nargs="*", choices=growing, default=growing, help="to measure; no name skips them")
    parser.add_argument("--two", nargs="*", choices=list(JOBS), default=list(JOBS), help="the same for two workers")
    parser.add_argument("--engines", nargs="*", choices=["local", "ray"], default=["local", "ray"])
    parser.add_argument("--repeat", type=int, default=1, help="runs with one and two workers, the best of which count")
    parser.add_argument("--child", nargs=4, metavar=("JOB", "STORE", "ENGINE", "WORKERS"))
    given = parser.parse_args()
    if given.child:
        child(given.child[0], given.child[1], given.child[2], int(given.child[3]))
        return
    two_workers(given)
    growth(given.jobs, given.folder, tuple(given.sizes), given.json)


if __name__ == "__main__":
    main()
