"""Which column of a log file plays which role: as the user says, the rest inferred from names and reported."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from offpolicy.errors import LogError, ParameterError
from offpolicy.log import (
    CategoricalColumn,
    Kind,
    LoggedData,
    VowpalLog,
    column_names,
    expanded,
    format_of,
    listed,
    nearest,
    numbers,
    range_of_rewards,
    read_log,
    read_table,
    vowpal_log,
)
from offpolicy.progress import progress

Rows = npt.NDArray[np.int64]
KINDS: tuple[Kind, ...] = ("numeric", "categorical", "embedding", "bag")
NAMES: Mapping[str, tuple[str, ...]] = {
    "action": ("action", "action_id", "item", "item_id", "arm", "arm_id", "chosen_action", "shown", "variant"),
    "reward": ("reward", "click", "clicked", "clicks", "is_click", "converted", "conversion", "rating", "label"),
    "propensity": (
        "propensity",
        "pscore",
        "propensity_score",
        "logging_prob",
        "action_prob",
        "probability",
        "prob",
        "p",
    ),
    "timestamp": ("timestamp", "time", "ts", "datetime", "date", "event_time"),
}
"""Column names that imply a role, the most specific first; case is ignored."""
REQUEST_ROLES = ("candidates", "candidate_features", "request", "shown", "position", "keep_prob", "row_weight")
"""Roles of columns that say what a request offered and how many events a row stands for; never inferred from names."""
ROW_NUMBERS = ("", "index", "unnamed: 0", "__index_level_0__", "row", "row_id", "event_id", "eventid", "impression_id")
"""Columns that number rows and say nothing about a context."""


@dataclass(frozen=True)
class LogSpec:
    """A log file and the roles of its columns; None and () where they are to be inferred."""

    source: str
    context: tuple[str, ...] = ()
    action: str | None = None
    reward: str | None = None
    propensity: str | None = None
    cluster: str | None = None
    timestamp: str | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    reward_range: tuple[float, float] | None = None
    actions: Any = None
    drop_duplicates: bool = False
    candidates: str | None = None
    candidate_features: tuple[str, ...] = ()
    request: str | None = None
    shown: str | None = None
    position: str | None = None
    keep_prob: str | None = None
    row_weight: str | None = None
    notes: tuple[str, ...] = ()
    """What was inferred, in words."""

    def to_json(self) -> dict[str, Any]:
        """The roles, without what they were inferred from."""
        roles = ("action", "reward", "propensity", "cluster", "timestamp", "reward_range")
        actions = self.actions if isinstance(self.actions, str) else None
        plain = {"source": self.source, "context": list(self.context), "kinds": dict(self.kinds), "actions": actions}
        offered = {name: getattr(self, name) for name in REQUEST_ROLES if getattr(self, name)}
        return plain | {name: getattr(self, name) for name in roles} | offered

    def read(self) -> LoggedData:
        """The log, every role being known."""
        if self.action is None or self.reward is None:
            raise ParameterError("The roles of a log's columns must be resolved before it is read.")
        for name, kind in self.kinds.items():
            if kind not in KINDS:
                raise ParameterError(f"The kind of column {name!r} must be one of {', '.join(KINDS)}, not {kind!r}.")
        with progress("reading the log", None):
            return read_log(
                self.source,
                context=self.context,
                action=self.action,
                reward=self.reward,
                propensity=self.propensity,
                cluster=self.cluster,
                timestamp=self.timestamp,
                kinds=cast("dict[str, Kind]", dict(self.kinds)),
                actions=self.actions,
                reward_range=self.reward_range,
                **{name: getattr(self, name) for name in REQUEST_ROLES},
            )


def without_duplicates(spec: LogSpec, log: LoggedData) -> tuple[LoggedData, Rows | None, tuple[str, ...]]:
    """The log without repeated rows if that was asked for, the positions of its rows (None: all), and a note."""
    if not spec.drop_duplicates:
        return log, None, ()
    rows = np.flatnonzero(~log.duplicates)
    dropped = log.n_rows - len(rows)
    if not dropped:
        return log, None, ("No row is an exact copy of an earlier one: none was dropped.",)
    return log.take(rows), rows, (f"Dropped {dropped:,} of {log.n_rows:,} rows, exact copies of earlier ones.",)


def resolve(spec: LogSpec) -> LogSpec:
    """The same log with every role filled in; `notes` say which were inferred, and how costs became rewards."""
    path = expanded(spec.source)[0]
    form = format_of(path)
    names = column_names(path, form)
    notes: list[str] = []
    if form == "dsjson" or form == "cb":
        found = vowpal_log(expanded(spec.source), form)
        spec, names = _with_candidates(spec, found), found.frame.columns
        notes += found.notes
        if spec.candidates is not None:
            notes.append("candidates: those listed with each decision")
    given = {role: getattr(spec, role) for role in ("action", "reward", "propensity", "cluster", "timestamp")}
    taken = {*spec.context, *(name for name in given.values() if name is not None), *spec.candidate_features}
    taken |= {getattr(spec, role) for role in REQUEST_ROLES if role != "candidate_features" and getattr(spec, role)}
    for role, candidates in NAMES.items():
        if given[role] is None:
            given[role] = _named_like(candidates, [name for name in names if name not in taken])
            if given[role] is not None:
                taken.add(given[role])
                notes.append(f"{role}: {given[role]} (by its name)")
    for role in ("action", "reward"):
        if given[role] is None:
            raise LogError(
                f"{path} has no column whose name suggests the {role}. Name it with --{role}; the columns are: "
                f"{listed(names)}."
            )
    context = spec.context
    if not context:
        context = tuple(name for name in names if name not in taken and name.lower() not in ROW_NUMBERS)
        left_out = [repr(name) for name in names if name not in taken and name.lower() in ROW_NUMBERS]
        notes.append(f"context: {', '.join(context)} (every other column)")
        if left_out:
            notes.append(f"left out: {', '.join(left_out)} (a row number)")
    if not context:
        raise LogError(f"{path} has no column left for the context, which is what a policy decides by. Add one.")
    resolved = replace(spec, context=context, **given)
    if form in ("dsjson", "cb") and spec.reward_range is None and resolved.reward == "reward":
        limits = range_of_rewards(found, spec.source)
        note = "−cost, costs being in [−1, 0]" if limits == (0.0, 1.0) else "−cost in [−1, 0], costs being in [0, 1]"
        resolved, notes = replace(resolved, reward_range=limits), [*notes, f"reward: {note}"]
    return replace(resolved, notes=(*spec.notes, *notes))


def _with_candidates(spec: LogSpec, found: VowpalLog) -> LogSpec:
    """The roles that Vowpal Wabbit's files tell themselves, where the user says nothing else."""
    roles = found.roles
    if "keep_prob" in roles and spec.keep_prob is None and spec.row_weight is None:
        spec = replace(spec, keep_prob="keep_prob")
    if "candidates" not in roles or spec.candidates is not None:
        return spec
    actions = found.actions if spec.actions is None else spec.actions
    return replace(spec, candidates="candidates", candidate_features=found.candidate_features, actions=actions)


def _named_like(candidates: tuple[str, ...], names: list[str]) -> str | None:
    folded = {name.lower().strip(): name for name in reversed(names)}
    return next((folded[candidate] for candidate in candidates if candidate in folded), None)


def probability_column(spec: LogSpec, column: str) -> pl.Series:
    """π(a|x) of every logged row, from a column of the log."""
    path = expanded(spec.source)[0]
    names = column_names(path, format_of(path))
    if column not in names:
        raise LogError(
            f"The policy {column!r} is neither a folder with a saved policy, nor 'uniform', nor a column of {path}."
            f"{nearest(column, names)} Its columns are: {listed(names)}."
        )
    table = read_table(spec.source, (column,))
    values = numbers(column, table.series[column], table.origin, parse=table.origin.is_text)
    bad = ~values.fill_null(-1.0).fill_nan(-1.0).is_between(0.0, 1.0)
    if bad.any():
        row = bad.arg_max() or 0
        rule = "must hold probabilities in [0, 1]"
        raise table.origin.bad_value(column, row, values[row], rule, "Fix the value or drop the row.")
    return values


def kind_notes(spec: LogSpec, log: LoggedData) -> tuple[str, ...]:
    """A note on integer columns, which are read as ids unless declared otherwise."""
    taken = [
        name
        for name, column in log.contexts.items()
        if name not in (*spec.kinds, spec.position)
        and isinstance(column, CategoricalColumn)
        and column.vocabulary.ids.dtype.is_integer()
    ]
    if not taken:
        return ()
    return (
        f"categorical: {', '.join(taken)} (integers, read as ids; --kind {taken[0]}=numeric if they are quantities)",
    )


def columns_of(spec: LogSpec, log: LoggedData) -> dict[str, str]:
    """Every column that was read: the kind of a context column, else its role."""
    single = ("action", "reward", "propensity", "cluster", "timestamp")
    requests = ("request", "shown", "position", "keep_prob", "row_weight", "candidates")
    roles = {getattr(spec, role): role for role in (*single, *requests)}
    roles |= dict.fromkeys(spec.candidate_features, "candidate feature")
    kinds: dict[str, str] = {name: column.kind for name, column in log.contexts.items()}
    return {name: role for name, role in roles.items() if name is not None} | kinds
