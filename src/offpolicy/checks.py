"""Declared ranges for hyper-parameters, and the functions that enforce them.

A range is written once, in a signature (`lam: Positive = 10.0`); validation, documentation, command-line help and
search spaces all read it from there.
"""

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from offpolicy.errors import ParameterError


@dataclass(frozen=True)
class Range:
    """Allowed values low..high; `grid` are the values a search tries when nothing else is known."""

    low: float
    high: float
    include_low: bool = True
    include_high: bool = True
    grid: tuple[float, ...] = ()
    integer: bool = False

    def contains(self, value: float) -> bool:
        """Whether a number lies in the range (NaN never does)."""
        above = value >= self.low if self.include_low else value > self.low
        below = value <= self.high if self.include_high else value < self.high
        return above and below and (not self.integer or math.isinf(value) or float(value).is_integer())

    def __str__(self) -> str:
        """Interval notation, as the documentation prints it."""
        left = "[" if self.include_low else "("
        right = "]" if self.include_high else ")"
        kind = " integer" if self.integer else ""
        return f"{left}{self.low:g}, {self.high:g}{right}{kind}"


PAPER_GRID = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0)
"""The twelve values the paper tries for λ, γ and η1."""

POSITIVE = Range(0.0, math.inf, include_low=False)
NON_NEGATIVE = Range(0.0, math.inf)

Positive = Annotated[float, POSITIVE]


def check_number(name: str, value: Any, allowed: Range) -> float:
    """The value as a float, or a ParameterError that names the parameter and its range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ParameterError(f"{name} must be a number in {allowed}, but it is {value!r} ({type(value).__name__}).")
    if not allowed.contains(value):
        raise ParameterError(f"{name} must lie in {allowed}, but it is {value!r}. Choose a value in that range.")
    return float(value)


def check_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """The value if it is one of the choices, or a ParameterError with the nearest spelling."""
    known = list(choices)
    if isinstance(value, str) and value in known:
        return value
    near = difflib.get_close_matches(str(value), known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ParameterError(f"{name} must be one of {', '.join(known)}, but it is {value!r}.{hint}")
