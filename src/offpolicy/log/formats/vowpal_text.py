"""Vowpal Wabbit's text: `cb`, a decision a line, and `cb_adf`, a block of lines a decision with a line a candidate."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from offpolicy.log.formats.vowpal_rows import Candidate, Decision, Row, add_name, bad, number
from offpolicy.log.origin import shown

MOST_NUMBERS = 5_000
"""Names with values beyond which those that only ever have the value 1 are taken for names alone."""
UNLABELLED = "blocks without a cost, whose outcome is not known"

Block = list[tuple[int, str]]


class Token(NamedTuple):
    """One feature of a line: `price:2.5` or, without a value, `price`."""

    namespace: str
    name: str
    value: float | None

    @property
    def column(self) -> str:
        """Its column, if it is a number."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name


def text_decisions(path: Path, lines: Iterable[str], skipped: Counter[str]) -> Iterator[Decision]:
    """One decision a line, or (cb_adf) one a block of lines with a line per action."""
    blocks = list(_blocks(lines))
    tokens = {place: list(_tokens(path, place, line)) for block in blocks for place, line in block}
    numbers = _numbers(tokens.values())
    rows = {place: _row(own, numbers) for place, own in tokens.items()}
    many = bool(blocks) and any(_label(line) is None for _, line in blocks[0])
    for block in blocks:
        if not many:
            for place, line in block:
                yield _single(path, place, line, rows[place])
            continue
        decision = _of_block(path, block, rows)
        if decision is None:
            skipped[UNLABELLED] += 1
        else:
            yield decision


def _blocks(lines: Iterable[str]) -> Iterator[Block]:
    block: Block = []
    for place, text in enumerate([*lines, ""], start=1):
        if text.strip():
            block.append((place, text.strip()))
        elif block:
            yield block
            block = []


def _label(line: str) -> list[str] | None:
    """Action, cost and probability of a line; None where it has no label or is shared."""
    label = next((token for token in line.partition("|")[0].split() if token.count(":") == 2), None)
    return None if label is None or line.startswith("shared") else label.split(":")


def _single(path: Path, place: int, line: str, row: Row) -> Decision:
    label = _label(line)
    if label is None or not label[0].isdecimal():
        bad(path, place, f"must begin with action:cost:probability, but it is {shown(line)}")
    return Decision(place, row, None, 0, *_outcome(path, place, label), action=label[0])


def _outcome(path: Path, place: int, label: list[str]) -> tuple[float, float]:
    return -number(path, place, "cost", label[1]), number(path, place, "probability", label[2])


def _of_block(path: Path, block: Block, rows: dict[int, Row]) -> Decision | None:
    """The decision of a block; None where no candidate has a cost."""
    shared: Row = {}
    offered: list[tuple[int, str]] = []
    for place, line in block:
        if line.startswith("shared"):
            shared |= rows[place]
        else:
            offered.append((place, line))
    chosen = [at for at, (_, line) in enumerate(offered) if _label(line) is not None]
    if len(chosen) > 1:
        second = offered[chosen[1]][0]
        bad(path, second, "is the second of its block with a label, but one action is taken in a decision")
    if not chosen:
        return None
    place, line = offered[chosen[0]]
    outcome = _outcome(path, place, _label(line) or [])
    candidates = [Candidate(_tag(text), rows[where]) for where, text in offered]
    return Decision(block[0][0], shared, candidates, chosen[0], *outcome)


def _tag(line: str) -> str | None:
    found = re.search(r"'(\S+?)\s*\|", line)
    return found.group(1) if found else None


def _tokens(path: Path, place: int, line: str) -> Iterator[Token]:
    for part in line.split("|")[1:]:
        words = part.split()
        namespace = ""
        if words and not part[:1].isspace():
            namespace = words.pop(0).partition(":")[0]
        for word in words:
            name, colon, value = word.rpartition(":") if ":" in word else (word, "", "")
            said = number(path, place, f"the value of feature {name!r}", value) if colon else None
            yield Token(namespace, name, said)


def _numbers(lines: Iterable[Sequence[Token]]) -> set[str]:
    """The columns that are numbers: those that ever have a value, but for `colour=red:1`, which says `colour=red`."""
    values: defaultdict[str, set[float]] = defaultdict(set)
    for tokens in lines:
        for token in tokens:
            if token.value is not None:
                values[token.column].add(token.value)
    ever = {name for name, found in values.items() if found != {1.0} or "=" not in name}
    return ever if len(ever) <= MOST_NUMBERS else {name for name in ever if values[name] != {1.0}}


def _row(tokens: Sequence[Token], numbers: set[str]) -> Row:
    """A name that is a number elsewhere in the file has the value 1 where none is written."""
    row: Row = {}
    for token in tokens:
        before, equals, after = token.name.partition("=")
        if token.column in numbers:
            row[token.column] = 1.0 if token.value is None else token.value
        elif equals:
            add_name(row, f"{token.namespace}.{before}" if token.namespace else before, after)
        else:
            add_name(row, token.namespace or "features", token.name)
    return row
