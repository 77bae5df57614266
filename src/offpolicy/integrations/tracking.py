"""What a tracker of experiments keeps of an evaluation: numbers by name, words by name, and files."""

import re
from pathlib import Path

from offpolicy.report import write_report
from offpolicy.results import LOGGING, Evaluation, Results, write_results

NUMBERS = ("value", "low", "high", "difference", "difference_low", "difference_high", "relative", "chance_better")


def flat_metrics(evaluation: Evaluation) -> dict[str, float]:
    """The numbers of every policy by name: "candidate/value", "candidate/difference_low", ..., "logging/value".

    Under a further reward the name of the reward stands between; segments are left to the report. What is not known,
    as the difference of a refused policy, has no entry.
    """
    found: dict[str, float] = {}
    for row in evaluation.to_frame(kind="polars").iter_rows(named=True):
        if row["segment"] is not None:
            continue
        further = row["reward"] != evaluation.reward
        path = [row["policy"], row["reward"]] if further else [row["policy"]]
        numbers = {name: row[name] for name in NUMBERS if row[name] is not None}
        found |= {"/".join([*map(_plain, path), name]): float(value) for name, value in numbers.items()}
    return found


def words(evaluation: Evaluation) -> dict[str, str]:
    """The verdict on every policy, and which one is best."""
    said = {f"{_plain(name)}/answer": one.preflight.verdict.answer for name, one in evaluation.policies.items()}
    return said | {"best": evaluation.best or LOGGING}


def write_files(evaluation: Evaluation, folder: str | Path) -> tuple[Path, Path]:
    """Write `results.json` and `report.html` of an evaluation into a folder; their paths."""
    results = Results(kind="evaluate", evaluation=evaluation, log=evaluation.log)
    return write_results(results, folder), write_report(results.to_json(), Path(folder).expanduser() / "report.html")


def _plain(name: str) -> str:
    """A name as every tracker takes it."""
    return re.sub(r"[^\w\-. ]", "_", name)
