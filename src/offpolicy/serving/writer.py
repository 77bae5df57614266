"""One thread that makes rows durable in batches, for an event loop that never waits for the disk.

Whatever has arrived while the last batch was written is the next batch: one request alone waits for one commit, and
many share one. A row is acknowledged when its batch is committed. When too many rows wait, new ones are refused.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from offpolicy.serving.store import EventStore, Row

log = logging.getLogger("offpolicy.serving")
LARGEST_BATCH = 1024


class Busy(Exception):  # noqa: N818 - a state, told to the client as 503
    """Too many rows wait to be written, or the store does not answer."""


@dataclass(frozen=True)
class _Waiting:
    rows: Sequence[tuple[str, Row]]
    future: "asyncio.Future[dict[str, Row]]"


class Writer:
    """Rows in, acknowledgements out."""

    def __init__(self, store: EventStore, most_waiting: int = 10_000) -> None:
        """Start the thread; call it from the event loop that will wait for rows."""
        self.store, self.most_waiting = store, most_waiting
        self.waiting = 0
        self.batches, self.rows_written, self.failures = 0, 0, 0
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="offpolicy-writer", daemon=True)
        self._thread.start()

    async def write(self, rows: Sequence[tuple[str, Row]]) -> dict[str, Row]:
        """Write rows of named tables; returns when they are durable, with the decisions that were there before."""
        if self.waiting + len(rows) > self.most_waiting:
            raise Busy("too many rows wait to be written")
        future: asyncio.Future[dict[str, Row]] = self._loop.create_future()
        self.waiting += len(rows)
        self._queue.put(_Waiting(rows, future))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: done.exception())  # written all the same; nobody asks any more
            raise

    async def close(self) -> None:
        """Write what waits, then stop."""
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        open_ = True
        while open_:
            first = self._queue.get()
            batch: list[_Waiting] = []
            rows = 0
            while first is not None:
                batch.append(first)
                rows += len(first.rows)
                if rows >= LARGEST_BATCH:
                    break
                try:
                    first = self._queue.get_nowait()
                except queue.Empty:
                    break
            open_ = first is not None
            if batch:
                self._commit(batch)

    def _commit(self, batch: list[_Waiting]) -> None:
        tables: dict[str, dict[Any, Row]] = {"decisions": {}, "rewards": {}, "activations": {}}
        again: list[tuple[str, Row]] = []
        for one in batch:
            for name, row in one.rows:
                key = (row["request_id"], row.get("event_id"))
                if tables[name].setdefault(key, row) is not row and name == "decisions":
                    again.append((row["request_id"], tables[name][key]))
        before: dict[str, Row] = {}
        error: Exception | None = None
        try:
            before = self.store.append({name: list(rows.values()) for name, rows in tables.items()})
        except Exception as problem:  # a full disk, a database that went away: told to those who wait
            error = problem
            log.error("the event store failed: %s", _reason(problem))  # noqa: TRY400 - a line, not a trace
        self._loop.call_soon_threadsafe(self._acknowledge, batch, before, dict(again), error)

    def _acknowledge(
        self, batch: list[_Waiting], before: dict[str, Row], again: dict[str, Row], error: Exception | None
    ) -> None:
        self.batches += 1
        self.failures += error is not None
        for one in batch:
            self.waiting -= len(one.rows)
            if error is None:
                self.rows_written += len(one.rows)
            if one.future.done():
                continue
            if error is not None:
                one.future.set_exception(Busy("the event store does not answer"))
            elif not before and not again:
                one.future.set_result({})
            else:
                one.future.set_result(_repeated(one.rows, before, again))


def _repeated(rows: Sequence[tuple[str, Row]], before: dict[str, Row], again: dict[str, Row]) -> dict[str, Row]:
    """By request, the decision that was recorded, where it is not the only one that was asked for."""
    found: dict[str, Row] = {}
    for name, row in rows:
        if name == "decisions":
            first = before.get(row["request_id"]) or again.get(row["request_id"])
            if first is not None:
                found[row["request_id"]] = first
    return found


def _reason(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).strip().splitlines()[0][:300]
