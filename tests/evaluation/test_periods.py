"""Errors over periods of time: as large as clustered ones for independent rows, larger where rewards come in waves."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from offpolicy.evaluation import PolicyRows
from offpolicy.evaluation.auto import auto_estimate, logging_estimate
from offpolicy.evaluation.comparison import difference_width
from offpolicy.evaluation.statistics import Asked
from offpolicy.log import LoggedData, Vocabulary

ROWS = 4_000


def waves(height: float, rows: int = ROWS, seed: int = 0) -> PolicyRows:
    """Rewards that are higher in some hours than in others, whatever is shown; times in mixed order."""
    random = np.random.default_rng(seed)
    time = random.permutation(rows)
    hour = time * 20 // rows
    reward = (random.random(rows) < 0.3 + height * np.where(hour % 2, 1, -1)).astype(np.float64)
    log = LoggedData.from_arrays(np.arange(rows)[:, None] * 1.0, np.arange(rows) % 3, reward, actions=3, timestamp=time)
    inputs = {
        "log_ratio": torch.from_numpy(0.3 * random.normal(size=rows)),
        "log_logging": torch.full((rows,), -1.0, dtype=torch.float64),
        "reward": torch.from_numpy(reward),
    }
    return PolicyRows(log, inputs)


def test_the_error_over_periods_is_the_jackknife_over_twenty_consecutive_parts() -> None:
    rows = waves(0.2)
    found = auto_estimate(rows).by_period
    assert found is not None
    assert rows.log.timestamp is not None
    period = np.argsort(np.argsort(rows.log.timestamp)) * 20 // ROWS
    ratio, reward = rows.ratio.numpy(), rows.log.reward
    lam = auto_estimate(rows).lam
    weight = ratio if np.isinf(lam) else lam * ratio / (lam + ratio**2)
    left = [np.average(reward[period != k], weights=weight[period != k]) for k in range(20)]
    assert found.jackknife_error == pytest.approx(np.sqrt(19 / 20 * np.square(left - np.mean(left)).sum()), rel=0.02)


def test_waves_widen_the_value_but_not_a_paired_difference_that_they_leave_alone() -> None:
    calm, stormy = auto_estimate(waves(0.0)), auto_estimate(waves(0.2))
    assert not calm.interval.note
    assert "moves over time" in stormy.interval.note
    assert stormy.by_period is not None
    assert stormy.width.error == stormy.by_period.jackknife_error
    assert stormy.width.error > 3 * calm.width.error
    difference = difference_width(stormy, logging_estimate(waves(0.2)))
    assert difference.error < stormy.width.error / 3


def test_independent_rows_are_seldom_taken_for_waves() -> None:
    assert sum(bool(auto_estimate(waves(0.0, seed=seed)).width.note) for seed in range(20)) <= 1


def test_without_enough_distinct_times_there_are_no_periods() -> None:
    assert waves(0.0, rows=900).period_edges is None
    rows = waves(0.0)
    assert replace(rows, log=replace(rows.log, timestamp=None)).period_edges is None
    few = np.arange(ROWS, dtype=np.int64) % 7
    assert replace(rows, log=replace(rows.log, timestamp=few)).period_edges is None


def test_named_clusters_give_way_to_periods() -> None:
    rows = waves(0.2)
    users = Vocabulary([f"user {number}" for number in range(1_000)])
    cluster = np.arange(ROWS, dtype=np.int32) % 1_000
    named = replace(rows, log=replace(rows.log, cluster=cluster, cluster_vocabulary=users))
    found, plain = named.clustered_by_period(Asked("snips")), rows.clustered_by_period(Asked("snips"))
    assert found is not None
    assert plain is not None
    assert found.clusters == 20
    assert np.array_equal(found.columns, plain.columns)
