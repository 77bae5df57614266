"""Where a policy is better and where it is worse: value and difference to logging by segment, all at once.

Looking at many segments finds differences by chance, so intervals hold for all segments, candidates and rewards at
once (Bonferroni) and p-values are Holm-corrected over all of them.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from offpolicy.errors import ParameterError
from offpolicy.evaluation.auto import auto_estimate, logging_estimate
from offpolicy.evaluation.comparison import difference_width, holm
from offpolicy.evaluation.order import digits, exact_quantiles
from offpolicy.evaluation.preflight import preflight
from offpolicy.evaluation.scale import Scale
from offpolicy.evaluation.statistics import RowStatistics
from offpolicy.log import CategoricalColumn, LoggedData, NumericColumn, derived, source_of
from offpolicy.propensity import Repeats
from offpolicy.results import Segment

TIME = "time"
"""The name under which the log is cut into periods."""
PARTS = 4
"""Periods of time, or parts of a numeric column, of about equal size."""
MOST = 20
"""Values of a categorical column that are looked at, the most frequent ones."""
MOST_PERIODS = 60
"""Days, weeks or months that are looked at, the last ones."""
PERIODS: Mapping[str, Callable[[pl.Expr], pl.Expr]] = {
    "hour": lambda time: time.dt.strftime("%H h"),
    "weekday": lambda time: time.dt.strftime("%u %A"),
    "day": lambda time: time.dt.strftime("%Y-%m-%d"),
    "week": lambda time: time.dt.strftime("%G-W%V"),
    "month": lambda time: time.dt.strftime("%Y-%m"),
}
"""Names of a row's place in the calendar; their order as text is that of time."""

Values = npt.NDArray[Any] | pl.Series


@dataclass(frozen=True)
class Part:
    """A segment: its name, how many rows it has, and how to tell which."""

    column: str
    label: str
    rows: int
    value: Any = None
    """What its rows hold; None for a part of numbers."""
    edges: tuple[float, ...] = ()
    place: int = 0

    def mask(self, log: LoggedData) -> npt.NDArray[np.bool_]:
        """Which rows of a log (or of a shard) it holds."""
        values = _values(log, self.column)
        if self.value is None:
            return np.asarray(_places(np.asarray(values), self.edges) == self.place)
        return np.asarray(values == self.value if isinstance(values, np.ndarray) else (values == self.value).to_numpy())


def breakdown(
    under: Mapping[str, Mapping[str, RowStatistics]],
    by: Sequence[str],
    level: float = 0.95,
    repeats: Repeats | None = None,
) -> list[Segment]:
    """Value and difference to logging of every policy under every reward, in every segment of each column."""
    policies = next(iter(under.values()))
    log = next(iter(policies.values())).log
    parts = [part for column in by for part in segments_of(log, column)]
    joint = 1 - (1 - level) / max(len(parts) * len(policies) * len(under), 1)
    found, p_values = [], []
    for reward, rows_of in under.items():
        for name, rows in rows_of.items():
            for part in parts:
                one, p_value = _segment(rows.segment(part), joint, repeats)
                at = {"column": part.column, "segment": part.label, "rows": part.rows}
                found.append(Segment.model_validate({"reward": reward, "policy": name, **at, **one}))
                p_values.append(p_value)
    return [
        one if one.refused else one.model_copy(update={"adjusted_p_value": p})
        for one, p in zip(found, holm(p_values), strict=True)
    ]


def _segment(rows: RowStatistics, level: float, repeats: Repeats | None) -> tuple[dict[str, Any], float]:
    """A policy on the rows of a segment, on the user's scale of their reward, and the p-value of no difference."""
    scale = Scale(*rows.log.reward_range)
    estimate, own = auto_estimate(rows, level), logging_estimate(rows, level)
    width, difference = difference_width(estimate, own), estimate.value - own.value
    half = width.half(level)
    refused = not preflight(rows, estimate, repeats, balance=False).verdict.answerable
    found = {
        "value": scale.value(estimate.value),
        "low": scale.value(estimate.interval.low),
        "high": scale.value(estimate.interval.high),
        "logging": scale.value(own.value),
        "difference": scale.width(difference),
        "difference_low": scale.width(max(difference - half, -1.0)),
        "difference_high": scale.width(min(difference + half, 1.0)),
        "refused": refused,
    }
    return found, 1.0 if refused else width.p_value(difference)


def segments_of(log: LoggedData, column: str) -> list[Part]:
    """The segments of a column: values of a category, parts of a number, or periods of time."""
    _check(log, column)
    if _is_number(_values(log.shard(0), column)):
        return _parts(log, column)
    counts: Counter[Any] = Counter()
    for shard in log.shards:
        values = _values(shard, column)
        if isinstance(values, pl.Series):
            counts.update(dict(values.value_counts().iter_rows()))
        else:
            codes, often = np.unique(values, return_counts=True)
            counts.update(dict(zip(codes.tolist(), often.tolist(), strict=True)))
    if column in PERIODS and not _is_column(log, column):
        names = sorted(counts)[-MOST_PERIODS:]
        shown = [name.partition(" ")[2] if column == "weekday" else name for name in names]
    else:
        names = sorted(counts, key=lambda name: (-counts[name], name))[:MOST]
        shown = _labels(log, column, names)
    return [Part(column, label, counts[name], name) for name, label in zip(names, shown, strict=True)]


def _is_column(log: LoggedData, column: str) -> bool:
    """Whether it is kept beside the rows, or a category or number of the contexts."""
    kept = log.kept is not None and column in log.kept.columns
    return kept or isinstance(log.contexts.get(column), CategoricalColumn | NumericColumn)


def _check(log: LoggedData, column: str) -> None:
    if _is_column(log, column):
        return
    if column not in (TIME, *PERIODS):
        known = [name for name in log.contexts if _is_column(log, name)]
        kept = [] if log.kept is None else log.kept.columns
        names = ", ".join(dict.fromkeys([*known, *kept, TIME, *PERIODS]))
        raise ParameterError(f"There is no column {column!r} to break down by. Known: {names}.")
    if log.timestamp is None:
        raise ParameterError(f"by={column!r} needs times, but this log has no timestamp column. Name it first.")
    if column != TIME and log.shard(0).instants is None:
        raise ParameterError(f"by={column!r} needs dates, but this log's timestamps are other numbers. Use 'time'.")


def _is_number(values: Values) -> bool:
    return isinstance(values, np.ndarray) and values.dtype == np.float64


def _values(log: LoggedData, column: str) -> Values:
    """Of every row: a number, a code, or text."""
    if log.kept is not None and column in log.kept.columns:
        values = log.kept_column(column)
        if values.dtype.is_float():
            return np.asarray(values.fill_null(np.nan).to_numpy().astype(np.float64))
        return values.cast(pl.String).fill_null("null").alias("value")
    if not _is_column(log, column):
        assert log.timestamp is not None
        if column == TIME:
            return log.timestamp.astype(np.float64)
        return pl.DataFrame({"t": log.instants}).select(PERIODS[column](pl.col("t")).alias("value")).to_series()
    of_context = log.contexts[column]
    if isinstance(of_context, NumericColumn):
        numbers = of_context.values.astype(np.float64)
        flag = log.contexts.get(derived(source_of(column), "missing"))
        if isinstance(flag, CategoricalColumn):  # 0 was filled in there
            numbers[(flag.vocabulary.ids == "missing").to_numpy()[flag.codes]] = np.nan
        return np.asarray(numbers[log.context_index])
    assert isinstance(of_context, CategoricalColumn)
    return np.asarray(of_context.codes[log.context_index])


def _labels(log: LoggedData, column: str, values: list[Any]) -> list[str]:
    if log.kept is not None and column in log.kept.columns:
        return [str(value) for value in values]
    of_context = log.contexts[column]
    assert isinstance(of_context, CategoricalColumn)
    return [str(name) for name in of_context.vocabulary.decode(values)]


def _places(values: npt.NDArray[np.float64], edges: Sequence[float]) -> npt.NDArray[np.int64]:
    """Which part each number is in; the last place is for those that are missing."""
    place = np.searchsorted(np.asarray(edges), values, side="left")
    place[np.isnan(values)] = PARTS
    return np.asarray(place)


def _parts(log: LoggedData, column: str) -> list[Part]:
    """Four parts of about equal size, fewer where values are equal."""
    edges = tuple(np.unique(_quarters(log, column)).tolist())
    rows = np.zeros(PARTS + 1, dtype=np.int64)
    ends: list[list[Any]] = [[] for _ in rows]
    for shard in log.shards:
        values = np.asarray(_values(shard, column))
        place = _places(values, edges)
        rows += np.bincount(place, minlength=PARTS + 1)
        dated = column == TIME and not _is_column(log, column) and shard.instants is not None
        shown = shard.instants if dated else values
        assert shown is not None
        for number in np.unique(place):
            ends[number] += [shown[place == number].min(), shown[place == number].max()]
    return [
        Part(column, _span(np.array(ends[number])), int(rows[number]), None, edges, int(number))
        for number in np.flatnonzero(rows)
    ]


def _quarters(log: LoggedData, column: str) -> npt.NDArray[np.float64]:
    """The numbers that divide those of a column into parts of equal size."""
    shares = np.linspace(0, 1, PARTS + 1)[1:-1].tolist()

    def there(shard: LoggedData) -> npt.NDArray[np.float64]:
        values = np.asarray(_values(shard, column))
        return np.asarray(values[~np.isnan(values)])

    if log.n_shards == 1:
        return np.asarray(np.quantile(there(log), shares))
    count = sum(len(there(shard)) for shard in log.shards)

    def counts(*given: Any) -> Any:
        return sum(digits(there(one), *given) for one in log.shards)

    return exact_quantiles(counts, count, shares)


def _span(ends: npt.NDArray[Any]) -> str:
    if ends.dtype.kind == "M":
        first, last = (np.datetime_as_string(end, unit="m").replace("T", " ") for end in (ends.min(), ends.max()))
        return f"{first} to {last}"
    return "null" if np.isnan(ends).any() else f"{ends.min():g} to {ends.max():g}"
