"""Figure 1: the paper's buckets, and β̂ rising and U falling with an action's frequency."""

import itertools
import json
import math

import numpy as np
import pytest
import torch

from offpolicy.datasets.synthetic import ExtremeShape, ExtremeWorld
from offpolicy.errors import ParameterError
from offpolicy.propensity import FitConfig, fit_logging_policy
from offpolicy.uncertainty import frequency_profile, row_uncertainty
from offpolicy.uncertainty.frequency import bucket


def test_buckets_are_the_papers() -> None:
    counts = np.array([1, 2, 3, 4, 5, 20, 1000])
    expected = []
    for n in counts:
        fraction, whole = math.modf(math.log(n))
        expected.append(whole + round(fraction) / 2 + 0.5)
    np.testing.assert_allclose(bucket(counts), expected)
    assert bucket(np.array([1]))[0] == 0.5  # ln 1 = 0
    assert bucket(np.array([2]))[0] == 1.0  # ln 2 = 0.69


def test_frequent_actions_have_larger_probabilities_and_smaller_uncertainty() -> None:
    world = ExtremeWorld.draw(0, ExtremeShape(n_contexts=400, n_actions=150, dimensions=6, positives=5, topics=6))
    log = world.log(0, rows_per_context=10).without_propensities()
    fitted = fit_logging_policy(log, "linear", config=FitConfig(ridge=1.0))
    u = row_uncertainty(fitted)
    profile = frequency_profile(fitted, u)
    assert sum(b.rows for b in profile) == log.n_rows
    assert sum(b.actions for b in profile) == int((log.action_count > 0).sum())
    # A slow twin: bucket by bucket, row by row.
    of_row = [float(bucket(log.action_count[a : a + 1])[0]) for a in log.action]
    for b in profile:
        rows = [n for n, place in enumerate(of_row) if place == b.log_frequency]
        assert len(rows) == b.rows
        assert math.isclose(b.uncertainty, float(u[rows].mean()), rel_tol=1e-12)
        assert math.isclose(b.logging_prob, float(fitted.row_log_prob[rows].exp().mean()), rel_tol=1e-12)
    filled = [b for b in profile if b.rows >= 50]
    assert len(filled) >= 5
    assert [b.log_frequency for b in profile] == sorted(b.log_frequency for b in profile)
    assert all(a.uncertainty > b.uncertainty for a, b in itertools.pairwise(filled))
    assert all(a.logging_prob < b.logging_prob for a, b in itertools.pairwise(filled))
    assert json.loads(json.dumps([b.to_json() for b in profile]))[0]["rows"] == profile[0].rows
    with pytest.raises(ParameterError, match="row_uncertainty"):
        frequency_profile(fitted, torch.zeros(3))
