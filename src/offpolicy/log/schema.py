"""Which column of a table plays which role."""

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from offpolicy.errors import ParameterError
from offpolicy.log.derived import source_of
from offpolicy.log.features import Kind
from offpolicy.log.rewards import checked_range
from offpolicy.log.spelling import with_ids
from offpolicy.log.treatment import EVERY, Missing

UNIT_RANGE = (0.0, 1.0)
ROLES = ("action", "reward", "propensity", "cluster", "timestamp")
"""Roles that take one column."""
LISTED, LONGEST = 50, 60  # columns that a message lists, and letters it shows of each


def _as_tuple(names: Any) -> Any:
    return (names,) if isinstance(names, str) else tuple(names) if isinstance(names, Iterable) else names


def _by_column(missing: Any) -> Any:
    return {} if missing is None else {EVERY: missing} if isinstance(missing, str) else missing


ColumnName = Annotated[str, Field(min_length=1)]


class LogSchema(BaseModel):
    """The columns of a log by role, and the kinds of its features.

    A feature column whose kind is not declared in `kinds` gets it from its type: floats are numeric; integers,
    strings, booleans and categoricals are categorical; lists of floats are embeddings (they must have one length);
    lists of integers or strings are bags. A declared kind wins: an integer column may be numeric, and text such as
    "1 5 9", "[1, 5, 9]" or "a|b|c" may be a bag or an embedding. In CSV files, where all is text, a column of plainly
    written integers counts as integers, one of other numbers as floats, and anything else as strings. Dates and times,
    also those written as text, are read as their parts: `day:weekday`, `day:hour` and `day:days` (since 1970) of a
    column `day`, each of which can also be named on its own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    context: Annotated[tuple[ColumnName, ...], BeforeValidator(_as_tuple), Field(min_length=1)]
    action: ColumnName
    reward: ColumnName
    propensity: ColumnName | None = None
    cluster: ColumnName | None = None
    timestamp: ColumnName | None = None
    candidates: ColumnName | None = None
    """Lists of the actions on offer; None: all actions."""
    candidate_features: Annotated[tuple[ColumnName, ...], BeforeValidator(_as_tuple)] = ()
    """Columns of lists, one value for each candidate."""
    request: ColumnName | None = None
    """The request of a row: of a candidate, of one of several actions shown, or of the list of candidates."""
    shown: ColumnName | None = None
    """And whether it is the one that was shown."""
    position: ColumnName | None = None
    """Where requests show several actions: the place of each row's action in its request."""
    keep_prob: ColumnName | None = None
    """The probability with which a row was kept: it stands for 1/keep_prob events."""
    row_weight: ColumnName | None = None
    """How many events a row stands for."""
    kinds: dict[str, Kind] = Field(default_factory=dict)
    missing: Annotated[dict[str, Missing], BeforeValidator(_by_column)] = Field(default_factory=dict)
    reward_range: tuple[float, float] = UNIT_RANGE

    def __init__(self, **roles: Any) -> None:
        """Check the roles; what pydantic finds wrong is raised as a `ParameterError`."""
        try:
            super().__init__(**roles)
        except ValidationError as error:
            raise ParameterError(_explained(error)) from None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "LogSchema":
        """The schema that the parameters of a function give, called like the fields; None stands for the default."""
        fields = cls.model_fields.items()
        return cls(**{name: given[name] for name, one in fields if given[name] is not None or one.is_required()})

    @model_validator(mode="after")
    def _roles_make_sense(self) -> "LogSchema":
        twice = [name for name, count in Counter(self.context).items() if count > 1]
        if twice:
            raise ParameterError(f"context names the column {twice[0]!r} twice. Name each column once.")
        roles: dict[str, tuple[str, ...]] = {"context": self.context}
        for role, column in self.roles.items():
            roles[role] = () if column is None else (column,)
        for role in ("action", "reward", "propensity"):  # what was decided or what followed cannot be anything else
            for other, columns in roles.items():
                if other != role and set(columns) & set(roles[role]):
                    raise ParameterError(
                        f"The column {roles[role][0]!r} cannot be both {role} and {other}. Give each its own column."
                    )
        checked_range(self.reward_range)
        if self.shown is not None and self.position is not None:
            raise ParameterError(
                "shown belongs to tables with a row a candidate, position to tables with a row an action shown. Keep "
                "the rows that were shown, and list what was on offer in a column named by candidates."
            )
        alone = self.shown is None and self.position is None
        if self.request is None if not alone else self.request is not None and self.candidates is None:
            raise ParameterError(
                "request needs one more column: shown in a table with a row a candidate, position in one with several "
                "actions shown a request, or candidates. For shown and position: both of these need request. Name the "
                "other column."
            )
        if self.shown is not None and self.candidates is not None:
            raise ParameterError("Candidates are a column of lists or rows of their own, not both: drop one.")
        if self.candidate_features and self.candidates is None and self.request is None:
            raise ParameterError("candidate_features need candidates. Name the column that lists them.")
        if self.keep_prob is not None and self.row_weight is not None:
            raise ParameterError("A row's weight is 1/keep_prob or row_weight, not both: name one of the two columns.")
        return self

    @property
    def roles(self) -> dict[str, str | None]:
        """The column of each role that takes one."""
        return {role: getattr(self, role) for role in ROLES}

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is needed, once each."""
        requests = (self.candidates, self.request, self.shown, self.position, self.keep_prob, self.row_weight)
        named = (name for name in (*self.roles.values(), *requests) if name is not None)
        return tuple(dict.fromkeys([*self.context, *self.candidate_features, *named]))

    @property
    def written(self) -> dict[str, str]:
        """The kinds by which columns of text are read: ids and lists as they are written."""
        ids = (self.action, self.cluster, self.request)
        return with_ids(self.kinds, ids, (self.candidates, *self.candidate_features))

    def check_names(self, columns: Iterable[str]) -> None:
        """Refuse a declared kind, or a treatment of missing values, for a column that is not read."""
        known = list(dict.fromkeys(name for column in columns for name in (column, source_of(column))))
        for option, names in (("kinds", self.kinds), ("missing", self.missing)):
            strange = next((name for name in names if name not in known and name != EVERY), None)
            if strange is not None:
                raise ParameterError(
                    f"{option} declares the column {strange!r}, which is not among the columns read: "
                    f"{listed(known)}.{nearest(strange, known)}"
                )


def nearest(name: str, known: Iterable[str]) -> str:
    """A question that offers the known name closest to `name`, or nothing."""
    names = list(known)
    folded = {candidate.casefold(): candidate for candidate in names}
    near = difflib.get_close_matches(name.casefold(), folded, n=1)
    return f" Did you mean {folded[near[0]]!r}?" if near else ""


def listed(names: Sequence[str]) -> str:
    """Column names for a message: the first ones, each short and on one line."""
    plain = [name if name.isprintable() and name == name.strip() else repr(name) for name in names[:LISTED]]
    shown = [name if len(name) <= LONGEST else f"{name[:LONGEST]}…" for name in plain]
    return ", ".join(shown) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")


def _explained(error: ValidationError) -> str:
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ParameterError):  # raised by our own rules, already a paragraph
        return str(cause)
    where = ".".join(map(str, first["loc"])) or "the schema"
    return f"{where} is not valid: {first['msg']}, but it is {first['input']!r}. See the help of LogSchema."
