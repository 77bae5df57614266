"""How much dearer it is to turn a Parquet log into `LoggedData` than merely to load its columns.

Run: python benchmarks/read_log.py [--json] [--quick] [--rows N]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import polars as pl

CONTEXT = ["user", "country", "device", "segment", "age", "activity"]
COLUMNS = [*CONTEXT, "item", "reward"]
USERS, ITEMS = 100_000, 10_000
FULL, QUICK = 10_000_000, 1_000_000
REPEATS = 5
PAGE_POLL = 0.002  # seconds between two looks at a child's memory
LIMITS = {"read_log.time_ratio": 12.0, "read_log.memory_ratio": 4.0}


def write_log(path: Path, n_rows: int, text: bool) -> None:
    """A log whose categoricals (integers, or strings with `text`) and numerics depend on the user."""
    rng = np.random.default_rng(0)
    user = rng.integers(0, USERS, n_rows)
    columns: dict[str, pl.Series] = {"user": pl.Series(user)}
    for name, size in (("country", 200), ("device", 20), ("segment", 1000)):
        of_user = pl.Series(rng.integers(0, size, USERS))
        if text:
            of_user = pl.Series([f"{name}-{value}" for value in of_user])
        columns[name] = of_user.gather(pl.Series(user))
    for name in ("age", "activity"):
        columns[name] = pl.Series(rng.normal(size=USERS)[user])
    columns["item"] = pl.Series(rng.integers(0, ITEMS, n_rows))
    columns["reward"] = pl.Series((rng.random(n_rows) < 0.1).astype(np.float64))
    pl.DataFrame(columns).write_parquet(path)


def load_bare(path: Path) -> None:
    pl.read_parquet(path, columns=COLUMNS)


def load_log(path: Path) -> None:
    from offpolicy.log import read_log

    log = read_log(path, context=CONTEXT, action="item", reward="reward")
    if log.n_contexts > USERS:
        raise SystemExit(f"{log.n_contexts} contexts from {USERS} users: the rows were not grouped.")


def seconds(job: Callable[[Path], None], path: Path) -> float:
    start = time.perf_counter()
    job(path)
    return time.perf_counter() - start


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def report_peak(path: Path) -> None:
    """In a fresh process: print by how much memory rises above its level after the imports."""
    import offpolicy.log  # noqa: F401

    pl.DataFrame({"warm": [1]}).select(pl.col("warm").sum())
    before = resident_bytes()
    peak, done = [before], threading.Event()

    def watch() -> None:
        while not done.wait(PAGE_POLL):
            peak[0] = max(peak[0], resident_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    load_log(path)
    done.set()
    watcher.join()
    kernel_peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(max(peak[0], int(kernel_peak.split()[1]) * 1024) - before)


def figures(path: Path, n_rows: int) -> list[dict[str, float | str]]:
    pairs = [(seconds(load_bare, path), seconds(load_log, path)) for _ in range(REPEATS + 1)][1:]  # the first warms up
    bare, ours = (median(times) for times in zip(*pairs, strict=True))
    size = pl.read_parquet(path, columns=COLUMNS).estimated_size()
    child = [sys.executable, __file__, "--peak-of", str(path)]
    peak = int(subprocess.run(child, check=True, capture_output=True, text=True).stdout)
    return [
        {"figure": "read_log.time_ratio", "value": round(ours / bare, 2), "rows": n_rows},
        {"figure": "read_log.memory_ratio", "value": round(peak / size, 2), "rows": n_rows},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} rows instead of {FULL:,}")
    parser.add_argument("--rows", type=int, help="number of rows")
    parser.add_argument("--text", action="store_true", help="categoricals are strings instead of integers")
    parser.add_argument("--peak-of", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak_of is not None:
        report_peak(options.peak_of)
        return
    n_rows = options.rows or (QUICK if options.quick else FULL)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        write_log(path, n_rows, options.text)
        for figure in figures(path, n_rows):
            name = str(figure["figure"])
            if options.json:
                print(json.dumps(figure | {"limit": LIMITS[name]}))
            else:
                print(f"{name} = {figure['value']} (at most {LIMITS[name]:g}; {n_rows:,} rows)")


if __name__ == "__main__":
    main()
