"""What happens to each column of a log: how it is read, what is done where a value is missing, what is wrong with it.

Every column goes through here once. Whatever is wrong is collected, so that one error names all problems of a log and
the option that fixes each.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from offpolicy.errors import Fix, LogError
from offpolicy.log.derived import LARGEST, PARTS, derived, missing, parts_of, source_of
from offpolicy.log.encode import RawColumns, filled
from offpolicy.log.features import Kind
from offpolicy.log.origin import Origin, shown

Missing: TypeAlias = Literal["drop", "zero", "indicator"]
EVERY = "*"
"""The name that stands for all columns in a mapping of treatments."""
RULES = {
    "numeric": "must hold a number in every row",
    "embedding": "must hold a vector of numbers in every row",
    "reward": "must hold a reward in every row",
    "propensity": "must hold a probability in every row",
    "action": "must hold an id in every row",
    "cluster": "must hold an id in every row",
    "timestamp": "must hold a timestamp in every row",
    "request": "must hold an id in every row",
    "position": "must hold a number in every row",
}
Typed = dict[str, tuple[Kind, pl.Series]]
Read = TypeVar("Read")


class AbsentError(LogError):
    """Values that are missing in some rows of a column: the first of them, and how many."""

    def __init__(self, found: str, count: int, rows: int, meaning: str, fix: Fix | None) -> None:
        """What was found, in so many of so many rows."""
        self.found, self.count, self.rows, self.meaning = found, count, rows, meaning
        super().__init__(f"{found} ({count:,} of {rows:,} rows, {count / rows:.1%}{meaning}).", fix)


@dataclass(frozen=True)
class Decided:
    """What has to be known of all rows before they are read piece by piece."""

    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The parts that stand for each context column that holds dates."""
    flagged: frozenset[str] = frozenset()
    """Context columns with a flag that says where they are missing."""


class Treatment:
    """Columns as they are treated one after another: problems, notes, and the rows to drop."""

    def __init__(self, asked: Mapping[str, Missing], origin: Origin, decided: Decided | None = None) -> None:
        """Begin with what was asked for by column, `EVERY` standing for all."""
        self.asked, self.origin, self.decided = asked, origin, decided
        self.problems: list[LogError] = []
        self.dates: dict[str, tuple[str, ...]] = {}
        self.counts: dict[tuple[str, str], int] = {}
        """How many values of a column were missing, and what was done about it."""
        self._dropped: pl.Series | None = None

    def attempt(self, read: Callable[[], Read]) -> Read | None:
        """What a reading gives; a problem of the data is kept and gives None."""
        try:
            return read()
        except LogError as problem:
            self.problems.append(problem)
            return None

    def complete(self, role: str, column: str, values: pl.Series) -> pl.Series:
        """The values of a column that must hold something in every row; rows without may be dropped."""
        absent = missing(values)
        count = int(absent.sum())
        if not count:
            return values
        how = self._how(column)
        if how == "zero" and role == "reward":
            self._note(column, count, "counted as 0")
            return pl.select(pl.when(absent).then(0.0).otherwise(values)).to_series()
        if how == "drop":
            self._drop(column, absent, count, " (feedback not yet in)" if role == "reward" else "")
            return pl.select(pl.when(~absent).then(values)).to_series()
        pending = ": feedback not yet in" if role == "reward" else ""
        effect = "to leave these rows out"
        effect += " (zero counts them as 0)" if role == "reward" else ""
        self._problem(column, RULES[role], values, absent, pending, Fix("missing", f"{column}=drop", effect))
        return values

    def context(self, columns: RawColumns) -> Typed:
        """Typed context columns: dates as their parts, missing numbers dropped, filled in or flagged."""
        typed: Typed = {}
        for name, series in columns.series.items():
            parts = self._parts(name, series) if name not in columns.kinds else ()
            if parts:
                self.dates[name] = parts
                raw = {derived(name, one): PARTS[one](series).alias(derived(name, one)) for one in parts}
            else:
                raw = {name: series}
            for own, values in raw.items():
                one = RawColumns({own: values}, columns.kinds, columns.origin)
                found = self.attempt(lambda one=one, own=own: one.typed(own))  # type: ignore[misc]
                if found is not None:
                    typed |= self._filled(own, *found)
        return typed

    def _parts(self, name: str, series: pl.Series) -> tuple[str, ...]:
        return parts_of(series) if self.decided is None else self.decided.parts.get(name, ())

    @property
    def notes(self) -> list[str]:
        """What was done, in words."""
        rows = sum(part.n_rows for part in self.origin.parts)
        respelled = [f"{name}: {said}" for name, said in self.origin.respelled.items()]
        return respelled + notes_of(self.dates, self.counts, rows)

    def _filled(self, name: str, kind: Kind, values: pl.Series) -> Typed:
        how = self._how(name)
        if kind in ("categorical", "bag"):  # null is an id of its own, and no list an empty one
            if self.asked.get(source_of(name)) == "drop" and values.null_count():
                self._drop(name, values.is_null(), values.null_count())
            return {name: (kind, values)}
        absent = missing(values)
        count = int(absent.sum())
        flag = derived(source_of(name), "missing")
        flags: Typed = {}
        if how == "indicator" and (count or (self.decided is not None and flag in self.decided.flagged)):
            flags = {flag: ("categorical", PARTS["missing"](values))}
        if not count:
            return {name: (kind, values), **flags}
        if how is None:
            source = source_of(name)
            effect = "to fill in 0 and flag these rows (zero fills in without a flag, drop leaves the rows out)"
            self._problem(name, RULES[kind], values, absent, "", Fix("missing", f"{source}=indicator", effect))
            return {name: (kind, values)}
        if how == "drop":
            self._drop(name, absent, count)
        else:
            self._note(name, count, f"filled in with 0{f', flagged by {flag}' if flags else ''}")
        return {name: (kind, filled(kind, values)), **flags}

    def asks_for(self, column: str) -> bool:
        """Whether rows in which this column is missing are to be left out or to count as 0."""
        return self._how(column) in ("drop", "zero")

    def _how(self, column: str) -> Missing | None:
        """The treatment of a column: its own, that of its source, or that of all."""
        own = self.asked.get(column, self.asked.get(source_of(column)))
        return own or self.asked.get(EVERY)

    def _drop(self, column: str, absent: pl.Series, count: int, why: str = "") -> None:
        self._note(column, count, f"these rows are left out{why}")
        self._dropped = absent if self._dropped is None else self._dropped | absent

    def _note(self, column: str, count: int, done: str) -> None:
        self.counts[column, done] = self.counts.get((column, done), 0) + count

    def _problem(
        self, column: str, rule: str, values: pl.Series, absent: pl.Series, meaning: str, fix: Fix | None
    ) -> None:
        row = absent.arg_max() or 0
        part, place = self.origin.place(row)
        said = f"{part.name}: column {column!r} {rule}, but {place} holds {_shown(values[row])}"
        self.problems.append(AbsentError(said, int(absent.sum()), len(absent), meaning, fix))

    def present(self, values: pl.Series) -> pl.Series:
        """The values of the rows that stay as far as is known by now, null in the others."""
        if self._dropped is None:
            return values
        return pl.select(pl.when(~self._dropped).then(values).alias(values.name)).to_series()

    def kept(self) -> npt.NDArray[np.int64] | None:
        """The rows that stay, in order; None where all do. Every problem met so far is raised here, in one error."""
        if self.problems:
            raise LogError.joined(self.origin.name, self.problems)
        if self._dropped is None:
            return None
        rows = np.flatnonzero(~self._dropped.to_numpy())
        if not len(rows) and self.decided is None:
            raise none_left(self.origin.name, self.counts)
        return rows


def none_left(name: str, counts: Mapping[tuple[str, str], int]) -> LogError:
    """The error of a log whose rows were all dropped."""
    columns = ", ".join(dict.fromkeys(column for column, _ in counts))
    return LogError(f"{name}: no row is left: each lacks a value in one of the columns {columns}.")


def notes_of(dates: Mapping[str, tuple[str, ...]], counts: Mapping[tuple[str, str], int], rows: int) -> list[str]:
    """What was done to columns, in words."""
    read = [
        f"{name}: a date or time, read as {', '.join(derived(name, one) for one in parts)}"
        for name, parts in dates.items()
    ]
    done = [
        f"{column}: missing in {count:,} of {rows:,} rows ({count / rows:.1%}), {what}"
        for (column, what), count in counts.items()
    ]
    return read + done


def _shown(value: object) -> str:
    items = value.to_list() if isinstance(value, pl.Series) else [value]
    if any(isinstance(item, float) and LARGEST < abs(item) < np.inf for item in items):
        return f"{shown(value)}, beyond ±{LARGEST:g}"
    return "null" if all(item is None for item in items) else shown(value)
