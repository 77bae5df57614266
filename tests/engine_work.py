"""Functions that tests map over shards; importable by workers."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from offpolicy.engine import shard_cache, spilled
from offpolicy.errors import ParameterError
from offpolicy.log import LoggedData


def reward_sum(shard: LoggedData, index: int, scale: float) -> tuple[int, int, float]:
    return index, shard.n_rows, float(scale * shard.reward.sum())


def where(shard: LoggedData, index: int) -> int:
    return os.getpid()


def times_seen(shard: LoggedData, index: int) -> int:
    cache = shard_cache()
    cache["seen"] = cache.get("seen", 0) + 1
    return int(cache["seen"])


def doubled(shard: LoggedData, index: int) -> npt.NDArray[np.float64]:
    calls = shard_cache().setdefault("calls", [])

    def make() -> npt.NDArray[np.float64]:
        calls.append(index)
        return 2 * shard.reward

    found = spilled("doubled", make)
    assert len(calls) == 1
    assert not found.flags.writeable
    return np.array(found)


def open_files_with_many_arrays(shard: LoggedData, index: int) -> int:
    """How many files the process has open once forty arrays are kept beside the shard and have been read."""
    kinds = (np.empty((0, 3)), np.arange(6, dtype=np.int32).reshape(2, 3)[:, 1:], shard.reward)
    for name in range(40):
        values = kinds[name % 3]
        for _ in range(2):
            np.testing.assert_array_equal(spilled(f"kept {name}", values.copy), values)
    return len(os.listdir("/dev/fd"))


def dies_once(shard: LoggedData, index: int, folder: Path) -> tuple[int, float]:
    """Shard 3 kills its process, but the first time only."""
    mark = folder / "died"
    if index == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return index, float(shard.reward.sum())


def dies(shard: LoggedData, index: int) -> int:
    if index == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return index


def fails(shard: LoggedData, index: int, kind: str) -> int:
    if index == 2:
        raise ParameterError("Shard 2 is wrong.") if kind == "refused" else ZeroDivisionError("by nought")
    return index


def slow(shard: LoggedData, index: int, note: Path) -> int:
    (note / str(os.getpid())).touch()
    time.sleep(0.2)
    return index


def echoed(shard: LoggedData, index: int, given: Any) -> Any:
    return given
