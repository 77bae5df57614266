"""Servers to talk to: a small saved policy, a server in this process or in one of its own, a PostgreSQL of our own."""

import asyncio
import http.client
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import uvicorn

from offpolicy.artifacts import save_policy
from offpolicy.log import LoggedData
from offpolicy.models import linear_scorer
from offpolicy.serving import ServeOptions
from offpolicy.serving.limits import PatientProtocol
from offpolicy.serving.server import Service

COUNTRIES = ("at", "fr", "jp")
ITEMS = tuple(f"item-{i}" for i in range(6))


def a_policy(path: Path, seed: int = 0, strength: float = 1.0) -> Path:
    """A linear policy over a country and an age, with random weights."""
    random = np.random.default_rng(seed)
    rows = 90
    log = LoggedData.from_arrays(
        {"country": [COUNTRIES[i % 3] for i in range(rows)], "age": random.normal(40, 10, rows)},
        [ITEMS[i % 6] for i in range(rows)],
        np.ones(rows),
        actions=list(ITEMS),
    )
    scorer = linear_scorer(log)
    with torch.no_grad():
        scorer.weights.copy_(torch.from_numpy(random.normal(size=(6, 4)) * strength))
    return save_policy(scorer, log, path, metadata={"method": "made up", "seed": seed})


def a_context(number: int) -> dict[str, Any]:
    return {"country": COUNTRIES[number % 3], "age": 20.0 + number % 50}


class Client:
    """Requests to one address, each on its own connection."""

    def __init__(self, port: int, token: str | None = None) -> None:
        self.port, self.token = port, token

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and content of the answer, JSON where it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        given = {"authorization": f"Bearer {self.token}"} if self.token else {}
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            connection.request(method, path, content, given | headers)
            answer = connection.getresponse()
            text = answer.read()
            self.headers = answer.headers
        finally:
            connection.close()
        plain = answer.headers.get("content-type", "").startswith("application/json")
        return answer.status, json.loads(text) if plain else text.decode()

    def post(self, path: str, body: Any) -> Any:
        """The answer to a request that must succeed."""
        status, answer = self.send("POST", path, body)
        assert status == 200, (status, answer)
        return answer

    def get(self, path: str) -> Any:
        """The answer to a request that must succeed."""
        status, answer = self.send("GET", path)
        assert status == 200, (status, answer)
        return answer


@contextmanager
def server_here(**options: Any) -> Iterator[tuple[Client, Service]]:
    """A server in a thread of this process."""
    asked = ServeOptions.checked(options)
    service = Service(asked)
    PatientProtocol.patience = asked.timeout
    config = uvicorn.Config(service.app(), port=0, http=PatientProtocol, ws="none", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[bound])))
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    try:
        yield Client(bound.getsockname()[1], asked.token), service
    finally:
        server.should_exit = True
        thread.join()
        bound.close()


class ServerProcess:
    """`offpolicy serve` in a process of its own."""

    def __init__(self, *arguments: str, port: int = 0, token: str | None = None) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({"OFFPOLICY_TOKEN": token} if token else {})
        command = [sys.executable, "-c", "from offpolicy.cli import main; main()", "serve", *arguments]
        self.process = subprocess.Popen(
            [*command, "--port", str(port)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()
        assert "http://" in self.said, self.process.communicate()[1]
        self.client = Client(int(self.said.split("http://")[1].split()[0].rsplit(":", 1)[1]), token)

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *failure: object) -> None:
        if self.process.poll() is None:
            self.kill()

    def kill(self) -> None:
        """As the machine would when it runs out of memory."""
        self.process.kill()
        self.process.communicate()

    def stop(self) -> tuple[int, str]:
        """Ask it to end; its exit code and what it said on standard error."""
        self.process.send_signal(signal.SIGTERM)
        error = self.process.communicate(timeout=30)[1]
        return self.process.returncode, error


def postgres_programs() -> Path | None:
    """Where Debian's PostgreSQL keeps its programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    installed = shutil.which("initdb")
    return Path(installed).parent if installed else None


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """A PostgreSQL on loopback with its data in a folder; its URL."""
    programs = postgres_programs()
    assert programs is not None
    user: dict[str, Any] = {}
    if os.getuid() == 0:
        account = pwd.getpwnam("postgres")
        user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        os.chown(folder, account.pw_uid, account.pw_gid)
        for parent in folder.parents:
            if parent.stat().st_uid == 0 and not parent.stat().st_mode & 1:
                parent.chmod(parent.stat().st_mode | 0o011)
    data, log = folder / "data", folder / "postgres.log"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    make = [str(programs / "initdb"), "-D", str(data), "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync"]
    subprocess.run(make, check=True, capture_output=True, cwd=folder, **user)
    settings = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
    control = [str(programs / "pg_ctl"), "-D", str(data), "-w"]
    start = [*control, "-l", str(log), "-o", settings, "start"]
    subprocess.run(start, check=True, cwd=folder, stdout=subprocess.DEVNULL, **user)
    try:
        yield f"postgresql://tester@127.0.0.1:{port}/postgres"
    finally:
        stop = [*control, "-m", "immediate", "stop"]
        subprocess.run(stop, check=False, cwd=folder, stdout=subprocess.DEVNULL, **user)
