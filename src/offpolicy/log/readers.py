"""`read_log`: any file or frame becomes a `LoggedData`, and every error in the data is reported here."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from offpolicy.errors import Fix, LogError, ParameterError
from offpolicy.log.actions import ActionTable
from offpolicy.log.derived import missing as missing_values
from offpolicy.log.encode import RawColumns, distinct_contexts, features_of, ids, numbers
from offpolicy.log.expressions import Expression, expression
from offpolicy.log.features import Kind, Vocabulary, trusted
from offpolicy.log.frames import frame_kind
from offpolicy.log.ids import UNKNOWN, Codes, codes_in, owned
from offpolicy.log.logged_data import LoggedData
from offpolicy.log.offers import CANDIDATES, Offers, known_by_request, one_row_a_request
from offpolicy.log.origin import Origin
from offpolicy.log.rewards import data_range, range_typed, to_unit, winsorised
from offpolicy.log.schema import UNIT_RANGE, LogSchema
from offpolicy.log.slates import check_nested, coded_positions, not_yet_shown, shows_repeats
from offpolicy.log.tables import Table, read_table, source_names
from offpolicy.log.text import typed_text
from offpolicy.log.treatment import Missing, Treatment, Typed

Source: TypeAlias = str | Path | Sequence[str | Path] | Any
"""A path or glob, several of them, or a pandas, polars or arrow frame."""

MAY_BE_CONTEXT = ("cluster", "timestamp", "request", "position")
"""Roles whose column may be one of the context too."""
DROP = "Fix the value or drop the row."


def read_log(
    source: Source,
    *,
    context: Sequence[str],
    action: str,
    reward: str,
    propensity: str | None = None,
    cluster: str | None = None,
    timestamp: str | None = None,
    kinds: Mapping[str, Kind] | None = None,
    actions: Any = None,
    reward_range: tuple[float, float] | None = None,
    missing: Missing | Mapping[str, Missing] | None = None,
    drop_duplicates: bool = False,
    keep: Sequence[str] = (),
    winsorise: float = 0.0,
    candidates: str | None = None,
    candidate_features: Sequence[str] = (),
    request: str | None = None,
    shown: str | None = None,
    position: str | None = None,
    keep_prob: str | None = None,
    row_weight: str | None = None,
) -> LoggedData:
    """Read a log from Parquet, CSV or NDJSON files (path, glob or list) or from a frame in memory.

    Only the named columns are read. Rewards must lie in [0, 1], or in `reward_range`, from which they are rescaled.
    `kinds` overrides the kind of a feature column (`LogSchema` states the rule). `actions` lists all action ids, or
    is a file or frame in which the column called like `action` holds the ids and all others are action features;
    without it the actions are those that were logged. A timestamp may be a datetime, a date, an integer, or a float
    in seconds; dates and floats become microseconds. `drop_duplicates` keeps the first of rows that are equal in every
    column that was read (`log.duplicates` says which are not the first). `reward` is a column or an expression of
    columns, as in "0.1*click + purchase" or "value=0.1*click + purchase". `keep` names more columns (or expressions) to
    keep beside the rows: other rewards, keys of requests, what to break results down by. `winsorise` sets this share
    of the largest and of the smallest rewards to their quantile; without `reward_range` the range is then the data's.

    `missing` says what to do where a number of the context is missing (null, not finite, or beyond ±1e100): "drop" the
    row, fill in "zero", or fill in and flag it by an "indicator" column; `{"age": "indicator", "click": "drop"}` says
    it column by column, and `"*"` for all others. A reward, action, cluster or timestamp that is missing is dropped
    with its row only where "drop" is said; a reward may also count as "zero". Where nothing is said it is an error,
    and one error names all problems of a log. Null is an id like any other in a categorical column.

    `candidates` names a column with the list of actions on offer in each row, the shown one among them;
    `candidate_features` name columns of lists with one value for each of them. A table with a row a candidate is read
    with `request` (its id) and `shown` (whether it was the one); a context column that varies within a request then
    describes its candidates. Named requests are the units of independence unless `cluster` names a larger one, and
    errors call them by their ids. `keep_prob` names the probability with which a row was kept in the log, so that it
    stands for 1/keep_prob events; `row_weight` names that number itself.

    Where requests show several actions, a row each, `request` and `position` (counted from 0 or 1) say which is which.
    The position joins the context, and what stands above in the same request is no candidate, unless the log shows an
    action twice in a request. `propensity` is then that of the action given those above.
    """
    schema = LogSchema(
        context=context,
        action=action,
        reward=reward,
        propensity=propensity,
        cluster=cluster,
        timestamp=timestamp,
        kinds={} if kinds is None else kinds,
        missing=missing,
        reward_range=UNIT_RANGE if reward_range is None else reward_range,
        candidates=candidates,
        candidate_features=candidate_features,
        request=request,
        shown=shown,
        position=position,
        keep_prob=keep_prob,
        row_weight=row_weight,
    )
    log = read_rows(source, schema, actions, keep, winsorise).log
    return log.take(~log.duplicates) if drop_duplicates else log


@dataclass(frozen=True)
class Reading:
    """A log as it was read: which rows of its source it holds (None: all), and what was done to them, in words."""

    log: LoggedData
    rows: npt.NDArray[np.int64] | None = None
    notes: tuple[str, ...] = ()


def read_rows(
    source: Source, schema: LogSchema, actions: Any = None, keep: Sequence[str] = (), winsorise: float = 0.0
) -> Reading:
    """Read a log, and say which rows it holds and what was done to its columns.

    The schema's reward, and what to keep beside the rows, may be expressions. Each raw column is freed as soon as it is
    typed.
    """
    table, schema, beside, treated = columns_of(source, schema, keep, winsorise)
    given, notes = given_actions(actions, schema, beside)
    treatment = Treatment(schema.missing, table.origin)
    found = typed_rows(table, schema, given, beside, treatment)
    log = log_of(found, schema, table.origin, given)
    facts = {"reward_name": schema.reward, "treated": treated, "frames": frame_kind(source)}
    return Reading(trusted(LoggedData, **{**vars(log), **facts}), found.rows, (*notes, *treatment.notes))


Beside = dict[str, pl.Series]


def columns_of(
    source: Source, schema: LogSchema, keep: Sequence[str] = (), winsorise: float = 0.0
) -> tuple[Table, LogSchema, Beside, tuple[str, ...]]:
    """The columns that a log is made of, the schema they follow, what is kept beside them, and what was done."""
    needed, formula, kept = needed_columns(schema, keep, source_names(source))
    schema = schema.model_copy(update={"reward": formula.name})
    table = read_table(source, needed, kinds=schema.written)
    if schema.request is not None and schema.position is None:
        table, schema = _by_request(table, schema)
    if schema.position is not None and schema.position not in schema.context:
        joined = {schema.position: "categorical"} | schema.kinds
        schema = schema.model_copy(update={"context": (*schema.context, schema.position), "kinds": joined})
    beside = {one.name: _computed(one, table) for one in kept}
    schema, treated = _with_reward(formula, table, schema, winsorise)
    for name in set(table.series).difference(schema.columns):
        del table.series[name]
    return table, schema, beside, treated


def needed_columns(
    schema: LogSchema, keep: Sequence[str], known: Sequence[str]
) -> tuple[list[str], Expression, list[Expression]]:
    """The columns to read, and how the reward and what is kept are made of them."""
    formula, kept = expression(schema.reward, known), [expression(one, known) for one in dict.fromkeys(keep)]
    plain = [name for name in schema.model_copy(update={"reward": formula.name}).columns if name != formula.name]
    _check_formulas([formula, *kept], known, plain)
    needed = [*plain, *(name for one in (formula, *kept) for name in one.columns)]
    return list(dict.fromkeys(needed)), formula, kept


def _by_request(table: Table, schema: LogSchema) -> tuple[Table, LogSchema]:
    """A table with a row a request, those with a row a candidate included, and its schema: requests are the units."""
    assert schema.request is not None
    units = {"request": None, "shown": None, "cluster": schema.cluster or schema.request}
    if schema.shown is None:
        return known_by_request(table, schema.request), schema.model_copy(update=units)
    asked = (*schema.context, *schema.candidate_features)
    table, varying = one_row_a_request(table, schema.request, schema.shown, schema.action, asked)
    context = tuple(name for name in schema.context if name not in varying)
    if not context:
        raise LogError("Every context column varies within a request, so none is left for the request itself.")
    changes = {"candidates": CANDIDATES, "candidate_features": varying, "context": context}
    return table, schema.model_copy(update=changes | units)


def _check_formulas(formulas: Sequence[Expression], known: Sequence[str], others: Sequence[str]) -> None:
    """Refuse a formula called like a column it is not, and a reward that is made of what the context holds."""
    for one in formulas:
        if not one.is_column and one.name in known:
            raise ParameterError(f"The log has a column {one.name!r}: give the expression another name.")
    reused = next((name for name in formulas[0].columns if not formulas[0].is_column and name in others), None)
    if reused is not None:
        raise ParameterError(f"The column {reused!r} is part of the reward, so it cannot have another role.")


def _computed(formula: Expression, table: Table) -> pl.Series:
    """A column as it was read, or an expression of columns as numbers."""
    origin = table.origin
    if formula.is_column:
        series = table.series[formula.name]
        return typed_text(formula.name, series, None, origin) if origin.is_text else series
    parts = {
        name: numbers(name, table.series[name], origin, parse=origin.is_text).fill_null(np.nan).to_numpy()
        for name in formula.columns
    }
    return pl.Series(formula.name, formula.values(parts))


def _with_reward(
    formula: Expression, table: Table, schema: LogSchema, winsorise: float
) -> tuple[LogSchema, tuple[str, ...]]:
    """Put the reward that a formula and winsorising give among the columns; the range it has then, and a note."""
    reward, origin = formula.name, table.origin
    if not formula.is_column:
        table.series[reward] = _computed(formula, table)
    if not winsorise:
        return schema, ()
    values = numbers(reward, table.series[reward], origin, parse=origin.is_text).fill_null(np.nan)
    clipped, treated = winsorised(reward, values.to_numpy(), winsorise)
    table.series[reward] = pl.Series(reward, clipped)
    there = clipped[np.isfinite(clipped)]
    if schema.reward_range == UNIT_RANGE and len(there):
        schema = schema.model_copy(update={"reward_range": data_range(there)})
    return schema, treated


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


@dataclass(frozen=True)
class Shared:
    """What all shards of a log have in common, which is worked out of all of its rows."""

    actions: ActionTable
    vocabularies: Mapping[str, Vocabulary]
    """Those of categorical columns and bags of the context, by name."""
    offered: Mapping[str, Vocabulary]
    """Those of what is known of candidates."""
    repeats: bool
    """Whether some request shows an action twice."""


def log_of(
    rows: TypedRows, schema: LogSchema, origin: Origin, given: ActionTable | None, shared: Shared | None = None
) -> LoggedData:
    """The log of complete, checked columns; as a shard of a larger log with what all of it shares."""
    roles, offers = rows.roles, rows.offers
    low, high = schema.reward_range
    action_table, sets = given if shared is None else shared.actions, None
    if action_table is None:
        shown = roles["action"]
        action_table = ActionTable(Vocabulary.of(shown) if offers is None else offers.vocabulary(shown))
    codes = owned(codes_in(roles["action"], action_table.vocabulary.ids))
    if offers is not None:
        known = {} if shared is None else shared.offered
        sets = offers.sets(action_table.vocabulary, codes, schema.kinds, known)
    unit = roles.get("cluster", roles.get("request"))
    clusters = None if unit is None else Vocabulary.of(unit)
    cluster = None if clusters is None or unit is None else owned(clusters.encode(unit))
    request, places = _slates(roles, cluster)
    if request is not None and places is not None:
        repeats = shows_repeats(request, codes) if shared is None else shared.repeats
        if not repeats:
            sets = not_yet_shown(request, places, codes, action_table.vocabulary, sets)
    contexts, index = distinct_contexts(rows.context, origin, sets, {} if shared is None else shared.vocabularies)
    return LoggedData(
        contexts=contexts,
        context_index=index,
        action=codes,
        reward=to_unit(roles["reward"].to_numpy(), low, high),
        actions=action_table,
        logging_prob=roles["propensity"].to_numpy() if "propensity" in roles else None,
        cluster=cluster,
        timestamp=roles["timestamp"].cast(pl.Int64).to_numpy() if "timestamp" in roles else None,
        reward_range=(low, high),
        cluster_vocabulary=clusters,
        request=request,
        position=places,
        row_weight=rows.weights,
        kept=rows.kept,
    )


def _slates(roles: Mapping[str, pl.Series], cluster: Codes | None) -> tuple[Codes | None, Codes | None]:
    """The request and the position of each row, where requests show several actions."""
    if "position" not in roles:
        return None, None
    vocabulary = Vocabulary.of(roles["request"])
    request = owned(vocabulary.encode(roles["request"]))

    def named(code: int) -> str:
        return repr(vocabulary.decode([code])[0])

    check_nested(request, cluster, named)
    return request, coded_positions(request, roles["position"].to_numpy(), named)


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
