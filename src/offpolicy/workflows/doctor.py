"""Will it run here, on this log, and how long will it take? Environment, columns, costs, and what to fix.

Nothing is fitted, and of a large log only the first rows are read, so that an answer takes seconds.
"""

import gzip
import os
import platform
import re
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, metadata, version
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import torch

from offpolicy.artifacts import library_versions
from offpolicy.errors import LogError
from offpolicy.log import CategoricalColumn, EmbeddingColumn, LoggedData, expanded, format_of, is_store
from offpolicy.workflows.inspect import advice_before_fitting, facts_of, read_with_fixes
from offpolicy.workflows.log_spec import LogSpec, columns_of, without_duplicates
from offpolicy.workflows.roles import kind_notes

MOST_ROWS = 50_000
"""Rows that are read of a large log."""
MOST_BYTES = 32_000_000
"""Size of text files up to which they are read whole."""
START, A_ROW, A_PAIR = 5.0, 5e-4, 1e-5
"""Seconds of an evaluation: to begin with, for each row, and for each row and action (or candidate), on one core."""
LEARNING = 4.0
"""What learning with the default method costs, in evaluations."""
BYTES_A_ROW = 600.0
BYTES_AT_START = 500e6
"""Memory of an evaluation: for each row, and for the libraries."""
SLOW = 600.0
"""Seconds beyond which something is called slow."""
MANY_IDS = 1_000
"""Ids beyond which a context column is called large."""


def run_doctor(spec: LogSpec | None) -> dict[str, Any]:
    """Environment, how the log's columns would be taken, what will be slow, what to fix, and a data-free summary."""
    found: dict[str, Any] = {"environment": environment()}
    if spec is not None:
        found["log"] = _log(spec, found["environment"])
    return found | {"summary": _summary(found)}


def environment() -> dict[str, Any]:
    """Versions, machine and extras."""
    total, free = _memory()
    return {
        "versions": library_versions(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gb": total,
        "free_memory_gb": free,
        "extras": _extras(),
    }


def _memory() -> tuple[float | None, float | None]:
    """Gigabytes in all and free, where the system tells."""
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        sizes = [os.sysconf(name) * page / 1e9 for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES")]
    except (AttributeError, ValueError, OSError):
        return None, None
    known = re.search(r"MemAvailable:\s+(\d+) kB", _text(Path("/proc/meminfo")))
    return round(sizes[0], 1), round(int(known[1]) / 1e6 if known else sizes[1], 1)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _extras() -> dict[str, bool]:
    """Which extras of this package have all they need."""
    try:
        own = metadata("offpolicy")
    except PackageNotFoundError:
        return {}
    needs = own.get_all("Requires-Dist") or []
    extras = [name for name in own.get_all("Provides-Extra") or [] if name != "dev"]
    return {
        name: all(_installed(one) for one in needs if re.search(rf"extra == ['\"]{name}['\"]", one)) for name in extras
    }


def _installed(requirement: str) -> bool:
    named = re.match(r"[\w.-]+", requirement)
    try:
        return named is not None and bool(version(named[0]))
    except PackageNotFoundError:
        return False


@dataclass(frozen=True)
class Sample:
    """The part of a log that is looked at."""

    source: str
    rows: int | None
    """Rows of the whole log, about; None where all of it is looked at."""
    form: str
    files: int


def _sample(source: str, folder: Path) -> Sample:
    """The log itself where it is small, else its first rows in a folder of their own."""
    if is_store(source):
        return Sample(source, None, "store", 1)
    paths = expanded(source)
    forms = [format_of(path) for path in paths]
    if "cb" in forms:
        return Sample(source, None, forms[0], len(paths))
    each = max(MOST_ROWS // len(paths), 1)
    rows, cut = 0, False
    for number, (path, form) in enumerate(zip(paths, forms, strict=True)):
        target = folder / f"{number:04d}-{path.name}"
        if form == "parquet":
            own = pq.read_metadata(path).num_rows
            pl.scan_parquet(path, glob=False, hive_partitioning=False).head(each).collect().write_parquet(target)
        else:
            own = _head(path, target, each + 1) - (form == "csv")
        rows, cut = rows + own, cut or own > each
    whole = not cut or (forms[0] != "parquet" and sum(path.stat().st_size for path in paths) <= MOST_BYTES)
    return Sample(source if whole else f"{folder}/*", None if whole else rows, forms[0], len(paths))


def _head(path: Path, target: Path, most: int) -> int:
    """Copy the first lines of a text file; about how many it has."""
    opened = gzip.open if path.suffix == ".gz" else open
    taken = 0
    with opened(path, "rb") as lines, opened(target, "wb") as out:
        for line in islice(lines, most):
            out.write(line)
            taken += 1
    return taken if taken < most else max(round(taken * path.stat().st_size / target.stat().st_size), taken)


def _log(spec: LogSpec, here: dict[str, Any]) -> dict[str, Any]:
    """How the log would be taken, what it would cost, and what to fix."""
    with tempfile.TemporaryDirectory() as name:
        try:
            sample = _sample(spec.source, Path(name)) if spec.request is None else Sample(spec.source, None, "", 1)
            resolved, read, needed = read_with_fixes(replace(spec, source=sample.source))
            log, _, dropped = without_duplicates(resolved, read)
        except LogError as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}:{last.lineno}"
            return {"error": _of_the_log(error, name), "raised_in": where}
        notes = [*resolved.notes, *dropped, *kind_notes(resolved, log)]
        rows = log.n_rows if sample.rows is None else sample.rows
        costs = _costs(log, rows)
        facts = facts_of(log)
        return {
            "format": sample.form,
            "files": sample.files,
            "rows": rows,
            "rows_read": log.n_rows,
            "contexts": log.n_contexts,
            "actions": log.n_actions,
            "columns": columns_of(resolved, log),
            "context": list(_described(log)),
            "notes": notes,
            "costs": costs,
            "slow": _slow(log, rows, costs, here),
            "problems": [_of_the_log(one, name) for one in needed],
            "options": [one.fix.typed for one in needed if one.fix is not None],
            "fixed_by": sorted({one.fix.option for one in needed if one.fix is not None}),
            "advice": advice_before_fitting(log, facts),
            "facts": {k: v for k, v in facts.items() if k != "never_logged"},
            "recorded": log.logging_prob is not None,
        }


def _of_the_log(error: LogError, folder: str) -> str:
    """What is wrong, by the name of the log's own file."""
    return re.sub(rf"{re.escape(folder)}/\d{{4}}-", "", error.typed())


def _described(log: LoggedData) -> Iterator[dict[str, Any]]:
    """The kind and size of each context column, without its name or values."""
    for column in log.contexts.values():
        size = len(column.vocabulary) if isinstance(column, CategoricalColumn) else None
        size = column.values.shape[1] if isinstance(column, EmbeddingColumn) else size
        yield {"kind": column.kind, "size": size}


def _costs(log: LoggedData, rows: int) -> dict[str, Any]:
    """About how long the commands take and how much memory they need."""
    evaluating = START + rows * (A_ROW + A_PAIR * log.width)
    memory = (BYTES_AT_START + rows * (BYTES_A_ROW + 8.0 * len(log.contexts))) / 1e9
    return {
        "evaluate_seconds": round(evaluating),
        "learn_seconds": round(LEARNING * evaluating),
        "memory_gb": round(memory, 1),
    }


def _slow(log: LoggedData, rows: int, costs: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """What will take long or need much memory, and what makes it cheaper."""
    said = []
    if costs["evaluate_seconds"] > SLOW and log.logging_prob is None:
        said.append(
            f"{rows:,} rows with {log.width:,} {'actions' if log.candidates is None else 'candidates'} each: "
            "estimating the logging policy will take most of the time. --logging-model linear is several times "
            "faster, and a random share of the users answers most questions."
        )
    if here["free_memory_gb"] is not None and costs["memory_gb"] > 0.7 * here["free_memory_gb"]:
        said.append(
            f"About {costs['memory_gb']} GB of memory are needed and {here['free_memory_gb']} are free: name fewer "
            "columns with --context, or take a share of the users."
        )
    large = [
        f"{name} ({len(column.vocabulary):,} ids)"
        for name, column in log.contexts.items()
        if isinstance(column, CategoricalColumn) and len(column.vocabulary) > MANY_IDS
    ]
    if large:
        said.append(f"Context columns with many ids: {', '.join(large)}. If one is a mere identifier, --exclude it.")
    if log.candidates is None and log.n_actions > 2_000 and log.actions.features is None:
        said.append(
            f"{log.n_actions:,} actions and no features of them: each is estimated from its own rows alone. Give "
            "--actions FILE with features, or --candidates where each request offers few of them."
        )
    return said


def _summary(found: dict[str, Any]) -> str:
    """Versions, sizes and kinds as Markdown, to paste into an issue: no names, no values, no paths."""
    here, log = found["environment"], found.get("log")
    versions = dict(here["versions"])
    lines = [
        f"offpolicy {versions.pop('offpolicy', 'unknown')}, Python {versions.pop('python')}, {here['system']}, "
        f"{here['cores']} cores, {here['threads']} threads, {here['memory_gb']} GB of memory "
        f"({here['free_memory_gb']} free)",
        ", ".join(f"{name} {one}" for name, one in versions.items()),
        "extras: " + (", ".join(name for name, there in here["extras"].items() if there) or "none"),
    ]
    if log is not None and "error" in log:
        lines.append(f"log: cannot be read (raised in {log['raised_in']})")
    elif log is not None:
        part = "" if log["rows_read"] >= log["rows"] else f" (the first {log['rows_read']:,} looked at)"
        lines.append(
            f"log: {log['format']}, {log['files']} file(s), {log['rows']:,} rows{part}, {log['contexts']:,} contexts, "
            f"{log['actions']:,} actions"
        )
        roles = Counter(log["columns"].values())
        lines.append("columns: " + ", ".join(f"{count} {role}" for role, count in roles.items()))
        sizes = [f"{one['size']:,} {one['kind']}" for one in log["context"] if one["size"] is not None]
        lines += [f"sizes: {', '.join(sizes)}"] if sizes else []
        counts = ("duplicates", "rare_actions", "contexts_repeated", "reward_varies")
        lines.append(", ".join(f"{name.replace('_', ' ')}: {log['facts'][name]}" for name in counts))
        options = ", ".join(f"--{name.replace('_', '-')}" for name in log["fixed_by"])
        lines.append(f"problems: {len(log['problems'])}" + (f", fixed by {options}" if options else ""))
    return "\n".join(f"- {line}" for line in lines)
