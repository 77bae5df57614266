"""How fast decisions are served: against an empty handler of the same framework, and in process.

Run: python benchmarks/serving.py [--json] [--seconds S] [--turns N] [--connections N] [--kills N] [--decisions N]

A policy over K = 1,000 actions and a vector of d = 64 numbers is served on loopback by `offpolicy serve` with SQLite,
each decision durable before it is answered, and beside it an empty handler: the same framework (Starlette), the same
HTTP implementation and event loop, an answer of two bytes to the same request. `serving.throughput_ratio` is decisions
a second over answers of the empty handler, each kept busy by the same connections, in turns. For `serving.p99_ratio`
both get half of the decisions a second just found, at fixed times; latencies count from those times.
`serving.lost` counts acknowledged decisions that are not in the store after `kill -9`, `serving.replayed` the share of
all recorded draws that come out the same again. `serving.decisions_per_second` is the Decider in process, without
recording. `serving.memory_growth` is the resident memory of a process after all its decisions over that after the first
tenth.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
import torch

import figures
from offpolicy.artifacts import save_policy
from offpolicy.log import LoggedData
from offpolicy.models import linear_scorer
from offpolicy.serving import Decider, EventStore, load_versions, replay

DIM = 64
SIZES = (100, 1_000, 30_000)
LIMITS = {"throughput_ratio": 0.4, "p99_ratio": 3.0, "memory_growth": 1.05}
EMPTY = """
import sys
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from offpolicy.serving.limits import PatientProtocol

async def empty(request):
    return Response(b"{}", media_type="application/json")

config = uvicorn.Config(Starlette(routes=[Route("/decide", empty, methods=["POST"])]), port=0, http=PatientProtocol,
    loop="asyncio", ws="none", log_config=None, access_log=False, server_header=False)
server = uvicorn.Server(config)
socket = config.bind_socket()
print(f"serving at http://127.0.0.1:{socket.getsockname()[1]} ", flush=True)
server.run(sockets=[socket])
"""
DECIDE = "from offpolicy.cli import main; main()"
MEMORY = """
import resource, sys
from offpolicy.serving import Decider

def resident():
    return int(open("/proc/self/statm").read().split()[1])

decider, n = Decider.load(sys.argv[1], epsilon=0.1), int(sys.argv[2])
values = [[0.1 * i] * {dim} for i in range(100)]
for i in range(n):
    decider.decide(str(i), {{"x": values[i % 100]}})
    if i == n // 10:
        before = resident()
print(resident() / before)
"""


def a_policy(folder: Path, actions: int, dim: int = DIM) -> Path:
    """A linear policy with random weights, saved."""
    random = np.random.default_rng(actions)
    rows = 200
    log = LoggedData.from_arrays(
        {"x": random.normal(size=(rows, dim)).astype(np.float32)},
        random.integers(0, actions, rows).tolist(),
        np.ones(rows),
        actions=list(range(actions)),
    )
    scorer = linear_scorer(log)
    with torch.no_grad():
        scorer.weights.copy_(torch.from_numpy(random.normal(size=(actions, dim)) / dim**0.5))
    return save_policy(scorer, log, folder / f"policy-{actions}")


@contextlib.contextmanager
def running(*command: str) -> Iterator[tuple[int, "subprocess.Popen[str]"]]:
    """A server in a process of its own, with its port."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-c", *command], stdout=subprocess.PIPE, text=True, env=environment) as made:
        try:
            assert made.stdout is not None
            line = made.stdout.readline()
            yield int(line.split("http://")[1].split()[0].rsplit(":", 1)[1]), made
        finally:
            made.send_signal(signal.SIGTERM)


class Client(asyncio.Protocol):
    """One connection that sends a request and waits for its answer."""

    def __init__(self) -> None:
        self.buffer = b""
        self.wanted = -1
        self.done: asyncio.Future[bytes] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(ConnectionError("the server is gone"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.wanted < 0:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self.buffer[:end].lower()
            self.wanted = end + 4 + int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        if len(self.buffer) >= self.wanted and self.done is not None:
            answer, self.buffer, self.wanted = self.buffer, b"", -1
            self.done.set_result(answer)

    async def ask(self, request: bytes) -> bytes:
        """Send and wait."""
        self.done = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self.done


class Load:
    """Requests of one size with ids that never repeat, over some connections."""

    def __init__(self, port: int, connections: int) -> None:
        self.port, self.connections = port, connections
        body = {"request_id": "#" * 12, "context": {"x": np.random.default_rng(0).normal(size=DIM).round(4).tolist()}}
        content = json.dumps(body)
        head = f"POST /decide HTTP/1.1\r\nHost: l\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
        self.before, _, self.after = f"{head}\r\n\r\n{content}".encode().partition(b"#" * 12)
        self.sent = 0

    async def acknowledged(self, seconds: float) -> set[str]:
        """Ids of the decisions that were answered until the server was gone."""
        clients = await self.clients()
        told: set[str] = set()
        stop = time.perf_counter() + seconds

        async def busy(client: Client) -> None:
            while time.perf_counter() < stop:
                request = self.next()
                answer = await asyncio.wait_for(client.ask(request), 5)
                if b" 200 " in answer[:20]:
                    told.add(request[len(self.before) : len(self.before) + 12].decode())

        await asyncio.gather(*map(busy, clients), return_exceptions=True)
        return told

    def next(self) -> bytes:
        """The next request."""
        self.sent += 1
        return self.before + b"%012d" % self.sent + self.after

    async def clients(self) -> list[Client]:
        """Fresh connections."""
        loop = asyncio.get_running_loop()
        return [(await loop.create_connection(Client, "127.0.0.1", self.port))[1] for _ in range(self.connections)]

    async def rate(self, seconds: float) -> float:
        """Answers a second with every connection kept busy."""
        clients = await self.clients()
        stop = time.perf_counter() + seconds
        count = 0

        async def busy(client: Client) -> None:
            nonlocal count
            while time.perf_counter() < stop:
                answer = await client.ask(self.next())
                assert b" 200 " in answer[:20], answer[:400]
                count += 1

        began = time.perf_counter()
        await asyncio.gather(*map(busy, clients))
        found = count / (time.perf_counter() - began)
        for client in clients:
            client.transport.close()
        return found

    async def latencies(self, rate: float, seconds: float) -> list[float]:
        """Seconds from the time each request was due to its answer, at so many a second."""
        clients = await self.clients()
        began = time.perf_counter() + 0.05
        found: list[float] = []

        async def paced(number: int, client: Client) -> None:
            due = began + number / rate
            while due < began + seconds:
                await asyncio.sleep(max(due - time.perf_counter(), 0))
                await client.ask(self.next())
                found.append(time.perf_counter() - due)
                due += len(clients) / rate

        await asyncio.gather(*(paced(i, client) for i, client in enumerate(clients)))
        for client in clients:
            client.transport.close()
        return sorted(found)


def lost_in_kills(serve: list[str], store: str, sent: int, kills: int) -> tuple[int, int]:
    """Acknowledged decisions that are missing after so many kill -9 under load, and how many were acknowledged."""
    told: set[str] = set()
    for _ in range(kills):
        with running(DECIDE, *serve) as (port, process):
            load = Load(port, 8)
            load.sent = sent
            threading.Timer(0.7, process.kill).start()
            told |= asyncio.run(load.acknowledged(5.0))
            sent = load.sent
    with EventStore(store) as events, events.reading() as connection:
        known = set(connection.exec_driver_sql("SELECT request_id FROM decisions").scalars())
    return len(told - known), len(told)


def in_process(path: Path, seconds: float) -> float:
    """Decisions a second of a Decider."""
    decider = Decider.load(path, epsilon=0.1)
    contexts = [{"x": row} for row in np.random.default_rng(0).normal(size=(64, DIM)).tolist()]
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        decider.decide(str(count), contexts[count % 64])
        count += 1
    return count / (time.perf_counter() - began)


def main() -> int:
    parser = figures.arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds of each turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--kills", type=int, default=5, help="kill -9 under load")
    parser.add_argument("--decisions", type=int, default=1_000_000, help="decisions over which memory is watched")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = {k: a_policy(folder, k) for k in SIZES}
        store = f"sqlite:///{folder / 'events.db'}"
        serve = ["serve", str(paths[1_000]), "--store", store, "--port", "0", "--epsilon", "0.1"]
        with running(EMPTY) as (empty_port, _), running(DECIDE, *serve) as (decide_port, _):
            empty, decide = Load(empty_port, asked.connections), Load(decide_port, asked.connections)
            rates: dict[str, list[float]] = {"empty": [], "decide": []}
            for turn in range(asked.turns + 1):
                for side, load in (("empty", empty), ("decide", decide)):
                    found = asyncio.run(load.rate(asked.seconds if turn else 1.0))
                    if turn:
                        rates[side].append(found)
            ratios = [a / b for a, b in zip(rates["decide"], rates["empty"], strict=True)]
            facts = {"empty_per_second": round(median(rates["empty"])), "per_second": round(median(rates["decide"]))}
            figures.Figure(
                "serving.throughput_ratio",
                median(ratios),
                LIMITS["throughput_ratio"],
                "at least",
                facts,
                f"{facts['per_second']:,} durable decisions a second, {facts['empty_per_second']:,} empty answers",
            ).show(asked.json)
            half = median(rates["decide"]) / 2
            p99: dict[str, list[float]] = {"empty": [], "decide": []}
            for _ in range(asked.turns):
                for side, load in (("empty", empty), ("decide", decide)):
                    times = asyncio.run(load.latencies(half, asked.seconds))
                    p99[side].append(1000 * times[int(0.99 * len(times))])
            milliseconds = {f"{side}_ms": round(median(times), 2) for side, times in p99.items()}
            figures.Figure(
                "serving.p99_ratio",
                median(p99["decide"]) / median(p99["empty"]),
                LIMITS["p99_ratio"],
                "at most",
                milliseconds | {"per_second": round(half)},
                f"p99 {milliseconds['decide_ms']} ms against {milliseconds['empty_ms']} ms at {half:,.0f} a second",
            ).show(asked.json)
        missing, told = lost_in_kills(serve, store, decide.sent, asked.kills)
        figures.Figure(
            "serving.lost",
            missing,
            0,
            "at most",
            {"kills": asked.kills, "acknowledged": told},
            f"of {told:,} decisions acknowledged before {asked.kills} kills",
        ).show(asked.json)
        with EventStore(store) as events:
            again = replay(events, load_versions(paths[1_000]))
        figures.Figure(
            "serving.replayed",
            again.confirmed / max(again.decisions, 1),
            1.0,
            "at least",
            {"decisions": again.decisions},
            f"of {again.decisions:,} recorded draws are confirmed",
        ).show(asked.json)
        for k, path in paths.items():
            figures.Figure(
                "serving.decisions_per_second",
                in_process(path, 2.0),
                None,
                "at least",
                {"K": k, "d": DIM},
                f"K = {k:,}, in process",
                0,
            ).show(asked.json)
        small = a_policy(folder, 20, 4)
        code = MEMORY.format(dim=4)
        said = subprocess.run(
            [sys.executable, "-c", code, str(small), str(asked.decisions)], capture_output=True, text=True, check=True
        ).stdout
        figures.Figure(
            "serving.memory_growth",
            float(said),
            LIMITS["memory_growth"],
            "at most",
            {"decisions": asked.decisions},
            f"over {asked.decisions:,} decisions",
        ).show(asked.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
