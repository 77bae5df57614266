"""Run jobs in parallel processes; jobs of one group share what their process has cached."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from offpolicy.engine.process import Worker, WorkerEndedError, result_of
from offpolicy.errors import OffPolicyError

Group = tuple[Any, ...]
WORTH_JOINING = 10
"""Total cost of a group's waiting jobs from which a second worker pays off."""


@dataclass(frozen=True, eq=False)
class Job:
    """A call that can be sent to another process."""

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    group: Group = ()
    """Jobs of one group read the same data; a worker stays with a group while it lasts.

    Groups that differ only in their last element are related: they share part of their data.
    """
    rank: int = 0
    """Jobs of a lower rank are run first."""
    cost: int = 1
    """Relative amount of work."""
    name: str = ""
    """The job's name in messages."""
    tag: Any = None
    """Anything the caller wants back with the result."""


@dataclass(frozen=True)
class Done:
    """A finished job."""

    job: Job
    result: Any
    seconds: float


@dataclass
class _Worker:
    """A process, the job it is on, and the group it has in its caches."""

    process: Worker
    job: Job | None = None
    group: Group | None = None
    since: float = 0.0


@dataclass
class WorkerPool:
    """Worker processes, each with one thread; with a count of 0 the jobs are run in this process."""

    count: int
    _workers: list[_Worker] = field(default_factory=list)

    def __enter__(self) -> "WorkerPool":
        """Processes start when they are first needed."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.process.end()  # idle after the last job; the result of a running job is not needed
        self._workers.clear()

    def work(self, waiting: list[Job]) -> Iterator[Done]:
        """Run the waiting jobs and give their results as they come; the caller may add to the list meanwhile."""
        if self.count == 0:
            yield from _run_here(waiting)
            return
        while waiting or self._busy():
            self._assign(waiting)
            busy = {worker.process.pipe: worker for worker in self._busy()}
            for pipe in wait(list(busy)):
                yield _received(busy[pipe])  # type: ignore[index]

    def _busy(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.job is not None]

    def _assign(self, waiting: list[Job]) -> None:
        while waiting and len(self._busy()) < self.count:
            worker = next((each for each in self._workers if each.job is None), None) or self._started()
            held = {each.group for each in self._busy()}
            job = next_job(waiting, worker.group, held)
            waiting.remove(job)
            worker.job, worker.group, worker.since = job, job.group, time.perf_counter()
            worker.process.send(job.call, *job.arguments)

    def _started(self) -> _Worker:
        self._workers.append(_Worker(Worker()))
        return self._workers[-1]


def available_cores() -> int:
    """How many cores this process may use, as far as the system tells."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def next_job(waiting: list[Job], group: Group | None, held: set[Group | None]) -> Job:
    """What a free worker takes of the lowest rank: its own group, else a free one, best a related one, else any.

    Joining a group that another worker holds means reading its data again; for little work a free group of a higher
    rank is taken instead.
    """
    related = None if group is None else group[:-1]
    related_held = {each[:-1] for each in held if each}

    def distance(job: Job) -> tuple[Any, ...]:
        mine = job.group[:-1]
        return job.rank, job.group != group, job.group in held, mine != related, mine in related_held

    job = min(waiting, key=distance)
    if job.group == group or job.group not in held:
        return job
    if sum(each.cost for each in waiting if each.group == job.group) >= WORTH_JOINING:
        return job
    return min((each for each in waiting if each.group not in held), key=distance, default=job)


def _run_here(waiting: list[Job]) -> Iterator[Done]:
    group = None
    while waiting:
        job = next_job(waiting, group, set())
        waiting.remove(job)
        group, since = job.group, time.perf_counter()
        result = job.call(*job.arguments)
        yield Done(job, result, time.perf_counter() - since)


def _received(worker: _Worker) -> Done:
    job = worker.job
    assert job is not None
    try:
        answer = worker.process.answer()
    except WorkerEndedError as ended:
        raise OffPolicyError(
            f"A worker process ended without a result ({ended}) while it was busy with {job.name}; the system may have "
            "run out of memory. Run the command again: what is finished is kept. Fewer --workers need less memory."
        ) from None
    worker.job = None
    return Done(job, result_of(answer, job.name), time.perf_counter() - worker.since)
