"""Logs as stores: `offpolicy prepare`, the roles that a store knows, and logs too large for memory."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from offpolicy.errors import LogError, ParameterError
from offpolicy.log import (
    ROLES,
    STREAMED,
    Files,
    Prepared,
    Preparing,
    byte_count,
    expanded,
    format_of,
    free_memory,
    is_path,
    is_store,
    memory_needed,
    prepare_rows,
    read_manifest,
)
from offpolicy.workflows.log_spec import LogSpec
from offpolicy.workflows.roles import infer

SAMPLE_BYTES = 64 * 2**20
"""The part of a large log from which roles are inferred."""
SHARE = 0.5
"""Of the free memory that a log may take unless the user says otherwise."""
CACHE = "OFFPOLICY_CACHE"


def run_prepare(
    spec: LogSpec, sources: Sequence[str], out: str | Path, how: Preparing
) -> tuple[dict[str, Any], list[str]]:
    """Write the log as a store; facts about it, and what was inferred."""
    if how.append and spec.action is None and spec.reward is None and not spec.context:
        made = prepare_rows(list(sources), out, None, None, (), how)
        return _facts(made, out), list(made.notes)
    spec, files = resolved(replace(spec, source=list(sources)), how.memory)
    made = prepare_rows(files, out, spec.schema(), spec.actions, spec.beside, how)
    return _facts(made, out), [*spec.notes, *made.notes]


def _facts(made: Prepared, out: str | Path) -> dict[str, Any]:
    log = made.log
    size = sum(path.stat().st_size for path in Path(out).expanduser().rglob("*") if path.is_file())
    counted = {"rows": log.n_rows, "rows_added": made.rows, "contexts": log.n_contexts, "actions": log.n_actions}
    clusters = None if log.cluster_vocabulary is None else len(log.cluster_vocabulary)
    return {**counted, "clusters": clusters, "shards": log.n_shards, "gigabytes": round(size / 1e9, 3), "out": str(out)}


def resolved(spec: LogSpec, memory: int) -> tuple[LogSpec, Any]:
    """The log with its roles, inferred from its first rows, and its files; formats that are not streamed are read."""
    paths = expanded(spec.source)
    if format_of(paths[0]) not in STREAMED or spec.shown is not None:
        return replace(infer(spec), table=None), spec.source
    sample = Files(spec.source, min(SAMPLE_BYTES, max(2**20, memory // 16))).sample(spec.written)
    return replace(infer(replace(spec, table=sample)), table=None), spec.source


def resolve(spec: LogSpec) -> LogSpec:
    """The same log with every role filled in; `notes` say which were inferred.

    A store knows its roles. A log that would not fit the memory it may take is prepared as a store in a cache.
    """
    if is_store(spec.source):
        return of_store(spec)
    budget = int(SHARE * free_memory()) if spec.memory is None else spec.memory
    paths = expanded(spec.source)
    needed = memory_needed(paths)
    if needed <= budget or format_of(paths[0]) not in STREAMED or spec.shown is not None or spec.winsorise:
        return infer(spec)
    found, source = resolved(spec, budget)
    target = cache_folder() / _key(found, paths)
    said = (
        f"The log would take about {needed / 1e9:.1f} GB, more than the {budget / 1e9:.1f} GB that it may: it was "
        f"prepared as {target}, which the next command takes up again. Remove it when you are done."
    )
    if not is_store(target):
        how = Preparing(memory=max(byte_count("64MB"), budget), drop_duplicates=spec.drop_duplicates)
        prepare_rows(source, target, found.schema(), found.actions, found.beside, how)
    return replace(found, store=str(target), notes=(*found.notes, said))


def cache_folder() -> Path:
    """Where logs that are too large are prepared: $OFFPOLICY_CACHE, or a folder below the user's cache."""
    given = os.environ.get(CACHE)
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "offpolicy"


def _key(spec: LogSpec, paths: Sequence[Path]) -> str:
    files = [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in paths]
    actions = spec.actions if spec.actions is None or is_path(spec.actions) else repr(spec.actions)
    about = [files, spec.schema().model_dump(mode="json"), spec.beside, str(actions), spec.drop_duplicates]
    return f"{paths[0].stem}-{hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]}"


def of_store(spec: LogSpec) -> LogSpec:
    """The roles that a store was prepared with; another one that the user names is refused."""
    recorded = read_manifest(spec.source).get("schema")
    if recorded is None:
        raise LogError(f"{spec.source} does not say which columns it was made of. Prepare the log with prepare_log.")
    single = (*ROLES, "request", "position", "keep_prob", "row_weight", "candidates", "shown")
    for role in single:
        given = getattr(spec, role)
        if given is not None and given != recorded[role]:
            raise ParameterError(
                f"{spec.source} was prepared with {recorded[role] or 'no column'} as its {role}, not with {given}. "
                "Prepare the log anew, or leave the option out."
            )
    if spec.drop_duplicates or spec.winsorise or spec.exclude:
        raise ParameterError("Rows and columns of a prepared log stay as they are: prepare it with these options.")
    roles = {role: recorded[role] for role in single}
    return replace(
        spec,
        **roles,
        context=tuple(recorded["context"]),
        kinds=recorded["kinds"],
        missing=recorded["missing"],
        reward_range=tuple(recorded["reward_range"]),
        candidate_features=tuple(recorded["candidate_features"]),
        store=str(spec.source),
        table=None,
    )
