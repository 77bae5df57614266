"""What both of Vowpal Wabbit's formats hold: decisions, their candidates, and features of either."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from offpolicy.errors import LogError
from offpolicy.log.origin import shown

Row: TypeAlias = dict[str, Any]
"""A column's name to a number, or to a list of names."""


@dataclass(frozen=True)
class Candidate:
    """An action on offer: its name where it has one, and its features."""

    name: str | None
    features: Row


@dataclass(frozen=True)
class Decision:
    """What was decided, among what, and what came of it."""

    line: int
    shared: Row
    candidates: Sequence[Candidate] | None
    chosen: int
    """The place of the action among the candidates, or the action's number where there are none."""
    reward: float
    propensity: float | None
    timestamp: str | None = None
    keep_prob: float = 1.0
    action: str = field(default="")
    """The action's name where there are no candidates."""


def bad(path: Path, line: int, problem: str, remedy: str = "Fix or drop the line.") -> NoReturn:
    """The error for a line."""
    raise LogError(f"{path}: line {line} {problem}. {remedy}")


def number(path: Path, line: int, what: str, value: Any) -> float:
    """A finite number, or the error that it is none."""
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        bad(path, line, f"must hold a number as {what}, but it holds {shown(value)}")
    return found


def add_name(row: Row, column: str, name: str) -> None:
    """One more name in a column; a number that was there becomes a name too."""
    held = row.setdefault(column, [])
    if isinstance(held, list):
        held.append(name)
    else:
        row[column] = [f"{held:g}", name]


def described(features: Row) -> str:
    """Features in words, as the name of an action that has no other."""
    parts = []
    for name, value in sorted(features.items()):
        short = name.rpartition(".")[2] if isinstance(value, list) else name
        parts += [f"{short}={one}" for one in value] if isinstance(value, list) else [f"{short}:{value:g}"]
    return " ".join(parts)
