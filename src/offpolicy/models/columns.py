"""Fitted columns: numbers standardised by the fitted table, ids matched by their value.

A table with another vocabulary, or the same ids in another order, encodes the same way; an id not seen in
fitting is unknown.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.log import (
    BagColumn,
    CategoricalColumn,
    Column,
    EmbeddingColumn,
    FeatureTable,
    Kind,
    NumericColumn,
    Vocabulary,
)

FURTHEST = 1e6
"""Standard deviations from the mean beyond which a value is cut, so that float32 products stay finite."""

CHUNK = 1 << 20  # numbers standardised at once, to bound the float64 copy
REMEMBERED = 4  # foreign vocabularies whose translation is kept

Floats: TypeAlias = npt.NDArray[np.float64]
Positions: TypeAlias = npt.NDArray[np.int64]


class Bags(NamedTuple):
    """Codes of a variable number of ids per entry; those of entry i are `codes[offsets[i] : offsets[i + 1]]`."""

    codes: Tensor  # (total,)
    offsets: Tensor  # (n + 1,)


Indexed: TypeAlias = Tensor | Bags
"""One column as a tower takes it: codes (n,), numbers (n, width) or bags of codes."""


class IdPositions:
    """Where ids stand in a fitted vocabulary; `len` of it is the position of every unknown id."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Keep the fitted vocabulary."""
        self.vocabulary = vocabulary
        self._tables: tuple[tuple[Vocabulary, Positions], ...] = ()

    def __len__(self) -> int:
        """The number of known ids."""
        return len(self.vocabulary)

    def table(self, vocabulary: Vocabulary) -> Positions:
        """The position of each code of another vocabulary; worked out once for each vocabulary object."""
        for known, table in self._tables:
            if known is vocabulary:
                return table
        positions = self.vocabulary.encode(vocabulary.ids).astype(np.int64)
        positions[positions < 0] = len(self)
        self._tables = ((vocabulary, positions), *self._tables[: REMEMBERED - 1])
        return positions


@dataclass(frozen=True, eq=False)
class NumberColumn:
    """A fitted numeric or embedding column: (x − mean)/scale per dimension, 0 where the fitted data were constant."""

    name: str
    kind: Kind
    mean: Floats  # (width,)
    scale: Floats  # (width,) 0 marks a constant

    @staticmethod
    def fit(name: str, column: NumericColumn | EmbeddingColumn) -> "NumberColumn":
        """Means and standard deviations, scaled first so that huge numbers do not overflow."""
        values = _matrix(column)
        low, high = values.min(0).astype(np.float64), values.max(0).astype(np.float64)
        peak = np.maximum(np.abs(low), np.abs(high))
        unit = np.where(peak > 0, peak, 1.0)
        mean = sum(((values[part] / unit).sum(0) for part in _chunks(values)), np.zeros(len(unit))) / len(values)
        squares = (((values[part] / unit - mean) ** 2).sum(0) for part in _chunks(values))
        scale = np.sqrt(sum(squares, np.zeros(len(unit))) / len(values)) * unit
        return NumberColumn(name, column.kind, mean * unit, np.where(low < high, scale, 0.0))

    @property
    def width(self) -> int:
        """The numbers per entry."""
        return len(self.mean)

    @property
    def names(self) -> list[str]:
        """The name of each number."""
        return [self.name] if self.kind == "numeric" else [f"{self.name}[{i}]" for i in range(self.width)]

    def write(self, table: FeatureTable, out: npt.NDArray[np.float32]) -> None:
        """Fill `out` (n, width) with the standardised numbers."""
        column = _column(table, self.name, self.kind)
        assert isinstance(column, NumericColumn | EmbeddingColumn)
        values = _matrix(column)
        if values.shape[1] != self.width:
            raise ParameterError(
                f"Column {self.name!r} must hold vectors of {self.width} numbers, as when the model was fitted, but "
                f"they have {values.shape[1]}."
            )
        varies = self.scale > 0
        divisor = np.where(varies, self.scale, np.inf)
        with np.errstate(over="ignore"):  # an overflow is cut like any value too far out
            for part in _chunks(values):
                out[part] = np.clip((values[part] - self.mean) / divisor, -FURTHEST, FURTHEST)
        out[:, ~varies] = 0.0

    def indexed(self, table: FeatureTable) -> Tensor:
        """The standardised numbers (n, width)."""
        out = np.empty((table.n_rows, self.width), dtype=np.float32)
        self.write(table, out)
        return torch.from_numpy(out)

    def to_json(self) -> dict[str, Any]:
        """Plain values that `column_from_json` reads."""
        return {"name": self.name, "kind": self.kind, "mean": self.mean.tolist(), "scale": self.scale.tolist()}


@dataclass(frozen=True, eq=False)
class IdColumn:
    """A fitted categorical or bag column: the ids that have a place of their own, and whether others share one."""

    name: str
    kind: Kind
    ids: IdPositions
    other: bool

    @staticmethod
    def fit(name: str, column: CategoricalColumn | BagColumn, most: int | None = None) -> "IdColumn":
        """Keep the ids that occur; with `most`, at most so many places, the rarer ids sharing the last one."""
        count = np.bincount(column.codes, minlength=len(column.vocabulary))
        seen = np.flatnonzero(count)
        ids = column.vocabulary.ids
        if most is None:
            kept = column.vocabulary if len(seen) == len(column.vocabulary) else Vocabulary(ids.gather(seen))
            return IdColumn(name, column.kind, IdPositions(kept), other=True)
        rank = ids.gather(seen).arg_sort(nulls_last=True).arg_sort().to_numpy()
        other = len(seen) > most or len(seen) == 0
        chosen = np.lexsort((rank, -count[seen]))[: most - 1 if other else most]  # ties: the smaller id
        chosen = chosen[np.argsort(rank[chosen])]
        return IdColumn(name, column.kind, IdPositions(Vocabulary(ids.gather(seen[chosen]))), other)

    @property
    def width(self) -> int:
        """The places: one per id, and one for the others if they have one."""
        return len(self.ids) + self.other

    @property
    def names(self) -> list[str]:
        """The name of each place."""
        return [f"{self.name}={i}" for i in self.ids.vocabulary.to_list()] + [f"{self.name}=(other)"] * self.other

    def write(self, table: FeatureTable, out: npt.NDArray[np.float32]) -> None:
        """Add to `out` (n, width), all zeros, one-hot vectors or the mean over each bag of them."""
        column = _column(table, self.name, self.kind)
        assert isinstance(column, CategoricalColumn | BagColumn)
        place = self.ids.table(column.vocabulary)[column.codes]
        if isinstance(column, CategoricalColumn):
            row, share = np.arange(len(column)), np.ones(len(column), dtype=np.float32)
        else:
            size = np.diff(column.offsets)
            row = np.repeat(np.arange(len(column)), size)
            share = (1.0 / np.maximum(size, 1)).astype(np.float32)[row]
        if not self.other:
            known = place < len(self.ids)
            row, place, share = row[known], place[known], share[known]
        np.add.at(out, (row, place), share)

    def indexed(self, table: FeatureTable) -> Indexed:
        """The place of each id, the last one for every unknown id."""
        column = _column(table, self.name, self.kind)
        assert isinstance(column, CategoricalColumn | BagColumn)
        codes = torch.from_numpy(self.ids.table(column.vocabulary)[column.codes])
        return codes if isinstance(column, CategoricalColumn) else Bags(codes, torch.tensor(column.offsets))

    def to_json(self) -> dict[str, Any]:
        """Plain values that `column_from_json` reads."""
        return {"name": self.name, "kind": self.kind, "ids": self.ids.vocabulary.to_list(), "other": self.other}


FittedColumn: TypeAlias = NumberColumn | IdColumn


def column_from_json(recipe: dict[str, Any]) -> FittedColumn:
    """The inverse of a column's `to_json`."""
    name, kind = recipe["name"], recipe["kind"]
    if kind in ("categorical", "bag"):
        return IdColumn(name, kind, IdPositions(Vocabulary.from_list(recipe["ids"])), recipe["other"])
    return NumberColumn(name, kind, np.array(recipe["mean"], dtype=float), np.array(recipe["scale"], dtype=float))


def _column(table: FeatureTable, name: str, kind: Kind) -> Column:
    column = table.get(name)
    if column is None or column.kind != kind:
        problem = "it is missing" if column is None else f"it is {column.kind}"
        raise ParameterError(
            f"Column {name!r} must be {kind}, as when the model was fitted, but {problem}; the table holds "
            f"{', '.join(table)}. Read the new data with the schema of the old."
        )
    return column


def _matrix(column: NumericColumn | EmbeddingColumn) -> npt.NDArray[Any]:
    return column.values[:, None] if isinstance(column, NumericColumn) else column.values


def _chunks(values: npt.NDArray[Any]) -> Iterator[slice]:
    size = max(1, CHUNK // values.shape[1])
    return (slice(start, start + size) for start in range(0, len(values), size))
