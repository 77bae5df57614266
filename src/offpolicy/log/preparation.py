"""One preparation of a store: two passes over the files, then shard by shard, going on where a killed one stopped."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from offpolicy.atomic import remove_tree, write_atomic
from offpolicy.errors import LogError
from offpolicy.log.actions import ActionTable
from offpolicy.log.batched import Files
from offpolicy.log.hashing import digest, vocabulary_hashes
from offpolicy.log.ids import codes_in, trusted
from offpolicy.log.logged_data import LoggedData
from offpolicy.log.origin import Origin, Part
from offpolicy.log.passes import Passes
from offpolicy.log.readers import Shared, log_of
from offpolicy.log.schema import LogSchema
from offpolicy.log.shards import SHARDS, arranged, unit_hashes
from offpolicy.log.slates import shows_repeats
from offpolicy.log.spill import Columns, spill_file, spilled
from offpolicy.log.store import open_store
from offpolicy.log.store_writer import StoreWriter, staging_of, write_frame
from offpolicy.log.vocabulary import Vocabulary
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
        self.log: LoggedData | None = None
        if former is not None:
            self.log = open_store(target, verify=False)
            actions = self.log.actions if former["actions_given"] else None
        self.passes = Passes(files, schema, actions, keep, self.log)
        self.given, self.reward = self.passes.given, self.passes.reward
        self.notes: list[str] = []

    def run(self) -> int:
        """The rows that were added."""
        state = self._resumed()
        if state is None:
            remove_tree(self.staging, inside=True)
            (self.staging / ROWS).mkdir()
            self.passes.look()
            self.passes.scan()
            self._fits_memory(self.passes.found.size)
            shared = self.passes.shared()
            self.notes = self.passes.notes
            columns = self.passes.spill(shared, self.how.shards, self.staging / ROWS)
            state = self._save(shared, columns)
        else:
            self.notes = list(state["notes"])
            shared = self._shared_again(state)
        return self._write(state, shared)

    def _fits_memory(self, size: int) -> None:
        """Refuse shards too large to be ordered."""
        if WORKING * size // max(1, self.how.shards) > self.how.memory:
            shards = -(-WORKING * size // self.how.memory)
            raise LogError(
                f"The log takes {size / 2**30:.1f} GB: in {self.how.shards} shards each is too large to be "
                f"ordered in {self.how.memory / 2**30:.1f} GB. Give shards={2 * shards} (--shards) or more memory.",
            )

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
        origin = Origin((Part(self.passes.name, frame.height),))
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

    def _save(self, shared: Shared, columns: Columns) -> dict[str, Any]:
        """Keep what the passes over the files found, so that a killed preparation need not repeat them."""
        vocabularies = {f"context {name}": one for name, one in shared.vocabularies.items()}
        vocabularies |= {f"offered {name}": one for name, one in shared.offered.items()}
        if self.given is None:
            vocabularies["actions"] = shared.actions.vocabulary
        files = {name: f"shared/{number}.arrow" for number, name in enumerate(vocabularies)}
        for name, one in vocabularies.items():
            write_frame(self.staging / files[name], pl.DataFrame({"id": one.ids}))
        schema = self.recorded.model_copy(update={"reward": self.reward})
        former = self.former or {"shards": [], "arrays": {}}
        state = {
            "key": self._key(),
            "vocabularies": files,
            "columns": asdict(columns),
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
