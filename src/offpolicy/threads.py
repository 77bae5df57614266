"""How many threads the numeric libraries use: torch, and the BLAS and OpenMP pools of NumPy and SciPy.

Each of these libraries has a pool of its own, and the idle threads of one spin on the cores that another needs: on
small problems, where splitting saves next to nothing, that costs tenfold and more. Whoever changes the number of
threads does so here, for all of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

_set: int | None = None
"""As many as every library was last told to use."""


def set_threads(n: int) -> None:
    """Let every library use so many threads from here on, in this process."""
    global _set
    torch.set_num_threads(n)
    threadpool_limits(n)
    _set = n


@contextmanager
def threads(n: int) -> Iterator[None]:
    """Let every library use so many threads within the block; before and after it, as many as before."""
    global _set
    if _set == n == torch.get_num_threads():  # to look for all libraries again takes milliseconds
        yield
        return
    before, outside = torch.get_num_threads(), _set
    with threadpool_limits(n):
        torch.set_num_threads(n)
        _set = n
        try:
            yield
        finally:
            torch.set_num_threads(before)
            _set = outside
