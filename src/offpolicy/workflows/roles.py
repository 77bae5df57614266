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
    column_names,
    expanded,
    format_of,
    listed,
    nearest,
    numbers,
    read_log,
    read_table,
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
ROW_NUMBERS = ("", "index", "unnamed: 0", "__index_level_0__", "row", "row_id", "event_id", "eventid", "impression_id")
"""Columns that number rows and say nothing about a context."""
RECORDED, RECORDED_PREFIX = ("request_id", "candidates", "keep_prob"), "decision_"
"""Columns of the record of a served decision, as `offpolicy collect` names them."""


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
    notes: tuple[str, ...] = ()
    """What was inferred, in words."""

    def to_json(self) -> dict[str, Any]:
        """The roles, without what they were inferred from."""
        roles = ("action", "reward", "propensity", "cluster", "timestamp", "reward_range")
        actions = self.actions if isinstance(self.actions, str) else None
        plain = {"source": self.source, "context": list(self.context), "kinds": dict(self.kinds), "actions": actions}
        return plain | {name: getattr(self, name) for name in roles}

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
    given = {role: getattr(spec, role) for role in ("action", "reward", "propensity", "cluster", "timestamp")}
    taken = {*spec.context, *(name for name in given.values() if name is not None)}
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
        free = [name for name in names if name not in taken]
        numbered = [name for name in free if name.lower() in ROW_NUMBERS]
        recorded = [name for name in free if name in RECORDED or name.startswith(RECORDED_PREFIX)]
        context = tuple(name for name in free if name not in numbered and name not in recorded)
        notes.append(f"context: {', '.join(context)} (every other column)")
        for why, left_out in (("a row number", numbered), ("the record of a decision", recorded)):
            if left_out:
                notes.append(f"left out: {', '.join(map(repr, left_out))} ({why})")
    if not context:
        raise LogError(f"{path} has no column left for the context, which is what a policy decides by. Add one.")
    resolved = replace(spec, context=context, **given)
    if form in ("dsjson", "cb") and spec.reward_range is None and resolved.reward == "reward":
        limits, note = _range_of_costs(spec.source)
        resolved, notes = replace(resolved, reward_range=limits), [*notes, note]
    return replace(resolved, notes=(*spec.notes, *notes))


def _named_like(candidates: tuple[str, ...], names: list[str]) -> str | None:
    folded = {name.lower().strip(): name for name in reversed(names)}
    return next((folded[candidate] for candidate in candidates if candidate in folded), None)


def _range_of_costs(source: str) -> tuple[tuple[float, float], str]:
    """The range of −cost where costs keep to [−1, 0] or to [0, 1]."""
    reward = read_table(source, ("reward",)).series["reward"]
    low, high = cast("float", reward.min()), cast("float", reward.max())
    if low >= 0 and high <= 1:
        return (0.0, 1.0), "reward: −cost, costs being in [−1, 0]"
    if low >= -1 and high <= 0:
        return (-1.0, 0.0), "reward: −cost in [−1, 0], costs being in [0, 1]"
    raise LogError(
        f"{source}: rewards are −cost and reach from {low:g} to {high:g}. Declare the range they can have with "
        f"--reward-range {low:g},{high:g} (or a wider one)."
    )


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
        if name not in spec.kinds and isinstance(column, CategoricalColumn) and column.vocabulary.ids.dtype.is_integer()
    ]
    if not taken:
        return ()
    return (
        f"categorical: {', '.join(taken)} (integers, read as ids; --kind {taken[0]}=numeric if they are quantities)",
    )


def columns_of(spec: LogSpec, log: LoggedData) -> dict[str, str]:
    """Every column that was read: the kind of a context column, else its role."""
    roles = {getattr(spec, role): role for role in ("action", "reward", "propensity", "cluster", "timestamp")}
    kinds: dict[str, str] = {name: column.kind for name, column in log.contexts.items()}
    return {name: role for name, role in roles.items() if name is not None} | kinds
