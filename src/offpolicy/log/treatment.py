"""What happens to each column of a log: how it is read, what is done where a value is missing, what is wrong with it.

Every column goes through here once. Whatever is wrong is collected, so that one error names all problems of a log and
the option that fixes each.
"""

from collections.abc import Callable, Mapping
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


class Treatment:
    """Columns as they are treated one after another: problems, notes, and the rows to drop."""

    def __init__(self, asked: Mapping[str, Missing], origin: Origin) -> None:
        """Begin with what was asked for by column, `EVERY` standing for all."""
        self.asked, self.origin = asked, origin
        self.problems: list[LogError] = []
        self.notes: list[str] = []
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
            parts = parts_of(series) if name not in columns.kinds else ()
            if parts:
                self.notes.append(f"{name}: a date or time, read as {', '.join(derived(name, one) for one in parts)}")
                raw = {derived(name, one): PARTS[one](series).alias(derived(name, one)) for one in parts}
            else:
                raw = {name: series}
            for own, values in raw.items():
                one = RawColumns({own: values}, columns.kinds, columns.origin)
                found = self.attempt(lambda one=one, own=own: one.typed(own))  # type: ignore[misc]
                if found is not None:
                    typed |= self._filled(own, *found)
        return typed

    def _filled(self, name: str, kind: Kind, values: pl.Series) -> Typed:
        how = self._how(name)
        if kind in ("categorical", "bag"):  # null is an id of its own, and no list an empty one
            if self.asked.get(source_of(name)) == "drop" and values.null_count():
                self._drop(name, values.is_null(), values.null_count())
            return {name: (kind, values)}
        absent = missing(values)
        count = int(absent.sum())
        if not count:
            return {name: (kind, values)}
        if how is None:
            source = source_of(name)
            effect = "to fill in 0 and flag these rows (zero fills in without a flag, drop leaves the rows out)"
            self._problem(name, RULES[kind], values, absent, "", Fix("missing", f"{source}=indicator", effect))
            return {name: (kind, values)}
        if how == "drop":
            self._drop(name, absent, count)
        else:
            flagged = f", flagged by {derived(source_of(name), 'missing')}" if how == "indicator" else ""
            self._note(name, count, f"filled in with 0{flagged}")
        flags: Typed = {}
        if how == "indicator":
            flags = {derived(source_of(name), "missing"): ("categorical", PARTS["missing"](values))}
        return {name: (kind, filled(kind, values)), **flags}

    def asks_for(self, column: str) -> bool:
        """Whether missing values of this column are to be treated in some way."""
        return self._how(column) is not None

    def _how(self, column: str) -> Missing | None:
        """The treatment of a column: its own, that of its source, or that of all."""
        own = self.asked.get(column, self.asked.get(source_of(column)))
        return own or self.asked.get(EVERY)

    def _drop(self, column: str, absent: pl.Series, count: int, why: str = "") -> None:
        self._note(column, count, f"these rows are left out{why}")
        self._dropped = absent if self._dropped is None else self._dropped | absent

    def _note(self, column: str, count: int, done: str) -> None:
        rows = sum(part.n_rows for part in self.origin.parts)
        self.notes.append(f"{column}: missing in {count:,} of {rows:,} rows ({count / rows:.1%}), {done}")

    def _problem(
        self, column: str, rule: str, values: pl.Series, absent: pl.Series, meaning: str, fix: Fix | None
    ) -> None:
        row = absent.arg_max() or 0
        part, place = self.origin.place(row)
        count, rows = int(absent.sum()), len(absent)
        share = f"{count:,} of {rows:,} rows, {count / rows:.1%}{meaning}"
        said = f"{part.name}: column {column!r} {rule}, but {place} holds {_shown(values[row])} ({share})."
        self.problems.append(LogError(said, fix))

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
        if not len(rows):
            raise LogError(f"{self.origin.name}: no row is left: each lacks a value in {self._lacking()}.")
        return rows

    def _lacking(self) -> str:
        return "one of the columns " + ", ".join(dict.fromkeys(note.split(":")[0] for note in self.notes))


def _shown(value: object) -> str:
    items = value.to_list() if isinstance(value, pl.Series) else [value]
    if any(isinstance(item, float) and LARGEST < abs(item) < np.inf for item in items):
        return f"{shown(value)}, beyond ±{LARGEST:g}"
    return "null" if all(item is None for item in items) else shown(value)
