"""Progress of long work: bars on a terminal, plain lines with the time left where a command runs without one."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

Advance = Callable[[str], None]
"""Moves the bar one step and shows a short text beside it, e.g. the current metric."""
FIRST, EVERY, LONGEST = 10.0, 15.0, 60.0
"""Seconds before the first line, between two, and at most between two where there is nothing new to say."""


@dataclass
class _Task:
    """Work that is going on."""

    title: str
    steps: int | None
    start: float = field(default_factory=perf_counter)
    done: int = 0
    text: str = ""

    def line(self, now: float) -> str:
        """How far it is, in words."""
        if not self.steps:
            return self.title
        left = time_left(self.done, self.steps, now - self.start)
        return f"{self.title}: {self.done} of {self.steps}, {left} left{', ' if self.text else ''}{self.text}"


class _Lines:
    """Lines about the innermost work, printed by a thread of its own so that long steps do not hush them."""

    def __init__(self) -> None:
        """Begin now."""
        self.tasks: list[_Task] = []
        self._start, self._end = perf_counter(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        wait, before = FIRST, ""
        while not self._end.wait(wait):
            now, tasks = perf_counter(), self.tasks[-1:]
            so_far, said = round(now - self._start), tasks[0].line(now) if tasks else "working"
            clock = f"{so_far // 3600}:{so_far // 60 % 60:02}:{so_far % 60:02}"
            print(f"[{clock}] {said}", file=sys.stderr, flush=True)
            wait, before = (min(2 * wait, max(LONGEST, EVERY)) if said == before else EVERY), said

    def close(self) -> None:
        """Print no more."""
        self._end.set()
        self._thread.join()


_lines: _Lines | None = None
_quiet = False


@contextmanager
def command_progress(*, quiet: bool = False) -> Iterator[None]:
    """While a command runs: bars on a terminal, lines elsewhere, neither where it should be `quiet`."""
    global _lines, _quiet
    before, _quiet = _quiet, quiet
    _lines = None if quiet or sys.stderr.isatty() else _Lines()
    try:
        yield
    finally:
        if _lines is not None:
            _lines.close()
        _lines, _quiet = None, before


@contextmanager
def progress(title: str, steps: int | None, *, show: bool | None = None) -> Iterator[Advance]:
    """A bar of that many steps on standard error; `show=None` shows it only where a person is watching.

    Without a number of steps the bar only says that work goes on. Commands that run without a terminal print lines
    instead.
    """
    if _lines is not None and show is not False:
        with _task_of(_lines, _Task(title, steps)) as advance:
            yield advance
        return
    if not (sys.stderr.isatty() if show is None else show) or _quiet:
        yield lambda text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.text import Text

    class TimeLeft(ProgressColumn):
        """By the mean pace so far, because single steps may take minutes and come in bursts."""

        def render(self, task: Task) -> Text:
            return Text(time_left(task.completed, task.total or 0.0, task.elapsed or 0.0), style="progress.remaining")

    columns = (TextColumn("{task.description}"), BarColumn(), TimeLeft(), TextColumn("{task.fields[text]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=steps, text="")
        yield lambda text: bar.update(task, advance=1, text=text)


@contextmanager
def _task_of(lines: _Lines, task: _Task) -> Iterator[Advance]:
    def advance(text: str) -> None:
        task.done, task.text = task.done + 1, text

    lines.tasks.append(task)
    try:
        yield advance
    finally:
        lines.tasks.remove(task)


def time_left(done: float, steps: float, seconds: float) -> str:
    """What is left at the mean pace so far, as hours, minutes and seconds."""
    if done <= 0:
        return "-:--:--"
    left = round(seconds * max(steps - done, 0.0) / done)
    return f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02}"
