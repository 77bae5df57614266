"""`read_log`: any file or frame becomes a `LoggedData`, and every error in the data is reported here."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from offpolicy.errors import LogError, ParameterError
from offpolicy.log.actions import ActionTable
from offpolicy.log.encode import RawColumns, distinct_contexts, feature_table, ids, numbers
from offpolicy.log.features import Kind, Vocabulary
from offpolicy.log.ids import UNKNOWN, Codes, codes_in, owned
from offpolicy.log.logged_data import LoggedData
from offpolicy.log.offers import CANDIDATES, Offers, one_row_a_request
from offpolicy.log.origin import Origin
from offpolicy.log.rewards import to_unit
from offpolicy.log.schema import UNIT_RANGE, LogSchema
from offpolicy.log.slates import check_nested, coded_positions, not_yet_shown, shows_repeats
from offpolicy.log.tables import Table, read_table
from offpolicy.log.text import typed_text

Source: TypeAlias = str | Path | Sequence[str | Path] | Any
"""A path or glob, several of them, or a pandas, polars or arrow frame."""

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
    drop_duplicates: bool = False,
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
    column that was read (`log.duplicates` says which are not the first).

    `candidates` names a column with the list of actions on offer in each row, the shown one among them;
    `candidate_features` name columns of lists with one value for each of them. A table with a row a candidate is read
    with `request` (its id) and `shown` (whether it was the one); a context column that varies within a request then
    describes its candidates. `keep_prob` names the probability with which a row was kept in the log, so that it stands
    for 1/keep_prob events; `row_weight` names that number itself.

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
        reward_range=UNIT_RANGE if reward_range is None else reward_range,
        candidates=candidates,
        candidate_features=candidate_features,
        request=request,
        shown=shown,
        position=position,
        keep_prob=keep_prob,
        row_weight=row_weight,
    )
    table = read_table(source, schema.columns)
    if schema.request is not None and schema.shown is not None:
        asked = (*schema.context, *schema.candidate_features)
        table, varying = one_row_a_request(table, schema.request, schema.shown, schema.action, asked)
        context = tuple(name for name in schema.context if name not in varying)
        if not context:
            raise LogError("Every context column varies within a request, so none is left for the request itself.")
        changes = {"candidates": CANDIDATES, "candidate_features": varying, "context": context}
        schema = schema.model_copy(update=changes)
    if schema.position is not None and schema.position not in schema.context:
        kinds_too = {schema.position: "categorical"} | schema.kinds
        schema = schema.model_copy(update={"context": (*schema.context, schema.position), "kinds": kinds_too})
    log = _log_of(table, schema, actions)
    return log.take(~log.duplicates) if drop_duplicates else log


def _log_of(table: Table, schema: LogSchema, actions: Any) -> LoggedData:
    """Encode role by role, freeing each raw column as soon as it is encoded."""
    series, origin = table.series, table.origin
    if not len(series[schema.action]):
        raise LogError(f"{origin.name} holds no rows. A log needs at least one.")
    given = _given_actions(actions, schema)
    features = () if given is None or given.features is None else tuple(given.features)
    schema.check_kinds([*schema.columns, *features])
    low, high = schema.reward_range
    rewards = _quantity(schema.reward, series.pop(schema.reward), (low, high), origin, _reward_rule(schema))
    probs = None
    if schema.propensity is not None:
        smallest = np.nextafter(0.0, 1.0)
        rule = "must hold probabilities in (0, 1]"
        probs = _quantity(schema.propensity, series.pop(schema.propensity), (smallest, 1.0), origin, rule)
    weights = _row_weights(schema, series, origin)
    offers = _offers(schema, series, origin)
    action_table, codes = _coded_actions(schema, series.pop(schema.action), given, origin, offers)
    sets = None if offers is None else offers.sets(action_table.vocabulary, codes, schema.kinds)
    cluster, clusters = _coded_ids(
        schema.cluster or (schema.request if schema.position else None), series, schema, origin
    )
    request, places = _slates(schema, series, origin, cluster)
    if request is not None and places is not None and not shows_repeats(request, codes):
        sets = not_yet_shown(request, places, codes, action_table.vocabulary, sets)
    times = None
    if schema.timestamp is not None:
        times = _instants(schema.timestamp, series[schema.timestamp], origin)
    for name in set(series) - set(schema.context):
        del series[name]
    contexts, index = distinct_contexts(RawColumns(series, schema.kinds, origin), sets)
    return LoggedData(
        contexts=contexts,
        context_index=index,
        action=codes,
        reward=to_unit(rewards, low, high),
        actions=action_table,
        logging_prob=probs,
        cluster=cluster,
        timestamp=times,
        reward_range=(low, high),
        cluster_vocabulary=clusters,
        row_weight=weights,
        request=request,
        position=places,
    )


def _coded_ids(
    column: str | None, series: dict[str, pl.Series], schema: LogSchema, origin: Origin
) -> tuple[Codes | None, Vocabulary | None]:
    """The codes of a column of ids, and what they stand for; None where no column is named."""
    if column is None:
        return None, None
    kind = schema.kinds.get(column)  # a context column may be a number there and an id here
    values = _ids(column, series[column], kind if kind == "categorical" else None, origin)
    vocabulary = Vocabulary.of(values)
    return owned(vocabulary.encode(values)), vocabulary


def _slates(
    schema: LogSchema, series: dict[str, pl.Series], origin: Origin, cluster: Codes | None
) -> tuple[Codes | None, Codes | None]:
    """The request and the position of each row, where requests show several actions."""
    if schema.position is None:
        return None, None
    request, vocabulary = _coded_ids(schema.request, series, schema, origin)
    assert request is not None
    assert vocabulary is not None
    rule = "must hold the place of each action in its request, a number of at least 0"
    places = _quantity(schema.position, series[schema.position], (0.0, 2.0**31 - 1), origin, rule)

    def named(code: int) -> str:
        return repr(vocabulary.decode([code])[0])

    check_nested(request, cluster, named)
    return request, coded_positions(request, places, named)


def _offers(schema: LogSchema, series: dict[str, pl.Series], origin: Origin) -> Offers | None:
    """The candidates of every row, where the schema names them."""
    if schema.candidates is None:
        return None
    features = {name: series.pop(name) for name in schema.candidate_features}
    return Offers.read(schema.candidates, series.pop(schema.candidates), features, schema.kinds, origin)


def _row_weights(schema: LogSchema, series: dict[str, pl.Series], origin: Origin) -> npt.NDArray[np.float64] | None:
    """How many events each row stands for, where the schema says."""
    if schema.keep_prob is not None:
        rule = "must hold the probabilities, in (0, 1], with which rows were kept"
        bounds = (np.nextafter(0.0, 1.0), 1.0)
        return np.asarray(1 / _quantity(schema.keep_prob, series[schema.keep_prob], bounds, origin, rule))
    if schema.row_weight is None:
        return None
    rule = "must hold how many events a row stands for, a number of at least 0"
    bounds = (0.0, float(np.finfo(np.float64).max))
    return _quantity(schema.row_weight, series[schema.row_weight], bounds, origin, rule)


def _reward_rule(schema: LogSchema) -> str:
    low, high = schema.reward_range
    return f"must hold rewards in [{low:g}, {high:g}]"


def _quantity(
    column: str, series: pl.Series, bounds: tuple[float, float], origin: Origin, rule: str
) -> npt.NDArray[np.float64]:
    """The numbers of a column, every one of them within the bounds."""
    values = numbers(column, series, origin, parse=origin.is_text)
    array = (values.fill_null(np.nan) if values.null_count() else values).to_numpy()
    low, high = bounds
    if not (array.min() >= low and array.max() <= high):  # NaN fails both
        row = int(np.argmin((array >= low) & (array <= high)))
        remedy = DROP
        if rule.startswith("must hold rewards") and np.isfinite(array[row]):
            remedy = "Fix the value, or declare the range of your rewards with reward_range=(low, high)."
        raise origin.bad_value(column, row, series[row], rule, remedy)
    return array


def _ids(column: str, series: pl.Series, kind: Kind | None, origin: Origin, *, spelled: bool = False) -> pl.Series:
    """The ids of a column that must name something in every row."""
    if kind not in (None, "categorical"):
        raise ParameterError(f"kinds declares {column!r} {kind}, but the column holds ids. Declare it categorical.")
    if origin.is_text and not spelled:
        series = typed_text(column, series, kind, origin)
    values = ids(column, series, origin)
    if values.null_count():
        row = values.is_null().arg_max() or 0
        raise origin.bad_value(column, row, None, "must hold an id in every row", DROP)
    return values


def _given_actions(actions: Any, schema: LogSchema) -> ActionTable | None:
    """The action table that the user gave, from a table, a vocabulary, ids, a file or a frame."""
    if actions is None or isinstance(actions, ActionTable):
        return actions
    if isinstance(actions, Vocabulary):
        return ActionTable(actions)
    if isinstance(actions, int) and not isinstance(actions, bool):
        actions = range(actions)
    if isinstance(actions, range | list | tuple | set | np.ndarray | pl.Series):
        return ActionTable(Vocabulary(sorted(actions) if isinstance(actions, set) else actions))
    table = read_table(actions, (schema.action,), everything=True, argument="actions")
    series, origin = table.series, table.origin
    named = _ids(schema.action, series.pop(schema.action), schema.kinds.get(schema.action), origin)
    if named.n_unique() != len(named):
        row = (~named.is_first_distinct()).arg_max() or 0
        raise origin.bad_value(schema.action, row, named[row], "must name each action once", "Drop the repetition.")
    features = feature_table(RawColumns(series, schema.kinds, origin)) if series and len(named) else None
    return ActionTable(Vocabulary(named), features)


def _coded_actions(
    schema: LogSchema, series: pl.Series, given: ActionTable | None, origin: Origin, offers: Offers | None = None
) -> tuple[ActionTable, Codes]:
    column = schema.action
    # Where the given ids are text, a CSV column is matched by its spelling and not typed first.
    spelled = given is not None and given.vocabulary.ids.dtype == pl.String
    values = _ids(column, series, schema.kinds.get(column), origin, spelled=spelled)
    table = given
    if table is None:
        vocabulary = Vocabulary.of(values) if offers is None else offers.vocabulary(values)
        if len(vocabulary) < 2:
            problem = f"holds a single action, {vocabulary.to_list()[0]!r}, so there is nothing to choose"
            raise origin.bad_column(column, problem, "Give actions=[...] if more actions were possible.")
        table = ActionTable(vocabulary)
    codes = codes_in(values, table.vocabulary.ids)
    if codes.min() == UNKNOWN:
        row = int(codes.argmin())
        rule = f"must hold one of the {len(table)} ids in actions"
        kind_of_ids = table.vocabulary.ids.dtype
        remedy = f"Add it to actions (whose ids are of type {kind_of_ids}) or drop the row."
        raise origin.bad_value(column, row, values[row], rule, remedy)
    return table, owned(codes)


def _instants(column: str, series: pl.Series, origin: Origin) -> npt.NDArray[np.int64]:
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
    if values.null_count():
        row = values.is_null().arg_max() or 0
        raise origin.bad_value(column, row, series[row], "must hold a timestamp in every row", DROP)
    return values.cast(pl.Int64).to_numpy()
