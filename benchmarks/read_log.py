"""How much dearer it is to turn a Parquet log into `LoggedData` than merely to load its columns.

Run: python benchmarks/read_log.py [--json] [--quick] [--rows N]
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import polars as pl

from figures import Figure, arguments, extra_peak_bytes, output_of_child, seconds_in_turns

CONTEXT = ["user", "country", "device", "segment", "age", "activity"]
COLUMNS = [*CONTEXT, "item", "reward"]
USERS, ITEMS = 100_000, 10_000
FULL, QUICK = 10_000_000, 1_000_000
REPEATS = 5
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


def report_peak(path: Path) -> None:
    """In a fresh process: print by how much memory rises above its level after the imports."""
    import offpolicy.log  # noqa: F401

    pl.DataFrame({"warm": [1]}).select(pl.col("warm").sum())
    print(extra_peak_bytes(lambda: load_log(path)))


def figures(path: Path, n_rows: int) -> list[Figure]:
    times = seconds_in_turns({"bare": lambda: load_bare(path), "ours": lambda: load_log(path)}, REPEATS, warm_ups=1)
    size = pl.read_parquet(path, columns=COLUMNS).estimated_size()
    peak = int(output_of_child("--peak-of", str(path)))
    measured = {
        "read_log.time_ratio": median(times["ours"]) / median(times["bare"]),
        "read_log.memory_ratio": peak / size,
    }
    return [
        Figure(name, value, LIMITS[name], facts={"rows": n_rows}, note=f"{n_rows:,} rows", digits=2)
        for name, value in measured.items()
    ]


def main() -> None:
    parser = arguments(__doc__)
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
            figure.show(options.json)


if __name__ == "__main__":
    main()
