"""What the way from a log file to a decision costs: inspect, learn, evaluate and report, each the real command.

Run: python benchmarks/three_commands.py [--json] [--quick] [--rows N] [--actions N] [--contexts N] [--keep DIR]

The synthetic log is one Parquet file with strings for ids: users with three columns of words and two of numbers, shown
items by a softmax over popularity and taste whose probabilities are not recorded, rows in random order. Where the Open
Bandit data are found (OFFPOLICY_DATA, or shared/data beside the repository) the same commands run on their CSV. Seconds
are those of the whole command, memory is all that its process ever held; CPU tells what a busy machine hides. The sum
is also given in exact softmax epochs of the same log, timed in the same run. `--quick` takes a fiftieth of the log.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl
import torch

import figures
from offpolicy.log import read_log
from offpolicy.models import linear_scorer, weighted_log_likelihood
from offpolicy.policies import tensor

ROWS, ACTIONS, CONTEXTS = 5_000_000, 2_000, 200_000
QUICK = 50
WORDS = {"country": 20, "device": 4, "segment": 12}
NUMBERS = ("age", "activity")
ROLES = '\naction = "item"\nreward = "click"\ncluster = "user"\nkind = {age = "numeric"}\n'
TASTES = 8
TILE = 2_000  # users whose probabilities of all items are held at a time
BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


@dataclass(frozen=True)
class Size:
    """How large the synthetic log is."""

    rows: int
    actions: int
    contexts: int


LIMITED = Size(1_000_000, 2_000, 50_000)
"""The size at which the figures are held to limits."""
LIMITS = {"softmax_epochs": 120, "peak_gb": 1.2}
EPOCHS = 6


def write_log(path: Path, size: Size, seed: int = 0) -> None:
    """Draw users, what they were shown and what they clicked, and write it without the probabilities."""
    random = np.random.default_rng(seed)
    words = {name: random.integers(0, n, size.contexts) for name, n in WORDS.items()}
    age, activity = random.integers(18, 80, size.contexts), random.gamma(2.0, 1.0, size.contexts).round(3)
    taste = sum(random.normal(size=(n, TASTES))[words[name]] for name, n in WORDS.items())
    taste = (taste + np.outer((age - 49) / 18, random.normal(size=TASTES))) / len(WORDS)
    items = random.normal(size=(size.actions, TASTES)) / TASTES**0.5
    liking = items + 0.7 * random.normal(size=items.shape) / TASTES**0.5
    popularity = -0.8 * np.log1p(random.permutation(size.actions))
    user = np.sort(random.integers(0, size.contexts, size.rows))
    item = np.empty(size.rows, np.int64)
    click = np.empty(size.rows, bool)
    for start in range(0, size.contexts, TILE):
        mine = slice(*np.searchsorted(user, (start, start + TILE)))
        who = user[mine] - start
        near = taste[start : start + TILE]
        score = np.exp(near @ items.T + popularity).cumsum(1)
        ends = score[:, -1]
        flat = (score / ends[:, None] + np.arange(len(near))[:, None]).ravel()  # one search for all users of the tile
        item[mine] = np.searchsorted(flat, who + random.random(len(who))) - who * size.actions
        item[mine] = item[mine].clip(0, size.actions - 1)
        chance = 1 / (1 + np.exp(2.5 - (near @ liking.T)[who, item[mine]]))
        click[mine] = random.random(len(who)) < chance
    order = random.permutation(size.rows)
    user, item, click = user[order], item[order], click[order]
    columns = {name: pl.Series([f"{name}-{i}" for i in range(n)])[words[name][user]] for name, n in WORDS.items()}
    frame = {
        "user": pl.Series([f"user-{i:07d}" for i in range(size.contexts)])[user],
        **columns,
        "age": age[user],
        "activity": activity[user],
        "item": pl.Series([f"item-{i:04d}" for i in range(size.actions)])[item],
        "click": click.astype(np.int8),
    }
    pl.DataFrame(frame).write_parquet(path)


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    said: dict[str, object]


def run_command(*words: str | Path) -> Finished:
    """Run `offpolicy` in a process of its own and watch its time and memory."""
    command = [str(Path(sys.executable).with_name("offpolicy")), *map(str, words), "--json"]
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}.")
        output.seek(0)
        return Finished(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, json.load(output))


def epoch_seconds(log: Path) -> float:
    """Seconds of one exact softmax epoch: value and gradients of the likelihood of all rows, through the fused head."""
    return float(figures.output_of_child("--epoch", str(log)))


def print_epoch(path: Path) -> None:
    """In a process of its own, as the commands are: the median over a few epochs."""
    kinds: Any = {"age": "numeric"}
    log = read_log(path, context=[*WORDS, *NUMBERS], action="item", reward="click", cluster="user", kinds=kinds)
    scorer = linear_scorer(log)
    states = scorer.states(log.contexts).detach()
    context, action = tensor(log.context_index).long(), tensor(log.action).long()
    seconds = []
    for _ in range(EPOCHS):
        start = time.perf_counter()
        weights, bias = scorer.actions()
        value = weighted_log_likelihood(states, weights, bias, context, action, torch.ones(log.n_rows))
        torch.autograd.grad(value, [weights, bias])
        seconds.append(time.perf_counter() - start)
    print(median(seconds[1:]))


def path_of(
    name: str,
    log: Path,
    config: str,
    folder: Path,
    as_json: bool,
    *,
    epoch: float | None = None,
    limits: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Run the commands on a log and print what each cost."""
    settings = folder / f"{name}.toml"
    settings.write_text(config)
    learned, judged = folder / f"{name}-learned", folder / f"{name}-judged"
    common = ("--config", settings)
    commands = {
        "inspect": ("inspect", log, *common),
        "learn": ("learn", log, *common, "--out", learned),
        "evaluate": ("evaluate", log, *common, "--policy", learned, "--compare", "uniform", "--out", judged),
        "report": ("report", judged),
    }
    finished = {}
    for command, words in commands.items():
        done = finished[command] = run_command(*words)
        peak = done.peak_bytes / 1e9
        note = f"{done.cpu_seconds:.0f} s of CPU, peak memory {peak:.2f} GB"
        facts = {"cpu_seconds": round(done.cpu_seconds, 1), "peak_gb": round(peak, 3)}
        figures.Figure(f"three_commands.{name}.{command}_seconds", done.seconds, facts=facts, note=note).show(as_json)
    total = sum(done.seconds for done in finished.values())
    most = max(done.peak_bytes for done in finished.values()) / 1e9
    cpu = round(sum(done.cpu_seconds for done in finished.values()), 1)
    note = f"{cpu:.0f} s of CPU"
    figures.Figure(f"three_commands.{name}.seconds", total, facts={"cpu_seconds": cpu}, note=note).show(as_json)
    figures.Figure(f"three_commands.{name}.peak_gb", most, limits.get("peak_gb")).show(as_json)
    if epoch is not None:
        facts = {"epoch_seconds": round(epoch, 3)}
        note = f"{total:.0f} s, one exact epoch takes {epoch:.2f} s"
        limit = limits.get("softmax_epochs")
        figures.Figure("three_commands.softmax_epochs", total / epoch, limit, facts=facts, note=note).show(as_json)
    runs: list[Any] = [finished[command].said["run"] for command in ("learn", "evaluate")]
    fits = sum(int(one["propensity_fits"]) for one in runs)
    note = f"{name}: learn, evaluate, report"
    figures.Figure("three_commands.propensity_fits", fits, 2, facts={"log": name}, note=note).show(as_json)


def open_bandit_log() -> Path | None:
    """The CSV of the Open Bandit data, where they are found."""
    root = Path(os.environ.get("OFFPOLICY_DATA") or BESIDE)
    path = root / "obd" / "bts" / "men" / "men.csv"
    return path if path.is_file() else None


def main() -> None:
    parser = figures.arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help=f"a log {QUICK} times shorter")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--actions", type=int, default=ACTIONS)
    parser.add_argument("--contexts", type=int, default=CONTEXTS)
    parser.add_argument("--keep", type=Path, help="folder for the logs, policies and reports, which then stay")
    parser.add_argument("--epoch", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.epoch is not None:
        print_epoch(options.epoch)
        return
    share = QUICK if options.quick else 1
    size = Size(options.rows // share, options.actions, options.contexts // share)
    with tempfile.TemporaryDirectory() as place:
        folder = options.keep or Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        real = open_bandit_log()
        if real is not None:
            columns = ["position", *(f"user_feature_{i}" for i in range(4))]
            config = f'context = {columns}\naction = "item_id"\nreward = "click"\nkind = {{position = "categorical"}}\n'
            path_of("open_bandit", real, config, folder, options.json)
        log = folder / f"log-{size.rows}x{size.actions}.parquet"
        if not log.exists():
            write_log(log, size)
        facts = {"rows": size.rows, "actions": size.actions, "contexts": size.contexts}
        note = f"{size.rows:,} rows, {size.actions:,} actions, {size.contexts:,} users"
        megabytes = log.stat().st_size / 1e6
        figures.Figure("three_commands.log_megabytes", megabytes, facts=facts, note=note).show(options.json)
        config = "context = " + str([*WORDS, *NUMBERS]) + ROLES
        limits = LIMITS if size == LIMITED else {}
        path_of("synthetic", log, config, folder, options.json, epoch=epoch_seconds(log), limits=limits)


if __name__ == "__main__":
    main()
