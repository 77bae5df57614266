"""Which rows a policy was learned from, recognised by their content in any later version of the log.

A split is a function of the unit's id (or the context's content) and a seed. A saved policy records that rule and a
sketch of its log: the rows with the smallest hashes. Where a log holds rows of the sketch it is taken for a version of
the policy's log, and the units it was learned from are left out.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from offpolicy.errors import OffPolicyError, ParameterError
from offpolicy.learning import held_out_unit
from offpolicy.log import LoggedData, instant

FEWEST_UNITS = 5
"""Contexts (or clusters) below which none can be held out."""
SKETCH = 256
"""Rows that a sketch remembers."""
AT_ONCE = 1 << 16
"""Hashes of a log that are compared at a time."""
RECOGNISED = 0.01
"""A log that holds this share of a sketch is a version of the log it was made of."""

HASH = re.compile(r"[0-9a-f]{1,16}")

Rows = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Holdout:
    """A rule that holds out units, and a sketch of the log it was applied to."""

    share: float
    """Of the units; 0 where there were too few to hold any out."""
    seed: int
    unit: str
    """What a unit is: "cluster", "context", "row" or "time"."""
    sketch: tuple[int, ...] = ()
    after: str = ""
    """The time from which on rows are held out, in ISO form; then `share` does not count."""

    @classmethod
    def of(cls, log: LoggedData, share: float, seed: int, after: str | None = None) -> "Holdout":
        """The rule for a log, by units or by time; with a handful of units nothing is held out."""
        if not 0 < share < 1:
            raise ParameterError(f"held_out must be a share between 0 and 1, but it is {share}.")
        units = sum(len(np.unique(shard.cluster_index)) for shard in log.shards)
        least = np.empty(0, dtype=np.uint64)
        for shard in log.shards:
            least = np.unique(np.concatenate([least, shard.row_hashes]))[:SKETCH]  # in ascending order
        sketch = least.tolist()
        if after is not None:
            later_rows(log, after)
            return cls(share, seed, "time", tuple(sketch), str(instant(after, "--held-out-after")))
        unit = held_out_unit(log) or ("context" if log.cluster is None else "cluster")
        return cls(share if units >= FEWEST_UNITS else 0.0, seed, unit, tuple(sketch))

    def divide(self, log: LoggedData) -> tuple[LoggedData, LoggedData, Rows]:
        """The rows to learn from, those held out, and the positions of the latter."""
        if self.after:
            later = later_rows(log, self.after)
            parts = [
                replace(log.take(rows), lineage=f"{log.lineage}{side} {self.after};")
                for rows, side in ((~later, "before"), (later, "from"))
            ]
            return parts[0], parts[1], np.flatnonzero(later)
        if self.share == 0:
            return log, log, np.arange(log.n_rows)
        if self.unit == "cluster" and log.cluster is None:
            raise OffPolicyError(
                "The policy was learned from this log with clusters held out, but the log was read without them. Name "
                "their column with --cluster."
            )
        by: Any = self.unit
        (_, train), (rows, held) = log.divide((1 - self.share, self.share), by=by, seed=self.seed)
        return train, held, rows

    def recognises(self, row_hashes: Hashes) -> bool:
        """Whether a log with these rows is a version of the one the rule was made for."""
        if not self.sketch:
            return False
        sketch = np.unique(np.array(self.sketch, dtype=np.uint64))
        known = np.zeros(len(sketch), dtype=np.bool_)
        for start in range(0, len(row_hashes), AT_ONCE):
            some = row_hashes[start : start + AT_ONCE]
            known[np.searchsorted(sketch, some[np.isin(some, sketch)])] = True
        return bool(known.mean() >= RECOGNISED)

    def to_json(self) -> dict[str, Any]:
        """Plain values for a policy's metadata; hashes as text, because they need 64 bits."""
        return {
            "share": self.share,
            "seed": self.seed,
            "unit": self.unit,
            "sketch": [f"{one:016x}" for one in self.sketch],
            "after": self.after,
        }

    @classmethod
    def from_json(cls, kept: Any) -> "Holdout | None":
        """The inverse of `to_json`; None for anything else."""
        if not isinstance(kept, dict):
            return None
        share, seed, unit, sketch = kept.get("share"), kept.get("seed"), kept.get("unit"), kept.get("sketch")
        if not isinstance(share, float | int) or type(seed) is not int or not isinstance(sketch, list):
            return None
        after = kept.get("after", "")
        if unit not in ("cluster", "context", "row", "time") or not 0 <= share < 1 or not 0 <= seed < 2**63:
            return None
        hashes = [one for one in sketch[:SKETCH] if isinstance(one, str) and HASH.fullmatch(one)]
        rows = tuple(int(one, 16) for one in hashes)
        if unit != "time":
            return cls(float(share), seed, unit, rows)
        if not isinstance(after, str):
            return None
        try:
            return cls(float(share), seed, unit, rows, str(instant(after, "after")))
        except ParameterError:
            return None


def later_rows(log: LoggedData, after: str) -> npt.NDArray[np.bool_]:
    """Which rows are of this time or later; an error where that is all or none of them."""
    if log.instants is None:
        missing = "has no timestamps" if log.timestamp is None else "has timestamps that are no dates"
        raise ParameterError(f"--held-out-after needs times, but the log {missing}. Name them with --timestamp.")
    when = instant(after, "--held-out-after")
    later: npt.NDArray[np.bool_] = log.instants >= when
    if later.all() or not later.any():
        first, last = (np.datetime_as_string(end, unit="s") for end in (log.instants.min(), log.instants.max()))
        side = "before" if later.all() else "from"
        raise ParameterError(f"The log has no rows {side} {after}: its times reach from {first} to {last}.")
    return later


def unseen_part(log: LoggedData, rules: Mapping[str, Holdout]) -> tuple[LoggedData, Rows | None, tuple[str, ...]]:
    """The rows that none of the policies was learned from, their positions (None: all), and what to say about it."""
    rows: Rows | None = None
    notes: list[str] = []
    part, row_hashes = log, log.row_hashes if rules else np.empty(0, dtype=np.uint64)
    for name, rule in rules.items():
        if not rule.recognises(row_hashes):
            if rule.sketch:
                notes.append(
                    f"{name} was learned from another log: this one holds next to none of the rows that it remembers."
                )
            continue
        if rule.share == 0 and not rule.after:
            notes.append(f"{name} was learned from all rows of this log: its evaluation uses rows it was learned from.")
            continue
        _, held, own = rule.divide(log)
        notes.append(f"{name} was learned from {log.n_rows - len(own):,} of these rows, which are left out.")
        part = held if rows is None else log
        rows = own if rows is None else np.intersect1d(rows, own)
    if rows is None:
        return log, None, tuple(notes)
    if not len(rows):
        raise OffPolicyError("Every row of this log was used to learn one of the policies. Evaluate on another log.")
    if part is log:
        part = replace(log.take(rows), lineage="held out;")
    notes.append(f"Evaluated on the {len(rows):,} rows that no policy was learned from.")
    return part, rows, tuple(notes)
