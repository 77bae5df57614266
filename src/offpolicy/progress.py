"""Progress bars on long work: shown on a terminal, hidden elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[str], None]
"""Moves the bar one step and shows a short text beside it, e.g. the current metric."""


@contextmanager
def progress(title: str, steps: int | None, *, show: bool | None = None) -> Iterator[Advance]:
    """A bar of that many steps on standard error; `show=None` shows it only where a person is watching.

    Without a number of steps the bar only says that work goes on.
    """
    if not (sys.stderr.isatty() if show is None else show):
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


def time_left(done: float, steps: float, seconds: float) -> str:
    """What is left at the mean pace so far, as hours, minutes and seconds."""
    if done <= 0:
        return "-:--:--"
    left = round(seconds * max(steps - done, 0.0) / done)
    return f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02}"
