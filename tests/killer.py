"""Commands in processes of their own that are killed at a random moment."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, cast

SPAWNER = """
import json, os, sys
import offpolicy.workflows
from offpolicy.cli import main
print("ready", flush=True)
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        main(json.loads(line))
    print(pid, flush=True)
    os.waitpid(pid, 0)
    print("gone", flush=True)
"""
"""Loads the libraries once; every command then runs, and dies, in a process of its own."""


class Killer:
    """Runs commands in their own processes and kills them."""

    def __init__(self, seed: int) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-c", SPAWNER]
        pipe = subprocess.PIPE
        self.process: Any = cast("Any", subprocess.Popen(command, text=True, env=environment, stdin=pipe, stdout=pipe))
        self.chance = random.Random(seed)
        assert self.process.stdout.readline() == "ready\n"

    def __enter__(self) -> "Killer":
        return self

    def __exit__(self, *_: object) -> None:
        with self.process:
            self.process.stdin.close()

    def kill(self, arguments: list[str], ready: Callable[[], Any]) -> None:
        """Start a command and kill it a random moment after it is ready."""
        self.process.stdin.write(json.dumps(arguments) + "\n")
        self.process.stdin.flush()
        pid = int(self.process.stdout.readline())
        limit = time.monotonic() + 120
        while not ready() and time.monotonic() < limit and not self._gone(pid):
            time.sleep(0.002)
        time.sleep(self.chance.uniform(0, 0.2))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        assert self.process.stdout.readline() == "gone\n"

    @staticmethod
    def _gone(pid: int) -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False
