"""A worker: a process of one thread that performs the calls it is sent, in their order, until its parent ends."""

import os
import pickle
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import cloudpickle

from offpolicy.errors import OffPolicyError

ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
"""Read when NumPy and torch are first imported, which is when a worker first needs them."""
BESIDE = 1 << 16
"""Bytes from which an array is sent by itself; a message of many small ones is read at once."""
LAST_SECONDS = 1.0
"""What an idle worker is given to clean up."""


class WorkerEndedError(Exception):
    """A worker's process is gone: killed, or out of memory."""


class Packed(NamedTuple):
    """A value as bytes: its pickle, and its large arrays beside it, so that they are copied once."""

    head: bytes
    buffers: list[Any]

    @classmethod
    def of(cls, value: Any) -> "Packed":
        """Pack a value; what `__main__` (a script, a notebook) defines is packed with its definition."""
        buffers: list[memoryview] = []

        def within(buffer: pickle.PickleBuffer) -> bool:
            """Whether an array stays in the pickle; else it is put beside it."""
            values = buffer.raw()
            if values.nbytes >= BESIDE:
                buffers.append(values)
            return values.nbytes < BESIDE

        head = cloudpickle.dumps(value, protocol=5, buffer_callback=within)
        return cls(head, buffers)

    def open(self) -> Any:
        """The value."""
        return pickle.loads(self.head, buffers=self.buffers)


def send(pipe: Connection, packed: Packed) -> None:
    """Send a packed value."""
    pipe.send_bytes(pickle.dumps((packed.head, [len(buffer) for buffer in packed.buffers])))
    for buffer in packed.buffers:
        if len(buffer):
            pipe.send_bytes(buffer)


def receive(pipe: Connection) -> Packed:
    """The inverse of `send`."""
    head, sizes = pickle.loads(pipe.recv_bytes())
    buffers = [bytearray(size) for size in sizes]
    for buffer in buffers:
        if len(buffer):
            pipe.recv_bytes_into(buffer)
    return Packed(head, buffers)


class Worker:
    """A process, started when this is made. The script of its parent needs no `if __name__ == "__main__"`."""

    def __init__(self) -> None:
        """Start the process."""
        context = get_context("spawn")
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there,), daemon=True)
        with _for_workers():
            self.process.start()
        there.close()  # so that the end of the worker is the end of the pipe
        self.unanswered = 0

    def send(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Send a call, the answer to which must be received once."""
        self.forward(Packed.of((call, arguments)))

    def forward(self, packed: Packed) -> None:
        """Send a call that is packed."""
        self.unanswered += 1
        with suppress(OSError):  # the end of the worker shows when its answer is received
            send(self.pipe, packed)

    def answer(self) -> tuple[str, Any]:
        """The answer to the first open call: done with a result, refused with an error, failed with a trace."""
        self.unanswered -= 1
        try:
            found: tuple[str, Any] = receive(self.pipe).open()
        except (EOFError, OSError):
            self.process.join()
            raise WorkerEndedError(f"exit code {self.process.exitcode}") from None
        return found

    def end(self) -> None:
        """End the process: by itself if it is idle, else at once."""
        self.pipe.close()
        self.process.join(LAST_SECONDS)
        self.process.terminate()
        self.process.join()


def performed(call: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, Any]:
    """The answer of a worker to a call."""
    try:
        return "done", call(*arguments)
    except OffPolicyError as error:
        return "refused", error
    except Exception:
        return "failed", traceback.format_exc()


def result_of(answer: tuple[str, Any], name: str) -> Any:
    """The result in an answer; its error is raised."""
    kind, result = answer
    if kind == "refused":
        raise result
    if kind == "failed":
        raise RuntimeError(f"{name} failed in a worker process:\n{result}")
    return result


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set environment variables within the block, for processes that are started there."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _for_workers() -> Iterator[None]:
    """What a process that is started now finds: one thread for every library, and no script of its parent to import.

    What the script defines is sent along where it is needed.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        with environment(**ONE_THREAD):
            yield
    finally:
        sys.modules["__main__"] = main


def _serve(pipe: Connection) -> None:
    """What a worker does: calls in, answers out, until its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers itself
    _end_with_parent()
    while True:
        try:
            call, arguments = receive(pipe).open()
        except EOFError:
            return
        except Exception:
            answer: tuple[str, Any] = ("failed", traceback.format_exc())
        else:
            answer = performed(call, arguments)
        try:
            packed = Packed.of(answer)
        except Exception:
            packed = Packed.of(("failed", traceback.format_exc()))
        try:
            send(pipe, packed)
        except OSError:  # nobody waits for it any more
            return
        del answer, packed  # results are not kept


def _end_with_parent() -> None:
    """End this process when its parent is killed, also in the middle of a job."""

    def watch() -> None:
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
