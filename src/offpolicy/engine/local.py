"""Local processes that own shards."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from offpolicy.engine import holdings
from offpolicy.engine.holdings import Source
from offpolicy.engine.pool import Answers, Engine, OrderedPool, ShardPool, owners, source_of
from offpolicy.engine.process import Packed, Worker, WorkerEndedError, result_of

if TYPE_CHECKING:
    from offpolicy.log import LoggedData

_numbers = itertools.count()


class Local(Engine):
    """Processes of one thread on this machine, started when they are first needed and kept until the engine closes.

    They map the files of a store into memory, which they share; of a log in memory each receives its shards once.
    """

    name = "local"

    def __init__(self, workers: int) -> None:
        """So many workers."""
        self.workers = workers
        self.processes: list[Worker | None] = [None] * workers

    @property
    def pids(self) -> list[int]:
        """The processes of the workers that have begun."""
        return [worker.process.pid for worker in self.processes if worker is not None and worker.process.pid]

    @contextmanager
    def _pool(self, log: "LoggedData", groups: Sequence[Sequence[int]] | None) -> Iterator[ShardPool]:
        owned = owners(log, self.workers, groups)
        transport = _Processes(self.processes, [source_of(log, mine) for mine in owned])
        try:
            yield OrderedPool(transport, owned)
        finally:
            transport.dismiss()

    def close(self) -> None:
        """End the processes."""
        for slot, process in enumerate(self.processes):
            if process is not None:
                process.end()
            self.processes[slot] = None


class _Processes:
    """Processes and the pipes to them."""

    def __init__(self, processes: list[Worker | None], sources: list[Source]) -> None:
        self.processes, self.sources, self.pool = processes, sources, next(_numbers)
        self.asides = [0] * len(sources)
        """Answers that come before those to questions and say nothing."""
        self.shared: list[Packed] = []
        self.task: Packed | None = None

    def start(self, slot: int) -> None:
        worker = self.processes[slot]
        if worker is not None:
            worker = _drained(worker)
        self.processes[slot] = worker = worker or Worker()
        self.asides[slot] = 1
        worker.send(holdings.hold, self.pool, self.sources[slot])
        for packed in self.shared + ([] if self.task is None else [self.task]):
            self._forward(slot, packed)

    def share(self, number: int, value: Any) -> None:
        self.shared.append(Packed.of((holdings.share, (self.pool, number, value))))
        for slot in range(len(self.sources)):
            self._forward(slot, self.shared[-1])

    def tell(self, slots: Sequence[int], function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.task = Packed.of((holdings.take, (self.pool, function, arguments)))
        for slot in slots:
            self._forward(slot, self.task)

    def _forward(self, slot: int, packed: Packed) -> None:
        self.asides[slot] += 1
        self._worker(slot).forward(packed)

    def ask(self, slot: int, indices: Sequence[int]) -> None:
        self._worker(slot).send(holdings.answers, self.pool, list(indices))

    def answers(self) -> list[tuple[int, Answers | WorkerEndedError]]:
        found: list[tuple[int, Answers | WorkerEndedError]] = []
        busy = {worker.pipe: slot for slot in range(len(self.sources)) if (worker := self._worker(slot)).unanswered}
        for pipe in wait(list(busy)):
            slot = busy[pipe]  # type: ignore[index]
            try:
                result = result_of(self._worker(slot).answer(), "Preparing a worker")
            except WorkerEndedError as error:
                found.append((slot, error))
                continue
            if self.asides[slot]:
                self.asides[slot] -= 1
            else:
                found.append((slot, result))
        return found

    def dismiss(self) -> None:
        """Let the workers forget the log."""
        for worker in self.processes[: len(self.sources)]:
            if worker is not None:  # the engine may have been closed before
                worker.send(holdings.forget, self.pool)

    def _worker(self, slot: int) -> Worker:
        worker = self.processes[slot]
        assert worker is not None
        return worker


def _drained(worker: Worker) -> Worker | None:
    """A worker whose answers to earlier questions have come in; None if it has ended."""
    try:
        while worker.unanswered:
            worker.answer()
    except WorkerEndedError:
        worker.end()
        return None
    if worker.process.is_alive():
        return worker
    worker.end()
    return None
