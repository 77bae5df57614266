"""Training over shards: the same weights whoever computes the gradients, whatever is lost on the way."""

import copy
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy import LoggedData, ParameterError, learn_policy
from offpolicy.engine import Engine, make_engine
from offpolicy.learning import LearnedPolicy, over_shards
from offpolicy.learning.micro_batches import MicroGradient
from offpolicy.learning.objective import Objective
from offpolicy.learning.over_shards import shard_trainer
from offpolicy.policies import logged_log_prob
from offpolicy.propensity import fit_logging_policy
from offpolicy.uncertainty import UncertaintyModel
from shard_worlds import stored, with_losses, world

SETTINGS: dict[str, Any] = {"epochs": 2, "batch_contexts": 64, "logging_policy": "linear"}


@pytest.fixture(scope="module")
def log() -> LoggedData:
    return world().sharded(12)


@pytest.fixture(scope="module")
def alone(log: LoggedData) -> LearnedPolicy:
    return learn_policy(log, "uips_dr", **SETTINGS)


def same(left: LearnedPolicy, right: LearnedPolicy) -> bool:
    pairs = zip(left.scorer.state_dict().values(), right.scorer.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_a_step_is_the_mean_gradient_of_its_micro_batches(log: LoggedData) -> None:
    """The first step against plain probabilities: Σ ρ·r·∇log π over the rows of the shards it reads."""
    trainer = shard_trainer(log, "ips", epochs=1, batch_contexts=10**6, logging_policy="linear")
    steps: list[list[Any]] = []
    take = trainer._step

    def recorded(found: list[MicroGradient], objective: Objective) -> float:
        norm = take(found, objective)
        steps.append([p.grad.numpy().copy() for p in trainer.scorer.parameters() if p.grad is not None])
        return norm

    trainer._step = recorded  # type: ignore[method-assign]
    scorer = copy.deepcopy(trainer.scorer)
    logging = trainer.objective.rows.logging
    assert logging is not None
    with make_engine() as engine:
        trainer.run_over(engine)
    assert len(steps) == trainer.steps_an_epoch == 2  # twelve shards in eight streams
    total = torch.zeros(())
    for index in trainer._plan(0)[0]:
        shard = log.shard(index)
        weights, bias = scorer.actions()
        log_probs = (scorer.states(shard.contexts) @ weights.T + bias).log_softmax(1)
        row = log_probs[torch.tensor(shard.context_index).long(), torch.tensor(shard.action).long()]
        ratio = (row.detach() - logged_log_prob(logging, shard)).exp()
        total = total + (ratio * torch.tensor(shard.reward) * row).sum()
    expected = torch.autograd.grad(-total / (log.n_rows / 12) / 8, list(scorer.parameters()))
    for found, reference in zip(steps[0], expected, strict=True):
        np.testing.assert_allclose(found, reference.numpy(), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("where", ["local2", "local3", "ray"])
def test_the_same_weights_for_any_workers_in_memory_and_in_a_store(
    where: str, log: LoggedData, alone: LearnedPolicy, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    own = where != "ray"
    engine: Engine = make_engine("local", int(where[-1])) if own else request.getfixturevalue("local_ray")
    for one in (log, stored(log, tmp_path)) if where in ("local2", "ray") else (log,):
        learned = learn_policy(one, "uips_dr", engine=engine, **SETTINGS)
        assert same(learned, alone)
        assert [epoch["weighted_reward"] for epoch in learned.history] == [
            epoch["weighted_reward"] for epoch in alone.history
        ]
    if own:
        engine.close()


def test_it_learns_about_as_well_as_in_memory(log: LoggedData) -> None:
    """Value of the learned policies under the world's own rewards."""
    plain = world()
    found = learn_policy(log, "dr", epochs=15, batch_contexts=64, start="zero")
    known = learn_policy(plain, "dr", epochs=15, batch_contexts=64, start="zero")
    contexts = plain.contexts
    agree = (found.log_probs(contexts).argmax(1) == known.log_probs(contexts).argmax(1)).float().mean()
    assert agree > 0.8
    assert found.note == ""


def test_u_of_a_sample_stands_for_that_of_all_rows(log: LoggedData, monkeypatch: pytest.MonkeyPatch) -> None:
    """U falls with the root of the rows: of a β̂ fitted to three times as many it is smaller by √3 than the sample's."""
    monkeypatch.setattr(over_shards, "SAMPLE_ROWS", 1000)
    beta = fit_logging_policy(log, "linear")
    trainer = shard_trainer(log, "uips", epochs=1, logging_policy=beta)
    assert trainer.log.n_rows == pytest.approx(1000, rel=0.15)
    known, whole = trainer._uncertainty(trainer.objective.rows.logging), UncertaintyModel.of(beta)
    ratio = torch.cat([known(shard) / whole(shard) for shard in log.shards])
    assert float(ratio.median()) == pytest.approx(1.0, rel=0.1)
    of_sample = shard_trainer(log, "uips", epochs=1, logging_policy=fit_logging_policy(trainer.log, "linear"))
    assert of_sample.scale == 1.0
    assert trainer.scale == pytest.approx((trainer.log.n_rows / log.n_rows) ** 0.5)


def test_held_out_shards_choose_the_epoch(log: LoggedData) -> None:
    learned = learn_policy(log, "uips", batch_contexts=64, patience=1, logging_policy="linear")
    assert learned.metric == "value"
    assert learned.best_metric is not None


@pytest.mark.parametrize("where", ["local", "ray"])
def test_lost_workers_change_nothing(
    where: str, log: LoggedData, alone: LearnedPolicy, request: pytest.FixtureRequest
) -> None:
    engine: Engine = make_engine("local", 2) if where == "local" else request.getfixturevalue("local_ray")
    learned, lost = with_losses(lambda: learn_policy(log, "uips_dr", engine=engine, **SETTINGS), engine, [0.05, 0.4])
    if where == "local":
        engine.close()
    assert lost > 0
    assert same(learned, alone)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("where", ["local", "ray"])
def test_workers_lost_at_ten_random_moments(
    where: str, log: LoggedData, alone: LearnedPolicy, request: pytest.FixtureRequest
) -> None:
    engine: Engine = make_engine("local", 2) if where == "local" else request.getfixturevalue("local_ray")
    for moment in np.random.default_rng(0).uniform(0.0, 4.0, 10):
        learned, _ = with_losses(lambda: learn_policy(log, "uips_dr", engine=engine, **SETTINGS), engine, [moment])
        assert same(learned, alone)
    if where == "local":
        engine.close()


DRIVER = """
import sys
from pathlib import Path
import numpy as np
from shard_worlds import world
from offpolicy.engine import make_engine
from offpolicy.learning.over_shards import shard_trainer
where, folder, pause = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
trainer = shard_trainer(world().sharded(12), "uips_dr", epochs=2, batch_contexts=64, logging_policy="linear",
                        directory=folder)
trainer.save_seconds = 0.0
if pause:
    import time
    step = trainer._step
    def slowly(*given):
        time.sleep(pause)
        return step(*given)
    trainer._step = slowly
with make_engine(where, 2 if where == "local" else None) as engine:
    trainer.run_over(engine)
    if engine.writes:
        np.savez(folder / "weights", *[p.detach().numpy() for p in trainer.scorer.parameters()])
        (folder / "resumed").write_text(f"{trainer.begun[0]} {trainer.begun[1]}")
"""


def driver(folder: Path, where: str, pause: float, *launcher: str) -> "subprocess.Popen[str]":
    script = folder / "driver.py"
    script.write_text(DRIVER)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, *launcher, str(script), where, str(folder / "run"), str(pause)]
    return subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE)


def finished(process: "subprocess.Popen[str]") -> None:
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors


def learned_weights(folder: Path) -> list[Any]:
    with np.load(folder / "run" / "weights.npz") as kept:
        return list(kept.values())


def test_a_killed_driver_resumes_within_the_epoch(alone: LearnedPolicy, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    first = driver(tmp_path, "local", 0.3)
    for _ in range(1200):
        if (tmp_path / "run" / "checkpoint.safetensors").exists():
            break
        time.sleep(0.1)
    time.sleep(0.5)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert not (tmp_path / "run" / "weights.npz").exists()
    finished(driver(tmp_path, "local", 0.0))
    epoch, steps = (int(word) for word in (tmp_path / "run" / "resumed").read_text().split())
    assert (epoch, steps) > (0, 0)
    for found, expected in zip(learned_weights(tmp_path), alone.scorer.parameters(), strict=True):
        np.testing.assert_array_equal(found, expected.detach().numpy())


def test_torchrun_ends_with_the_same_weights(alone: LearnedPolicy, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    finished(driver(tmp_path, "torchrun", 0.0, *launcher))
    for found, expected in zip(learned_weights(tmp_path), alone.scorer.parameters(), strict=True):
        np.testing.assert_array_equal(found, expected.detach().numpy())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": "alternate", "scorer": "two_tower"}, "alternate"),
        ({"batch_rows": 10}, "batch_rows"),
        ({"uncertainty": torch.ones(3000)}, "row by row"),
    ],
)
def test_what_needs_the_whole_log_is_refused(changes: dict[str, Any], message: str, log: LoggedData) -> None:
    with pytest.raises(ParameterError, match=message):
        learn_policy(log, "uips", **changes)
