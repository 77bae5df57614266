"""A short training in a directory, started by the tests that kill it.

It reads lines of "DIRECTORY SETTING" from its standard input and starts each training in a fork of its own, which costs
no imports; it prints the fork's process number and how it ended.
"""

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import torch

from offpolicy.datasets.synthetic import LinearSoftmaxWorld
from offpolicy.learning import LearnedPolicy, learn_policy
from offpolicy.policies import Policy
from offpolicy.threads import set_threads

WORLD = LinearSoftmaxWorld.draw(0, n_actions=12, dimensions=4)
CONTEXTS = WORLD.contexts(3, 50)
SETTINGS: dict[str, dict[str, Any]] = {
    "poem": {"method": "poem", "logging_policy": "popularity", "metric": "value"},
    "alternate": {
        "method": "uips",
        "schedule": "alternate",
        "first_epoch_cap": 1.0,
        "scorer": "two_tower",
        "scorer_options": {"dim": 8, "id_dim": 8},
    },
}


def value(policy: Policy) -> float:
    return WORLD.value(policy, CONTEXTS)


def train(directory: Path, setting: str, epochs: int = 12) -> LearnedPolicy:
    """The same training every time."""
    given: dict[str, Any] = {"epochs": epochs, "patience": 1000, "batch_contexts": 20, "show_progress": False}
    return learn_policy(WORLD.log(1, 60, 3), directory=directory, **given, **SETTINGS[setting])


def digest(learned: LearnedPolicy) -> str:
    """A fingerprint of every bit of the final weights and of the record without its clock."""
    found = hashlib.sha256()
    for name, values in learned.scorer.state_dict().items():
        found.update(name.encode() + values.numpy().tobytes())
    record = [{name: number for name, number in epoch.items() if name != "seconds"} for epoch in learned.history]
    found.update(repr((record, learned.best_epoch, learned.best_metric)).encode())
    return found.hexdigest()


def train_and_sign(folder: Path, setting: str) -> None:
    """Train, and leave the digest beside the checkpoint."""
    (folder / "digest").write_text(digest(train(folder, setting)))


def serve() -> None:
    """One fork a line of standard input, before anything has been computed here."""
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # the first one imports much, which no fork should repeat
    for line in sys.stdin:
        folder, setting = line.split()
        fork = os.fork()
        if fork == 0:
            try:
                train_and_sign(Path(folder), setting)
            finally:
                os._exit(0 if (Path(folder) / "digest").exists() else 1)
        print(fork, flush=True)
        print(os.waitpid(fork, 0)[1], flush=True)


if __name__ == "__main__":
    set_threads(1)
    serve()
