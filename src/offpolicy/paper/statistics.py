"""Means, spreads and tests over seeds; every test is two-sided."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]
Values = Mapping[int, float]
"""Seed -> number."""


@dataclass(frozen=True)
class Cell:
    """One line in one column: mean and standard deviation over seeds."""

    mean: float
    deviation: float | None
    """None with a single seed."""
    seeds: int


@dataclass(frozen=True)
class Comparison:
    """One of our lines against the best baseline of a column."""

    ours: str
    baseline: str
    difference: float
    """Mean over the common seeds, ours − baseline."""
    seeds: int
    wins: int
    """Common seeds on which ours is better."""
    paired: float | None
    """p of the paired t-test on common seeds."""
    welch: float | None
    """p of the unpaired t-test with unequal variances."""
    student: float | None
    """p of the unpaired t-test with a common variance."""
    clustered: float | None = None
    """p of the paired t-test over groups of test contexts."""
    holm: float | None = None
    """The paired p, corrected for the columns of the table."""


@dataclass(frozen=True)
class Column:
    """One metric of one part: every line's values and, where known, its means by group of contexts."""

    values: Mapping[str, Values]
    clusters: Mapping[str, Sequence[float]]
    better: Literal["higher", "lower"] = "higher"

    def cell(self, line: str) -> Cell | None:
        """Mean and spread; None where nothing finite was measured."""
        numbers = np.array(list(self.values.get(line, {}).values()))
        if not len(numbers):
            return None
        deviation = float(numbers.std(ddof=1)) if len(numbers) > 1 else None
        return Cell(float(numbers.mean()), deviation, len(numbers))

    def ranked(self, lines: Sequence[str]) -> list[str]:
        """Those of the lines that were measured, best mean first."""
        means = {line: cell.mean for line in lines if (cell := self.cell(line)) is not None}
        sign = -1 if self.better == "higher" else 1
        return sorted(means, key=lambda line: sign * means[line])

    def compare(self, ours: str, baselines: Sequence[str]) -> Comparison | None:
        """Ours against the baseline with the best mean."""
        ranked = self.ranked(baselines)
        if not ranked or self.cell(ours) is None:
            return None
        mine, other = self.values[ours], self.values[ranked[0]]
        gaps = paired_gaps(mine, other)
        sign = 1 if self.better == "higher" else -1
        grouped = [self.clusters.get(line) for line in (ours, ranked[0])]
        by_context = None if None in grouped else np.subtract(*(np.array(one, dtype=float) for one in grouped))
        first, second = (np.array(list(each.values())) for each in (mine, other))
        return Comparison(
            ours,
            ranked[0],
            float(gaps.mean()) if len(gaps) else float("nan"),
            len(gaps),
            int((sign * gaps > 0).sum()),
            one_sample_p(gaps),
            two_sample_p(first, second, equal_variances=False),
            two_sample_p(first, second, equal_variances=True),
            None if by_context is None else one_sample_p(by_context),
        )


def paired_gaps(mine: Values, other: Values) -> Floats:
    """Differences on the common seeds."""
    return np.array([mine[seed] - other[seed] for seed in sorted(mine.keys() & other.keys())])


def one_sample_p(gaps: Floats) -> float | None:
    """p of the t-test that the mean is zero; None where it says nothing: one number, or no spread."""
    if len(gaps) < 2 or not gaps.std() > 0:
        return None
    return float(stats.ttest_1samp(gaps, 0.0).pvalue)


def two_sample_p(first: Floats, second: Floats, *, equal_variances: bool) -> float | None:
    """p of Student's or Welch's t-test that two means are equal."""
    if min(len(first), len(second)) < 2 or not first.std() + second.std() > 0:
        return None
    return float(stats.ttest_ind(first, second, equal_var=equal_variances).pvalue)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's corrected p-values; tests that say nothing do not count."""
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, place) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * p))
        corrected[place] = highest
    return corrected


def compared(columns: Sequence[Column], ours: str, baselines: Sequence[str]) -> list[Comparison | None]:
    """One of our lines in every column of a table, with Holm's correction over the columns."""
    comparisons = [column.compare(ours, baselines) for column in columns]
    corrected = holm([None if one is None else one.paired for one in comparisons])
    return [None if one is None else replace(one, holm=p) for one, p in zip(comparisons, corrected, strict=True)]
