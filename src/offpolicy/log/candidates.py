"""The actions on offer in each context, ragged and stored once, with what is known of them there.

A context with candidates is a decision point: a distinct pair of features and set. Without candidates every context
offers the whole catalogue.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from offpolicy.errors import LogError
from offpolicy.log.features import FeatureTable
from offpolicy.log.hashing import Hashes, mixed, table_hashes, text_hash, vocabulary_hashes
from offpolicy.log.ids import Codes, owned, sealed, trusted
from offpolicy.log.vocabulary import Vocabulary

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Candidates:
    """Sets of actions: those of entry i are `codes[offsets[i] : offsets[i + 1]]`, each once, in ascending order.

    `features` has one entry for each code: what is known of that action in that context (its price today).
    """

    offsets: Positions  # (n + 1,)
    codes: Codes  # (total,)
    vocabulary: Vocabulary
    features: FeatureTable | None = None

    def __post_init__(self) -> None:
        """Seal and check, so that no other code needs to check again."""
        object.__setattr__(self, "offsets", sealed(self.offsets, np.int64))
        object.__setattr__(self, "codes", sealed(self.codes, np.int32))
        offsets, codes = self.offsets, self.codes
        if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(codes) or (np.diff(offsets) < 0).any():
            raise LogError(f"The offsets of candidates must rise from 0 to their number, {len(codes)}.")
        if (np.diff(offsets) == 0).any():
            place = int(np.argmin(np.diff(offsets)))
            raise LogError(f"Every set needs at least one candidate, but that of entry {place} is empty. Drop it.")
        if codes.size and (codes.min() < 0 or codes.max() >= len(self.vocabulary)):
            raise LogError(f"Candidates must be codes 0..{len(self.vocabulary) - 1} of their vocabulary.")
        if (np.diff(self.keys) <= 0).any():
            place = int(self.owner[np.argmax(np.diff(self.keys) <= 0)])
            raise LogError(f"The candidates of a set must be distinct and ascending; those of entry {place} are not.")
        if self.features is not None and self.features.n_rows != len(codes):
            raise LogError(f"There are {len(codes)} candidates but features of {self.features.n_rows}. Match them.")

    @classmethod
    def of(cls, offsets: Any, codes: Any, vocabulary: Vocabulary, features: FeatureTable | None = None) -> "Candidates":
        """Sets whose candidates come in any order."""
        offsets, codes = np.asarray(offsets, dtype=np.int64), np.asarray(codes, dtype=np.int32)
        owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        order = np.lexsort((codes, owner))
        return cls(offsets, codes[order], vocabulary, None if features is None else features.take(order))

    @classmethod
    def of_lists(cls, lists: Sequence[Any], vocabulary: Vocabulary) -> "Candidates":
        """Sets from one list of ids each."""
        sizes = [len(one) for one in lists]
        flat = [one for ids in lists for one in ids]
        codes = vocabulary.encode(flat) if flat else np.empty(0, np.int32)
        if (codes < 0).any():
            unknown = flat[int(np.argmax(codes < 0))]
            raise LogError(f"Candidate {unknown!r} is not among the actions. Add it to actions.")
        return cls.of(np.concatenate(([0], np.cumsum(sizes))), codes, vocabulary)

    def __len__(self) -> int:
        """The number of sets."""
        return len(self.offsets) - 1

    def __eq__(self, other: object) -> bool:
        """Equal sets of the same ids with equal features."""
        if not isinstance(other, Candidates):
            return NotImplemented
        same = np.array_equal(self.offsets, other.offsets) and np.array_equal(self.codes, other.codes)
        return same and self.vocabulary == other.vocabulary and _equal(self.features, other.features)

    @cached_property
    def sizes(self) -> Positions:
        """The number of candidates of each set."""
        return np.diff(self.offsets)

    @cached_property
    def owner(self) -> Positions:
        """The set that each candidate belongs to."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @cached_property
    def keys(self) -> Positions:
        """Set and action of each candidate as one ascending number."""
        return self.owner * len(self.vocabulary) + self.codes

    @property
    def width(self) -> int:
        """The size of the largest set."""
        return int(self.sizes.max()) if len(self) else 0

    @cached_property
    def hashes(self) -> Hashes:
        """A hash of each set's content, whatever the order of the vocabulary."""
        each = mixed(vocabulary_hashes(self.vocabulary)[self.codes] ^ text_hash("candidate"))
        if self.features is not None:
            each = mixed(each ^ table_hashes(self.features, len(self.codes)))
        sums = np.concatenate(([np.uint64(0)], np.cumsum(mixed(each), dtype=np.uint64)))
        return owned(mixed(sums[self.offsets[1:]] - sums[self.offsets[:-1]]))

    def places(self, entry: npt.NDArray[Any], action: npt.NDArray[Any]) -> Positions:
        """Where actions stand in the sets of these entries, counted from 0; −1 where they are not on offer."""
        key = entry.astype(np.int64) * len(self.vocabulary) + action
        found = np.searchsorted(self.keys, key)
        inside = found < len(self.keys)
        inside[inside] = self.keys[found[inside]] == key[inside]
        return np.asarray(np.where(inside, found - self.offsets[:-1][entry], -1))

    def take(self, index: Any) -> "Candidates":
        """The sets at these positions."""
        if isinstance(index, slice) and index == slice(None):
            return self
        sizes, starts = self.sizes[index], self.offsets[:-1][index]
        offsets = np.concatenate(([0], np.cumsum(sizes)))
        places = np.repeat(starts - offsets[:-1], sizes) + np.arange(offsets[-1])
        features = None if self.features is None else self.features.take(places)
        return trusted(
            Candidates,
            offsets=owned(offsets),
            codes=owned(self.codes[places]),
            vocabulary=self.vocabulary,
            features=features,
        )

    def padded(self, vocabulary: Vocabulary | None = None) -> Positions:
        """The actions as a matrix (n, width), −1 beyond a set's end.

        With another vocabulary their codes there, −1 also where it does not hold an action.
        """
        codes = self.codes
        if vocabulary is not None and vocabulary != self.vocabulary:
            codes = vocabulary.encode(self.vocabulary.ids)[codes]
        result = np.full((len(self), self.width), -1, dtype=np.int64)
        result[self.owner, np.arange(len(codes)) - self.offsets[:-1][self.owner]] = codes
        return result

    def recoded(self, vocabulary: Vocabulary) -> "Candidates":
        """The same sets in the codes of another vocabulary, which holds all their actions."""
        codes = vocabulary.encode(self.vocabulary.ids)[self.codes]
        if (codes < 0).any():
            missing = self.vocabulary.decode([int(self.codes[np.argmax(codes < 0)])])[0]
            raise LogError(f"The table lacks candidate {missing!r}. Give a table with all actions of the log.")
        return Candidates.of(self.offsets, codes, vocabulary, self.features)


def _equal(left: FeatureTable | None, right: FeatureTable | None) -> bool:
    return left == right if left is None or right is None else dict(left) == dict(right)
