"""What commands print: plain facts, tables, an evaluation; the user's text is never interpreted as markup."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offpolicy.results import Evaluation

from offpolicy.json_writer import json_text

ANSWERS = {"answerable": "bold green", "answerable on part": "bold yellow", "run an experiment": "bold red"}


def print_json(values: Mapping[str, Any]) -> None:
    """One object on standard output."""
    sys.stdout.write(json_text(values, "results") + "\n")


def facts(title: str, values: Mapping[str, Any]) -> None:
    """Names and values, one per line."""
    console = _console()
    console.print(f"\n{title}", style="bold", markup=False, highlight=False)
    for name, value in values.items():
        console.print(f"  {name.replace('_', ' ')}: {_shown(value)}", markup=False, highlight=False)


def lines(title: str, sentences: Iterable[str]) -> None:
    """A list of sentences; nothing where there is none."""
    said = list(sentences)
    if not said:
        return
    console = _console()
    console.print(f"\n{title}", style="bold", markup=False, highlight=False)
    for one in said:
        console.print(f"  {one}", markup=False, highlight=False)


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table; numbers to four significant digits."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=Text(title), title_justify="left")
    for name in head:
        drawn.add_column(Text(name))
    for row in rows:
        drawn.add_row(*(Text(_shown(cell)) for cell in row))
    console = _console()
    console.print()
    console.print(drawn)


def show_evaluation(evaluation: "Evaluation") -> None:
    """Values with intervals, comparisons, and a verdict for each policy."""
    logging = evaluation.logging
    ends = ("", "") if logging.interval is None else (logging.interval.low, logging.interval.high)
    rows: list[Sequence[Any]] = [("logging policy", logging.value, *ends, "", "")]
    for name, one in evaluation.policies.items():
        interval = one.interval
        rows.append((name, one.value, interval.low, interval.high, interval.sampling, interval.propensity))
    head = ("policy", "value", "low", "high", "± sampling", "± propensity")
    table(f"Values with {evaluation.level:.0%} intervals (propensities: {logging.model})", head, rows)
    _show_slates(evaluation)
    compared = [
        (c.candidate, c.reference, c.difference, c.low, c.high, c.relative, c.probability_of_improvement)
        for c in evaluation.comparisons
    ]
    table("Differences", ("policy", "against", "difference", "low", "high", "relative", "P(better)"), compared)
    if evaluation.segments:
        _show_segments(evaluation)
    console = _console()
    for name, one in evaluation.candidates.items():
        verdict = one.preflight.verdict
        console.print(f"\n{name}: ", end="", markup=False, highlight=False)
        console.print(verdict.answer, style=ANSWERS.get(verdict.answer, "bold"), markup=False, highlight=False)
        for reason in verdict.reasons:
            console.print(f"  {reason}", markup=False, highlight=False)
        for sentence in (verdict.advice, one.guarantee, one.sensitivity.sentence):
            if sentence:
                console.print(f"  {sentence}", markup=False, highlight=False)


def _show_slates(evaluation: "Evaluation") -> None:
    """For slates: what the values assume of users, and what other assumptions would say."""
    assumed = next((one.assumes for one in evaluation.policies.values() if one.assumes), "")
    if not assumed:
        return
    from offpolicy.estimators import USER_MODELS

    lines("Slates", [f"Values are means over positions; they assume {USER_MODELS[assumed]} ({assumed})."])
    rows: list[Sequence[Any]] = []
    left_out: dict[tuple[str, str], list[str]] = {}
    for name, one in evaluation.policies.items():
        rows += [(name, e.name, e.value, e.standard_error, e.assumes) for e in one.estimates]
        for reason in one.left_out.items():
            left_out.setdefault(reason, []).append(name)
    table("By user model", ("policy", "estimator", "value", "standard error", "assumes"), rows)
    lines("Left out", [f"{row} ({', '.join(names)}): {why}." for (row, why), names in left_out.items()])


def _show_segments(evaluation: "Evaluation") -> None:
    head = ("segment", "policy", "rows", "value", "logging", "difference", "low", "high", "p, corrected")
    rows = []
    for s in evaluation.segments:
        p = "refused" if s.refused else s.adjusted_p_value
        ends = (s.difference_low, s.difference_high)
        rows.append((s.segment, s.policy, s.rows, s.value, s.logging, s.difference, *ends, p))
    column = evaluation.segments[0].column
    table(f"By {column} ({evaluation.level:.0%} intervals that hold for all segments at once)", head, rows)


def _console() -> Any:
    from rich.console import Console

    return Console(soft_wrap=not sys.stdout.isatty())


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(inner)}" for name, inner in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(_shown(inner) for inner in value) or "none"
    return str(value)
