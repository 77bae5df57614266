"""Where a policy is better and where it is worse: value and difference to logging by segment, all at once.

Looking at many segments finds differences by chance, so intervals hold for all segments, candidates and rewards at
once (Bonferroni) and p-values are Holm-corrected over all of them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from offpolicy.errors import ParameterError
from offpolicy.evaluation.auto import auto_estimate, logging_estimate
from offpolicy.evaluation.comparison import difference_width, holm
from offpolicy.evaluation.preflight import preflight
from offpolicy.evaluation.rows import PolicyRows
from offpolicy.evaluation.scale import Scale
from offpolicy.log import CategoricalColumn, LoggedData, NumericColumn
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

Part = tuple[str, npt.NDArray[np.bool_]]


def breakdown(
    under: Mapping[str, Mapping[str, PolicyRows]],
    by: Sequence[str],
    level: float = 0.95,
    repeats: Repeats | None = None,
) -> list[Segment]:
    """Value and difference to logging of every policy under every reward, in every segment of each column."""
    policies = next(iter(under.values()))
    log = next(iter(policies.values())).log
    parts = [(column, label, kept) for column in by for label, kept in segments_of(log, column)]
    joint = 1 - (1 - level) / max(len(parts) * len(policies) * len(under), 1)
    found, p_values = [], []
    for reward, rows_of in under.items():
        for name, rows in rows_of.items():
            for column, label, kept in parts:
                one, p_value = _segment(rows.take(kept), joint, repeats)
                at = {"column": column, "segment": label, "rows": int(kept.sum())}
                found.append(Segment.model_validate({"reward": reward, "policy": name, **at, **one}))
                p_values.append(p_value)
    return [
        one if one.refused else one.model_copy(update={"adjusted_p_value": p})
        for one, p in zip(found, holm(p_values), strict=True)
    ]


def _segment(rows: PolicyRows, level: float, repeats: Repeats | None) -> tuple[dict[str, Any], float]:
    """A policy on the rows of a segment, on the user's scale of their reward, and the p-value of no difference."""
    scale = Scale(*rows.log.reward_range)
    estimate, own = auto_estimate(rows, level), logging_estimate(rows, level)
    width, difference = difference_width(estimate, own), estimate.value - own.value
    half = width.half(level)
    refused = not preflight(rows, estimate, repeats).verdict.answerable
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
    """Names of the segments and which rows they hold: values of a category, parts of a number, or periods of time."""
    known = [name for name in log.contexts if isinstance(log.contexts[name], CategoricalColumn | NumericColumn)]
    kept = [] if log.kept is None else log.kept.columns
    if column in kept:
        return _of_kept(log.kept_column(column))
    if column not in known and column in (TIME, *PERIODS):
        return _of_time(log, column)
    if column not in known:
        known_names = ", ".join(dict.fromkeys([*known, *kept, TIME, *PERIODS]))
        raise ParameterError(f"There is no column {column!r} to break down by. Known: {known_names}.")
    values = log.contexts[column]
    if isinstance(values, NumericColumn):
        return _parts(values.values.astype(np.float64)[log.context_index])
    assert isinstance(values, CategoricalColumn)
    code = values.codes[log.context_index]
    often = np.argsort(-np.bincount(code, minlength=len(values.vocabulary)), kind="stable")[:MOST]
    names = values.vocabulary.decode(often)
    parts = [(str(name), code == value) for name, value in zip(names, often, strict=True)]
    return [part for part in parts if part[1].any()]


def _of_kept(values: pl.Series) -> list[Part]:
    if values.dtype.is_float():
        return _parts(values.fill_null(np.nan).to_numpy())
    text = values.cast(pl.String).fill_null("null")
    often = text.value_counts(sort=True).get_column(values.name).to_list()[:MOST]
    return [(name, (text == name).to_numpy()) for name in often]


def _of_time(log: LoggedData, column: str) -> list[Part]:
    if log.timestamp is None:
        raise ParameterError(f"by={column!r} needs times, but this log has no timestamp column. Name it first.")
    if column == TIME and log.instants is None:
        return _parts(log.timestamp.astype(np.float64))
    if log.instants is None:
        raise ParameterError(f"by={column!r} needs dates, but this log's timestamps are other numbers. Use 'time'.")
    if column == TIME:
        days = _parts(log.timestamp.astype(np.float64))
        return [(_span(log.instants[kept]), kept) for _, kept in days]
    name = pl.DataFrame({"t": log.instants}).select(PERIODS[column](pl.col("t"))).to_series()
    periods = sorted(name.unique().to_list())[-MOST_PERIODS:]
    shown = [period.partition(" ")[2] if column == "weekday" else period for period in periods]
    return [(label, (name == period).to_numpy()) for label, period in zip(shown, periods, strict=True)]


def _span(times: npt.NDArray[np.datetime64]) -> str:
    first, last = (np.datetime_as_string(end, unit="m").replace("T", " ") for end in (times.min(), times.max()))
    return f"{first} to {last}"


def _parts(values: npt.NDArray[np.float64]) -> list[Part]:
    """Four parts of about equal size, fewer where values are equal."""
    edges = np.unique(np.nanquantile(values, np.linspace(0, 1, PARTS + 1)[1:-1]))
    place = np.searchsorted(edges, values, side="left")
    place[np.isnan(values)] = PARTS
    masks = [place == number for number in np.unique(place)]
    return [(_ends(values[kept]), kept) for kept in masks]


def _ends(values: npt.NDArray[np.float64]) -> str:
    return "null" if np.isnan(values).any() else f"{values.min():g} to {values.max():g}"
