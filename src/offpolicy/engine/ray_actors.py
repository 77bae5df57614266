"""Actors on a Ray cluster that own shards.

They read stores by their path, from storage that every machine sees; of a log in memory each shard is put into Ray's
object store once. Ray keeps no state that matters: an actor that is lost is made anew from the same shards.
"""

import logging
import os
import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from offpolicy.engine.holdings import Held, InMemory, InStore, one_thread
from offpolicy.engine.pool import Answers, Engine, OrderedPool, ShardPool, owners
from offpolicy.engine.process import Packed, WorkerEndedError, environment
from offpolicy.engine.workers import available_cores
from offpolicy.errors import MissingExtraError, OffPolicyError

if TYPE_CHECKING:
    from offpolicy.log import LoggedData

OBJECT_BYTES = 1 << 30
"""Memory of a local Ray's object store; what does not fit spills to the disk."""
MESSAGE_BYTES = 4 << 20
"""Up to this size questions, and on a local Ray answers, travel within the message; larger ones by way of the object
store, which takes longer than the step of a small model."""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
}


class OnRay(Engine):
    """Actors of one thread on a Ray cluster, started when they are first needed and kept until the engine closes."""

    name = "ray"

    def __init__(self, workers: int | None, address: str | None) -> None:
        """Connect to a cluster, or start a local one with as many CPUs as workers."""
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        try:
            import ray as module
        except ImportError:
            raise MissingExtraError(
                "engine 'ray' needs Ray, which is not installed. Run pip install 'offpolicy[ray]'."
            ) from None
        ray: Any = module
        self.ray = ray
        self.actors: list[Any] = []
        self.started = not ray.is_initialized()
        if self.started:
            _connect(ray, address or os.environ.get("RAY_ADDRESS"), workers or available_cores())
        cpus = int(ray.cluster_resources().get("CPU", 1))
        self.workers = workers or max(1, cpus)
        if self.workers > cpus:
            self.close()
            raise OffPolicyError(f"{self.workers} workers need a CPU each, but the Ray cluster has {cpus}.")
        self.actors = [None] * self.workers
        self.known: dict[int, int] = {}
        self.actor: Any = ray.remote(num_cpus=1)(Owner)

    @property
    def pids(self) -> list[int]:
        """The processes of the workers that have begun, each on its own machine."""
        return list(self.known.values())

    @contextmanager
    def _pool(self, log: "LoggedData", groups: Sequence[Sequence[int]] | None) -> Iterator[ShardPool]:
        owned = owners(log, self.workers, groups)
        transport = _Actors(self, log, owned)
        try:
            yield OrderedPool(transport, owned)
        finally:
            transport.dismiss()

    def close(self) -> None:
        """End the actors, and Ray if it was started or connected here."""
        for slot, actor in enumerate(self.actors):
            if actor is not None:
                with suppress(Exception):
                    self.ray.kill(actor)
            self.actors[slot] = None
        if self.started and self.ray.is_initialized():
            self.ray.shutdown()


def _connect(ray: Any, address: str | None, cpus: int) -> None:
    logging.getLogger("ray").setLevel(logging.ERROR)
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    if address is None:
        settings |= {"address": "local", "num_cpus": cpus, "include_dashboard": False}
        settings |= {"object_store_memory": OBJECT_BYTES}
        settings |= {"_system_config": {"max_direct_call_object_size": MESSAGE_BYTES}}
    else:
        settings["address"] = address
    try:
        with environment(PYTHONPATH=os.pathsep.join(filter(None, sys.path))):  # a local Ray's workers import what we do
            ray.init(**settings)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = "A local Ray cannot be started" if address is None else f"No Ray cluster answers at {address}"
        raise OffPolicyError(f"{where}: {error}") from error


class Owner:
    """What an actor does: it owns shards of one log at a time."""

    def __init__(self) -> None:
        """Nothing is held yet."""
        self.held: Held | None = None
        one_thread()

    def hold(self, store: InStore | None, owned: Sequence[int], shards: Sequence[Any]) -> int:
        """Own the shards of a store, or those that are in the object store; returns which process this is."""
        self.forget()
        if store is None:
            import ray

            self.held = Held(InMemory(dict(zip(owned, ray.get(list(shards)), strict=True))))
        else:
            self.held = Held(store)
        return os.getpid()

    def answers(self, indices: Sequence[int], shared: Sequence[Any], task: Packed | None) -> Answers:
        """Answer for some of the shards; what is new since the last question comes with it."""
        assert self.held is not None
        if shared:
            import ray

            for value in ray.get(list(shared)):
                self.held.share(value)
        if task is not None:
            self.held.task = task.open()
        return self.held.answers(indices)

    def forget(self) -> None:
        """Let go of the shards and of all that was kept beside them."""
        if self.held is not None:
            self.held.close()
        self.held = None


class _Actors:
    """Actors and the references to their answers."""

    def __init__(self, engine: OnRay, log: "LoggedData", owned: list[list[int]]) -> None:
        self.engine, self.ray, self.owned = engine, engine.ray, owned
        self.store = None if log.store is None else InStore(log.store)
        self.shards: list[list[Any]] = [
            [] if self.store is not None else [self.ray.put(log.shard(index)) for index in mine] for mine in owned
        ]
        self.open: list[deque[Any]] = [deque() for _ in owned]
        """References to answers that have not come in; those that say nothing have None beside them."""
        self.task: Any = None
        self.shared: list[Any] = []
        self.told, self.sent = [False] * len(owned), [0] * len(owned)
        """Which have the task, and how many of the shared values."""

    def start(self, slot: int) -> None:
        actors = self.engine.actors
        if self.open[slot] or actors[slot] is None:  # a new one, or one that has ended
            if actors[slot] is not None:
                with suppress(Exception):
                    self.ray.kill(actors[slot])
            actors[slot] = self.engine.actor.remote()
        held = actors[slot].hold.remote(self.store, self.owned[slot], self.shards[slot])
        self.open[slot] = deque([(held, False)])
        self.told[slot], self.sent[slot] = False, 0

    def share(self, number: int, value: Any) -> None:
        self.shared.append(self.ray.put(value))

    def tell(self, slots: Sequence[int], function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        packed = Packed.of((function, arguments))
        small = sum(map(len, [packed.head, *packed.buffers])) <= MESSAGE_BYTES
        packed = Packed(packed.head, [pickle.PickleBuffer(one) for one in packed.buffers])
        self.task = packed if small else self.ray.put(packed)
        self.told = [False] * len(self.owned)

    def ask(self, slot: int, indices: Sequence[int]) -> None:
        task, new = None if self.told[slot] else self.task, self.shared[self.sent[slot] :]
        asked = self.engine.actors[slot].answers.remote(list(indices), new, task)
        self.told[slot], self.sent[slot] = True, len(self.shared)
        self.open[slot].append((asked, True))

    def answers(self) -> list[tuple[int, Answers | WorkerEndedError]]:
        first = {mine[0][0]: slot for slot, mine in enumerate(self.open) if mine}
        found: list[tuple[int, Answers | WorkerEndedError]] = []
        ready, _ = self.ray.wait(list(first), num_returns=1)
        for reference in ready:
            slot = first[reference]
            try:
                result = self.ray.get(reference)
            except self.ray.exceptions.RayTaskError:
                raise
            except self.ray.exceptions.RayError as error:
                found.append((slot, WorkerEndedError(type(error).__name__)))
                continue
            if self.open[slot].popleft()[1]:
                found.append((slot, result))
            else:
                self.engine.known[slot] = result
        return found

    def dismiss(self) -> None:
        """Let the actors forget the log."""
        for slot in range(len(self.owned)):
            actor = self.engine.actors[slot]
            if actor is not None:
                with suppress(Exception):
                    actor.forget.remote()
