"""What the benchmarks share: figures as text or JSON lines, timings taken in turns, memory of a fresh process."""

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

PAGE_POLL = 0.002  # seconds between two looks at a process's memory


@dataclass(frozen=True)
class Figure:
    """One measured number and the limit it is held to."""

    name: str
    value: float
    limit: float | None = None
    bound: Literal["at least", "at most"] = "at most"
    facts: Mapping[str, object] = field(default_factory=dict)
    """What else the JSON line says: sizes, or how the number came about."""
    note: str = ""
    """The same in words, for the text line."""
    digits: int = 3

    def show(self, as_json: bool) -> None:
        """Print one line."""
        if as_json:
            line = {"figure": self.name, "value": round(self.value, self.digits), **self.facts}
            print(json.dumps(line if self.limit is None else line | {"limit": self.limit}), flush=True)
            return
        said = [] if self.limit is None else [f"{self.bound} {self.limit:g}"]
        said += [self.note] if self.note else []
        print(f"{self.name} = {self.value:.2f}" + (f" ({'; '.join(said)})" if said else ""), flush=True)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser with the option of every benchmark."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser


def seconds_in_turns(jobs: Mapping[str, Callable[[], object]], repeats: int, warm_ups: int) -> dict[str, list[float]]:
    """Seconds of each job, the jobs alternating so that a slow spell of the machine meets them all."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(warm_ups + repeats):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            if turn >= warm_ups:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def output_of_child(*arguments: str) -> str:
    """What this benchmark prints when it is started again with other arguments."""
    child = [sys.executable, sys.argv[0], *arguments]
    return subprocess.run(child, check=True, capture_output=True, text=True).stdout


def extra_peak_bytes(job: Callable[[], object]) -> int:
    """By how much the memory of this (fresh) process rises above its level now while it does the job."""
    before = _resident_bytes()
    peak, done = [before], threading.Event()

    def watch() -> None:
        while not done.wait(PAGE_POLL):
            peak[0] = max(peak[0], _resident_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    job()
    done.set()
    watcher.join()
    lines = Path("/proc/self/status").read_text().splitlines()
    kernel_peak = next(line for line in lines if line.startswith("VmHWM"))
    return max(peak[0], int(kernel_peak.split()[1]) * 1024) - before


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
