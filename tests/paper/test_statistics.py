"""Statistics against the textbook's formulas and a slow Holm."""

import numpy as np
import pytest
from scipy import stats

from offpolicy.paper.statistics import Column, compared, holm, one_sample_p, two_sample_p

CHANCE = np.random.default_rng(0)


def slow_holm(found: list[float]) -> list[float]:
    """The smallest level at which Holm's step-down procedure rejects each, by trying levels."""

    def rejected(level: float) -> set[int]:
        order = sorted(range(len(found)), key=lambda i: found[i])
        out = set()
        for rank, i in enumerate(order):
            if found[i] > level / (len(found) - rank):
                break
            out.add(i)
        return out

    levels = np.linspace(0, 1, 2_001)
    return [next((float(a) for a in levels if i in rejected(a)), 1.0) for i in range(len(found))]


def two_sided(t: float, freedom: float) -> float:
    return float(2 * stats.t.sf(abs(t), freedom))


@pytest.mark.parametrize("sizes", [(5, 5), (10, 7), (2, 30)])
def test_tests_are_the_textbooks(sizes: tuple[int, int]) -> None:
    first, second = CHANCE.normal(0.1, 1.0, sizes[0]), CHANCE.normal(0.0, 2.0, sizes[1])
    n, m = sizes
    gap, a, b = first.mean() - second.mean(), first.var(ddof=1), second.var(ddof=1)
    assert one_sample_p(first) == pytest.approx(two_sided(first.mean() / (a / n) ** 0.5, n - 1))
    pooled = ((n - 1) * a + (m - 1) * b) / (n + m - 2)
    student = two_sided(gap / (pooled * (1 / n + 1 / m)) ** 0.5, n + m - 2)
    assert two_sample_p(first, second, equal_variances=True) == pytest.approx(student)
    freedom = (a / n + b / m) ** 2 / ((a / n) ** 2 / (n - 1) + (b / m) ** 2 / (m - 1))
    welch = two_sided(gap / (a / n + b / m) ** 0.5, freedom)
    assert two_sample_p(first, second, equal_variances=False) == pytest.approx(welch)


def test_holm_agrees_with_the_step_down_procedure() -> None:
    for _ in range(5):
        found = list(CHANCE.uniform(0, 0.4, 6))
        assert holm(list(found)) == pytest.approx(slow_holm(found), abs=1e-3)
    assert holm([None, 0.01, None]) == [None, 0.01, None]
    assert holm([0.04, 0.01]) == [0.04, 0.02]


def test_tests_that_say_nothing_are_none() -> None:
    assert one_sample_p(np.array([0.1])) is None
    assert one_sample_p(np.array([0.1, 0.1])) is None
    assert two_sample_p(np.array([0.1]), np.array([0.2, 0.3]), equal_variances=True) is None
    assert two_sample_p(np.array([0.1, 0.1]), np.array([0.2, 0.2]), equal_variances=False) is None


def column(better: str = "higher") -> Column:
    noise = CHANCE.normal(0, 0.01, 6)
    values = {
        "ours": {seed: 0.6 + noise[seed] for seed in range(6)},
        "good": {seed: 0.5 + noise[seed] * 1.1 for seed in range(1, 6)},
        "bad": {seed: 0.3 - noise[seed] for seed in range(6)},
    }
    groups = {"ours": [0.5, 0.7, 0.6], "good": [0.5, 0.5, 0.5]}
    return Column(values, groups, better)  # type: ignore[arg-type]


def test_ours_is_compared_with_the_best_baseline_on_common_seeds() -> None:
    found = column()
    one = found.compare("ours", ["bad", "good"])
    assert one is not None
    assert (one.baseline, one.seeds, one.wins) == ("good", 5, 5)
    mine, other = ([found.values[line][seed] for seed in range(1, 6)] for line in ("ours", "good"))
    assert one.paired == pytest.approx(stats.ttest_rel(mine, other).pvalue)
    everything = [list(found.values[line].values()) for line in ("ours", "good")]
    assert one.welch == pytest.approx(stats.ttest_ind(*everything, equal_var=False).pvalue)
    assert one.student == pytest.approx(stats.ttest_ind(*everything).pvalue)
    assert one.clustered == pytest.approx(stats.ttest_1samp([0.0, 0.2, 0.1], 0).pvalue)


def test_lower_may_be_better() -> None:
    one = column("lower").compare("ours", ["bad", "good"])
    assert one is not None
    assert (one.baseline, one.wins) == ("bad", 0)
    assert one.clustered is None  # the groups of that baseline are not known


def test_holm_is_over_the_columns() -> None:
    columns = [column(), column()]
    found = compared(columns, "ours", ["good", "bad"])
    paired = [one.paired for one in found if one]
    assert [one.holm for one in found if one] == holm(paired)
    assert compared(columns, "nobody", ["good"]) == [None, None]


def test_mean_and_sample_deviation() -> None:
    cell = Column({"a": {0: 1.0, 1: 3.0}, "b": {0: 1.0}}, {}).cell("a")
    assert cell is not None
    assert (cell.mean, cell.seeds) == (2.0, 2)
    assert cell.deviation == pytest.approx(2**0.5)
    alone = Column({"b": {0: 1.0}}, {}).cell("b")
    assert alone is not None
    assert alone.deviation is None
