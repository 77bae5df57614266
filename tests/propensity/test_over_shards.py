"""The linear β̂ over shards: the same maximum as over the whole log, the same bits whoever works."""

from pathlib import Path

import numpy as np
import pytest
import torch

from offpolicy import LoggedData
from offpolicy.engine import Engine, make_engine
from offpolicy.models import linear_scorer
from offpolicy.policies import logged_log_prob
from offpolicy.propensity import FitConfig, LoggingPolicy, fit_logging_policy
from offpolicy.propensity import whole_batch as in_memory
from offpolicy.propensity.over_shards import OverShards
from offpolicy.propensity.whole_batch import WholeBatch
from shard_worlds import stored, with_losses, world


def weights(fitted: LoggingPolicy) -> list[torch.Tensor]:
    assert fitted.whole.scorer is not None
    return [part.detach() for part in fitted.whole.scorer.actions()]


@pytest.fixture(scope="module")
def log() -> LoggedData:
    return world().sharded(12)


@pytest.fixture(scope="module")
def alone(log: LoggedData) -> LoggingPolicy:
    return fit_logging_policy(log, "linear")


@pytest.mark.parametrize("single", [False, True])
def test_the_maximum_is_that_of_the_whole_log(single: bool, log: LoggedData, monkeypatch: pytest.MonkeyPatch) -> None:
    if single:
        monkeypatch.setattr(in_memory, "FLOAT64_NUMBERS", 0)
    fitted = fit_logging_policy(log, "linear", config=FitConfig(ridge=3.0))
    scorer = linear_scorer(log)
    assert WholeBatch(scorer, log).maximise(scorer, 3.0, 1e-7 if single else 1e-13, 500)
    for own, whole in zip(weights(fitted), scorer.actions(), strict=True):
        torch.testing.assert_close(own, whole.detach(), atol=0.03 if single else 1e-4, rtol=0.03 if single else 1e-4)


def test_quality_is_of_shards_that_were_held_out(log: LoggedData, alone: LoggingPolicy) -> None:
    assert log.shard_rows is not None
    assert alone.quality.rows == log.shard_rows[-1] - log.shard_rows[-2]
    assert alone.quality.log_likelihood > alone.quality.popularity_log_likelihood + 0.05
    assert alone.chosen.converged
    single = fit_logging_policy(world(), "linear")
    assert alone.quality.log_likelihood == pytest.approx(single.quality.log_likelihood, abs=0.05)
    torch.testing.assert_close(alone.logged_log_prob(log), logged_log_prob(alone.whole.policy, log))


@pytest.mark.parametrize("where", ["local2", "local3", "ray"])
def test_the_same_bits_for_any_workers_in_memory_and_in_a_store(
    where: str, log: LoggedData, alone: LoggingPolicy, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    own = where != "ray"
    engine: Engine = make_engine("local", int(where[-1])) if own else request.getfixturevalue("local_ray")
    for one in (log, stored(log, tmp_path)):
        fitted = fit_logging_policy(one, "linear", engine=engine)
        for left, right in zip(weights(fitted), weights(alone), strict=True):
            assert torch.equal(left, right)
        assert fitted.quality == alone.quality
    if own:
        engine.close()


@pytest.mark.parametrize("where", ["local", "ray"])
def test_lost_workers_change_nothing(
    where: str, log: LoggedData, alone: LoggingPolicy, request: pytest.FixtureRequest
) -> None:
    engine: Engine = make_engine("local", 2) if where == "local" else request.getfixturevalue("local_ray")
    fitted, lost = with_losses(lambda: fit_logging_policy(log, "linear", engine=engine), engine, [0.05, 0.2])
    assert lost > 0
    if where == "local":
        engine.close()
    for left, right in zip(weights(fitted), weights(alone), strict=True):
        assert torch.equal(left, right)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("where", ["local", "ray"])
def test_workers_lost_at_ten_random_moments(
    where: str, log: LoggedData, alone: LoggingPolicy, request: pytest.FixtureRequest
) -> None:
    engine: Engine = make_engine("local", 2) if where == "local" else request.getfixturevalue("local_ray")
    for moment in np.random.default_rng(0).uniform(0.0, 2.0, 10):
        fitted, _ = with_losses(lambda: fit_logging_policy(log, "linear", engine=engine), engine, [moment])
        for left, right in zip(weights(fitted), weights(alone), strict=True):
            assert torch.equal(left, right)
    if where == "local":
        engine.close()


def test_a_fit_that_was_killed_takes_up_what_it_had_found(
    log: LoggedData, alone: LoggingPolicy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    computed, most = 0, 9
    compute = OverShards._computed

    def counted(self: OverShards, *parameters: torch.Tensor) -> object:
        nonlocal computed
        if self.pool.n_shards == log.n_shards:  # else it is the search, of which nothing is kept
            if computed == most:
                raise KeyboardInterrupt
            computed += 1
        return compute(self, *parameters)

    monkeypatch.setattr(OverShards, "_computed", counted)
    config = FitConfig(keep=tmp_path / "kept")
    with pytest.raises(KeyboardInterrupt):
        fit_logging_policy(log, "linear", config=config)
    next((tmp_path / "kept").iterdir()).write_bytes(b"half a file")
    first, most = computed, 10**9
    resumed = fit_logging_policy(log, "linear", config=config)
    again = computed - first
    computed = 0
    fit_logging_policy(log, "linear")
    assert again == computed - (first - 1)  # all but what was kept in whole files
    for left, right in zip(weights(resumed), weights(alone), strict=True):
        assert torch.equal(left, right)
    assert resumed.quality == alone.quality


def test_row_weights_count_as_events(log: LoggedData) -> None:
    weighted = world(row_weight=np.full(world().n_rows, 2.0)).sharded(12)
    doubled = fit_logging_policy(weighted, "linear", config=FitConfig(ridge=4.0))
    plain = fit_logging_policy(log, "linear", config=FitConfig(ridge=2.0))
    for left, right in zip(weights(doubled), weights(plain), strict=True):
        torch.testing.assert_close(left, right, atol=2e-4, rtol=1e-3)
