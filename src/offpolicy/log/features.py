"""Feature columns of four kinds, and the table that holds them. All frozen, all read-only."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from offpolicy.errors import LogError
from offpolicy.log.ids import Codes, owned, sealed, trusted
from offpolicy.log.mapped import gathered
from offpolicy.log.vocabulary import Vocabulary

if TYPE_CHECKING:
    from offpolicy.log.candidates import Candidates

Kind: TypeAlias = Literal["numeric", "categorical", "embedding", "bag"]
KINDS: tuple[Kind, ...] = ("numeric", "categorical", "embedding", "bag")


def _same(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> bool:
    return left is right or np.array_equal(left, right)


def _check_codes(codes: npt.NDArray[Any], vocabulary: Vocabulary) -> None:
    if codes.size and (codes.min() < 0 or codes.max() >= len(vocabulary)):
        worst = int(np.argmax((codes < 0) | (codes >= len(vocabulary))))
        raise LogError(
            f"Codes must lie in 0..{len(vocabulary) - 1}, the positions of their vocabulary, but entry {worst} "
            f"is {codes[worst]}. Encode the values with the vocabulary first."
        )


def _check_finite(values: npt.NDArray[Any], what: str) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        where = np.argwhere(~finite)[0]
        raise LogError(
            f"{what} values must be finite, but entry {int(where[0])} is {values[tuple(where)]}. "
            "Replace it or drop the row."
        )


def _check_shape(array: npt.NDArray[Any], ndim: int, what: str) -> None:
    if array.ndim != ndim:
        raise LogError(f"{what} must be an array with {ndim} dimension(s), but its shape is {array.shape}.")


@dataclass(frozen=True, eq=False)
class NumericColumn:
    """One finite number per entry."""

    values: npt.NDArray[np.float64]  # (n,)
    kind: ClassVar[Kind] = "numeric"

    def __post_init__(self) -> None:
        """Seal and check the values."""
        object.__setattr__(self, "values", sealed(self.values, np.float64))
        _check_shape(self.values, 1, "A numeric column")
        _check_finite(self.values, "Numeric")

    def __len__(self) -> int:
        """The number of entries."""
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        """Equal entries."""
        return isinstance(other, NumericColumn) and _same(self.values, other.values)

    def take(self, index: Any) -> "NumericColumn":
        """The entries at these positions."""
        return trusted(NumericColumn, values=gathered(self.values, index))


@dataclass(frozen=True, eq=False)
class CategoricalColumn:
    """One id per entry, as codes of a vocabulary."""

    codes: Codes  # (n,)
    vocabulary: Vocabulary
    kind: ClassVar[Kind] = "categorical"

    def __post_init__(self) -> None:
        """Seal and check the codes."""
        object.__setattr__(self, "codes", sealed(self.codes, np.int32))
        _check_shape(self.codes, 1, "A categorical column")
        _check_codes(self.codes, self.vocabulary)

    def __len__(self) -> int:
        """The number of entries."""
        return len(self.codes)

    def __eq__(self, other: object) -> bool:
        """Equal codes under equal vocabularies."""
        if not isinstance(other, CategoricalColumn):
            return NotImplemented
        return self.vocabulary == other.vocabulary and _same(self.codes, other.codes)

    def take(self, index: Any) -> "CategoricalColumn":
        """The entries at these positions, under the same vocabulary."""
        return trusted(CategoricalColumn, codes=gathered(self.codes, index), vocabulary=self.vocabulary)


@dataclass(frozen=True, eq=False)
class EmbeddingColumn:
    """One finite vector of fixed size per entry."""

    values: npt.NDArray[np.float32]  # (n, d)
    kind: ClassVar[Kind] = "embedding"

    def __post_init__(self) -> None:
        """Seal and check the vectors."""
        with np.errstate(over="ignore"):  # a value beyond float32 becomes inf and is reported below
            object.__setattr__(self, "values", sealed(self.values, np.float32))
        _check_shape(self.values, 2, "An embedding column")
        if self.values.shape[1] == 0:
            raise LogError("An embedding column needs vectors of at least one number, but theirs is empty.")
        _check_finite(self.values, "Embedding")

    def __len__(self) -> int:
        """The number of entries."""
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        """Equal vectors."""
        return isinstance(other, EmbeddingColumn) and _same(self.values, other.values)

    def take(self, index: Any) -> "EmbeddingColumn":
        """The vectors at these positions."""
        return trusted(EmbeddingColumn, values=gathered(self.values, index))


@dataclass(frozen=True, eq=False)
class BagColumn:
    """A variable number of ids per entry: those of entry i are `codes[offsets[i] : offsets[i + 1]]`, in order."""

    offsets: npt.NDArray[np.int64]  # (n + 1,)
    codes: Codes  # (total,)
    vocabulary: Vocabulary
    kind: ClassVar[Kind] = "bag"

    def __post_init__(self) -> None:
        """Seal and check offsets and codes."""
        object.__setattr__(self, "offsets", sealed(self.offsets, np.int64))
        object.__setattr__(self, "codes", sealed(self.codes, np.int32))
        _check_shape(self.offsets, 1, "The offsets of a bag column")
        _check_shape(self.codes, 1, "The codes of a bag column")
        offsets = self.offsets
        if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(self.codes) or (np.diff(offsets) < 0).any():
            raise LogError(
                f"The offsets of a bag column must rise from 0 to its number of codes ({len(self.codes)}), "
                f"but they are {offsets!r}."
            )
        _check_codes(self.codes, self.vocabulary)

    def __len__(self) -> int:
        """The number of bags."""
        return len(self.offsets) - 1

    def __eq__(self, other: object) -> bool:
        """Equal bags under equal vocabularies."""
        if not isinstance(other, BagColumn):
            return NotImplemented
        same = _same(self.offsets, other.offsets) and _same(self.codes, other.codes)
        return same and self.vocabulary == other.vocabulary

    def take(self, index: Any) -> "BagColumn":
        """The bags at these positions, under the same vocabulary."""
        sizes = np.diff(self.offsets)[index]
        starts = self.offsets[:-1][index]
        offsets = np.concatenate(([0], np.cumsum(sizes)))
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], sizes)
        codes = self.codes[np.repeat(starts, sizes) + within]
        return trusted(BagColumn, offsets=owned(offsets), codes=owned(codes), vocabulary=self.vocabulary)


def _series(name: str, column: "Column") -> pl.Series:
    if isinstance(column, NumericColumn | EmbeddingColumn):
        return pl.Series(name, column.values)
    ids = column.vocabulary.ids.gather(column.codes)
    if isinstance(column, CategoricalColumn):
        return ids.alias(name)
    owner = np.repeat(np.arange(len(column)), np.diff(column.offsets))
    bags = pl.DataFrame({"owner": owner, "id": ids}).group_by("owner").agg("id")
    every = pl.DataFrame({"owner": np.arange(len(column))})
    return every.join(bags, on="owner", how="left", maintain_order="left")["id"].fill_null([]).alias(name)


Column: TypeAlias = NumericColumn | CategoricalColumn | EmbeddingColumn | BagColumn
COLUMNS: Mapping[str, type[Column]] = {
    one.kind: one for one in (NumericColumn, CategoricalColumn, EmbeddingColumn, BagColumn)
}
"""What a column of each kind is."""


def parts_of(kind: str) -> list[str]:
    """The names of the arrays of a column of this kind."""
    return [part.name for part in fields(COLUMNS[kind]) if part.name != "vocabulary"]


def column_parts(kind: str, arrays: Mapping[str, Any], vocabulary: Vocabulary | None) -> dict[str, Any]:
    """What a column of this kind is made of: its arrays by name, and its vocabulary if it has one."""
    given = {**arrays, "vocabulary": vocabulary}
    return {part.name: given[part.name] for part in fields(COLUMNS[kind])}


class FeatureTable(Mapping[str, Column]):
    """Named feature columns of equal length and, for contexts that do not offer all actions, their candidates."""

    __slots__ = ("_candidates", "_columns", "_n_rows")
    _candidates: "Candidates | None"
    _columns: dict[str, Column]
    _n_rows: int

    def __init__(self, columns: Mapping[str, Column], candidates: "Candidates | None" = None) -> None:
        """Keep the columns in the order given."""
        kept = dict(columns)
        if not kept:
            raise LogError("A feature table needs at least one column, but it was given none.")
        lengths = {name: len(column) for name, column in kept.items()}
        if len(set(lengths.values())) != 1:
            raise LogError(f"The columns of a feature table must have equal lengths, but they are {lengths}.")
        object.__setattr__(self, "_columns", kept)
        object.__setattr__(self, "_n_rows", next(iter(lengths.values())))
        object.__setattr__(self, "_candidates", candidates)
        if candidates is not None and len(candidates) != self._n_rows:
            raise LogError(f"There are {self._n_rows} entries but {len(candidates)} candidate sets. Match them.")

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse: a feature table never changes."""
        raise AttributeError(f"A feature table is frozen; {name} cannot be set.")

    def __reduce__(self) -> tuple[type["FeatureTable"], tuple[Any, ...]]:
        """Pickle as the columns and candidates."""
        return FeatureTable, (self._columns, self._candidates)

    def __eq__(self, other: object) -> bool:
        """Equal columns and candidates."""
        if isinstance(other, FeatureTable) and self._candidates != other._candidates:
            return False
        return Mapping.__eq__(self, other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def candidates(self) -> "Candidates | None":
        """The actions on offer in each entry; None: all there are."""
        return self._candidates

    def changed(self, columns: Mapping[str, Column]) -> "FeatureTable":
        """Other columns with the same candidates."""
        return FeatureTable(columns, self._candidates)

    @property
    def n_rows(self) -> int:
        """The number of entries of every column (`len` counts the columns, as for any mapping)."""
        return self._n_rows

    def __getitem__(self, name: str) -> Column:
        """The column called `name`."""
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        """The column names in order."""
        return iter(self._columns)

    def __len__(self) -> int:
        """The number of columns."""
        return len(self._columns)

    def take(self, index: Any) -> "FeatureTable":
        """The same columns at these positions."""
        columns = {name: column.take(index) for name, column in self._columns.items()}
        candidates = None if self._candidates is None else self._candidates.take(index)
        n_rows = len(next(iter(columns.values())))
        return trusted(FeatureTable, _columns=columns, _n_rows=n_rows, _candidates=candidates)

    def to_frame(self) -> pl.DataFrame:
        """The columns as a polars frame, in the user's own ids."""
        return pl.DataFrame([_series(name, column) for name, column in self._columns.items()])

    def __repr__(self) -> str:
        """The number of entries and each column's kind."""
        kinds = ", ".join(f"{name}: {column.kind}" for name, column in self._columns.items())
        return f"FeatureTable({self._n_rows} entries; {kinds})"
