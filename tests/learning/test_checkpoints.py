"""A training killed at any moment and resumed ends as one that was never disturbed, to the last bit."""

import importlib.util
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from offpolicy.errors import OffPolicyError
from offpolicy.learning import learn_policy
from offpolicy.learning.checkpoints import Checkpoint, read_checkpoint, write_checkpoint

SCRIPT = Path(__file__).parent / "training.py"
_specification = importlib.util.spec_from_file_location("training", SCRIPT)
assert _specification is not None
assert _specification.loader is not None
training: Any = importlib.util.module_from_spec(_specification)
_specification.loader.exec_module(training)


def undisturbed(folder: Path, setting: str) -> tuple[str, float]:
    start = time.monotonic()
    learned = training.train(folder, setting)
    return training.digest(learned), time.monotonic() - start


Run = Callable[[Path, str, float], bool]


@pytest.fixture(scope="module")
def in_a_fork() -> Iterator[Run]:
    """Trains in a fork of a process that has only imported; says whether it ended by itself within so many seconds."""
    with subprocess.Popen([sys.executable, str(SCRIPT)], stdin=PIPE, stdout=PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None

        def run(folder: Path, setting: str, patience: float) -> bool:
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write(f"{folder} {setting}\n")
            server.stdin.flush()
            fork = int(server.stdout.readline())
            ended = bool(select.select([server.stdout], [], [], patience)[0])
            if not ended:
                os.kill(fork, signal.SIGKILL)
            return int(server.stdout.readline()) == 0

        yield run
        server.stdin.close()


def in_a_fresh_process(folder: Path, setting: str, patience: float) -> bool:
    """The same in a process of its own; its clock starts when the first files appear or a second has passed."""
    process = subprocess.Popen([sys.executable, str(SCRIPT), str(folder), setting])
    start = time.monotonic()
    while process.poll() is None and not list(folder.iterdir()) and time.monotonic() - start < 20:
        time.sleep(0.01)
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    return process.wait() == 0


def killed_and_resumed(run: Run, folder: Path, setting: str, moments: list[float]) -> tuple[str, int]:
    """Kill at each moment, then let it finish; the digest and how often it was killed."""
    kills = 0
    for moment in moments:
        if run(folder, setting, moment):
            break
        kills += 1
        metrics = folder / "metrics.jsonl"
        if metrics.exists():
            epochs = [json.loads(line)["epoch"] for line in metrics.read_text().splitlines()]
            assert epochs == list(range(len(epochs)))
    assert run(folder, setting, 60.0)
    return (folder / "digest").read_text(), kills


@pytest.mark.parametrize("setting", ["poem", "alternate"])
def test_killed_three_times(setting: str, tmp_path: Path, in_a_fork: Run) -> None:
    expected, seconds = undisturbed(tmp_path / "calm", setting)
    (tmp_path / "killed").mkdir()
    chance = random.Random(1)
    moments = [chance.uniform(0.05, 0.5) * seconds for _ in range(3)]
    found, kills = killed_and_resumed(in_a_fork, tmp_path / "killed", setting, moments)
    assert found == expected
    assert kills >= 1
    names = {path.name for path in (tmp_path / "killed").iterdir()}
    assert {"checkpoint.safetensors", "metrics.jsonl", "digest"} <= names


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["poem", "alternate"])
def test_killed_at_twenty_random_moments(setting: str, tmp_path: Path) -> None:
    expected, seconds = undisturbed(tmp_path / "calm", setting)
    chance = random.Random(2)
    for moment in range(20):
        folder = tmp_path / f"killed-{moment}"
        folder.mkdir()
        found, _ = killed_and_resumed(in_a_fresh_process, folder, setting, [chance.uniform(0, 1) * seconds])
        assert found == expected


def test_a_longer_training_goes_on_from_a_shorter_one(tmp_path: Path) -> None:
    training.train(tmp_path / "a", "poem", epochs=4)
    longer = training.train(tmp_path / "a", "poem", epochs=9)
    at_once = training.train(tmp_path / "b", "poem", epochs=9)
    assert training.digest(longer) == training.digest(at_once)
    again = training.train(tmp_path / "a", "poem", epochs=9)
    assert training.digest(again) == training.digest(at_once)


def test_another_training_is_not_resumed(tmp_path: Path) -> None:
    log = training.WORLD.log(1, 60, 3)
    learn_policy(log, "ce", epochs=1, directory=tmp_path)
    with pytest.raises(OffPolicyError, match="holds another training: learning_rate differ"):
        learn_policy(log, "ce", epochs=2, directory=tmp_path, learning_rate=0.5)
    with pytest.raises(OffPolicyError, match="data differ"):
        learn_policy(training.WORLD.log(2, 60, 3), "ce", epochs=2, directory=tmp_path)


def test_a_checkpoint_holds_everything(tmp_path: Path) -> None:
    training.train(tmp_path, "alternate", epochs=2)
    found = read_checkpoint(tmp_path)
    assert found is not None
    parts = {name.split("/")[0] for name in found.tensors}
    assert parts == {"scorer", "optimiser", "logging", "logging_optimiser", "random"}
    assert [epoch["epoch"] for epoch in found.facts["history"]] == [0, 1]


def test_damaged_and_foreign_files_are_told_apart(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path) is None
    write_checkpoint(tmp_path, Checkpoint({"a": torch.ones(3)}, {"history": []}))
    path = tmp_path / "checkpoint.safetensors"
    whole = path.read_bytes()
    for damaged in (whole[:20], b"", b"junk" * 100):
        path.write_bytes(damaged)
        with pytest.raises(OffPolicyError, match="cannot be read as a checkpoint"):
            read_checkpoint(tmp_path)
    save_file({"a": torch.ones(3)}, path)
    with pytest.raises(OffPolicyError, match="not a checkpoint of this version"):
        read_checkpoint(tmp_path)
