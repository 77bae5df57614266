"""Arrays that are mapped from files: what is taken out of a large one is a mapped file again, not memory."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from offpolicy.errors import OffPolicyError
from offpolicy.log.ids import owned

SMALL = 4 * 2**20
"""Bytes up to which an array is simply kept in memory."""
AT_ONCE = 2**18
"""Entries that are gathered at a time."""


def mapped_file(array: npt.NDArray[Any]) -> Path | None:
    """The file that an array is mapped from; None where it is in memory."""
    base: Any = array
    while base is not None:
        if isinstance(base, np.memmap):
            return Path(base.filename) if base.filename is not None else Path(tempfile.gettempdir()) / "mapped"
        base = getattr(base, "base", None)
    return None


def scratch(shape: tuple[int, ...], dtype: Any, beside: Path) -> npt.NDArray[Any]:
    """An array of zeros in a file without a name, which goes when the array goes.

    It is where the store is, if that may be written to, and else where temporary files are.
    """
    size = max(1, int(np.prod(shape)) * np.dtype(dtype).itemsize)
    folder = beside.parent if os.access(beside.parent, os.W_OK) else None
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error here, not a fault later
            else:
                file.truncate(size)
            made = np.memmap(file, dtype, "r+", shape=shape)
    except OSError as error:
        raise OffPolicyError(
            f"{folder or tempfile.gettempdir()} has no room for {size / 1e9:.1f} GB of temporary data ({error}). Make "
            "room, or name another folder with TMPDIR."
        ) from None
    made.filename = str(beside)  # what is taken of it goes to the same place
    return np.asarray(made)


def gathered(values: npt.NDArray[Any], index: Any) -> npt.NDArray[Any]:
    """Some entries of an array, read-only; of a mapped array, where they are many, in a mapped file as well."""
    file = None if isinstance(index, slice) else mapped_file(values)
    index = index if isinstance(index, slice) else np.asarray(index)
    count = 0 if file is None else int(np.count_nonzero(index)) if index.dtype == np.bool_ else len(index)
    if file is None or count * (values.nbytes // max(1, len(values))) <= SMALL:
        return owned(values[index] if isinstance(index, slice) or index.size else values[:0])
    made = scratch((count, *values.shape[1:]), values.dtype, file)
    if index.dtype != np.bool_:
        for start in range(0, count, AT_ONCE):
            made[start : start + AT_ONCE] = values[index[start : start + AT_ONCE]]
        return owned(made)
    done = 0
    for start in range(0, len(values), AT_ONCE):
        some = values[start : start + AT_ONCE][index[start : start + AT_ONCE]]
        made[done : done + len(some)] = some
        done += len(some)
    return owned(made)


def joined(pieces: Iterable[npt.NDArray[Any]], n: int, dtype: Any, beside: Path | None) -> npt.NDArray[Any]:
    """Pieces one after another as one array of n entries, mapped from a file beside the given one where there is."""
    large = beside is not None and n * np.dtype(dtype).itemsize > SMALL
    made = scratch((n,), dtype, beside) if large and beside is not None else np.empty(n, dtype=dtype)
    start = 0
    for piece in pieces:
        made[start : start + len(piece)] = piece
        start += len(piece)
    return owned(made)
