from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from offpolicy.datasets.jester import JesterDesign, load_jester, simulate_log
from offpolicy.errors import LogError, ParameterError
from offpolicy.log import EmbeddingColumn
from offpolicy.policies import UniformPolicy
from shared_data import shared_data, write

SMALL = JesterDesign(gauge_jokes=6, dimensions=3, rows_per_user=4)


def ratings(n_users: int = 60, n_jokes: int = 16) -> np.ndarray:
    random = np.random.default_rng(1)
    taste = random.standard_normal((n_users, 3)) @ random.standard_normal((3, n_jokes))
    return np.clip(0.5 + 0.15 * taste + 0.1 * random.standard_normal(taste.shape), 0, 1)


def test_small_files_are_rescaled(tmp_path: Path) -> None:
    write(tmp_path, {"jester/ratings_full.csv": "-10,0,5\n10,2.50,-7.5\n"})
    table = load_jester(tmp_path, check_counts=False)
    assert table == pytest.approx(np.array([[0, 0.5, 0.75], [1, 0.625, 0.125]]))
    with pytest.raises(LogError, match=r"holds 2 users, 3 jokes, but .* 1,473 users, 100 jokes"):
        load_jester(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2\n3,99\n", r"line 2, value 2 must be a number in -10\.\.10, but it is '99'"),
        ("1,2\n3,?\n", r"line 2, value 2 .* '\?'"),
        ("1,2\n3,\n", r"line 2, value 2 .* ''"),
    ],
)
def test_broken_files_are_told(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(LogError, match=message):
        load_jester(write(tmp_path, {"jester/ratings_full.csv": text}), check_counts=False)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"ratings_full\.csv was not found"):
        load_jester(tmp_path)


@pytest.mark.parametrize("binary", [True, False])
def test_every_row_says_the_truth(binary: bool) -> None:
    table = ratings()
    world = simulate_log(table, seed=2, design=replace(SMALL, binary=binary))
    log = world.log
    assert (log.n_rows, log.n_contexts, log.n_actions) == (240, 60, 10)
    rated = table[log.context_index, world.actions[log.action]]
    assert np.array_equal(log.reward, (rated > 0.5).astype(float) if binary else rated)
    probs = world.logging_policy.log_probs(log.contexts).exp().numpy()
    assert probs.sum(1) == pytest.approx(1)
    assert log.logging_prob is not None
    assert np.array_equal(log.logging_prob, probs[log.context_index, log.action])
    assert world.value(UniformPolicy(10)) == pytest.approx(world.rewards.mean())
    by_hand = float((probs * world.rewards).sum() / 60)
    assert world.value(world.logging_policy) == pytest.approx(by_hand)


def test_contexts_come_from_other_jokes_than_actions() -> None:
    table = ratings()
    world = simulate_log(table, seed=2, design=SMALL)
    changed = table.copy()
    changed[:, world.actions] = np.random.default_rng(0).random((60, 10))
    again = simulate_log(changed, seed=2, design=SMALL)
    before, after = world.log.contexts["x"], again.log.contexts["x"]
    assert isinstance(before, EmbeddingColumn)
    assert before.values.shape == (60, 3)
    assert before == after
    assert before.values.std(0) == pytest.approx(np.ones(3), abs=1e-3)


def test_temperature_sharpens_noise_blurs_and_the_seed_fixes_all() -> None:
    table = ratings(300)
    quiet = replace(SMALL, noise=0.0)
    values = []
    for temperature in (0.2, 1.0, 1e4):
        world = simulate_log(table, 0, replace(quiet, temperature=temperature))
        values.append(world.value(world.logging_policy))
    assert values[0] > values[1] > values[2]
    assert values[2] == pytest.approx(simulate_log(table, 0, quiet).rewards.mean(), abs=1e-3)
    noisy = simulate_log(table, 0, replace(SMALL, noise=50.0))
    assert noisy.value(noisy.logging_policy) < values[1]
    same, other = simulate_log(table, 0, quiet), simulate_log(table, 1, quiet)
    assert same.log == simulate_log(table, 0, quiet).log
    assert same.log != other.log


def test_the_draws_follow_the_logging_policy() -> None:
    world = simulate_log(ratings(5), 0, replace(SMALL, rows_per_user=20_000))
    probs = world.logging_policy.log_probs(world.log.contexts).exp()
    for user in range(5):
        drawn = torch.from_numpy(np.bincount(world.log.action[world.log.context_index == user], minlength=10) / 20_000)
        assert float((drawn - probs[user]).abs().max()) < 0.02


@pytest.mark.parametrize(
    "wrong", [{"temperature": 0.0}, {"noise": -1.0}, {"dimensions": 7}, {"gauge_jokes": 15}, {"rows_per_user": 0}]
)
def test_impossible_designs_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ParameterError):
        simulate_log(ratings(), 0, replace(SMALL, **wrong))  # type: ignore[arg-type]


def test_the_real_data() -> None:
    table = load_jester(shared_data("jester"))
    assert table.shape == (1473, 100)
    assert 0 <= table.min() < 0.1
    assert 0.9 < table.max() <= 1
    world = simulate_log(table, 0)
    assert (world.log.n_contexts, world.log.n_actions) == (1473, 70)
    uniform = world.value(UniformPolicy(70))
    assert uniform < world.value(world.logging_policy) < world.rewards.max(1).mean()
