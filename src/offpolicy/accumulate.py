"""Everything that sums is mergeable: one batch, a stream larger than memory and a reduce across processes alike."""

import math
from typing import Self


class ExactSum:
    """A sum that does not depend on the order of its terms: Shewchuk's non-overlapping partial sums."""

    def __init__(self) -> None:
        """Start at zero."""
        self._partials: list[float] = []

    def add(self, batch: float) -> None:
        """Add one number."""
        count = 0
        for partial in self._partials:
            big, small = (batch, partial) if abs(batch) >= abs(partial) else (partial, batch)
            batch = big + small
            rest = small - (batch - big)
            if rest:
                self._partials[count] = rest
                count += 1
        self._partials[count:] = [batch]

    def merge(self, other: Self) -> None:
        """Add another sum's parts."""
        for partial in other._partials:
            self.add(partial)

    def finish(self) -> float:
        """The sum, rounded once."""
        return math.fsum(self._partials)
