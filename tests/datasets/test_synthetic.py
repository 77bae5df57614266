import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from offpolicy.datasets.synthetic import ExtremeShape, ExtremeWorld, LinearSoftmaxWorld
from offpolicy.policies import UniformPolicy
from tiny_world import TinyWorld

SMALL = ExtremeShape(n_contexts=400, n_actions=600, dimensions=16, positives=19.0, topics=8)


@pytest.mark.parametrize("seed", range(3))
def test_tiny_world_lists_every_outcome(seed: int) -> None:
    world = TinyWorld.draw(seed)
    log, prob = world.outcomes()
    assert log.n_rows == 3 * 4 * 2
    assert float(prob.sum()) == pytest.approx(1.0)
    assert log.logging_prob is not None
    ratio = world.target.numpy()[log.context_index, log.action] / log.logging_prob
    assert float((prob.numpy() * ratio * log.reward).sum()) == pytest.approx(world.value)
    assert sum(p for _, p in TinyWorld.draw(seed, 2, 2).logs(2)) == pytest.approx(1.0)


def test_one_seed_fixes_a_log_and_another_changes_it() -> None:
    logs = [LinearSoftmaxWorld.draw(0).log(seed, 50) for seed in (4, 4, 5)]
    assert np.array_equal(logs[0].action, logs[1].action)
    assert np.array_equal(logs[0].reward, logs[1].reward)
    assert not np.array_equal(logs[0].action, logs[2].action)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_linear_world_knows_the_value_of_its_logging_policy(temperature: float) -> None:
    world = LinearSoftmaxWorld.draw(1, temperature=temperature)
    log = world.log(2, n_contexts=4000, rows_per_context=5)
    truth = world.value(world.logging_policy, log.contexts)
    assert log.reward.mean() == pytest.approx(truth, abs=4 * 0.5 / np.sqrt(log.n_rows))
    counts = np.bincount(log.action, minlength=log.n_actions) / log.n_rows
    expected = world.logging_policy.log_probs(log.contexts).exp().mean(0).numpy()
    np.testing.assert_allclose(counts, expected, atol=4 * 0.5 / np.sqrt(log.n_rows))


def test_extreme_world_has_the_shape_of_an_extreme_label_set() -> None:
    world = ExtremeWorld.draw(0, SMALL)
    counts = np.diff(world.positive_offsets)
    assert counts.mean() == pytest.approx(19, abs=1)
    for x in range(0, 400, 57):
        mine = world.positive_actions[world.positive_offsets[x] : world.positive_offsets[x + 1]]
        assert len(np.unique(mine)) == len(mine)
        assert np.array_equal(mine, np.sort(mine))
    frequency = np.sort(np.bincount(world.positive_actions, minlength=600))[::-1]
    assert frequency[:60].sum() > 0.35 * frequency.sum()  # a tenth of the labels is over a third of the positives


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_extreme_world_logs_its_own_softmax(temperature: float) -> None:
    world = ExtremeWorld.draw(1, SMALL, temperature)
    log = world.log(7, rows_per_context=50)
    truth = world.value(world.logging_policy)
    assert log.reward.mean() == pytest.approx(truth, abs=4 * 0.5 / np.sqrt(log.n_rows))
    probs = world.logging_policy.log_probs(world.contexts).exp()
    assert log.logging_prob is not None
    np.testing.assert_allclose(log.logging_prob, probs.numpy()[log.context_index, log.action], rtol=1e-4)
    np.testing.assert_allclose(
        np.bincount(log.action, minlength=600) / log.n_rows, probs.mean(0).numpy(), atol=4 * 0.5 / np.sqrt(log.n_rows)
    )
    dense = torch.zeros(400, 600, dtype=torch.bool)
    owner = np.repeat(np.arange(400), np.diff(world.positive_offsets))
    dense[owner, world.positive_actions] = True
    assert np.array_equal(dense.numpy()[log.context_index, log.action], log.reward == 1)


def test_extreme_value_of_the_uniform_policy_is_the_share_of_positives() -> None:
    world = ExtremeWorld.draw(2, SMALL)
    assert world.value(UniformPolicy(600)) == pytest.approx(len(world.positive_actions) / 400 / 600)


FULL_SIZE = """
import resource
from offpolicy.datasets.synthetic import ExtremeWorld
log = ExtremeWorld.draw(0).log(0)
assert (log.n_rows, log.n_actions, log.n_contexts) == (1_114_600, 30_938, 11_146)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
def test_full_size_extreme_world_fits_two_gigabytes() -> None:
    run = subprocess.run([sys.executable, "-c", FULL_SIZE], capture_output=True, text=True, check=True, env=os.environ)
    assert float(run.stdout) < 2 * 2**30
