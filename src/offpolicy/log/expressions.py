"""Rewards as expressions of columns, such as `0.1*click + purchase`: parsed here, never run as code.

Numbers, columns (in backticks where a name is no plain word), + − * /, parentheses, min, max and abs.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from offpolicy.errors import ParameterError

Floats = npt.NDArray[np.float64]

LONGEST = 1_000
PIECE = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|`(?P<quoted>[^`]+)`|(?P<word>[^\W\d][\w.]*)|(?P<sign>[-+*/(),]))"
)
BINDS = {"+": 1, "-": 1, "*": 2, "/": 2, "negative": 3}
FUNCTIONS = {"min": 2, "max": 2, "abs": 1}
OPERATIONS = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "min": np.minimum,
    "max": np.maximum,
    "abs": np.abs,
    "negative": np.negative,
}


@dataclass(frozen=True)
class Expression:
    """A formula in postfix order: numbers, columns and operations, each step (kind, what)."""

    name: str
    steps: tuple[tuple[str, str], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it needs, once each."""
        return tuple(dict.fromkeys(what for kind, what in self.steps if kind == "column"))

    @property
    def is_column(self) -> bool:
        """Whether it is a column under its own name, which need not be a number."""
        return self.steps == (("column", self.name),)

    def values(self, columns: Mapping[str, Floats]) -> Floats:
        """Its value in every row; what cannot be computed, such as 1/0, is not finite."""
        stack: list[Floats] = []
        with np.errstate(all="ignore"):
            for kind, what in self.steps:
                if kind == "operation":
                    taken = FUNCTIONS.get(what, 1 if what == "negative" else 2)
                    arguments = [stack.pop() for _ in range(taken)][::-1]
                    stack.append(OPERATIONS[what](*arguments))
                else:
                    stack.append(np.float64(what) if kind == "number" else columns[what])  # type: ignore[arg-type]
        rows = len(next(iter(columns.values())))
        return np.ascontiguousarray(np.broadcast_to(stack[0], rows).astype(np.float64))


def expression(text: str, known: Iterable[str] = ()) -> Expression:
    """A column by its name, or `[NAME=]FORMULA`; a text that is the name of a `known` column is that column."""
    if text in set(known):
        return Expression(text, (("column", text),))
    if len(text) > LONGEST:
        raise ParameterError(f"The expression {text[:60]!r}… has more than {LONGEST} characters. Shorten it.")
    name, equals, formula = text.partition("=")
    if not equals:
        name = formula = text
    if not name.strip():
        raise ParameterError(f"The expression {text!r} has no name before its =. Give it one, or leave the = out.")
    steps = _Parser(formula, text).steps()
    found = Expression(name.strip(), tuple(steps))
    if not found.columns:
        raise ParameterError(f"The expression {text!r} names no column.")
    return found


class _Parser:
    """Shunting-yard: operators wait on a stack until what binds less comes, so that no nesting is too deep."""

    def __init__(self, formula: str, text: str) -> None:
        self.formula, self.text = formula, text
        self.output: list[tuple[str, str]] = []
        self.waiting: list[str] = []

    def steps(self) -> list[tuple[str, str]]:
        place, operand = 0, True  # whether a value must come next
        formula = self.formula.rstrip()
        while place < len(formula):
            found = PIECE.match(formula, place)
            if found is None:
                raise self._wrong(f"at {formula[place : place + 10].strip()!r}")
            place, kind, what = found.end(), str(found.lastgroup), str(found[str(found.lastgroup)])
            opens = formula[place:].lstrip().startswith("(")
            operand = self._take(kind, what, operand, opens)
        if operand or "(" in self.waiting:
            raise self._wrong("at its end")
        while self.waiting:
            self._apply(self.waiting.pop())
        return self.output

    def _take(self, kind: str, what: str, operand: bool, opens: bool) -> bool:
        """Whether a value must come after this piece."""
        if kind != "sign" or what == "(":
            if not operand:
                raise self._wrong(f"before {what!r}")
            if (kind == "word" and opens and what in FUNCTIONS) or (what == "(" and kind == "sign"):
                self.waiting.append(what)
                return True
            self.output.append(("number" if kind == "number" else "column", what))
            return False
        if operand and what in "+-":
            if what == "-":
                self.waiting.append("negative")
            return True
        if operand:
            raise self._wrong(f"before {what!r}")
        if what in "),":
            self._close(what)
            return what == ","
        self._unwind(BINDS[what])
        self.waiting.append(what)
        return True

    def _unwind(self, least: int) -> None:
        while self.waiting and BINDS.get(self.waiting[-1], 0) >= least:
            self._apply(self.waiting.pop())

    def _close(self, what: str) -> None:
        self._unwind(1)
        if not self.waiting:
            raise self._wrong(f"before {what!r}")
        function = len(self.waiting) > 1 and self.waiting[-2] in FUNCTIONS
        if what == "," and not function:
            raise self._wrong("before ','")
        if what == ",":
            self.waiting.insert(-2, ",")
            return
        self.waiting.pop()
        if function:
            name = self.waiting.pop()
            commas = 0
            while self.waiting and self.waiting[-1] == ",":
                self.waiting.pop()
                commas += 1
            if commas + 1 != FUNCTIONS[name]:
                raise ParameterError(f"{name} takes {FUNCTIONS[name]} values in the expression {self.text!r}.")
            self._apply(name)

    def _apply(self, name: str) -> None:
        self.output.append(("operation", name))

    def _wrong(self, where: str) -> ParameterError:
        return ParameterError(
            f"The expression {self.text!r} cannot be read {where}. Write columns, numbers, + - * / ( ), min, max and "
            "abs, as in 0.1*click + purchase; a column whose name is no plain word goes in `backticks`."
        )
