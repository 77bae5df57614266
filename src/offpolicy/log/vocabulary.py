"""The user's own ids in code order."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl

from offpolicy.errors import LogError
from offpolicy.log.ids import Codes, Id, codes_in, distinct_ids, id_series, trusted


class Vocabulary:
    """The user's own ids, integers or strings or booleans (null may be one of them), in code order."""

    __slots__ = ("__dict__", "_ids")  # the dictionary for what others work out of the ids once
    _ids: pl.Series

    def __init__(self, ids: Any) -> None:
        """Keep distinct ids in the order given; the position of an id is its code."""
        series = id_series(ids).alias("id").rechunk()
        if series.n_unique() != len(series):
            twice = series.filter(series.is_duplicated()).first()
            raise LogError(f"A vocabulary holds each id once, but {twice!r} occurs twice. Remove the repetition.")
        object.__setattr__(self, "_ids", series)

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse: a vocabulary never changes."""
        raise AttributeError(f"A vocabulary is frozen; {name} cannot be set.")

    def __reduce__(self) -> tuple[Any, tuple[list[Id]]]:
        """Pickle as the list of ids, which were checked."""
        return _vocabulary_again, (self.to_list(),)

    @classmethod
    def of(cls, values: Any) -> "Vocabulary":
        """The distinct values in ascending order, null last."""
        return cls(distinct_ids(id_series(values)))

    @classmethod
    def from_list(cls, ids: Iterable[Id]) -> "Vocabulary":
        """The inverse of `to_list`."""
        return cls(list(ids))

    def to_list(self) -> list[Id]:
        """The ids in code order, ready for JSON."""
        return self._ids.to_list()

    @property
    def ids(self) -> pl.Series:
        """The ids in code order as a polars series."""
        return self._ids

    def encode(self, values: Any) -> Codes:
        """The code of each id, -1 for an id that is not in the vocabulary."""
        return codes_in(id_series(values), self._ids)

    def decode(self, codes: Any) -> list[Id]:
        """The user's id of each code."""
        given = np.asarray(codes)
        if given.size and (given.dtype.kind not in "iu" or given.min() < 0 or given.max() >= len(self)):
            raise LogError(f"Codes must be integers in 0..{len(self) - 1} to be decoded, but they are {given!r}.")
        return self._ids.gather(given.astype(np.int64).ravel()).to_list()

    def __len__(self) -> int:
        """The number of ids."""
        return len(self._ids)

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same ids, of the same type, in the same order."""
        if not isinstance(other, Vocabulary):
            return NotImplemented
        return self is other or (self._ids.dtype == other._ids.dtype and self._ids.equals(other._ids))

    def __hash__(self) -> int:
        """Equal vocabularies hash alike."""
        return hash((len(self), str(self._ids.dtype), self._ids.first()))

    def __repr__(self) -> str:
        """The number of ids and the first few."""
        shown = ", ".join(map(repr, self._ids.head(4).to_list()))
        return f"Vocabulary({len(self)} ids: {shown}{', ...' if len(self) > 4 else ''})"


def _vocabulary_again(ids: list[Id]) -> Vocabulary:
    return trusted(Vocabulary, _ids=id_series(ids).alias("id"))
