"""Contexts to be served, from any source, batch by batch, as the encoders of a saved policy read them.

Columns are found by name and read with the kinds of the log that the policy was learned from. Ids are matched with
the ids that the policy knows; in text (CSV) by their spelling, so that what one row holds never changes another.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from offpolicy.log import (
    EVERY,
    IDS,
    BagColumn,
    CategoricalColumn,
    Column,
    FeatureTable,
    Id,
    Origin,
    RawColumns,
    Vocabulary,
    feature_table,
    ids,
    owned,
    source_of,
)
from offpolicy.models import IdColumn, Scorer

Mask = npt.NDArray[np.bool_]


class KnownIds:
    """The ids of a fitted column and, as the last of `vocabulary`, one that stands for every other id."""

    def __init__(self, fitted: Vocabulary) -> None:
        """Find an id that is not among the fitted ones."""
        self.fitted = fitted
        self.vocabulary = Vocabulary(pl.concat([fitted.ids, pl.Series("id", _unused_id(fitted), fitted.ids.dtype)]))
        self._spelled: Vocabulary | None = None

    @property
    def spelled(self) -> Vocabulary:
        """The fitted ids as text."""
        if self._spelled is None:
            self._spelled = Vocabulary(self.fitted.ids.cast(pl.String))
        return self._spelled

    def codes(self, values: Any, *, spelled: bool = False) -> npt.NDArray[np.int32]:
        """The codes of ids in `vocabulary`."""
        codes = (self.spelled if spelled else self.fitted).encode(values)
        return np.where(codes < 0, np.int32(len(self.fitted)), codes)

    def unknown(self, codes: npt.NDArray[np.int32]) -> Mask:
        """Which codes stand for an id that is not known."""
        return np.equal(codes, len(self.fitted))

    @property
    def family(self) -> str | None:
        """What the known ids are: integers, text or booleans; None where there are none but null."""
        return _family(self.fitted.ids)


def _unused_id(fitted: Vocabulary) -> list[Id]:
    """An id of the same type that a vocabulary does not hold: null if it can be; none where all ids are known."""
    known = set(fitted.to_list())
    if None not in known:
        return [None]
    if fitted.ids.dtype == pl.Boolean:
        return [next(flag for flag in (False, True) if flag not in known)] if len(known) < 3 else []
    if fitted.ids.dtype == pl.String:
        return [next(name for name in map("unknown {}".format, count()) if name not in known)]
    return [next(number for number in count() if number not in known)]


def _family(values: pl.Series) -> str | None:
    if values.null_count() == len(values):
        return None
    return {pl.String: "text", pl.Boolean: "booleans"}.get(type(values.dtype), "integers")


@dataclass(frozen=True)
class Encoded:
    """Contexts under the vocabularies of a policy, and for each id column which entries hold an unknown id."""

    table: FeatureTable
    unknown: Mapping[str, Mask]

    def take(self, part: slice) -> "Encoded":
        """The entries of a slice."""
        return Encoded(self.table.take(part), {name: mask[part] for name, mask in self.unknown.items()})


class ContextEncoder:
    """Turns raw columns, or tables with vocabularies of their own, into contexts that a policy knows how to read."""

    def __init__(self, scorer: Scorer, missing: Mapping[str, str] | None = None) -> None:
        """Take the fitted columns of the scorer, and what was done in its log where a number was missing."""
        self.columns = scorer.columns
        self.missing = dict(missing or {})
        self.known = {
            column.name: KnownIds(column.ids.vocabulary) for column in self.columns if isinstance(column, IdColumn)
        }

    @property
    def names(self) -> list[str]:
        """The columns it needs."""
        return [column.name for column in self.columns]

    @property
    def bags(self) -> list[str]:
        """Those of them that are bags."""
        return [column.name for column in self.columns if column.kind == "bag"]

    @property
    def kinds(self) -> dict[str, str]:
        """What they hold, with numbers that are ids told from other ids."""
        ids = {name for name, known in self.known.items() if known.family == "integers"}
        return {one.name: IDS if one.kind == "categorical" and one.name in ids else one.kind for one in self.columns}

    def from_series(
        self, series: Mapping[str, pl.Series], origin: Origin, separators: Mapping[str, str] | None = None
    ) -> Encoded:
        """Encode raw columns; `separators` says how bags written as text are separated in the whole of their file."""
        columns: dict[str, Column] = {}
        for column in self.columns:
            values = series[column.name]
            if column.kind == "categorical":
                columns[column.name] = self._categorical(column.name, values, origin)
            elif column.kind == "bag":
                columns[column.name] = self._bag(column.name, values, origin, (separators or {}).get(column.name))
            else:
                raw = RawColumns({column.name: values}, {column.name: column.kind}, origin)
                columns[column.name] = feature_table(raw, fill=self._is_filled(column.name))[column.name]
        return self._marked(columns)

    def from_table(self, table: FeatureTable) -> Encoded:
        """Encode a table whose columns have vocabularies of their own."""
        columns: dict[str, Column] = {}
        for name in self.names:
            column = table.get(name)
            if isinstance(column, CategoricalColumn | BagColumn) and name in self.known:
                known = self.known[name]
                codes = owned(known.codes(column.vocabulary.ids)[column.codes])
                if isinstance(column, CategoricalColumn):
                    columns[name] = CategoricalColumn(codes, known.vocabulary)
                else:
                    columns[name] = BagColumn(column.offsets, codes, known.vocabulary)
            elif column is not None:
                columns[name] = column  # a column of another kind is refused by the encoder, in its own words
        return self._marked(columns or dict(table))

    def _is_filled(self, name: str) -> bool:
        """Whether missing numbers of a column were filled in in the log, as they then are here."""
        how = self.missing.get(name, self.missing.get(source_of(name), self.missing.get(EVERY)))
        return how in ("zero", "indicator")

    def _categorical(self, name: str, values: pl.Series, origin: Origin) -> CategoricalColumn:
        known = self.known[name]
        if origin.is_text:
            spelling = values.str.to_lowercase() if known.family == "booleans" else values
            return CategoricalColumn(owned(known.codes(spelling, spelled=True)), known.vocabulary)
        typed = ids(name, values, origin)
        self._check_family(name, typed, origin)
        return CategoricalColumn(owned(known.codes(typed)), known.vocabulary)

    def _bag(self, name: str, values: pl.Series, origin: Origin, separator: str | None) -> BagColumn:
        known = self.known[name]
        spelled = values.dtype == pl.String
        if values.dtype == pl.Null:
            values = values.cast(pl.List(pl.String))
        n_rows = len(values)
        if spelled and separator is not None:
            # One more row makes the parser choose the separator of the whole file; its bag is dropped again.
            values = pl.concat([values, pl.Series(values.name, [separator])])
        lists = RawColumns({name: values}, {name: "bag"}, origin).typed(name)[1].head(n_rows)
        sizes = lists.list.len().to_numpy()
        flat = lists.filter(lists.list.len() > 0).explode()
        if not spelled:
            self._check_family(name, flat, origin)
        codes = known.codes(flat.cast(pl.String) if spelled else flat, spelled=spelled)
        offsets = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        return BagColumn(owned(offsets), owned(codes), known.vocabulary)

    def _check_family(self, name: str, values: pl.Series, origin: Origin) -> None:
        known, family = self.known[name].family, _family(values)
        if known is not None and family is not None and family != known:
            remedy = f"Convert the column to {known}; otherwise every one of its ids would be unknown."
            raise origin.bad_column(name, f"holds {family}, but the policy was learned with {known}", remedy)

    def _marked(self, columns: dict[str, Column]) -> Encoded:
        unknown: dict[str, Mask] = {}
        for name, known in self.known.items():
            column = columns.get(name)
            if isinstance(column, CategoricalColumn):
                unknown[name] = known.unknown(column.codes)
            elif isinstance(column, BagColumn):
                strange = np.concatenate(([0], np.cumsum(known.unknown(column.codes))))
                unknown[name] = strange[column.offsets[1:]] > strange[column.offsets[:-1]]
        return Encoded(FeatureTable(columns), unknown)
