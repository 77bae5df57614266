"""From columns to candidate sets: a list column with lists of features beside it, or a table with a row a candidate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from offpolicy.errors import LogError
from offpolicy.log.candidates import Candidates
from offpolicy.log.encode import RawColumns, feature_table
from offpolicy.log.features import FeatureTable, Kind
from offpolicy.log.ids import Codes, codes_in
from offpolicy.log.origin import Origin, Part, shown
from offpolicy.log.tables import Table
from offpolicy.log.vocabulary import Vocabulary

CANDIDATES = "(candidates)"
"""The column of lists that a table with a row a candidate is turned into."""
TRUE, FALSE = ("1", "1.0", "true", "yes"), ("0", "0.0", "false", "no", "")


@dataclass(frozen=True)
class Offers:
    """The candidates of every row as they were read: ids, how many each row has, and features of each."""

    column: str
    ids: pl.Series  # (total,)
    sizes: npt.NDArray[np.int64]  # (rows,)
    features: Mapping[str, pl.Series]
    origin: Origin

    @classmethod
    def read(
        cls, column: str, lists: pl.Series, features: Mapping[str, pl.Series], kinds: Mapping[str, Kind], origin: Origin
    ) -> "Offers":
        """Refuse rows without candidates, with the same one twice, or with more features than candidates or fewer."""
        typed = RawColumns({column: lists}, {column: "bag"}, origin).typed(column)[1]
        sizes = typed.list.len().cast(pl.Int64).to_numpy()
        _refuse(sizes == 0, column, typed, origin, "must name at least one candidate", "Drop the row.")
        twice = (typed.list.n_unique() != typed.list.len()).to_numpy()
        _refuse(twice, column, typed, origin, "must name each candidate once", "Drop the repetition.")
        ids = typed.explode()
        if ids.null_count():
            owner = np.repeat(np.arange(len(sizes)), sizes)
            nulls = np.zeros(len(sizes), dtype=np.bool_)
            nulls[owner[ids.is_null().to_numpy()]] = True
            _refuse(nulls, column, typed, origin, "must hold ids", "Fill the id in or drop the row.")
        flat = {}
        for name, series in features.items():
            own = _as_lists(name, series, origin)
            unequal = (own.list.len().fill_null(0).cast(pl.Int64) != pl.Series(sizes)).to_numpy()
            rule = f"must hold one value for each candidate in {column!r}"
            _refuse(unequal, name, own, origin, rule, "Fix the row or drop it.")
            flat[name] = own.explode()
        return cls(column, ids, sizes, flat, origin)

    def take(self, rows: npt.NDArray[np.int64]) -> "Offers":
        """Those of some rows."""
        sizes = self.sizes[rows]
        starts, ends = (np.cumsum(self.sizes) - self.sizes)[rows], np.cumsum(sizes)
        flat = pl.Series(np.repeat(starts - (ends - sizes), sizes) + np.arange(int(sizes.sum())))
        features = {name: values.gather(flat) for name, values in self.features.items()}
        return Offers(self.column, self.ids.gather(flat), sizes, features, self.origin)

    def vocabulary(self, shown_ids: pl.Series) -> Vocabulary:
        """All actions that were shown or on offer."""
        ids = self.ids
        if ids.dtype != shown_ids.dtype:
            if ids.dtype == pl.String or shown_ids.dtype == pl.String:
                problem = f"holds ids of type {ids.dtype}, but the actions shown are {shown_ids.dtype}"
                raise self.origin.bad_column(self.column, problem, "Write both with one type.")
            ids = ids.cast(shown_ids.dtype)
        return Vocabulary.of(pl.concat([shown_ids.rename("id"), ids.rename("id")]))

    def feature_table(
        self, kinds: Mapping[str, Kind], vocabularies: Mapping[str, Vocabulary] = MappingProxyType({})
    ) -> FeatureTable | None:
        """The features of all candidates one after another; None where there are none."""
        if not self.features:
            return None
        owner = np.repeat(np.arange(len(self.sizes)), self.sizes)
        flat = Origin(
            (_Flat(self.origin.name, len(owner), None, _mark(self.origin), self.origin.parts[0].start, owner),)
        )
        own = {name: kind for name, kind in kinds.items() if name in self.features}
        return feature_table(RawColumns(dict(self.features), own, flat), vocabularies=vocabularies)

    def sets(
        self,
        vocabulary: Vocabulary,
        action: Codes,
        kinds: Mapping[str, Kind],
        vocabularies: Mapping[str, Vocabulary] = MappingProxyType({}),
    ) -> Candidates:
        """The candidates of every row, the one that was shown among them."""
        codes = codes_in(self.ids.cast(vocabulary.ids.dtype), vocabulary.ids)
        owner = np.repeat(np.arange(len(self.sizes)), self.sizes)
        if (codes < 0).any():
            place = int(np.argmax(codes < 0))
            rule = f"must hold ids among the {len(vocabulary)} actions given"
            remedy = "Add the id to actions, or drop the candidate."
            raise self.origin.bad_value(self.column, int(owner[place]), self.ids[place], rule, remedy)
        offsets = np.concatenate(([0], np.cumsum(self.sizes)))
        sets = Candidates.of(offsets, codes, vocabulary, self.feature_table(kinds, vocabularies))
        missing = sets.places(np.arange(len(sets)), action) < 0
        if missing.any():
            row = int(np.argmax(missing))
            offered = self.ids[int(offsets[row]) : int(offsets[row + 1])].to_list()
            named = vocabulary.decode([int(action[row])])[0]
            rule = f"must hold the action that was shown, {named!r}"
            raise self.origin.bad_value(self.column, row, offered, rule, "Fix the set or drop the row.")
        return sets


@dataclass(frozen=True)
class _Flat(Part):
    """Candidates one after another, each in the row that it belongs to."""

    owner: npt.NDArray[np.int64] | None = None

    def place(self, row: int) -> str:
        """The row of the log."""
        return super().place(row if self.owner is None else int(self.owner[row]))


@dataclass(frozen=True)
class RequestPart(Part):
    """Requests that were read as one row a candidate, known by their own ids."""

    requests: Sequence[Any] = ()

    def place(self, row: int) -> str:
        """The request's own id."""
        return f"request {self.requests[row]!r}"


def _mark(origin: Origin) -> str | None:
    return next((part.separator for part in origin.parts if part.separator is not None), None)


def _refuse(bad: npt.NDArray[Any], column: str, lists: pl.Series, origin: Origin, rule: str, remedy: str) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        raise origin.bad_value(column, row, lists[row], rule, remedy)


def _as_lists(name: str, series: pl.Series, origin: Origin) -> pl.Series:
    if isinstance(series.dtype, pl.Array):
        return series.cast(pl.List(series.dtype.inner))
    if series.dtype == pl.String:
        from offpolicy.log.text import split_text

        return split_text(series)
    if not isinstance(series.dtype, pl.List):
        problem = f"must hold a list with one value for each candidate, but it is of type {series.dtype}"
        raise origin.bad_column(name, problem, "Give lists, or take it for a context column.")
    return series


def one_row_a_request(
    table: Table, request: str, chosen: str, action: str, features: Sequence[str] = ()
) -> tuple[Table, tuple[str, ...]]:
    """A table with a row a candidate as one with a row a request, and which columns describe candidates.

    A column that varies within a request describes its candidates and becomes a column of lists; all others are those
    of the candidate that was shown.
    """
    series, origin = table.series, table.origin
    ids = _requests(request, table)
    distinct = ids.unique(maintain_order=True)
    owner = codes_in(ids, distinct)
    order = np.argsort(owner, kind="stable")
    sizes = np.bincount(owner, minlength=len(distinct))
    is_shown = flags(chosen, series.pop(chosen), origin)
    taken = np.bincount(owner, is_shown, len(distinct))
    for bad, said in ((taken > 1, "more than one candidate"), (taken == 0, "no candidate")):
        if bad.any():
            named = distinct[int(np.argmax(bad))]
            raise LogError(
                f"{origin.name}: column {chosen!r} marks {said} of request {shown(named)} as shown. A request "
                "shows one action: fix its rows or drop them."
            )
    rows = np.flatnonzero(is_shown)[np.argsort(owner[is_shown], kind="stable")]
    part = RequestPart(origin.name, len(distinct), None, _mark(origin), requests=distinct.to_list())
    collapsed, varying = {CANDIDATES: _lists(series[action].gather(order), sizes)}, []
    for name, values in series.items():
        own = values.gather(rows)
        if name != action and name in features and not own.gather(pl.Series(owner)).eq_missing(values).all():
            collapsed[name] = _lists(values.gather(order), sizes)
            varying.append(name)
        else:
            collapsed[name] = own
    return Table(collapsed, Origin((part,))), tuple(varying)


def known_by_request(table: Table, request: str) -> Table:
    """A table with a row a request, whose rows are called by the request in what is said of them."""
    ids = _requests(request, table)
    if ids.is_duplicated().any():
        named = ids.filter(ids.is_duplicated())[0]
        raise LogError(
            f"{table.origin.name}: request {shown(named)} has more than one row, so it shows more than one action. "
            "Name the column with the place of each (position), or drop a row."
        )
    part = RequestPart(table.origin.name, len(ids), None, _mark(table.origin), requests=ids.to_list())
    return Table(table.series, Origin((part,)))


def _requests(request: str, table: Table) -> pl.Series:
    """The request of every row."""
    ids = table.series[request]
    if ids.null_count():
        row = ids.is_null().arg_max() or 0
        raise table.origin.bad_value(request, row, None, "must name the request of every row", "Drop the row.")
    return ids


def _lists(values: pl.Series, sizes: npt.NDArray[np.int64]) -> pl.Series:
    frame = pl.DataFrame({"owner": np.repeat(np.arange(len(sizes)), sizes), "value": values})
    return frame.group_by("owner", maintain_order=True).agg("value")["value"]


def flags(column: str, series: pl.Series, origin: Origin) -> npt.NDArray[np.bool_]:
    """Whether each value says yes."""
    if series.dtype == pl.Boolean:
        return series.fill_null(False).to_numpy()
    text = series.cast(pl.String).fill_null("").str.strip_chars().str.to_lowercase()
    odd = ~text.is_in([*TRUE, *FALSE])
    if odd.any():
        row = odd.arg_max() or 0
        rule = "must say of each candidate whether it was shown (true or false, 1 or 0)"
        raise origin.bad_value(column, row, series[row], rule, "Fix the value.")
    return text.is_in(list(TRUE)).to_numpy()
