"""What every command shares: its options, its folder, when it began, and which saved nuisances it reuses."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from offpolicy.artifacts import library_versions
from offpolicy.checks import check_choice, check_number
from offpolicy.engine import Engine
from offpolicy.errors import OffPolicyError
from offpolicy.evaluation import LEVEL
from offpolicy.json_writer import write_json
from offpolicy.log import LoggedData, in_store
from offpolicy.nuisances import SAMPLE_ROWS, Nuisances
from offpolicy.propensity import MODELS, fits_done
from offpolicy.results import Results, Run
from offpolicy.workflows.log_spec import LogSpec

MARKER = "run.json"
"""Says which command writes into a folder."""
PARTS = "parts"
"""Folder of a run with the parts of a prepared log."""
ROW_BYTES = 2_000
"""Memory that fitting nuisances takes for each row of a sample."""
REFUSED = "run an experiment"


@dataclass(frozen=True)
class RunOptions:
    """Options of every run."""

    seed: int = 0
    level: float = 0.95
    logging_model: str | None = None
    """Which model of β̂; None takes the recorded propensities where their column was named, else `auto`."""
    propensity_models: bool = True
    """Whether to answer under several models of β̂ too."""
    command: str = ""
    """The command line, for the record."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """All options by name, for the record."""
    force: bool = False
    """Whether files that this command did not write may be replaced."""
    engine: Engine | None = None
    """Who works on the shards of logs; None: this process."""

    def __post_init__(self) -> None:
        """Check options before any expensive work."""
        check_number("level", self.level, LEVEL)
        if self.logging_model is not None:
            check_choice("logging_model", self.logging_model, MODELS)

    def model(self, spec: LogSpec, named: bool) -> str:
        """Which model of β̂ to take; recorded propensities are used where the user `named` their column."""
        if self.logging_model is not None:
            return self.logging_model
        return "recorded" if named and spec.propensity is not None else "auto"


@dataclass(frozen=True)
class Finished:
    """A finished run: what was found, what was noted on the way, and where things were written."""

    results: Results
    notes: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def refused(self) -> bool:
        """Whether the log cannot answer for one of the candidates."""
        evaluation = self.results.evaluation
        candidates = {} if evaluation is None else evaluation.candidates
        return any(found.preflight.verdict.answer == REFUSED for found in candidates.values())


class Clock:
    """When a run began and how long it took."""

    def __init__(self) -> None:
        """Start now."""
        self.started = datetime.now(UTC)
        self._start, self._fits = perf_counter(), fits_done()

    def facts(self, options: RunOptions, notes: Sequence[str] = ()) -> Run:
        """The `run` of a results file; `notes` say what was inferred or decided on the way."""
        return Run(
            command=options.command,
            config=dict(options.config),
            notes=list(notes),
            seed=options.seed,
            versions=library_versions(),
            started=self.started.isoformat(timespec="seconds"),
            seconds=round(perf_counter() - self._start, 3),
            propensity_fits=fits_done() - self._fits,
        )


def check_folder(out: str | Path, command: str, outputs: Iterable[str], force: bool) -> Path:
    """The folder of a run, checked before any work: nothing in it that another command wrote is replaced.

    A folder with the same command's marker is reused, so that a killed run resumes.
    """
    folder = Path(out).expanduser()
    if folder.exists() and not folder.is_dir():
        raise OffPolicyError(f"{folder} is a file, but --out names a folder. Choose another name.")
    owner = _owner(folder)
    taken = next((name for name in outputs if (folder / name).exists()), None)
    if owner not in (None, command) and not force:
        raise OffPolicyError(
            f"{folder} holds the results of `offpolicy {owner}`, which `offpolicy {command}` does not replace. Choose "
            "another --out, or give --force."
        )
    if owner is None and taken is not None and not force:
        raise OffPolicyError(
            f"{folder / taken} exists and was not written by this command, so it is not replaced. Choose another "
            "--out, or give --force."
        )
    return folder


def mark_folder(folder: Path, command: str) -> None:
    """Make the folder, and say in it which command writes there."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / MARKER, {"format": "offpolicy-run", "command": command}, "run")


def _owner(folder: Path) -> str | None:
    try:
        found = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    command = found.get("command") if isinstance(found, dict) else None
    return command if isinstance(command, str) else None


def check_output_file(path: str | Path, force: bool, inputs: Iterable[str | Path] = ()) -> None:
    """Refuse to replace a file; one of the command's own inputs is never replaced."""
    target = Path(path).expanduser()
    for one in inputs:
        if target.exists() and Path(one).expanduser().exists() and target.samefile(Path(one).expanduser()):
            raise OffPolicyError(f"{target} is what this command reads, so it is not replaced. Choose another name.")
    if target.exists() and not target.is_dir() and not force:
        raise OffPolicyError(f"{target} exists and is not replaced. Choose another name, or give --force.")


@contextmanager
def parts_folder(folder: Path | None) -> Iterator[Path]:
    """Where the parts of a prepared log are kept: in the run's folder, or in one that goes with the block."""
    if folder is not None:
        yield folder / PARTS
        return
    with TemporaryDirectory(prefix="offpolicy-") as temporary:
        yield Path(temporary)


def in_stores(log: LoggedData, parts: Mapping[str, LoggedData], folder: Path) -> list[LoggedData]:
    """Parts of a prepared log as stores of their own, by name: workers open them by their paths, and what is kept
    beside their rows is kept on the disk. The whole of it is a store already; parts of a log in memory stay there.
    """
    if log.store is None:
        return list(parts.values())
    return [part if part.store is not None else in_store(part, folder / name) for name, part in parts.items()]


def nuisances_of(
    log: LoggedData,
    model: str,
    seed: int,
    folders: Iterable[Path],
    own: Path | None = None,
    *,
    memory: int | None = None,
    engine: Engine | str | None = None,
) -> tuple[Nuisances, tuple[str, ...]]:
    """β̂, U and q̂ of a log: loaded from a run's folder if saved there for this very log, else fitted when needed.

    What is finished of a fit is kept in the run's `own` folder. The sample of a log in many shards that they are fitted
    to fits the `memory`.
    """
    sample_rows = SAMPLE_ROWS if memory is None else max(memory // ROW_BYTES, 1)
    for folder in folders:
        found = Nuisances.load(folder, log, model, seed, sample_rows, engine)
        if found is not None:
            said = f"Propensities of these {log.n_rows:,} rows taken from {folder}: not fitted again."
            return found, (said,)
    return Nuisances(log, model=model, seed=seed, folder=own, sample_rows=sample_rows, engine=engine), ()
