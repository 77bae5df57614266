"""An engine maps functions over the shards of a log: in this process, in local processes, or in actors of Ray.

    with engine.over(log) as pool:
        for found in pool.map(function, *arguments):     # function(shard, index, *arguments)
            ...                                           # in shard order, as they come

Each shard belongs to one worker for as long as the pool lives, so that what a function keeps beside it
(`shard_cache`, `spilled`) is found again by the next. Functions run on one thread each, and so does whoever merges
within the block: what is found does not depend on the number of workers, to the last bit. A worker that ends is
replaced, its shards are taken over, and the calls that had not been answered are made again.
"""

import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, Self

from offpolicy.engine.holdings import Held, InMemory, InStore, Shared
from offpolicy.engine.process import WorkerEndedError, result_of
from offpolicy.engine.workers import available_cores
from offpolicy.errors import OffPolicyError, ParameterError

if TYPE_CHECKING:
    from offpolicy.log import LoggedData

MOST_DEATHS = 3
"""A worker that ends so many times in a row without a single answer is not replaced again."""

ENGINES = ("local", "ray", "torchrun")


class ShardPool(Protocol):
    """Those who work on the shards of one log."""

    @property
    def n_shards(self) -> int:
        """The number of shards."""
        ...

    @property
    def workers(self) -> int:
        """How many work at the same time."""
        ...

    def share(self, value: Any) -> Shared:
        """Send a value to every worker once; give what is returned to functions in its place."""
        ...

    def map(
        self, function: Callable[..., Any], *arguments: Any, only: Sequence[int] | None = None, together: int = 1
    ) -> Iterator[Any]:
        """function(shard, index, *arguments) of each shard, or of those in `only` (each once), in that order.

        Arguments are sent once to each worker, which answers for so many of its shards `together`, in one message: more
        than one pays for functions that are short and find little. A map that is not consumed to its end must not be
        continued after the next has begun.
        """
        ...


class Engine(ABC):
    """Where functions over shards run."""

    name: str
    workers: int
    writes: bool = True
    """Whether this process is the one that writes files; of several that run the same script only one is."""

    @property
    def pids(self) -> list[int]:
        """The processes of the workers that have begun, each on its own machine."""
        return []

    @contextmanager
    def over(self, log: "LoggedData", groups: Sequence[Sequence[int]] | None = None) -> Iterator[ShardPool]:
        """Those who work on the shards of a log within the block; the shards of a group have one owner."""
        from offpolicy.threads import threads

        with threads(1), self._pool(log, groups) as pool:
            yield pool

    @abstractmethod
    def _pool(self, log: "LoggedData", groups: Sequence[Sequence[int]] | None) -> Any:
        """A context manager of the pool."""

    def close(self) -> None:  # noqa: B027 - an engine without workers of its own has nothing to end
        """End the workers."""

    def __enter__(self) -> Self:
        """The engine ends with the block."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the workers."""
        self.close()


class Here(Engine):
    """This process."""

    name = "here"
    workers = 1

    @contextmanager
    def _pool(self, log: "LoggedData", groups: Sequence[Sequence[int]] | None) -> Iterator[ShardPool]:
        held = Held(source_of(log, range(log.n_shards)))
        try:
            yield InProcessPool(held, log.n_shards)
        finally:
            held.close()


class InProcessPool:
    """This process, which works on shards itself."""

    def __init__(self, held: Held, n_shards: int, workers: int = 1) -> None:
        """What this process owns of so many shards; others may work on the rest."""
        self.held, self.n_shards, self.workers = held, n_shards, workers

    def share(self, value: Any) -> Shared:
        """See `ShardPool.share`."""
        return self.held.share(value)

    def map(
        self, function: Callable[..., Any], *arguments: Any, only: Sequence[int] | None = None, together: int = 1
    ) -> Iterator[Any]:
        """See `ShardPool.map`."""
        return self._found(function, arguments, list(range(self.n_shards) if only is None else only))

    def _found(self, function: Callable[..., Any], arguments: tuple[Any, ...], wanted: list[int]) -> Iterator[Any]:
        for index in wanted:
            yield self.held.run(index, function, arguments)


def source_of(log: "LoggedData", owned: Sequence[int]) -> InStore | InMemory:
    """How a worker gets at the shards that it owns."""
    return InStore(log.store) if log.store is not None else InMemory({index: log.shard(index) for index in owned})


def owners(log: "LoggedData", workers: int, groups: Sequence[Sequence[int]] | None = None) -> list[list[int]]:
    """The shards of each worker, about equally many rows each: the largest group goes to who has least so far."""
    rows = [1] * log.n_shards if log.shard_rows is None else [b - a for a, b in itertools.pairwise(log.shard_rows)]
    together = [[index] for index in range(log.n_shards)] if groups is None else groups
    owned: list[list[int]] = [[] for _ in range(workers)]
    held = [0] * workers
    for group in sorted(together, key=lambda group: -sum(rows[index] for index in group)):
        least = held.index(min(held))
        owned[least] += group
        held[least] += sum(rows[index] for index in group)
    return [sorted(mine) for mine in owned if mine]


Answers = list[tuple[str, Any]]


class Transport(Protocol):
    """Workers and how to talk to them; a pool keeps the order."""

    def start(self, slot: int) -> None:
        """Give the worker of a slot its shards and what questions are about; one that has ended is replaced first."""
        ...

    def share(self, number: int, value: Any) -> None:
        """Send a value to all, and to those that take their places later."""
        ...

    def tell(self, slots: Sequence[int], function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Send what the next questions are about."""
        ...

    def ask(self, slot: int, indices: Sequence[int]) -> None:
        """Ask a worker for the answers of some of its shards."""
        ...

    def answers(self) -> list[tuple[int, Answers | WorkerEndedError]]:
        """Wait for the next answers: from which slot, and what (in the order of questions), or how its worker ended."""
        ...


class OrderedPool:
    """Keeps the order of answers and takes over from workers that end, whatever they are made of."""

    def __init__(self, transport: Transport, owned: list[list[int]]) -> None:
        """Give each worker its shards."""
        self.transport, self.owned = transport, owned
        self.n_shards, self.workers = sum(map(len, owned)), len(owned)
        self._owner = {index: slot for slot, mine in enumerate(owned) for index in mine}
        self._open: list[deque[list[int]]] = [deque() for _ in owned]
        self._deaths = [0] * len(owned)
        self._maps = self._shared = 0
        for slot in range(len(owned)):
            transport.start(slot)

    def share(self, value: Any) -> Shared:
        """See `ShardPool.share`."""
        self._drain()
        shared = Shared(self._shared)
        self._shared += 1
        self.transport.share(shared.number, value)
        return shared

    def map(
        self, function: Callable[..., Any], *arguments: Any, only: Sequence[int] | None = None, together: int = 1
    ) -> Iterator[Any]:
        """See `ShardPool.map`."""
        self._drain()
        self._maps += 1
        wanted = list(range(self.n_shards) if only is None else only)
        return self._found(self._maps, (function, arguments), wanted, together)

    def _found(self, number: int, task: tuple[Any, Any], wanted: list[int], together: int) -> Iterator[Any]:
        waiting: list[deque[list[int]]] = [deque() for _ in self.owned]
        for index in wanted:
            mine = waiting[self._owner[index]]
            if mine and len(mine[-1]) < together:
                mine[-1].append(index)
            else:
                mine.append([index])
        found: dict[int, tuple[str, Any]] = {}
        self._check(number)
        self.transport.tell([slot for slot, mine in enumerate(waiting) if mine], *task)
        for index in wanted:
            self._check(number)
            while index not in found:
                self._ask(waiting)
                for slot, answers in self.transport.answers():
                    asked = self._received(slot, answers)
                    if isinstance(answers, WorkerEndedError):
                        waiting[slot].extendleft(reversed(asked))
                    else:
                        found |= zip(asked[0], answers, strict=True)
            yield result_of(found.pop(index), getattr(task[0], "__name__", "A function"))

    def _check(self, number: int) -> None:
        if number != self._maps:
            raise RuntimeError("Another map has begun: this one cannot be continued.")

    def _ask(self, waiting: list[deque[list[int]]]) -> None:
        """Keep each worker supplied: one question that it is on and one that it finds when it is done."""
        for slot, mine in enumerate(waiting):
            while mine and len(self._open[slot]) < 2:
                self._open[slot].append(mine.popleft())
                self.transport.ask(slot, self._open[slot][-1])

    def _received(self, slot: int, answers: Answers | WorkerEndedError) -> list[list[int]]:
        """What had been asked: of an answer the first question, of an ended worker all of them; it is replaced."""
        if not isinstance(answers, WorkerEndedError):
            self._deaths[slot] = 0
            return [self._open[slot].popleft()]
        self._deaths[slot] += 1
        if self._deaths[slot] > MOST_DEATHS:
            raise OffPolicyError(
                f"Worker {slot + 1} of {self.workers} ended {self._deaths[slot]} times in a row without a result "
                f"({answers}); the system may have run out of memory. What is finished is kept. Give fewer --workers, "
                "or prepare the log in more --shards, which are smaller."
            ) from answers
        asked = list(self._open[slot])
        self._open[slot].clear()
        self.transport.start(slot)
        return asked

    def _drain(self) -> None:
        """Let answers come in that nobody waits for any more."""
        while any(self._open):
            for slot, answers in self.transport.answers():
                self._received(slot, answers)


@contextmanager
def engine_of(engine: Engine | str | None, workers: int | None = None, address: str | None = None) -> Iterator[Engine]:
    """An engine by its name, which ends with the block, or one that was made before, which does not."""
    if isinstance(engine, Engine):
        yield engine
    else:
        with make_engine(engine, workers, address) as made:
            yield made


def make_engine(name: str | None = None, workers: int | None = None, address: str | None = None) -> Engine:
    """An engine: `local` processes, `ray` actors, or None for this process; by default as many workers as cores.

    `torchrun` is for a script that torchrun starts several times: every process runs it all, and owns some shards.

    `address` is that of a Ray cluster; without it a local Ray is started, unless the environment variable RAY_ADDRESS
    or an earlier ray.init says where one is.
    """
    if name is not None and name not in ENGINES:
        raise ParameterError(f"engine must be one of {', '.join(ENGINES)}, but it is {name!r}.")
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise ParameterError(f"workers must be a whole number above 0, but it is {workers!r}.")
    if address is not None and name != "ray":
        raise ParameterError(f"address is that of a Ray cluster; it needs engine 'ray', but engine is {name!r}.")
    if name == "ray":
        from offpolicy.engine.ray_actors import OnRay

        return OnRay(workers, address)
    if name == "torchrun":
        from offpolicy.engine.ranks import Ranks

        return Ranks()
    if name is None and workers not in (None, 1):
        name = "local"
    workers = workers or available_cores()
    if name is None or workers == 1:
        return Here()
    from offpolicy.engine.local import Local

    return Local(workers)
