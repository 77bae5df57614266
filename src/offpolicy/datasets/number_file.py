"""Text tables of plain numbers: read at once, and searched line by line only to say what is wrong."""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from offpolicy.errors import LogError

Bounds: TypeAlias = Sequence[tuple[float, float]]
"""Smallest and largest allowed value: one pair for all columns, or one pair for each."""


def read_numbers(path: Path, separator: str | None, bounds: Bounds, *, integer: bool = True) -> npt.NDArray[np.float64]:
    """The matrix that a text file holds, every value within its bounds; `separator` None means white space."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*input contained no data")
            table = np.loadtxt(path, delimiter=separator, comments=None, ndmin=2, encoding="utf-8")
    except OSError as error:
        raise LogError(
            f"{path} cannot be opened: {error.strerror or error}. Check your permission to read it."
        ) from None
    except ValueError as error:
        raise LogError(_first_fault(path, separator, bounds, integer) or f"{path} cannot be read: {error}.") from None
    if not table.size:
        raise LogError(f"{path} is empty. Fetch the file again.")
    fits = len(bounds) in (1, table.shape[1])
    low, high = np.array(bounds).T if fits else (-np.inf, np.inf)
    good = (table >= low) & (table <= high)  # NaN fails both
    if not fits or not good.all() or (integer and (table != np.floor(table)).any()):
        raise LogError(_first_fault(path, separator, bounds, integer))
    return table


def _first_fault(path: Path, separator: str | None, bounds: Bounds, integer: bool) -> str:
    """What is wrong with the first faulty line, or nothing."""
    width = len(bounds) if len(bounds) > 1 else 0
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            fields = line.strip("\r\n").split(separator)
            width = width or len(fields)
            if len(fields) != width:
                return f"{path}: line {number} must hold {width} values, but it holds {len(fields)}. Fix the line."
            for column, field in enumerate(fields):
                low, high = bounds[column % len(bounds)]
                if not _is_good(field, low, high, integer):
                    kind = f"{'an integer' if integer else 'a number'} in {low:.10g}..{high:.10g}"
                    return (
                        f"{path}: line {number}, value {column + 1} must be {kind}, but it is {field!r}. Fix the value."
                    )
    return ""


def _is_good(field: str, low: float, high: float, integer: bool) -> bool:
    try:
        value = float(field)
    except ValueError:
        return False
    return low <= value <= high and not (integer and (math.isinf(value) or value != math.floor(value)))
