"""What the column of each role must hold, and the rows of a log in which every column holds it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from offpolicy.errors import Fix, LogError, ParameterError
from offpolicy.log.actions import ActionTable
from offpolicy.log.derived import missing as missing_values
from offpolicy.log.encode import RawColumns, features_of, ids, numbers
from offpolicy.log.features import Kind
from offpolicy.log.ids import UNKNOWN, codes_in
from offpolicy.log.offers import Offers
from offpolicy.log.origin import Origin
from offpolicy.log.rewards import range_typed
from offpolicy.log.schema import LogSchema
from offpolicy.log.tables import Table, read_table
from offpolicy.log.text import typed_text
from offpolicy.log.treatment import Treatment, Typed
from offpolicy.log.vocabulary import Vocabulary

MAY_BE_CONTEXT = ("cluster", "timestamp", "request", "position")
"""Roles whose column may be one of the context too."""
DROP = "Fix the value or drop the row."
Beside: TypeAlias = dict[str, pl.Series]
"""Columns that are kept beside the rows."""


@dataclass(frozen=True)
class TypedRows:
    """The rows of a log that stay, every column typed and complete; `rows` says which those are (None: all)."""

    roles: Mapping[str, pl.Series]
    context: Typed
    offers: Offers | None
    weights: npt.NDArray[np.float64] | None
    kept: pl.DataFrame | None
    rows: npt.NDArray[np.int64] | None


def given_actions(
    actions: Any, schema: LogSchema, beside: Iterable[str] = ()
) -> tuple[ActionTable | None, tuple[str, ...]]:
    """The action table that the user gave and notes on it; every name in the schema is known by then."""
    given, features, notes = _given_actions(actions, schema)
    schema.check_names([*schema.columns, *features, *beside])
    return given, notes


def typed_rows(
    table: Table, schema: LogSchema, given: ActionTable | None, beside: Beside, treatment: Treatment
) -> TypedRows:
    """Every column typed, and treated where values are missing; `beside` are columns to keep as they are.

    Numbers among those are rewards as a rule: where a treatment is asked for, they are treated as such. Every problem
    is raised in one error.
    """
    series, origin = table.series, table.origin
    if not len(series[schema.action]):
        raise LogError(f"{origin.name} holds no rows. A log needs at least one.")
    for name, values in beside.items():
        if (values.dtype.is_numeric() or values.dtype == pl.Boolean) and treatment.asks_for(name):
            beside[name] = treatment.complete("reward", name, values.cast(pl.Float64))
    offers = treatment.attempt(lambda: _offers(schema, series, origin))
    weights = treatment.attempt(lambda: _row_weights(schema, series, origin))
    slates = {} if schema.position is None else {"request": schema.request, "position": schema.position}
    roles = {role: column for role, column in (schema.roles | slates).items() if column is not None}
    typed = {role: _of_role(role, column, schema, treatment, series, given) for role, column in roles.items()}
    context = treatment.context(RawColumns({n: series.pop(n) for n in schema.context}, schema.kinds, origin))
    series.clear()
    chosen = typed["action"]
    if chosen is not None:
        there = treatment.present(chosen)
        treatment.attempt(lambda: _check_actions(schema, there, given, origin, whole=treatment.decided is None))
    rows = treatment.kept()
    whole = {role: values for role, values in typed.items() if values is not None}
    kept = pl.DataFrame([values.alias(name) for name, values in beside.items()]) if beside else None
    if rows is not None:
        some = pl.Series(rows)
        whole = {role: values.gather(some) for role, values in whole.items()}
        context = {name: (kind, values.gather(some)) for name, (kind, values) in context.items()}
        offers = None if offers is None else offers.take(rows)
        weights = None if weights is None else weights[rows]
        kept = None if kept is None else kept[rows]
    return TypedRows(whole, context, offers, weights, kept, rows)


def _offers(schema: LogSchema, series: dict[str, pl.Series], origin: Origin) -> Offers | None:
    """The candidates of every row, where the schema names them."""
    if schema.candidates is None:
        return None
    features = {name: series.pop(name) for name in schema.candidate_features}
    return Offers.read(schema.candidates, series.pop(schema.candidates), features, schema.kinds, origin)


def _row_weights(schema: LogSchema, series: dict[str, pl.Series], origin: Origin) -> npt.NDArray[np.float64] | None:
    """How many events each row stands for, where the schema says."""
    column = schema.keep_prob or schema.row_weight
    if column is None:
        return None
    values = numbers(column, series[column], origin, parse=origin.is_text).fill_null(np.nan)
    if schema.keep_prob is not None:
        rule, good = "must hold the probabilities, in (0, 1], with which rows were kept", (values > 0) & (values <= 1)
    else:
        rule = "must hold how many events a row stands for, a number of at least 0"
        good = (values >= 0) & values.is_finite()
    if not good.all():
        row = _first(~good)
        raise origin.bad_value(column, row, values[row], rule, DROP)
    array = values.to_numpy()
    return np.asarray(1 / array if schema.keep_prob is not None else array)


def _of_role(
    role: str,
    column: str,
    schema: LogSchema,
    treatment: Treatment,
    series: dict[str, pl.Series],
    given: ActionTable | None,
) -> pl.Series | None:
    """The values of a column that is no context: numbers, ids or instants, in every row that is kept."""
    raw = series[column] if role in MAY_BE_CONTEXT else series.pop(column)
    origin = treatment.origin

    def read() -> pl.Series:
        if role == "reward":
            rewards = numbers(column, raw, origin, parse=origin.is_text)
            return _within(column, rewards, schema.reward_range, origin, whole=treatment.decided is None)
        if role == "propensity":
            return _probabilities(column, numbers(column, raw, origin, parse=origin.is_text), origin)
        if role == "timestamp":
            return _instants(column, raw, origin)
        if role == "position":
            return _places(column, numbers(column, raw, origin, parse=origin.is_text), origin)
        kind = schema.kinds.get(column)
        if role in ("cluster", "request"):  # a context column may be a number there and an id here
            return _ids(column, raw, kind if kind == "categorical" else None, origin)
        # Where the given ids are text, a CSV column is matched by its spelling and not typed first.
        spelled = given is not None and given.vocabulary.ids.dtype == pl.String
        return _ids(column, raw, kind, origin, spelled=spelled)

    values = treatment.attempt(read)
    if values is None:
        return None
    return treatment.complete(role, column, values)


def _places(column: str, values: pl.Series, origin: Origin) -> pl.Series:
    """Positions, those that are there whole numbers of at least 0."""
    bad = ((values < 0) | (values != values.round())).fill_null(False)
    if bad.any():
        row = _first(bad)
        rule = "must hold the place of each action in its request, a whole number from 0 or 1"
        raise origin.bad_value(column, row, values[row], rule, DROP)
    return values


def _within(
    column: str, rewards: pl.Series, bounds: tuple[float, float], origin: Origin, *, whole: bool = True
) -> pl.Series:
    """Rewards, those that are there within the bounds; in a piece of a log there may be none."""
    low, high = bounds
    there = rewards.filter(~missing_values(rewards))
    if not len(there) and not whole:
        return rewards
    if not len(there):
        problem = "holds no reward at all"
        raise origin.bad_column(column, problem, "Name the column in which rewards are with reward.")
    least, most = cast("float", there.min()), cast("float", there.max())
    if least >= low and most <= high:
        return rewards
    row = _first((rewards < low) | (rewards > high))
    ends = range_typed(min(least, low), max(most, high))
    effect = "if these are the least and the most that a reward can be, else a wider range"
    fix = Fix("reward_range", ends, effect + _on_outliers(there.to_numpy()))
    rule = f"must hold rewards in [{low:g}, {high:g}]"
    raise origin.bad_value(column, row, rewards[row], rule, fix=fix)


def _on_outliers(rewards: npt.NDArray[np.float64]) -> str:
    """What to do where a few rewards are far larger than the others; empty where none are."""
    other = rewards[rewards != 0]
    usual = float(np.quantile(other, 0.99)) if len(other) else np.inf
    if not 0 < usual < float(rewards.max()) / 5:
        return ""
    said = f"99 % of those that are not 0 are at most {usual:g}"
    return f" ({said}: winsorising at 0.01, --winsorise 0.01, takes the others for outliers)"


def _probabilities(column: str, values: pl.Series, origin: Origin) -> pl.Series:
    bad = ((values <= 0.0) | (values > 1.0)).fill_null(False) & ~values.is_nan().fill_null(False)
    if bad.any():
        row = _first(bad)
        raise origin.bad_value(column, row, values[row], "must hold probabilities in (0, 1]", DROP)
    return values


def _check_actions(
    schema: LogSchema, values: pl.Series, given: ActionTable | None, origin: Origin, *, whole: bool = True
) -> None:
    """Refuse a log with a single action (a piece of one may have it), or with one that the given table lacks."""
    column, logged = schema.action, values.drop_nulls()
    if given is None:
        if whole and logged.n_unique() == 1 and schema.candidates is None:
            problem = f"holds a single action, {logged[0]!r}, so there is nothing to choose"
            raise origin.bad_column(column, problem, "Give actions=[...] if more actions were possible.")
        return
    unknown = (codes_in(values, given.vocabulary.ids) == UNKNOWN) & values.is_not_null().to_numpy()
    if unknown.any():
        row = int(np.argmax(unknown))
        rule = f"must hold one of the {len(given)} ids in actions"
        remedy = f"Add it to actions (whose ids are of type {given.vocabulary.ids.dtype}) or drop the row."
        raise origin.bad_value(column, row, values[row], rule, remedy)


def _first(mask: pl.Series) -> int:
    return mask.fill_null(False).arg_max() or 0


def _ids(column: str, series: pl.Series, kind: Kind | None, origin: Origin, *, spelled: bool = False) -> pl.Series:
    """The ids of a column; null where one is missing."""
    if kind not in (None, "categorical"):
        raise ParameterError(f"kinds declares {column!r} {kind}, but the column holds ids. Declare it categorical.")
    if origin.is_text and not spelled:
        series = typed_text(column, series, kind, origin)
    return ids(column, series, origin)


def _given_actions(actions: Any, schema: LogSchema) -> tuple[ActionTable | None, tuple[str, ...], tuple[str, ...]]:
    """The action table that the user gave, from a table, a vocabulary, ids, a file or a frame.

    Beside it the names of its columns, and what was done where values are missing in them.
    """
    if actions is None or isinstance(actions, ActionTable):
        return actions, () if actions is None or actions.features is None else tuple(actions.features), ()
    if isinstance(actions, Vocabulary):
        return ActionTable(actions), (), ()
    if isinstance(actions, int) and not isinstance(actions, bool):
        actions = range(actions)
    if isinstance(actions, range | list | tuple | set | np.ndarray | pl.Series):
        return ActionTable(Vocabulary(sorted(actions) if isinstance(actions, set) else actions)), (), ()
    table = read_table(actions, (schema.action,), everything=True, argument="actions", kinds=schema.written)
    series, origin = table.series, table.origin
    raw, kind, names = series.pop(schema.action), schema.kinds.get(schema.action), tuple(series)
    treatment = Treatment(schema.missing, origin)
    ids = treatment.attempt(lambda: _ids(schema.action, raw, kind, origin))
    if ids is not None:
        ids = treatment.complete("action", schema.action, ids)
    typed = treatment.context(RawColumns(series, schema.kinds, origin)) if len(raw) else {}
    rows = treatment.kept()
    assert ids is not None
    if rows is not None:
        ids = ids.gather(pl.Series(rows))
        typed = {name: (one, values.gather(pl.Series(rows))) for name, (one, values) in typed.items()}
    if ids.n_unique() != len(ids):
        row = (~ids.is_first_distinct()).arg_max() or 0
        place = row if rows is None else int(rows[row])
        raise origin.bad_value(schema.action, place, ids[row], "must name each action once", "Drop the repetition.")
    features = features_of(typed, origin) if typed and len(ids) else None
    return ActionTable(Vocabulary(ids), features), names, tuple(treatment.notes)


def _instants(column: str, series: pl.Series, origin: Origin) -> pl.Series:
    """Timestamps as integers: integers as they are, all else in microseconds."""
    values = typed_text(column, series, None, origin) if origin.is_text else series
    if values.dtype == pl.String:
        try:
            parsed = values.str.to_datetime(time_unit="us", strict=False)
        except pl.exceptions.ComputeError:  # no value looks like a date
            parsed = pl.Series(column, [None] * len(values), dtype=pl.Datetime("us"))
        failed = parsed.is_null() & values.is_not_null()
        if failed.any():
            row = failed.arg_max() or 0
            remedy = "Write it like 2024-01-31 12:00:00, or as an integer."
            raise origin.bad_value(column, row, values[row], "must hold timestamps", remedy)
        values = parsed
    if values.dtype in (pl.Datetime, pl.Date):
        values = values.cast(pl.Datetime("us")).to_physical()
    elif values.dtype.is_float():
        values = (values.fill_nan(None) * 1e6).round().cast(pl.Int64, strict=False)
    elif not values.dtype.is_integer():
        remedy = "Convert it to datetimes, dates or integers."
        raise origin.bad_column(column, f"must hold timestamps, but it is of type {values.dtype}", remedy)
    return values.cast(pl.Int64)
