"""Results as tables: one tidy table of values, and others beside it; as frames, CSV, Markdown or HTML.

`to_frame`, `--format` and `_repr_html_` all read these, which read the schema: no number is worked out here.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from offpolicy.drawing import chance, label, p_value, percent, plain
from offpolicy.errors import MissingExtraError, ParameterError
from offpolicy.results.evaluation import LOGGING, Evaluation
from offpolicy.results.policy import PolicyResult

if TYPE_CHECKING:
    import polars as pl

FORMULA, NUMBER = r"^ *[=+\-@\t\r]", r"^[+\-]?[0-9]+(\.[0-9]+)?([eE][+\-]?[0-9]+)?$"
"""Text that a spreadsheet would run as a formula, unless it is a number."""
VALUES = (
    *("reward", "by", "segment", "policy", "role", "rows", "value", "low", "high", "logging"),
    *("difference", "difference_low", "difference_high", "relative", "chance_better", "p_value", "finding"),
)


PEOPLE: Mapping[str, Callable[[Any], str]] = {
    "relative": lambda share: percent(share, sign=True),
    "chance_better": chance,
    "p_value": p_value,
}
"""How people read the numbers of some columns."""


@dataclass(frozen=True)
class Table:
    """Named columns and rows of plain values."""

    head: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, records: Sequence[Mapping[str, Any]], head: Sequence[str] | None = None) -> "Table":
        """A table of records; what one does not have is unknown."""
        names = tuple(head or dict.fromkeys(name for one in records for name in one))
        return cls(names, tuple(tuple(one.get(name) for name in names) for one in records))

    def to_frame(self, kind: str = "polars") -> Any:
        """A polars or a pandas frame."""
        columns = {name: [row[place] for row in self.rows] for place, name in enumerate(self.head)}
        if kind != "pandas":
            import polars as pl

            return pl.DataFrame(columns, strict=False)
        try:
            import pandas as pd
        except ImportError:
            raise MissingExtraError("A pandas frame needs pandas. Run: pip install pandas") from None
        return pd.DataFrame(columns)

    def to_csv(self) -> str:
        """CSV whose texts no spreadsheet runs as formulas: one that would be gets an apostrophe before it."""
        import polars as pl

        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.head)
        texts = [cell for row in self.rows for cell in row if isinstance(cell, str)]
        safe = iter(spreadsheet_safe(pl.DataFrame({"text": texts}, schema={"text": pl.String}))["text"])
        writer.writerows([next(safe) if isinstance(cell, str) else cell for cell in row] for row in self.rows)
        return out.getvalue()

    def to_markdown(self) -> str:
        """A Markdown table; columns without a value are left out."""
        shown = [place for place in range(len(self.head)) if any(row[place] not in (None, "") for row in self.rows)]
        lines = ["| " + " | ".join(self.head[place].replace("_", " ") for place in shown) + " |"]
        lines.append("|" + "|".join("---:" if self._is_number(place) else "---" for place in shown) + "|")
        lines += ["| " + " | ".join(_escaped(self._text(row, place)) for place in shown) + " |" for row in self.rows]
        return "\n".join(lines) + "\n"

    def to_html(self) -> str:
        """An HTML table for notebooks; columns without a value are left out."""
        shown = [place for place in range(len(self.head)) if any(row[place] not in (None, "") for row in self.rows)]
        head = Markup("").join(Markup("<th>{}</th>").format(self.head[place].replace("_", " ")) for place in shown)
        rows = Markup("").join(
            Markup("<tr>{}</tr>").format(
                Markup("").join(Markup("<td>{}</td>").format(self._text(row, place)) for place in shown)
            )
            for row in self.rows
        )
        return str(Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(head, rows))

    def _text(self, row: tuple[Any, ...], place: int) -> str:
        """A cell as people read it: shares, chances and p-values as such."""
        return "" if row[place] is None else PEOPLE.get(self.head[place], text_of)(row[place])

    def _is_number(self, place: int) -> bool:
        return any(isinstance(row[place], int | float) for row in self.rows)


def table_of(evaluation: Evaluation, table: str = "values") -> Table:
    """One of the tables of an evaluation: values, comparisons, estimates or checks."""
    if table not in TABLES:
        raise ParameterError(f"There is no table {table!r}. Known: {', '.join(TABLES)}.")
    return TABLES[table](evaluation)


def _values(evaluation: Evaluation) -> Table:
    """A row for every policy, and for every policy under each further reward and in each segment."""
    reward, against = evaluation.reward, evaluation.against()
    logging = evaluation.logging
    ends = logging.interval
    rows: list[dict[str, Any]] = [{"reward": reward, "policy": LOGGING, "role": "logging", "value": logging.value}]
    rows[0] |= {} if ends is None else {"low": ends.low, "high": ends.high}
    for name, one in evaluation.policies.items():
        row: dict[str, Any] = {"reward": reward, "policy": name, "role": "reference" if one.reference else "candidate"}
        row |= {"value": one.value, "low": one.interval.low, "high": one.interval.high, "logging": logging.value}
        compared = against.get(name)
        if compared is not None:
            row |= {"difference": compared.difference, "relative": compared.relative}
            row |= {"difference_low": compared.low, "difference_high": compared.high}
            row |= {"chance_better": compared.probability_of_improvement, "p_value": compared.adjusted_p_value}
        rows.append(row | {"finding": one.preflight.verdict.answer})
    same = ("policy", "value", "low", "high", "logging", "difference", "difference_low", "difference_high")
    for outcome in evaluation.outcomes:
        if outcome.reward != reward:
            role = "guardrail" if outcome.guardrail else "candidate"
            own = {"reward": outcome.reward, "role": role, "relative": outcome.relative, "finding": outcome.finding}
            rows.append({name: getattr(outcome, name) for name in same} | own | {"p_value": outcome.adjusted_p_value})
    for part in evaluation.segments:
        own = {
            "reward": part.reward or reward,
            "by": part.column,
            "segment": part.segment,
            "role": "candidate",
            "rows": part.rows,
        }
        own |= {"p_value": part.adjusted_p_value, "finding": "refused" if part.refused else None}
        rows.append({name: getattr(part, name) for name in same} | own)
    return Table.of(rows, VALUES)


def _comparisons(evaluation: Evaluation) -> Table:
    return Table.of([one.to_json() for one in evaluation.comparisons])


def _estimates(evaluation: Evaluation) -> Table:
    """A row for every policy, estimator and interval."""
    rows = []
    for name, policy in evaluation.policies.items():
        for one in policy.estimates:
            first = {"policy": name, "estimator": one.name, "value": one.value, "standard_error": one.standard_error}
            for method, ends in one.intervals.items():
                own = {"interval": method, "low": ends.low, "high": ends.high, "mean_weight": one.mean_weight}
                rows.append(first | own | {"note": one.note or ends.note})
        for method, ends in policy.propensity_intervals.items():
            rows.append({"policy": name, "value": policy.value, "interval": method, "low": ends.low, "high": ends.high})
    head = ("policy", "estimator", "value", "standard_error", "interval", "low", "high", "mean_weight", "note")
    return Table.of(rows, head)


def _checks(evaluation: Evaluation) -> Table:
    rows = [
        {"policy": name, **check.to_json()}
        for name, policy in evaluation.policies.items()
        for check in policy.preflight.checks
    ]
    return Table.of(rows, ("policy", "name", "value", "passed", "meaning"))


TABLES = {"values": _values, "comparisons": _comparisons, "estimates": _estimates, "checks": _checks}


def evaluation_html(evaluation: Evaluation) -> str:
    """What a notebook shows: the verdict of the best candidate, decisions, and the table of values."""
    said = [Markup("<p>{}</p>").format(one) for one in headlines(evaluation)]
    return str(Markup("").join(said)) + table_of(evaluation).to_html()


def headlines(evaluation: Evaluation) -> list[str]:
    """The best candidate's verdict, and what several rewards say."""
    best = evaluation.policies.get(evaluation.best)
    lines = [] if best is None else [f"Best: {policy_line(evaluation.best, best)}."]
    return [*lines, *(one.sentence for one in evaluation.decisions)]


def policy_line(name: str, policy: PolicyResult) -> str:
    """A policy in one line."""
    ends, answer = policy.interval, policy.preflight.verdict.answer
    return f"{label(name, 60)} {plain(policy.value)} ({plain(ends.low)} to {plain(ends.high)}), {answer}"


def text_of(value: Any) -> str:
    """A cell as people read it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return plain(value, 4)
    return f"{value:,}" if isinstance(value, int) else label(value, 200)


def spreadsheet_safe(frame: "pl.DataFrame") -> "pl.DataFrame":
    """A frame for CSV: a text that a spreadsheet would run gets an apostrophe before it."""
    import polars as pl

    texts = [name for name, dtype in frame.schema.items() if dtype in (pl.String, pl.Categorical, pl.Enum)]
    cells = {name: pl.col(name).cast(pl.String) for name in texts}
    return frame.with_columns(
        pl.when(cell.str.contains(FORMULA) & ~cell.str.contains(NUMBER))
        .then("'" + cell.str.replace_all("\r", " ", literal=True))
        .otherwise(cell.str.replace_all("\r", " ", literal=True))
        .alias(name)
        for name, cell in cells.items()
    )


def _escaped(text: str) -> str:
    for sign in "\\`*_[]<>|":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("\n", " ")
