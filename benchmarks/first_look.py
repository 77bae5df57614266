"""The first ten minutes with an ordinary shop log: inspect, learn, evaluate and report, typed as in docs/quickstart.md.

Run: python benchmarks/first_look.py [--json] [--quick] [--rows N] [--items N] [--keep DIR]

The log is what a shop exports: slates of five, 19,000 items, missing ages, feedback that is not in yet, rows written
twice, three outcomes, dates, decimals, an item's price among the user's columns, a column that nobody fills. Nothing
is prepared: the first command names the file and nothing else, and what it asks for is given to the next ones, word
for word. `attempts` counts how often a command had to be typed until it ran. Seconds are those of one core, and
`resumable_seconds` those of the clock until a killed `learn` would not begin again from nothing. Figures are printed
as soon as they are known.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path

import numpy as np
import polars as pl

import figures

ROWS, ITEMS = 400_000, 19_000
SLATE = 5
QUICK = 40
LIMITS = {"inspect": 15.0, "all": 300.0, "peak_gb": 1.5, "attempts": 2, "resumable": 60.0}
LOOK_EVERY = 0.1
COUNTRIES = ("AT", "BE", "CH", "DE", "ES", "FR", "IT", "NL")
DEVICES = ("phone", "desktop", "tablet")
TASTES = 6
EXPLORED = 0.1
"""Share of places that are filled at random."""
REFUSALS = 5
"""Attempts after which a command is given up."""


def write_shop_log(path: Path, rows: int = ROWS, items: int = ITEMS, seed: int = 0) -> None:
    """Draw requests, the five items that each was shown and what came of it, and write them as a shop would."""
    random = np.random.default_rng(seed)
    repeated = rows // 200
    requests = (rows - repeated) // SLATE + 1
    users = max(requests // 4, 20)
    user = random.integers(0, users, requests)
    about = _users(users, random)
    shown = _shown(about, user, items, random)
    frame = _events(about, user, shown, random).head(rows - repeated)
    again = frame[random.choice(len(frame), repeated, replace=False)]
    order = random.permutation(rows)
    frame = pl.concat([frame, again])[order].sort("event_time", maintain_order=True)
    frame.write_parquet(path) if path.suffix == ".parquet" else frame.write_csv(path)


def _users(users: int, random: np.random.Generator) -> pl.DataFrame:
    day = np.datetime64(date(2021, 1, 1)) + 365 * random.integers(0, 5, users)
    age = random.integers(2, 9, users) * 10.0
    columns = {
        "user_id": [f"user-{number:06d}" for number in range(users)],
        "country": random.choice(COUNTRIES, users),
        "device": random.choice(DEVICES, users, p=[0.6, 0.3, 0.1]),
        "age": np.where(random.random(users) < 0.15, np.nan, age),
        "member": random.random(users) < 0.4,
        "signup_date": day,
    }
    frame = pl.DataFrame(columns).with_columns(
        pl.col("age").fill_nan(None),
        pl.col("device").cast(pl.Enum(DEVICES)),
        pl.col("signup_date").cast(pl.Date),
        discount=pl.when("member").then(5.0).otherwise(0.0).cast(pl.Decimal(6, 2)),
    )
    return frame.with_columns(pl.when(pl.Series(random.random(users) < 0.05)).then(None).otherwise("age").alias("age"))


def _shown(about: pl.DataFrame, user: np.ndarray, items: int, random: np.random.Generator) -> np.ndarray:
    """Five items for each request, by a softmax over popularity and taste."""
    codes = about.select(pl.col("country").cast(pl.Categorical).to_physical(), pl.col("device").to_physical())
    taste = random.normal(size=(len(COUNTRIES), TASTES))[codes["country"]]
    taste = taste + random.normal(size=(len(DEVICES), TASTES))[codes["device"]]
    embedded = random.normal(size=(items, TASTES)) / TASTES**0.5
    popularity = -0.9 * np.log1p(random.permutation(items))
    kinds, kind = np.unique(taste, axis=0, return_inverse=True)
    scores = np.exp(kinds @ embedded.T + popularity).cumsum(1)
    shown = np.empty((len(user), SLATE), np.int64)
    for number, row in enumerate(scores):
        mine = np.flatnonzero(kind[user] == number)
        drawn = np.searchsorted(row, random.random((len(mine), SLATE)) * row[-1])
        shown[mine] = drawn.clip(0, items - 1)
    explored = random.random(shown.shape) < EXPLORED
    return np.where(explored, random.integers(0, items, shown.shape), shown)


def _events(about: pl.DataFrame, user: np.ndarray, shown: np.ndarray, random: np.random.Generator) -> pl.DataFrame:
    requests = len(user)
    rows = requests * SLATE
    request = np.repeat(np.arange(requests), SLATE)
    item = shown.ravel()
    items = int(item.max()) + 1
    price = (random.gamma(2.0, 15.0, items) + 1).round(2)
    appeal = 0.02 + 0.1 * random.random(items) ** 3
    position = np.tile(np.arange(1, SLATE + 1), requests)
    click = random.random(rows) < appeal[item] / np.sqrt(position)
    purchase = click & (random.random(rows) < 0.15)
    start = np.datetime64(datetime(2026, 9, 1), "s") + np.sort(random.integers(0, 28 * 86_400, requests))[request]
    pending = start > np.datetime64(datetime(2026, 9, 28), "s")
    later = start + random.integers(3, 120, rows).astype("timedelta64[s]")
    seen = pl.Series(click.astype(np.int8))
    events = pl.DataFrame(
        {
            "impression_id": [f"{number:032x}" for number in random.integers(0, 2**62, rows)],
            "request_id": request,
            "event_time": start.astype("datetime64[us]"),
            "position": position,
            "item_id": [f"sku-{number:05d}" for number in item],
            "item_price": price[item],
            "click": seen,
            "purchase": purchase.astype(np.int8),
            "revenue": np.where(purchase, price[item], 0.0),
            "clicked_at": later.astype("datetime64[us]"),
            "dwell_seconds": np.where(click, random.gamma(2.0, 20.0, rows).round(1), 0.0),
            "legacy_score": pl.Series([None] * rows, dtype=pl.Float64),
        }
    ).with_columns(pl.when(pl.col("click") == 1).then("clicked_at").alias("clicked_at"))
    outcomes = ("click", "purchase", "revenue", "dwell_seconds")
    events = events.with_columns(pl.when(~pl.Series(pending)).then(pl.col(name)).alias(name) for name in outcomes)
    who = about[user[request]]
    return pl.concat([events.select("impression_id", "request_id", "event_time"), who, events[:, 3:]], how="horizontal")


@dataclass(frozen=True)
class Typed:
    """A command as it was typed until it ran: how often, and what the last time took."""

    attempts: int
    cpu_seconds: float
    peak_gb: float
    said: dict[str, object]
    options: list[str]
    resumable: float = 0.0
    """Seconds until it had kept a piece of work, where it was asked to."""


def typed(words: list[str], options: list[str], keeps: Path | None = None) -> Typed:
    """Type a command; where it refuses, add the options that its own message names, and type it again.

    `keeps` is the folder in which it keeps finished pieces of work.
    """
    for attempt in range(1, REFUSALS + 1):
        command = [str(Path(sys.executable).with_name("offpolicy")), *words, *options]
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            start, kept = time.perf_counter(), 0.0
            process = subprocess.Popen(command, stdout=output, stderr=errors, env=ONE_CORE)
            while True:
                pid, status, usage = os.wait4(process.pid, 0 if keeps is None or kept else os.WNOHANG)
                if pid:
                    break
                kept = time.perf_counter() - start if keeps and any(keeps.glob("**/*.safetensors")) else 0.0
                time.sleep(LOOK_EVERY)
            process.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            errors.seek(0)
            message = errors.read()
            if not process.returncode:
                said = json.load(output) if "--json" in words else {}
                return Typed(attempt, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e6, said, options, kept)
        offered = re.findall(r"(?:All at once:|Give) ((?:--\S+ \S+ ?)+)", message)
        if not offered:
            raise SystemExit(f"{shlex.join(command)} refused, and named no option that helps: {message}")
        options = [*options, *shlex.split(offered[-1])]
    raise SystemExit(f"{shlex.join(command)} still refused after {REFUSALS} attempts: {message}")


ONE_CORE = os.environ | {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}


def look(folder: Path, size: tuple[int, int], as_json: bool) -> None:
    """Run the four commands and print what each took."""
    log, learned, judged = folder / "shop.parquet", folder / "run", folder / "judged"
    write_shop_log(log, *size)
    columns = ["--cluster", "user_id"]
    full, done = size == (ROWS, ITEMS), {}

    def show(command: str, one: Typed) -> Typed:
        limit = LIMITS["inspect"] if command == "inspect" and full else None
        facts = {"peak_gb": round(one.peak_gb, 3), "attempts": one.attempts}
        name = f"first_look.{command}_seconds_of_one_core"
        note = f"peak memory {one.peak_gb:.2f} GB, typed {one.attempts} time(s)"
        figures.Figure(name, one.cpu_seconds, limit, facts=facts, note=note).show(as_json)
        done[command] = one
        return one

    show("inspect", typed(["inspect", str(log), *columns, "--json"], []))
    words = ["learn", str(log), *columns, "--out", str(learned)]
    learning = show("learn", typed(words, [], learned))
    limit = LIMITS["resumable"] if full else None
    figures.Figure("first_look.resumable_seconds", learning.resumable, limit).show(as_json)
    words = ["evaluate", str(log), *columns, "--policy", str(learned), "--compare", "uniform", "--out", str(judged)]
    show("evaluate", typed(words, learning.options))
    show("report", typed(["report", str(judged)], []))
    total = sum(one.cpu_seconds for one in done.values())
    figures.Figure("first_look.seconds_of_one_core", total, LIMITS["all"] if full else None).show(as_json)
    peak = max(one.peak_gb for one in done.values())
    figures.Figure("first_look.peak_gb", peak, LIMITS["peak_gb"] if full else None).show(as_json)
    attempts = max(one.attempts for one in done.values())
    figures.Figure("first_look.attempts", attempts, LIMITS["attempts"]).show(as_json)


def main() -> None:
    parser = figures.arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help=f"a log {QUICK} times shorter, with a tenth of the items")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--items", type=int, default=ITEMS)
    parser.add_argument("--keep", type=Path, help="folder for the log, the run and the report, which then stay")
    options = parser.parse_args()
    size = (options.rows // QUICK, options.items // 10) if options.quick else (options.rows, options.items)
    with tempfile.TemporaryDirectory() as place:
        folder = options.keep or Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        look(folder, size, options.json)


if __name__ == "__main__":
    main()
