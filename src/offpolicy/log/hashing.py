"""Content as 64-bit numbers that are the same on every machine and in every version: identity is data.

Equal entries have equal hashes whatever their place in the log, the order of a vocabulary or the order of columns; ids
count by their spelling. Splits, fingerprints and the recognition of known rows rest on them.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from offpolicy.log.features import BagColumn, CategoricalColumn, Column, FeatureTable
from offpolicy.log.ids import owned
from offpolicy.log.vocabulary import Vocabulary

Hashes: TypeAlias = npt.NDArray[np.uint64]

IDS_AT_ONCE = 100_000
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def text_hash(text: str) -> np.uint64:
    """The hash of a text."""
    return np.uint64(int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()))


def mixed(values: npt.NDArray[Any]) -> Hashes:
    """Every bit of the result depends on every bit of a 64-bit number (the finaliser of SplitMix64)."""
    bits = np.asarray(values).astype(np.uint64) + _STEP
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return np.asarray(bits ^ (bits >> np.uint64(31)))


def vocabulary_hashes(vocabulary: Vocabulary) -> Hashes:
    """The hash of each id, by its spelling; a missing id is like no other. Worked out once a vocabulary."""
    known: Hashes | None = vocabulary.__dict__.get("hashes")
    if known is None:
        known = np.empty(len(vocabulary), dtype=np.uint64)
        for start in range(0, len(vocabulary), IDS_AT_ONCE):
            some = vocabulary.ids.slice(start, IDS_AT_ONCE).to_list()
            named = ("missing" if one is None else f"id {one}" for one in some)
            known[start : start + len(some)] = [text_hash(name) for name in named]
        vocabulary.__dict__["hashes"] = owned(known)
    return known


def number_hashes(values: npt.NDArray[Any]) -> Hashes:
    """The hash of each number, or of each row of numbers; −0.0 counts as 0.0."""
    matrix = values[:, None] if values.ndim == 1 else values
    total = np.zeros(len(matrix), dtype=np.uint64)
    for place in range(matrix.shape[1]):
        bits = (matrix[:, place].astype(np.float64) + 0.0).view(np.uint64)
        total = mixed(total ^ bits)
    return total


def table_hashes(columns: Mapping[str, Column], n_rows: int) -> Hashes:
    """The hash of each entry of a table: the sum of its columns' hashes, each keyed by the column's name.

    The candidates of a table of contexts count too; a plain mapping of its columns leaves them out.
    """
    total = np.zeros(n_rows, dtype=np.uint64)
    for name, column in columns.items():
        total += mixed(_column_hashes(column) ^ text_hash(f"column {name}"))
    candidates = columns.candidates if isinstance(columns, FeatureTable) else None
    return total if candidates is None else mixed(total + candidates.hashes)


def _column_hashes(column: Column) -> Hashes:
    if isinstance(column, CategoricalColumn):
        return vocabulary_hashes(column.vocabulary)[column.codes]
    if isinstance(column, BagColumn):
        sizes = np.diff(column.offsets)
        place = np.arange(len(column.codes)) - np.repeat(column.offsets[:-1], sizes)
        each = mixed(vocabulary_hashes(column.vocabulary)[column.codes] ^ mixed(place)) if len(place) else np.zeros(0)
        sums = np.concatenate(([np.uint64(0)], np.cumsum(each, dtype=np.uint64)))
        return np.asarray(sums[column.offsets[1:]] - sums[column.offsets[:-1]])
    return number_hashes(column.values)


def occurrence(hashes: Hashes) -> Hashes:
    """How many equal hashes stand before each."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    result = np.empty(len(hashes), dtype=np.uint64)
    result[order] = np.arange(len(hashes)) - np.searchsorted(ordered, ordered)
    return result


def uniform(hashes: Hashes, key: str) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each hash: the same for the same hash and key, independent between keys."""
    return np.asarray((mixed(hashes ^ text_hash(key)) >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def digest(*arrays: npt.NDArray[Any] | None) -> str:
    """A SHA-256 over arrays in order."""
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(b"absent" if array is None else f"{array.dtype} {array.shape} ".encode())
        if array is not None:
            sha.update(np.ascontiguousarray(array).data)
    return sha.hexdigest()
