"""A log file with the roles of its columns and how it is to be read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from offpolicy.errors import Fix, LogError, ParameterError
from offpolicy.evaluation import Guardrail, Options
from offpolicy.log import (
    KINDS,
    ROLES,
    LoggedData,
    LogSchema,
    Missing,
    Reading,
    Table,
    expression,
    listed,
    nearest,
    open_store,
    read_manifest,
    read_rows,
    with_ids,
)
from offpolicy.progress import progress

Rows = npt.NDArray[np.int64]
TREATMENTS: tuple[Missing, ...] = get_args(Missing)
REQUEST_ROLES = ("candidates", "candidate_features", "request", "shown", "position", "keep_prob", "row_weight")
"""Roles of columns that say what a request offered and how many events a row stands for; never inferred from names."""


@dataclass(frozen=True)
class LogSpec:
    """A log file and the roles of its columns; None and () where they are to be inferred."""

    source: Any
    context: tuple[str, ...] = ()
    action: str | None = None
    reward: str | None = None
    propensity: str | None = None
    cluster: str | None = None
    timestamp: str | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    reward_range: tuple[float, float] | None = None
    actions: Any = None
    exclude: tuple[str, ...] = ()
    """Columns that are not context."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """What to do where a value is missing, by column; `*` stands for all."""
    drop_duplicates: bool = False
    candidates: str | None = None
    candidate_features: tuple[str, ...] = ()
    request: str | None = None
    shown: str | None = None
    position: str | None = None
    keep_prob: str | None = None
    row_weight: str | None = None
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
    memory: int | None = None
    """Bytes that the log may take; None for half of what is free."""
    store: str | None = None
    """The prepared folder that holds the log."""
    table: Table | None = field(default=None, repr=False, compare=False)
    """The columns, where they were read to infer roles from them; used up by `read`."""

    def to_json(self) -> dict[str, Any]:
        """The roles, without what they were inferred from."""
        actions = self.actions if isinstance(self.actions, str) else None
        plain = {"source": self.source, "context": list(self.context), "kinds": dict(self.kinds), "actions": actions}
        roles = {name: getattr(self, name) for name in (*ROLES, "reward_range")}
        offered = {name: getattr(self, name) for name in REQUEST_ROLES if getattr(self, name)}
        return plain | roles | {"missing": dict(self.missing)} | offered

    def fixed(self, fixes: Sequence[Fix]) -> "LogSpec":
        """The same log with the options that fix its problems."""
        values = [(one.option, one.value) for one in fixes]
        missing = dict(value.rsplit("=", 1) for option, value in values if option == "missing")
        kinds = dict(value.rsplit("=", 1) for option, value in values if option == "kind")
        ends = next((value.split(",") for option, value in values if option == "reward_range"), None)
        excluded = [value for option, value in values if option == "exclude"]
        return replace(
            self,
            missing={**self.missing, **missing},
            kinds={**self.kinds, **kinds},
            context=tuple(name for name in self.context if name not in excluded),
            exclude=(*self.exclude, *excluded),
            reward_range=self.reward_range if ends is None else (float(ends[0]), float(ends[1])),
        )

    @property
    def requests(self) -> tuple[str, ...]:
        """The columns that say what was on offer, and how many events a row stands for."""
        single = (self.candidates, self.request, self.shown, self.position, self.keep_prob, self.row_weight)
        return (*(name for name in single if name is not None), *self.candidate_features)

    @property
    def written(self) -> dict[str, str]:
        """The kinds by which columns of text are read: ids and lists as they are written."""
        ids = (self.action, self.cluster, self.request)
        return with_ids(self.kinds, ids, (self.candidates, *self.candidate_features))

    @property
    def roles(self) -> tuple[str, ...]:
        """The columns whose roles are known, but for the context."""
        known = (self.action, self.reward, self.propensity)
        return tuple(name for name in known if name is not None)

    @property
    def outcomes(self) -> tuple[str, ...]:
        """What followed a decision besides the reward, as columns or expressions."""
        return (*self.rewards, *(Guardrail.parse(one).what for one in self.guardrails))

    @property
    def beside(self) -> tuple[str, ...]:
        """Columns and expressions to keep beside the rows."""
        return tuple(dict.fromkeys([*self.outcomes, *self.probabilities, *self.keep]))

    def asked(self, options: Options) -> Options:
        """The options of an evaluation, with the rewards and guardrails of this log."""
        names = tuple(one.partition("=")[0].strip() for one in self.rewards)
        return replace(options, rewards=names, guardrails=self.guardrails, winsorise=self.winsorise)

    def schema(self) -> LogSchema:
        """The columns by role, every role being known."""
        if self.action is None or self.reward is None:
            raise ParameterError("The roles of a log's columns must be resolved before it is read.")
        for name, kind in self.kinds.items():
            if kind not in KINDS:
                raise ParameterError(f"The kind of column {name!r} must be one of {', '.join(KINDS)}, not {kind!r}.")
        for name, how in self.missing.items():
            if how not in TREATMENTS:
                raise ParameterError(f"--missing {name} must be one of {', '.join(TREATMENTS)}, not {how!r}.")
        return LogSchema(
            context=self.context,
            kinds=dict(self.kinds),
            missing=dict(self.missing),
            reward_range=(0.0, 1.0) if self.reward_range is None else self.reward_range,
            **{role: getattr(self, role) for role in (*ROLES, *REQUEST_ROLES)},
        )

    def read(self) -> Reading:
        """The log, every role being known."""
        if self.store is not None:
            return self._opened(self.store)
        schema = self.schema()
        with progress("reading the log", None):
            if self.table is None or not self.table.series:
                return read_rows(self.source, schema, self.actions, self.beside, self.winsorise)
            columns = Table(dict(self.table.series), self.table.origin)
            self.table.series.clear()
            return read_rows(columns, schema, self.actions, self.beside, self.winsorise)

    def _opened(self, store: str) -> Reading:
        """The log of a store, which must keep what the command needs beside the rows."""
        with progress("opening the store", None):
            log = open_store(store)
        kept = [] if log.kept is None else log.kept.columns
        for one in self.beside:
            name = expression(one, kept).name
            if name not in kept:
                raise LogError(
                    f"{store} does not keep the column {name!r}.{nearest(name, kept)} Prepare the log with "
                    f"keep=[{name!r}] (--keep {name}); it keeps {listed(kept) or 'none'}."
                )
        return Reading(log, None, tuple(read_manifest(store)["notes"]))


def without_duplicates(spec: LogSpec, read: Reading) -> tuple[LoggedData, Rows | None, tuple[str, ...]]:
    """The log without repeated rows if that was asked for, the positions of its rows (None: all), and notes."""
    log, rows, notes = read.log, read.rows, read.notes
    if not spec.drop_duplicates or spec.store is not None:
        return log, rows, notes
    own = np.flatnonzero(~log.duplicates)
    dropped = log.n_rows - len(own)
    if not dropped:
        return log, rows, (*notes, "No row is an exact copy of an earlier one: none was dropped.")
    said = f"Dropped {dropped:,} of {log.n_rows:,} rows, exact copies of earlier ones."
    return log.take(own), own if rows is None else rows[own], (*notes, said)


def columns_of(spec: LogSpec, log: LoggedData) -> dict[str, str]:
    """Every column that was read: the kind of a context column, else its role."""
    single = (*ROLES, *(role for role in REQUEST_ROLES if role != "candidate_features"))
    roles = {getattr(spec, role): role for role in single} | dict.fromkeys(spec.candidate_features, "candidate feature")
    kinds: dict[str, str] = {name: column.kind for name, column in log.contexts.items()}
    return {name: role for name, role in roles.items() if name is not None} | kinds
