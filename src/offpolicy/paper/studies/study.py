"""What a study is: something to measure line by line, each line tuned on validation alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from offpolicy.errors import ParameterError
from offpolicy.tuning import Objective, Space, Tuned, search

Settings = Mapping[str, Any]
Row = dict[str, Any]
"""Metrics by name; with `subset` where a line is measured on parts of the test."""
Candidate = dict[str, Any]
"""`settings`, their `validation` metric, and how many `trials` were made and `pruned` to find them."""
WARMUP = 1
"""Epochs less one before a trial of a search can be pruned."""
FEW = 3
"""Settings of a line that are validated again; a plan may take fewer."""


class Study(Protocol):
    """A table or figure to be measured; its fields are what a recipe may set."""

    def labels(self) -> Mapping[str, str]:
        """Every line it can measure, in the order of the table, and what to print for it."""
        ...

    def tune(self, line: str, trials: int, seed: int, storage: Path | None = None) -> list[Candidate]:
        """The best few settings of a line by the validation metric, best first; everything is drawn from `seed`.

        Trials are kept in the file `storage`, so that a killed search can be resumed.
        """
        ...

    def validate(self, line: str, settings: Settings, seed: int) -> float:
        """The validation metric of one setting; everything is redrawn from `seed`."""
        ...

    def measure(self, line: str, settings: Settings, seed: int) -> list[Row]:
        """The test metrics of one setting; everything is redrawn from `seed`."""
        ...


def known(line: str, lines: Mapping[str, Any]) -> Any:
    """What a study calls `line`."""
    if line not in lines:
        raise ParameterError(f"This study has no line {line!r}. Its lines are {', '.join(lines)}.")
    return lines[line]


class Untuned:
    """A study whose lines have no settings: nothing is searched, nothing is left to choose."""

    lines: ClassVar[Mapping[str, Any]]

    def tune(self, line: str, trials: int, seed: int, storage: Path | None = None) -> list[Candidate]:
        """Nothing, whatever `trials` says."""
        known(line, self.lines)
        return nothing_to_tune()

    def validate(self, line: str, settings: Settings, seed: int) -> float:
        """Nothing is left to choose."""
        known(line, self.lines)
        return 0.0


def nothing_to_tune() -> list[Candidate]:
    """The only candidate of a line without settings."""
    return [{"settings": {}, "validation": 0.0, "trials": 0, "pruned": 0}]


def searched(
    objective: Objective,
    space: Space,
    line: str,
    trials: int,
    seed: int,
    storage: Path | None = None,
    *,
    prune: bool = True,
) -> list[Candidate]:
    """The best few settings of the search that every line is tuned by."""
    budget: dict[str, Any] = {"trials": trials, "seed": seed, "warmup": WARMUP, "prune": prune}
    return best_few(search(objective, space, name=line, storage=storage, show_progress=False, **budget))


def best_few(tuned: Tuned, without: Sequence[str] = ("epochs",)) -> list[Candidate]:
    """The best settings of a search, best first, of equal ones the earliest; those named in `without` are dropped."""
    complete = [trial for trial in tuned.trials if trial.state == "complete" and trial.value is not None]
    complete.sort(key=lambda trial: (-(trial.value or 0.0), trial.point))
    counts = {"trials": len(tuned.trials), "pruned": sum(trial.state == "pruned" for trial in tuned.trials)}
    return [
        {
            "settings": {name: value for name, value in trial.settings.items() if name not in without},
            "validation": trial.value,
            **counts,
        }
        for trial in complete[:FEW]
    ]
