"""Progress bars on long work: shown on a terminal, silent elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[str], None]
"""Moves the bar one step and shows a short text beside it, e.g. the current metric."""


@contextmanager
def progress(title: str, steps: int, *, show: bool | None = None) -> Iterator[Advance]:
    """A bar of that many steps on standard error; `show=None` shows it only where a person is watching."""
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), TextColumn("{task.fields[text]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=steps, text="")
        yield lambda text: bar.update(task, advance=1, text=text)
