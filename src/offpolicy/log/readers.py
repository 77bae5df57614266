"""`read_log`: any file or frame becomes a `LoggedData`, and every error in the data is reported here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from offpolicy.errors import LogError, ParameterError
from offpolicy.log.actions import ActionTable
from offpolicy.log.encode import distinct_contexts, numbers
from offpolicy.log.expressions import Expression, expression
from offpolicy.log.features import Kind
from offpolicy.log.frames import frame_kind
from offpolicy.log.ids import Codes, codes_in, owned, trusted
from offpolicy.log.logged_data import LoggedData
from offpolicy.log.offers import CANDIDATES, known_by_request, one_row_a_request
from offpolicy.log.origin import Origin
from offpolicy.log.rewards import data_range, to_unit, winsorised
from offpolicy.log.roles import Beside, TypedRows, given_actions, typed_rows
from offpolicy.log.schema import UNIT_RANGE, LogSchema
from offpolicy.log.slates import check_nested, coded_positions, not_yet_shown, shows_repeats
from offpolicy.log.tables import Table, read_table, source_names
from offpolicy.log.text import typed_text
from offpolicy.log.treatment import Missing, Treatment
from offpolicy.log.vocabulary import Vocabulary

Source: TypeAlias = str | Path | Sequence[str | Path] | Any
"""A path or glob, several of them, or a pandas, polars or arrow frame."""


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
    schema = LogSchema.of(locals())
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
