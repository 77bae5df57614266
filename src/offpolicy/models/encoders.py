"""From feature tables to tensors: a design matrix for linear models, integer codes for embeddings; fitted once."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offpolicy.checks import Range, check_number
from offpolicy.errors import ParameterError
from offpolicy.log import BagColumn, CategoricalColumn, FeatureTable
from offpolicy.models.columns import FittedColumn, IdColumn, Indexed, NumberColumn, column_from_json

MAX_CATEGORIES = 64
"""Columns a categorical or bag may take in a design matrix unless the caller says otherwise."""


@dataclass(frozen=True, eq=False)
class DesignMatrix:
    """A table as one matrix: numbers standardised, ids one-hot, bags as the mean of one-hot vectors.

    A categorical or bag with more than `max_categories` ids keeps the most frequent ones and gathers the rest, and
    every unknown id, in a last place; where all ids fit, an unknown one is a row of zeros. A `quadratic` design adds
    the product of every two of these places.
    """

    columns: tuple[FittedColumn, ...]
    quadratic: bool = False
    width: int = field(init=False)

    def __post_init__(self) -> None:
        """Count the width."""
        plain = sum(column.width for column in self.columns)
        object.__setattr__(self, "width", plain + plain * (plain + 1) // 2 if self.quadratic else plain)

    @staticmethod
    def fit(table: FeatureTable, max_categories: int = MAX_CATEGORIES, *, quadratic: bool = False) -> "DesignMatrix":
        """Means, scales and frequent ids of every column of a table."""
        check_number("max_categories", max_categories, Range(2, np.inf, integer=True))
        return DesignMatrix(_fitted(table, int(max_categories)), quadratic)

    def encode(self, table: FeatureTable) -> Tensor:
        """The matrix (n, width), float32."""
        plain = self._plain(table)
        if not self.quadratic:
            return plain
        left, right = torch.tril_indices(plain.shape[1], plain.shape[1])
        return torch.cat([plain, plain[:, left] * plain[:, right]], 1)

    def _plain(self, table: FeatureTable) -> Tensor:
        out = np.zeros((table.n_rows, sum(column.width for column in self.columns)), dtype=np.float32)
        start = 0
        for column in self.columns:
            column.write(table, out[:, start : start + column.width])
            start += column.width
        return torch.from_numpy(out)

    @property
    def names(self) -> list[str]:
        """The name of each of its columns."""
        plain = [name for column in self.columns for name in column.names]
        products = [f"{plain[i]} × {plain[j]}" for i in range(len(plain)) for j in range(i + 1)]
        return plain + products if self.quadratic else plain

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"columns": [column.to_json() for column in self.columns], "quadratic": self.quadratic}

    @staticmethod
    def from_json(recipe: dict[str, Any]) -> "DesignMatrix":
        """The inverse of `to_json`."""
        return DesignMatrix(tuple(map(column_from_json, recipe["columns"])), recipe.get("quadratic", False))


@dataclass(frozen=True, eq=False)
class ColumnIndex:
    """A table column by column, for towers: ids as codes with one more for the unknown, numbers standardised."""

    columns: tuple[FittedColumn, ...]

    @staticmethod
    def fit(table: FeatureTable) -> "ColumnIndex":
        """Means, scales and the ids that occur in a table; an id of its vocabulary that does not occur is unknown."""
        return ColumnIndex(_fitted(table, None))

    def encode(self, table: FeatureTable) -> list[Indexed]:
        """Each fitted column of the table, in order."""
        return [column.indexed(table) for column in self.columns]

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"columns": [column.to_json() for column in self.columns]}

    @staticmethod
    def from_json(recipe: dict[str, Any]) -> "ColumnIndex":
        """The inverse of `to_json`."""
        return ColumnIndex(tuple(map(column_from_json, recipe["columns"])))


def pooled_ids(table: FeatureTable) -> list[str]:
    """Which columns have more ids than a design matrix has places for, and how many of them share a place."""
    notes = []
    for name, column in table.items():
        if isinstance(column, CategoricalColumn | BagColumn):
            n = len(np.unique(column.codes))
            if n > MAX_CATEGORIES:
                notes.append(f"{n - MAX_CATEGORIES + 1:,} of {n:,} ids of {name!r} share one place in linear models.")
    return notes


def _fitted(table: FeatureTable, most: int | None) -> tuple[FittedColumn, ...]:
    if table.n_rows == 0:
        raise ParameterError("An encoder needs at least one entry to be fitted on, but the table is empty.")
    return tuple(
        IdColumn.fit(name, column, most)
        if isinstance(column, CategoricalColumn | BagColumn)
        else NumberColumn.fit(name, column)
        for name, column in table.items()
    )
