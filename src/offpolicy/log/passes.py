"""Two passes over the files of a log: the first finds every problem and all ids, the second sends rows to shards."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from offpolicy.errors import Fix, LogError
from offpolicy.log.actions import ActionTable
from offpolicy.log.batched import Files
from offpolicy.log.derived import derived, source_of
from offpolicy.log.encode import flattened
from offpolicy.log.features import BagColumn, CategoricalColumn, Kind
from offpolicy.log.logged_data import LoggedData
from offpolicy.log.origin import Origin, Part
from offpolicy.log.readers import Shared, columns_of, needed_columns
from offpolicy.log.rewards import range_typed
from offpolicy.log.roles import TypedRows, given_actions, typed_rows
from offpolicy.log.schema import LogSchema
from offpolicy.log.spill import Columns, Distinct, frame_of, spill, unit_hashes_of
from offpolicy.log.store_writer import grown
from offpolicy.log.treatment import AbsentError, Decided, Treatment, none_left, notes_of
from offpolicy.log.vocabulary import Vocabulary
from offpolicy.progress import progress


@dataclass
class _Findings:
    """What the first pass found."""

    rows: int = 0
    """Rows read."""
    kept: int = 0
    """Rows that stay."""
    size: int = 0
    """Bytes of the rows that stay, typed."""
    problems: list[LogError] = field(default_factory=list)
    dates: dict[str, tuple[str, ...]] = field(default_factory=dict)
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    widths: dict[str, Any] = field(default_factory=dict)


class Passes:
    """The passes over the files of one log, piece by piece."""

    def __init__(
        self, files: Files, schema: LogSchema, actions: Any, keep: tuple[str, ...], store: LoggedData | None
    ) -> None:
        """The files, how their columns are read, and the log of the store that they are added to."""
        self.files, self.schema, self.keep, self.store = files, schema, keep, store
        self.name = Origin(tuple(Part(str(path), 0, path) for path in files.paths)).name
        self.needed, formula, kept = needed_columns(schema, keep, files.names[0])
        self.given, self.action_notes = given_actions(actions, schema, [one.name for one in kept])
        self.reward = formula.name
        self.notes: list[str] = []
        self.found = _Findings()
        self.ids: dict[str, Distinct] = {}

    def look(self) -> None:
        """Find out what columns of text hold."""
        schema = self.schema
        spelled = [] if self.given is None or self.given.vocabulary.ids.dtype != pl.String else [schema.action]
        kinds: dict[str, Kind] = dict(schema.kinds)
        if schema.candidates is not None:
            kinds[schema.candidates] = "bag"
        with progress("looking at the columns", None):
            self.found.problems += self.files.look(
                self.needed, kinds, spelled, schema.candidate_features, schema.written
            )
        asked = [name for name in schema.context if name not in schema.kinds]
        parts = {name: self.files.looks[name].parts for name in asked if name in self.files.looks}
        if self.store is not None:  # dates are read as they were
            known = set(self.store.contexts)
            parts = {n: tuple(p for p in ("weekday", "hour", "days") if derived(n, p) in known) for n in asked}
        self.decided = Decided(parts, frozenset(derived(source_of(name), "missing") for name in schema.context))

    def _rows(self, decided: Decided) -> Iterator[tuple[TypedRows, Treatment, LogSchema]]:
        """The typed rows of every piece; a piece with problems has none, and they are kept."""
        for table in self.files.tables(self.needed):
            columns, schema, beside, _ = columns_of(table, self.schema, self.keep)
            treatment = Treatment(schema.missing, columns.origin, decided)
            try:
                rows = typed_rows(columns, schema, self.given, beside, treatment)
            except LogError as error:
                self.found.problems += treatment.problems or [error]
                rows = None
            self.found.rows += table.origin.parts[0].n_rows
            self.found.dates |= treatment.dates
            for key, count in treatment.counts.items():
                self.found.counts[key] = self.found.counts.get(key, 0) + count
            if rows is not None and len(rows.roles["action"]):
                yield rows, treatment, schema

    def scan(self) -> None:
        """The first pass: every problem, and all ids."""
        found = self.found
        with progress("reading the log", None):
            for rows, treatment, schema in self._rows(self.decided):
                self._see(rows, treatment.origin, schema)
        flagged = {what.rpartition(" by ")[2] for _, what in found.counts if "flagged by" in what}
        self.decided = Decided(self.decided.parts, frozenset(flagged))
        if self.store is not None:
            self._fits_store(flagged)
        if found.problems:
            raise LogError.joined(self.name, merged(found.problems, found.rows))
        if not found.kept:
            raise none_left(self.name, found.counts)
        self.notes = [*self.action_notes, *self.files.notes, *notes_of(found.dates, found.counts, found.rows)]

    def _see(self, rows: TypedRows, origin: Origin, schema: LogSchema) -> None:
        """Take in the ids of a piece."""
        found = self.found
        found.kept += len(rows.roles["action"])
        found.size += int(frame_of(rows).estimated_size())
        if self.given is None:
            self._add("actions", rows.roles["action"])
        for name, (kind, values) in rows.context.items():
            if kind == "categorical":
                self._add(f"context {name}", values)
            elif kind == "bag":
                self._add(f"context {name}", flattened(values))
            elif found.widths.setdefault(name, values.dtype) != values.dtype:
                rule = f"must hold vectors of one length (the first has {found.widths[name].shape[0]})"
                remedy = "Fix the vector, or declare the column a bag if its length may vary."
                found.problems.append(origin.bad_value(name, 0, values[0], rule, remedy))
        if rows.offers is not None:
            if self.given is None:
                self._add("actions", rows.offers.ids)
            table = rows.offers.feature_table(schema.kinds)
            for name, column in (table or {}).items():
                if isinstance(column, CategoricalColumn | BagColumn):
                    self._add(f"offered {name}", column.vocabulary.ids)

    def _add(self, name: str, ids: pl.Series) -> None:
        known = self.ids.setdefault(name, Distinct())
        known.add(ids)

    def _fits_store(self, flagged: set[str]) -> None:
        """Refuse files that cannot be added to a store as its columns are."""
        assert self.store is not None
        new = flagged.difference(self.store.contexts)
        for name in sorted(new):
            self.found.problems.append(
                LogError(
                    f"{self.name}: column {source_of(name)!r} has missing values, but had none when the store "
                    "was prepared, so that it has no flag for them. Drop these rows or prepare all files anew."
                )
            )
        self.decided = Decided(
            self.decided.parts, frozenset(name for name in self.store.contexts if name.endswith(":missing"))
        )

    def shared(self) -> Shared:
        """The vocabularies, which those of the store begin with when files are added to it."""

        def of(kind: str, former: Mapping[str, Any]) -> dict[str, Vocabulary]:
            made = {}
            for name, distinct in self.ids.items():
                own = name.removeprefix(f"{kind} ")
                if own == name:
                    continue
                made[own] = (
                    self._grown(former[own].vocabulary, distinct) if own in former else Vocabulary.of(distinct.ids())
                )
            return made

        stored: Mapping[str, Any] = {} if self.store is None else self.store.contexts
        sets = None if self.store is None else self.store.candidates
        table = self.given
        if table is None:
            ids = self.ids["actions"]
            if self.store is None:
                shown = Vocabulary.of(ids.ids())
                if len(shown) == 1 and self.schema.candidates is None:
                    problem = f"holds a single action, {shown.to_list()[0]!r}, so there is nothing to choose"
                    origin = Origin((Part(self.name, 0),))
                    remedy = "Give actions=[...] if more actions were possible."
                    raise origin.bad_column(self.schema.action, problem, remedy)
                table = ActionTable(shown)
            else:
                table = ActionTable(self._grown(self.store.actions.vocabulary, ids))
        offered: Mapping[str, Any] = {} if sets is None else sets.features or {}
        return Shared(table, of("context", stored), of("offered", offered), True)

    def _grown(self, former: Vocabulary, distinct: Distinct) -> Vocabulary:
        ids = distinct.ids()
        if ids.dtype != former.ids.dtype:
            raise LogError(
                f"{self.name}: ids of type {ids.dtype}, such as {ids.first()!r}, cannot be added to a store "
                f"whose ids are {former.ids.dtype}. Write them with one type."
            )
        return grown(former, ids)

    def spill(self, shared: Shared, shards: int, folder: Path) -> Columns:
        """The second pass: every row to the file of its shard; the columns that these rows have."""
        self.found.counts, self.found.rows = {}, 0
        columns = None
        with progress("sending rows to their shards", None):
            for rows, treatment, _ in self._rows(self.decided):
                columns = columns or Columns.of(rows)
                units = unit_hashes_of(rows, treatment.origin, shared.vocabularies)
                spill(frame_of(rows), units, shards, folder)
        assert columns is not None
        return columns


def merged(problems: Sequence[LogError], rows: int) -> list[LogError]:
    """Problems of pieces of a log as those of all of it: each once, with its first place and all of its rows."""
    found: dict[str, LogError] = {}
    for one in problems:
        said = one.message[one.message.find(": column ") :]
        key = said.split(", but ")[0]
        former = found.get(key)
        if isinstance(one, AbsentError):
            count = one.count + (former.count if isinstance(former, AbsentError) else 0)
            first = former if isinstance(former, AbsentError) else one
            found[key] = AbsentError(first.found, count, rows, first.meaning, first.fix)
        elif former is None:
            found[key] = one
        elif one.fix is not None and former.fix is not None and one.fix.option == "reward_range":
            found[key] = LogError(former.message, _wider(former.fix, one.fix))
    return list(found.values())


def _wider(left: Fix, right: Fix) -> Fix:
    """The range of rewards that holds two."""
    ends = [[float(end) for end in one.value.split(",")] for one in (left, right)]
    low, high = min(one[0] for one in ends), max(one[1] for one in ends)
    return Fix(left.option, range_typed(low, high), left.effect)
