"""`kill -9` at random moments of saving and of recommending to a file: the output is complete or absent."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest

from offpolicy.artifacts import load_policy, save_policy
from offpolicy.atomic import leftovers, versions
from policy_worlds import a_linear, a_log, frame

ROWS = 400

SAVING = """
import sys, itertools
from policy_worlds import a_linear, a_log
from offpolicy.artifacts import save_policy
log = a_log()
scorer = a_linear(log)
print("ready", flush=True)
for seed in itertools.count(1):
    save_policy(scorer, log, sys.argv[1], metadata={"seed": seed, "config": {"filler": "x" * 300_000}})
"""
SERVING = """
import sys
from offpolicy.artifacts import load_policy, saved_policy
saved_policy.BATCH_ROWS = 50
saved = load_policy(sys.argv[2])
print("ready", flush=True)
while True:
    saved.recommend_to_file(sys.argv[3], sys.argv[1], 5)
"""


@contextmanager
def running(script: str, *arguments: Path) -> Iterator[subprocess.Popen[str]]:
    """A script that has said that it is ready."""
    tests = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


def killed(script: str, moment: float, *arguments: Path) -> None:
    """Run a script and kill it so many seconds after it is ready."""
    with running(script, *arguments) as process:
        time.sleep(moment)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


def check_saving(folder: Path, tries: int, seed: int) -> None:
    log = a_log()
    expected = a_linear(log)
    chance = random.Random(seed)
    target, saved = folder / "policy", False
    for attempt in range(tries):
        killed(SAVING, chance.uniform(0, 0.03) if attempt == 0 else chance.uniform(0, 0.3), target)
        saved = saved or target.exists()  # a busy machine may kill the first writers before their first save
        if saved:
            assert load_policy(target).policy.weights.equal(expected.weights)
    assert saved
    save_policy(expected, log, target)
    assert leftovers(target) == []
    assert [path.name for path in folder.iterdir()] == ["policy"]
    assert sorted(path.name for path in target.iterdir()) == ["CURRENT", "versions"]
    assert len(versions(target)) <= 2


def test_readers_never_meet_a_policy_in_the_making(tmp_path: Path) -> None:
    """A process saves again and again; every load meanwhile gives one of its policies, and newer ones with time."""
    target = save_policy(a_linear(a_log()), a_log(), tmp_path / "policy", metadata={"seed": 0})
    seeds = []
    with running(SAVING, target) as process:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            seeds.append(load_policy(target).metadata.seed or 0)
        process.kill()
    assert seeds == sorted(seeds)
    assert seeds[-1] > 3


def check_serving(folder: Path, tries: int, seed: int) -> None:
    log = a_log()
    policy = save_policy(a_linear(log), log, folder / "policy")
    contexts = folder / "contexts.parquet"
    frame(ROWS, 3, strangers=True).write_parquet(contexts)
    chance = random.Random(seed)
    for attempt in range(tries):
        target = folder / f"out-{attempt % 2}.parquet"
        killed(SERVING, chance.uniform(0, 0.2), target, policy, contexts)
        if target.exists():
            assert len(pl.read_parquet(target)) == 5 * ROWS
    load_policy(policy).recommend_to_file(contexts, folder / "out-0.parquet", 5)
    assert leftovers(folder / "out-0.parquet") == []


def test_kill_while_saving(tmp_path: Path) -> None:
    check_saving(tmp_path, 3, seed=0)


def test_kill_while_recommending(tmp_path: Path) -> None:
    check_serving(tmp_path, 1, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_kill_twenty_times(tmp_path: Path) -> None:
    (tmp_path / "saving").mkdir()
    (tmp_path / "serving").mkdir()
    check_saving(tmp_path / "saving", 20, seed=int(time.time()))
    check_serving(tmp_path / "serving", 20, seed=int(time.time()))
