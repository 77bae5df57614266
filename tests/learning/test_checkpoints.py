"""A training killed at any moment and resumed ends as one that was never disturbed, to the last bit."""

import importlib.util
import json
import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from typing import Any, NamedTuple

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


EPOCHS = 12


class Moment(NamedTuple):
    """When to kill: so many seconds after so many epochs are on record."""

    epochs: int
    seconds: float


Run = Callable[[Path, str, Moment | None], bool]


def recorded(folder: Path) -> int:
    """Epochs on record, checked to be each of them once."""
    metrics = folder / "metrics.jsonl"
    if not metrics.exists():
        return 0
    epochs = [json.loads(line)["epoch"] for line in metrics.read_text().splitlines()]
    assert epochs == list(range(len(epochs)))
    return len(epochs)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Trains in a fork of a process that has only imported, kills it at a moment, says whether it ended by itself."""
    with subprocess.Popen([sys.executable, str(SCRIPT)], stdin=PIPE, stdout=PIPE, text=True) as server:
        stdin, stdout = server.stdin, server.stdout
        assert stdin is not None
        assert stdout is not None

        def train(folder: Path, setting: str, moment: Moment | None) -> bool:
            stdin.write(f"{folder} {setting}\n")
            stdin.flush()
            fork = int(stdout.readline())
            if moment is not None:
                while recorded(folder) < moment.epochs and not select.select([stdout], [], [], 0.001)[0]:
                    pass
                if not select.select([stdout], [], [], moment.seconds)[0]:
                    os.kill(fork, signal.SIGKILL)
            return int(stdout.readline()) == 0

        yield train
        stdin.close()


def killed_and_resumed(run: Run, folder: Path, setting: str, moments: list[Moment]) -> tuple[str, int]:
    """Kill at each moment, then let it finish; the digest and how often it was killed."""
    folder.mkdir()
    kills = sum(not run(folder, setting, moment) for moment in moments)
    assert run(folder, setting, None)
    assert recorded(folder) == EPOCHS
    return (folder / "digest").read_text(), kills


@pytest.mark.parametrize("setting", ["poem", "alternate"])
def test_killed_three_times(setting: str, tmp_path: Path, run: Run) -> None:
    expected = training.digest(training.train(tmp_path / "calm", setting))
    chance = random.Random(1)
    moments = [Moment(epochs, chance.uniform(0, 0.03)) for epochs in (0, 3, 7)]
    found, kills = killed_and_resumed(run, tmp_path / "killed", setting, moments)
    assert found == expected
    assert kills >= 2
    assert {"checkpoint.safetensors", "metrics.jsonl"} <= {path.name for path in (tmp_path / "killed").iterdir()}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("setting", ["poem", "alternate"])
def test_killed_at_twenty_random_moments(setting: str, tmp_path: Path, run: Run) -> None:
    expected = training.digest(training.train(tmp_path / "calm", setting))
    chance, total = random.Random(2), 0
    for number in range(20):
        moment = Moment(chance.randrange(EPOCHS), chance.uniform(0, 0.05))
        found, kills = killed_and_resumed(run, tmp_path / f"killed-{number}", setting, [moment])
        assert found == expected
        total += kills
    assert total >= 10


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


def test_a_training_is_not_taken_back_to_fewer_epochs(tmp_path: Path) -> None:
    longer = training.train(tmp_path, "poem", epochs=6)
    kept = (tmp_path / "checkpoint.safetensors").read_bytes()
    with pytest.raises(OffPolicyError, match=f"{tmp_path} holds this training after 6 epochs, but 3 are asked for"):
        training.train(tmp_path, "poem", epochs=3)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == kept
    assert training.digest(training.train(tmp_path, "poem", epochs=6)) == training.digest(longer)


@pytest.mark.parametrize("metric", [None, "value"])
def test_a_changed_reward_anywhere_in_the_log_is_another_training(tmp_path: Path, metric: str | None) -> None:
    log = training.WORLD.log(1, 60, 3)
    (train, _), (held, _) = log.divide((0.9, 0.1), seed=0)
    learn_policy(log, "ce", epochs=1, directory=tmp_path, metric=metric)
    for row in (train[0], held[0]):
        reward = log.reward.copy()
        reward[row] = 1 - reward[row]
        with pytest.raises(OffPolicyError, match="holds another training: data differ"):
            learn_policy(replace(log, reward=reward), "ce", epochs=2, directory=tmp_path, metric=metric)
    with pytest.raises(OffPolicyError, match="nuisances differ"):
        learn_policy(log, "ce", epochs=2, directory=tmp_path, metric=metric, logging_policy="popularity")
    with pytest.raises(OffPolicyError, match="validation differ" if metric is None else "metric"):
        learn_policy(log, "ce", epochs=2, directory=tmp_path, validation=training.WORLD.log(2, 20, 3))
    assert len(learn_policy(log, "ce", epochs=2, directory=tmp_path, metric=metric).history) == 2


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
