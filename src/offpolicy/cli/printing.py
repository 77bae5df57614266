"""What commands print: plain facts, tables, an evaluation; the user's text is never interpreted as markup."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offpolicy.cli.options import Format
    from offpolicy.results import Choice, Evaluation, Segment
    from offpolicy.workflows import Finished

from offpolicy.drawing import chance, p_value
from offpolicy.errors import printable
from offpolicy.json_writer import json_text

WIDE = 160
"""Columns of text for tables that are not shown on a terminal, so that no word is cut."""
LINE = "\n\u00a0"
"""What may stand in a text beside letters: line breaks and unbroken spaces."""
LISTED = ("estimator", "interval", "refits")
"""Options that ask for the table of all estimators and intervals."""
ANSWERS = {"answerable": "bold green", "answerable on part": "bold yellow", "run an experiment": "bold red"}


def print_json(values: Mapping[str, Any]) -> None:
    """One object on standard output; in escapes where that cannot show every letter."""
    text = json_text(values, "results")
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(json.loads(text))
    sys.stdout.write(text + "\n")


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


def styled(text: str, style: str) -> None:
    """One line that stands out."""
    _console().print(f"\n{text}", style=style, markup=False, highlight=False)


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table; numbers to four significant digits."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=Text(title), title_justify="left")
    for name in head:
        drawn.add_column(Text(_cell(name)), overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(_cell(_shown(cell))) for cell in row))
    console = _console()
    console.print()
    console.print(drawn)


def show_run(run: "Finished", form: "Format") -> None:
    """What a run found, as tables for people or as one JSON object, CSV or Markdown table and nothing else."""
    from offpolicy.results import headlines, table_of

    evaluation = run.results.evaluation
    assert evaluation is not None
    if form == "json":
        print_json(run.results.to_json())
    elif form == "csv":
        sys.stdout.write(table_of(evaluation).to_csv())
    elif form == "md":
        sys.stdout.write(table_of(evaluation).to_markdown())
        sys.stdout.writelines(f"\n{one}\n" for one in headlines(evaluation))
    else:
        lines("Noted", run.notes)
        if run.results.choice is not None:
            show_choice(run.results.choice, evaluation.reward if evaluation.outcomes else "")
        show_evaluation(evaluation)
        if any(run.results.run.config.get(option) for option in LISTED):
            _show_estimates(evaluation)
        lines("Written", run.files.values())


def _show_estimates(evaluation: "Evaluation") -> None:
    """Every estimator and interval of every policy, and why an estimator is left out."""
    from offpolicy.results import table_of

    found = table_of(evaluation, "estimates")
    rows = [["" if cell is None else cell for cell in row] for row in found.rows]
    title = f"Estimators and {evaluation.level:.0%} intervals (without an estimator: of the value above)"
    table(title, [name.replace("_", " ") for name in found.head], rows)
    if evaluation.log.get("slates") is None:  # slates have said it
        _show_left_out(evaluation)


def _show_left_out(evaluation: "Evaluation") -> None:
    left_out: dict[tuple[str, str], list[str]] = {}
    for name, one in evaluation.policies.items():
        for reason in one.left_out.items():
            left_out.setdefault(reason, []).append(name)
    lines("Left out", [f"{row} ({', '.join(names)}): {why}." for (row, why), names in left_out.items()])


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
        (
            c.candidate,
            c.reference,
            c.difference,
            c.low,
            c.high,
            _percent(c.relative),
            chance(c.probability_of_improvement),
        )
        for c in evaluation.comparisons
    ]
    table("Differences", ("policy", "against", "difference", "low", "high", "relative", "P(better)"), compared)
    if evaluation.outcomes:
        _show_outcomes(evaluation)
    for title, segments in evaluation.breakdowns().items():
        _show_segments(title, segments, evaluation.level)
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
    from offpolicy.results import USER_MODELS

    lines("Slates", [f"Values are means over positions; they assume {USER_MODELS[assumed]} ({assumed})."])
    rows: list[Sequence[Any]] = []
    for name, one in evaluation.policies.items():
        rows += [(name, e.name, e.value, e.standard_error, e.assumes) for e in one.estimates]
    table("By user model", ("policy", "estimator", "value", "standard error", "assumes"), rows)
    _show_left_out(evaluation)


def _show_outcomes(evaluation: "Evaluation") -> None:
    head = ("reward", "policy", "value", "logging", "difference", "low", "high", "relative", "limit", "finding")
    rows = []
    for o in evaluation.outcomes:
        limit = f"{'+' if o.lower_is_better else '-'}{o.limit_text}" if o.guardrail else ""
        ends = (o.difference, o.difference_low, o.difference_high)
        rows.append((o.reward, o.policy, o.value, o.logging, *ends, _percent(o.relative), limit, o.finding))
    table(
        f"Every reward ({evaluation.level:.0%} intervals of the differences, all rewards and policies counted)",
        head,
        rows,
    )
    lines("Taken together", [f"{'Yes.' if one.holds else 'No.'} {one.sentence}" for one in evaluation.decisions])


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:+.3g} %"


def show_choice(choice: "Choice", reward: str = "") -> None:
    """A line for each candidate, and which one was chosen why; the reward is named where there are others."""
    said = [
        f"{one.method}: value {_shown(one.value)} (at least {_shown(one.low)}), over logging {one.gain:+.4g} (at least "
        f"{one.gain_low:+.4g}), {one.seconds:.1f} s{', chosen' if one.chosen else ''}"
        for one in choice.candidates
    ]
    lines("Candidates, on rows they were not learned from", said)
    lines(f"Recommendation by {reward} alone" if reward else "Recommendation", [choice.sentence])


def _show_segments(title: str, segments: Sequence["Segment"], level: float) -> None:
    head = ("segment", "policy", "rows", "value", "logging", "difference", "low", "high", "p, corrected")
    rows = []
    for s in segments:
        ends = (s.difference_low, s.difference_high)
        p = "refused" if s.refused else p_value(s.adjusted_p_value)
        rows.append((s.segment, s.policy, s.rows, s.value, s.logging, s.difference, *ends, p))
    table(f"By {title} ({level:.0%} intervals that hold for all segments at once)", head, rows)


def _console() -> Any:
    from rich.console import Console

    class Printable(Console):
        """Shows what a log calls its columns, but lets nothing in it steer the terminal."""

        def render_str(self, text: str, **how: Any) -> Any:
            return super().render_str(printable(text, LINE), **how)

    return Printable() if sys.stdout.isatty() else Printable(soft_wrap=True, width=WIDE)


def _cell(text: str) -> str:
    """A cell as standard output will show it, so that letters it has no sign for are as wide as what stands in."""
    encoding, errors = sys.stdout.encoding or "utf-8", sys.stdout.errors or "strict"
    return printable(text, LINE).encode(encoding, errors).decode(encoding)


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
