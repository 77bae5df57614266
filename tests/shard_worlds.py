"""Small logs of many shards, and the loss of workers at moments of one's choice."""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from offpolicy import LoggedData
from offpolicy.engine import Engine
from offpolicy.log import write_store

Found = TypeVar("Found")


def world(rows: int = 3000, actions: int = 6, seed: int = 0, **more: Any) -> LoggedData:
    """Contexts with two rows each on average, a softmax logger, rewards that depend on both."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows // 2, 3))
    index = draw.integers(0, len(x), rows)
    tastes = draw.normal(size=(3, actions))
    logits = x[index] @ tastes + draw.gumbel(size=(rows, actions))
    action = logits.argmax(1)
    chance = 1 / (1 + np.exp(-(x[index] * tastes.T[::-1][action]).sum(1)))
    reward = (draw.random(rows) < chance).astype(float)
    return LoggedData.from_arrays(x, action, reward, context_index=index, actions=actions, **more)


def stored(log: LoggedData, folder: Path) -> LoggedData:
    return write_store(log, folder / "store")


def with_losses(work: Callable[[], Found], engine: Engine, moments: Sequence[float]) -> tuple[Found, int]:
    """The result of some work while a worker is killed at some moments, and how many were.

    Moments are in seconds since the first worker's start.
    """
    over, lost = threading.Event(), []

    def killing() -> None:
        while not engine.pids and not over.wait(0.01):
            pass
        start = time.perf_counter()
        for number, moment in enumerate(moments):
            if over.wait(max(0.0, start + moment - time.perf_counter())):
                return
            pids = engine.pids
            with suppress(ProcessLookupError):
                os.kill(pids[number % len(pids)], signal.SIGKILL)
                lost.append(moment)

    killer = threading.Thread(target=killing)
    killer.start()
    try:
        return work(), len(lost)
    finally:
        over.set()
        killer.join()
