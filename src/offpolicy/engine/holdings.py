"""What a worker holds: the shards it owns, and what functions keep beside each of them.

A function that is mapped over shards may call `shard_cache()` and `spilled(...)`. What it finds there was put there by
earlier calls over the same shard; after the loss of a worker its successor finds nothing, so functions must be able to
make it again.
"""

import atexit
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from offpolicy.atomic import scratch_folder
from offpolicy.engine.process import performed
from offpolicy.memory import give_back

if TYPE_CHECKING:
    from offpolicy.log import LoggedData

SCRATCH = "offpolicy-shards"
"""Name of the temporary folders below TMPDIR."""
GIVE_BACK_SECONDS = 0.2
"""Freed memory is given back no more often: what functions of milliseconds free, the next one needs again."""


class Source(Protocol):
    """Where a worker finds the shards of a log."""

    spills: bool
    """Whether what is kept of each row goes to memory-mapped files, as the shards themselves are on the disk."""

    def shard(self, index: int) -> "LoggedData":
        """One of the shards it owns."""
        ...


@dataclass
class InStore:
    """Shards of a prepared folder, opened by its path and memory-mapped."""

    path: Path
    spills: bool = True
    _log: Any = None

    def shard(self, index: int) -> "LoggedData":
        """A fresh view, so that what is derived from a shard does not stay."""
        if self._log is None:
            from offpolicy.log import open_store

            self._log = open_store(self.path, verify=False)  # each shard is checked when it is first taken
        shard: LoggedData = self._log.shard(index)
        return shard


@dataclass
class InMemory:
    """Shards of a log in memory, each sent once."""

    shards: dict[int, "LoggedData"]
    spills: bool = False

    def shard(self, index: int) -> "LoggedData":
        """The shard."""
        return self.shards[index]


@dataclass(frozen=True)
class Shared:
    """Stands for a value that every worker of a pool was sent once; functions are given the value in its place."""

    number: int


@dataclass
class Held:
    """A log of which this process owns shards."""

    source: Source
    shared: dict[int, Any] = field(default_factory=dict)
    caches: dict[int, dict[Any, Any]] = field(default_factory=dict)
    folder: Path | None = None
    closing: ExitStack = field(default_factory=ExitStack)
    task: tuple[Callable[..., Any], tuple[Any, ...]] | None = None
    """What is asked about the shards."""
    given_back: float = 0.0
    """When freed memory was last given back."""

    def share(self, value: Any) -> Shared:
        """Keep a value that functions are given."""
        shared = Shared(len(self.shared))
        self.shared[shared.number] = value
        return shared

    def run(self, index: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """The result of a function for a shard."""
        global _current
        before, _current = _current, (self, index)
        try:
            given = [self.shared[one.number] if isinstance(one, Shared) else one for one in arguments]
            return function(self.source.shard(index), index, *given)
        finally:
            _current = before
            if self.source.spills and time.monotonic() - self.given_back > GIVE_BACK_SECONDS:
                give_back()  # between results that are kept, arrays that were freed leave holes that nothing fits
                self.given_back = time.monotonic()

    def answers(self, indices: Sequence[int]) -> list[tuple[str, Any]]:
        """What a worker answers about some of its shards."""
        assert self.task is not None
        return [performed(self.run, (index, *self.task)) for index in indices]

    def scratch(self) -> Path:
        """A temporary folder of this process; those that killed processes left behind are removed first."""
        if self.folder is None:
            self.folder = self.closing.enter_context(scratch_folder(Path(tempfile.gettempdir()) / SCRATCH))
            atexit.register(self.close)
            self.closing.callback(atexit.unregister, self.close)
        return self.folder

    def close(self) -> None:
        """Forget everything."""
        self.caches.clear()
        self.shared.clear()
        self.closing.close()


def one_thread() -> None:
    """Let all libraries of this process, a worker, use one thread from here on."""
    from offpolicy.threads import set_threads

    set_threads(1)


_current: tuple[Held, int] | None = None


def shard_cache() -> dict[Any, Any]:
    """A dict that stays with the shard of the function that is running, for as long as its worker and pool live."""
    held, index = _running()
    return held.caches.setdefault(index, {})


@dataclass(frozen=True)
class OnDisk:
    """An array in a file, mapped while it is used: shards × arrays that stay open would be more than a process may."""

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, values: npt.NDArray[Any], path: Path) -> "OnDisk":
        """Write an array."""
        values.tofile(path)
        return cls(path, values.dtype, values.shape)

    def open(self) -> npt.NDArray[Any]:
        """The array, read-only."""
        mapped = np.memmap(self.path, self.dtype, "r", shape=self.shape) if 0 not in self.shape else None
        return np.empty(self.shape, self.dtype) if mapped is None else mapped


def spilled(name: str, make: Callable[[], npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """An array kept with the shard of the function that is running: made on first use, read-only.

    Over a store it is written to a file and memory-mapped, so that it takes no memory of the process; over a log in
    memory it stays there.
    """
    held, index = _running()
    cache = shard_cache()
    if ("spilled", name) not in cache:
        made = make()
        if held.source.spills:
            cache["spilled", name] = OnDisk.of(made, held.scratch() / f"{index}-{len(cache)}.bin")
        else:
            made = np.ascontiguousarray(made)
            made.flags.writeable = False
            cache["spilled", name] = made
    kept = cache["spilled", name]
    found: npt.NDArray[Any] = kept.open() if isinstance(kept, OnDisk) else kept
    return found


def beside(index: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function for another shard of the same group (see `Engine.over`).

    With it a worker sends what the shards of a group add up to, instead of something for each of them.
    """
    held, _ = _running()
    return held.run(index, function, arguments)


def _running() -> tuple[Held, int]:
    if _current is None:
        raise RuntimeError("There is no shard: this is for functions that an engine maps over shards.")
    return _current


_held: dict[int, Held] = {}
"""The logs of which this process, a worker, owns shards, by the number of the pool."""


def hold(pool: int, source: Source) -> None:
    """Own the shards of a source from here on, in place of those of the same pool before."""
    forget(pool)
    one_thread()
    _held[pool] = Held(source)


def take(pool: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Take in what the next questions to a pool are about."""
    _held[pool].task = function, arguments


def share(pool: int, number: int, value: Any) -> None:
    """Keep a value that functions are given."""
    _held[pool].shared[number] = value


def answers(pool: int, indices: Sequence[int]) -> list[tuple[str, Any]]:
    """Answer questions about some of the shards."""
    return _held[pool].answers(indices)


def forget(pool: int) -> None:
    """Let go of a pool's shards and of all that was kept beside them."""
    if pool in _held:
        _held.pop(pool).close()
