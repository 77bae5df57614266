"""Which column of a log file plays which role: as the user says, the rest inferred from names and reported."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from offpolicy.errors import LogError, ParameterError
from offpolicy.evaluation import Guardrail, Options
from offpolicy.log import (
    CategoricalColumn,
    Kind,
    LoggedData,
    column_names,
    expanded,
    expression,
    format_of,
    listed,
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
    rewards: tuple[str, ...] = ()
    """Further rewards: columns or [NAME=]EXPRESSION."""
    guardrails: tuple[str, ...] = ()
    """Rewards that must not get worse, as in returns<=+2%."""
    winsorise: float = 0.0
    keep: tuple[str, ...] = ()
    """More columns to keep beside the rows: keys of requests, probabilities, what to break down by."""
    probabilities: tuple[str, ...] = ()
    """Columns with the probabilities of policies, which are no context."""
    key: tuple[str, ...] = ()
    """The columns by which files of policies are joined; () for what both have."""
    notes: tuple[str, ...] = ()
    """What was inferred, in words."""

    def to_json(self) -> dict[str, Any]:
        """The roles, without what they were inferred from."""
        roles = ("action", "reward", "propensity", "cluster", "timestamp", "reward_range")
        actions = self.actions if isinstance(self.actions, str) else None
        plain = {"source": self.source, "context": list(self.context), "kinds": dict(self.kinds), "actions": actions}
        return plain | {name: getattr(self, name) for name in roles}

    @property
    def roles(self) -> tuple[str, ...]:
        """The columns whose roles are known, but for the context."""
        known = (self.action, self.reward, self.propensity)
        return tuple(name for name in known if name is not None)

    @property
    def outcomes(self) -> tuple[str, ...]:
        """What followed a decision besides the reward, as columns or expressions."""
        return (*self.rewards, *(Guardrail.parse(one).what for one in self.guardrails))

    def asked(self, options: Options) -> Options:
        """The options of an evaluation, with the rewards and guardrails of this log."""
        names = tuple(one.partition("=")[0].strip() for one in self.rewards)
        return replace(options, rewards=names, guardrails=self.guardrails, winsorise=self.winsorise)

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
                keep=tuple(dict.fromkeys([*self.outcomes, *self.probabilities, *self.keep])),
                winsorise=self.winsorise,
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
    outcomes = ([] if spec.reward is None else [spec.reward]) + list(spec.outcomes)
    taken |= {name for one in outcomes for name in expression(one, names).columns}
    taken |= set(spec.probabilities)
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
    notes += [said for one in spec.guardrails if (said := Guardrail.parse(one).inferred)]
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
