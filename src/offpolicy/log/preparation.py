"""One preparation of a store: two passes over the files, then shard by shard, going on where a killed one stopped."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from offpolicy.atomic import remove_tree, write_atomic
from offpolicy.errors import Fix, LogError
from offpolicy.log.actions import ActionTable
from offpolicy.log.batched import Files
from offpolicy.log.derived import derived, source_of
from offpolicy.log.encode import flattened
from offpolicy.log.features import BagColumn, CategoricalColumn, Kind, Vocabulary, trusted
from offpolicy.log.hashing import digest, vocabulary_hashes
from offpolicy.log.ids import codes_in
from offpolicy.log.logged_data import LoggedData
from offpolicy.log.origin import Origin, Part
from offpolicy.log.readers import (
    Shared,
    TypedRows,
    columns_of,
    given_actions,
    log_of,
    needed_columns,
    typed_rows,
)
from offpolicy.log.rewards import range_typed
from offpolicy.log.schema import LogSchema
from offpolicy.log.shards import SHARDS, arranged, unit_hashes
from offpolicy.log.slates import shows_repeats
from offpolicy.log.spill import Columns, Distinct, frame_of, spill, spill_file, spilled, unit_hashes_of
from offpolicy.log.store import open_store
from offpolicy.log.store_writer import StoreWriter, grown, staging_of, write_frame
from offpolicy.log.treatment import AbsentError, Decided, Treatment, none_left, notes_of
from offpolicy.progress import progress

MEMORY = 2 * 2**30
WORKING = 8
"""The rows of a shard, being ordered, take so many times their size."""
STATE, ROWS = "state.json", "rows"


@dataclass(frozen=True)
class Preparing:
    """How a store is made."""

    shards: int = SHARDS
    memory: int = MEMORY
    append: bool = False
    force: bool = False
    command: str = "prepare_log"
    drop_duplicates: bool = False
    winsorise: float = 0.0


def put(made: Path, target: Path) -> None:
    """Put a complete store in its place, and a former one out of the way."""
    if target.exists():
        old = made.with_name("replaced")
        target.rename(old)
    made.rename(target)


def about(files: Files, how: Preparing, more: Mapping[str, Any], notes: Sequence[str]) -> dict[str, Any]:
    """What a manifest says of how it was made."""
    versions = {"polars": pl.__version__, "numpy": np.__version__}
    sources = [{"path": str(path), "bytes": path.stat().st_size} for path in files.paths]
    own = {"command": how.command, "versions": versions, "sources": sources, "shard_count": how.shards}
    return {**own, "notes": list(notes), **more}


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
    columns: Columns | None = None
    widths: dict[str, Any] = field(default_factory=dict)


class Preparation:
    """One preparation."""

    def __init__(
        self,
        files: Files,
        schema: LogSchema,
        actions: Any,
        keep: tuple[str, ...],
        how: Preparing,
        target: Path,
        former: dict[str, Any] | None,
    ) -> None:
        """The files, how their columns are read, and the manifest of the store they are added to."""
        self.files, self.recorded, self.keep, self.how, self.target = files, schema, keep, how, target
        self.former = former
        self.staging = staging_of(target)
        self.origin_name = Origin(tuple(Part(str(path), 0, path) for path in files.paths)).name
        self.log: LoggedData | None = None
        if former is not None:
            self.log = open_store(target, verify=False)
            actions = self.log.actions if former["actions_given"] else None
        self.needed, formula, kept = needed_columns(schema, keep, files.names[0])
        self.given, self.action_notes = given_actions(actions, schema, [one.name for one in kept])
        self.reward = formula.name
        self.notes: list[str] = []
        self.found = _Findings()
        self.ids: dict[str, Distinct] = {}

    def run(self) -> int:
        """The rows that were added."""
        state = self._resumed()
        if state is None:
            remove_tree(self.staging, inside=True)
            (self.staging / ROWS).mkdir()
            self._look()
            shared = self._scan()
            self._spill(shared)
            state = self._save(shared)
        else:
            self.notes = list(state["notes"])
            shared = self._shared_again(state)
        return self._write(state, shared)

    # -- reading -------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Settle what columns of text hold."""
        schema = self.recorded
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
        if self.log is not None:  # dates are read as they were
            known = set(self.log.contexts)
            parts = {n: tuple(p for p in ("weekday", "hour", "days") if derived(n, p) in known) for n in asked}
        self.decided = Decided(parts, frozenset(derived(source_of(name), "missing") for name in schema.context))

    def _rows(self, decided: Decided) -> Iterator[tuple[TypedRows, Treatment, LogSchema]]:
        """The typed rows of every piece; a piece with problems has none, and they are kept."""
        for table in self.files.tables(self.needed):
            columns, schema, beside, _ = columns_of(table, self.recorded, self.keep)
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

    def _scan(self) -> Shared:
        """The first pass: every problem, and all ids."""
        found = self.found
        with progress("reading the log", None):
            for rows, treatment, schema in self._rows(self.decided):
                self._see(rows, treatment.origin, schema)
        flagged = {what.rpartition(" by ")[2] for _, what in found.counts if "flagged by" in what}
        self.decided = Decided(self.decided.parts, frozenset(flagged))
        if self.log is not None:
            self._fits_store(flagged)
        if found.problems:
            raise LogError.joined(self.origin_name, merged(found.problems, found.rows))
        if not found.kept:
            raise none_left(self.origin_name, found.counts)
        self.notes = [*self.action_notes, *self.files.notes, *notes_of(found.dates, found.counts, found.rows)]
        largest = WORKING * found.size // max(1, self.how.shards)
        if largest > self.how.memory:
            shards = -(-WORKING * found.size // self.how.memory)
            raise LogError(
                f"The log takes {found.size / 2**30:.1f} GB: in {self.how.shards} shards each is too large to be "
                f"ordered in {self.how.memory / 2**30:.1f} GB. Give shards={2 * shards} (--shards) or more memory.",
            )
        return self._shared()

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
        found.columns = found.columns or Columns.of(rows)

    def _add(self, name: str, ids: pl.Series) -> None:
        known = self.ids.setdefault(name, Distinct())
        known.add(ids)

    def _fits_store(self, flagged: set[str]) -> None:
        """Refuse files that cannot be added to a store as its columns are."""
        assert self.log is not None
        new = flagged.difference(self.log.contexts)
        for name in sorted(new):
            self.found.problems.append(
                LogError(
                    f"{self.origin_name}: column {source_of(name)!r} has missing values, but had none when the store "
                    "was prepared, so that it has no flag for them. Drop these rows or prepare all files anew."
                )
            )
        self.decided = Decided(
            self.decided.parts, frozenset(name for name in self.log.contexts if name.endswith(":missing"))
        )

    def _shared(self) -> Shared:
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

        stored: Mapping[str, Any] = {} if self.log is None else self.log.contexts
        sets = None if self.log is None else self.log.candidates
        table = self.given
        if table is None:
            ids = self.ids["actions"]
            if self.log is None:
                shown = Vocabulary.of(ids.ids())
                if len(shown) == 1 and self.recorded.candidates is None:
                    problem = f"holds a single action, {shown.to_list()[0]!r}, so there is nothing to choose"
                    origin = Origin((Part(self.origin_name, 0),))
                    remedy = "Give actions=[...] if more actions were possible."
                    raise origin.bad_column(self.recorded.action, problem, remedy)
                table = ActionTable(shown)
            else:
                table = ActionTable(self._grown(self.log.actions.vocabulary, ids))
        offered: Mapping[str, Any] = {} if sets is None else sets.features or {}
        return Shared(table, of("context", stored), of("offered", offered), True)

    def _grown(self, former: Vocabulary, distinct: Distinct) -> Vocabulary:
        ids = distinct.ids()
        if ids.dtype != former.ids.dtype:
            raise LogError(
                f"{self.origin_name}: ids of type {ids.dtype}, such as {ids.first()!r}, cannot be added to a store "
                f"whose ids are {former.ids.dtype}. Write them with one type."
            )
        return grown(former, ids)

    # -- sending rows to shards ----------------------------------------------------------------------------------------

    def _spill(self, shared: Shared) -> None:
        folder = self.staging / ROWS
        self.found.counts, self.found.rows = {}, 0
        columns = None
        with progress("sending rows to their shards", None):
            for rows, treatment, _ in self._rows(self.decided):
                columns = columns or Columns.of(rows)
                units = unit_hashes_of(rows, treatment.origin, shared.vocabularies)
                spill(frame_of(rows), units, self.how.shards, folder)
        self.found.columns = columns

    def _repeats(self, shared: Shared) -> bool:
        """Whether some request shows an action twice; one shard holds all of a request."""
        if self.recorded.position is None:
            return True
        if self.log is not None:  # as the store has it
            return self.former is not None and bool(self.former["repeats"])
        for number in range(self.how.shards):
            frame = spilled(self.staging / ROWS, number)
            if frame is None:
                continue
            request = Vocabulary.of(frame["request"]).encode(frame["request"])
            if shows_repeats(request, codes_in(frame["action"], shared.actions.vocabulary.ids)):
                return True
        return False

    # -- writing shards ------------------------------------------------------------------------------------------------

    def _write(self, state: dict[str, Any], shared: Shared) -> int:
        shared = replace(shared, repeats=state["repeats"])
        folder = self.target if self.former is not None else self.staging / "store"
        writer = StoreWriter(folder, state["shards"], state["arrays"])
        columns, schema = Columns.of_json(state["columns"]), LogSchema(**state["schema"])
        former = [] if self.former is None else self.former["shards"]
        first = max((one["number"] + 1 for one in former), default=0)
        last: LoggedData | None = None
        with progress("writing shards", self.how.shards) as advance:
            for number in range(self.how.shards):
                shard = self._shard(number, columns, schema, shared) if number >= state["next"] else None
                if shard is not None:
                    last = shard
                    state["returning"] += self._returning(shard)
                    writer.add(shard, first + number)
                    state |= {"next": number + 1, "shards": writer.shards, "arrays": writer.arrays}
                    self._keep(state)
                    for done in range(number):  # the last one is needed for what the shards share
                        spill_file(self.staging / ROWS, done).unlink(missing_ok=True)
                advance("")
        if last is None:  # it was killed after the last shard
            last = self._shard(state["next"] - 1, columns, schema, shared)
        assert last is not None
        rows = self._finish(writer, state, last, len(former))
        if self.former is None:
            put(folder, self.target)
        return rows

    def _shard(self, number: int, columns: Columns, schema: LogSchema, shared: Shared) -> LoggedData | None:
        frame = spilled(self.staging / ROWS, number)
        if frame is None:
            return None
        origin = Origin((Part(self.origin_name, frame.height),))
        log = log_of(columns.rows(frame, origin), schema, origin, self.given, shared)
        if self.how.drop_duplicates:
            log = log.take(~log.duplicates)
        return arranged(log, 1).shard(0)

    def _returning(self, shard: LoggedData) -> int:
        """How many units of a shard were in the store before."""
        if self.log is None:
            return 0
        new = np.unique(unit_hashes(shard))
        log = self.log
        contexts = log.context_hashes if log.candidates is None else log._feature_hashes
        return int(np.isin(new, contexts if log.cluster is None else log.cluster_hashes).sum())

    def _finish(self, writer: StoreWriter, state: dict[str, Any], log: LoggedData, before: int) -> int:
        """Write the manifest."""
        added = writer.shards[before:]
        rows, returning = sum(int(one["rows"]) for one in added), state["returning"]
        treated = () if self.log is None else self.log.treated
        if returning:
            note = (
                f"{returning:,} units of the files added last were in the store before: their rows of different "
                "additions count as independent of each other, which makes errors a little too small."
            )
            self.notes.append(note)
            treated = (*treated, note)
        generations = [] if self.former is None else self.former["generations"]
        own = {"rows": rows, "shards": [before, len(writer.shards)], "returning": returning}
        sources = about(self.files, self.how, {}, ())["sources"]
        more = {
            "schema": self.recorded.model_dump(mode="json"),
            "keep": list(self.keep),
            "actions_given": self.given is not None,
            "repeats": state["repeats"],
            "generations": [*generations, {**own, "sources": sources, "command": self.how.command}],
        }
        log = trusted(LoggedData, **log._fields | {"treated": treated, "reward_name": self.reward})
        writer.finish(log, about(self.files, self.how, more, self.notes))
        return rows

    # -- going on after a kill -----------------------------------------------------------------------------------------

    def _key(self) -> str:
        """What makes two preparations the same: files, columns, options, and the store that is added to."""
        files = [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in self.files.paths]
        actions = None if self.given is None else digest(vocabulary_hashes(self.given.vocabulary))
        former = None if self.former is None else self.former["fingerprint"]
        options = [self.how.shards, self.how.drop_duplicates, list(self.keep), actions, former]
        return json.dumps([files, options, self.recorded.model_dump(mode="json")])

    def _save(self, shared: Shared) -> dict[str, Any]:
        """Keep what the passes over the files found, so that a killed preparation need not repeat them."""
        vocabularies = {f"context {name}": one for name, one in shared.vocabularies.items()}
        vocabularies |= {f"offered {name}": one for name, one in shared.offered.items()}
        if self.given is None:
            vocabularies["actions"] = shared.actions.vocabulary
        files = {name: f"shared/{number}.arrow" for number, name in enumerate(vocabularies)}
        for name, one in vocabularies.items():
            write_frame(self.staging / files[name], pl.DataFrame({"id": one.ids}))
        assert self.found.columns is not None
        schema = self.recorded.model_copy(update={"reward": self.reward})
        former = self.former or {"shards": [], "arrays": {}}
        state = {
            "key": self._key(),
            "vocabularies": files,
            "columns": asdict(self.found.columns),
            "schema": schema.model_dump(mode="json"),
            "repeats": self._repeats(shared),
            "notes": self.notes,
            "returning": 0,
            "next": 0,
            "shards": former["shards"],
            "arrays": former["arrays"],
        }
        self._keep(state)
        return state

    def _keep(self, state: dict[str, Any]) -> None:
        write_atomic(self.staging / STATE, json.dumps(state))

    def _resumed(self) -> dict[str, Any] | None:
        """What a killed preparation of the same log found and wrote."""
        try:
            state: dict[str, Any] = json.loads((self.staging / STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return state if state.get("key") == self._key() else None

    def _shared_again(self, state: dict[str, Any]) -> Shared:
        found = {n: Vocabulary(pl.read_ipc(self.staging / file)["id"]) for n, file in state["vocabularies"].items()}
        actions = self.given or ActionTable(found.pop("actions"))

        def of(kind: str) -> dict[str, Vocabulary]:
            return {name.removeprefix(kind): one for name, one in found.items() if name.startswith(kind)}

        return Shared(actions, of("context "), of("offered "), state["repeats"])


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
