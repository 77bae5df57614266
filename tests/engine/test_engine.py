"""An engine: shards stay with their workers, results come in shard order, and the loss of a worker changes nothing."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine_work import (
    dies,
    dies_once,
    doubled,
    echoed,
    fails,
    open_files_with_many_arrays,
    reward_sum,
    times_seen,
    where,
)
from offpolicy import LoggedData, ParameterError
from offpolicy.engine import Engine, make_engine
from offpolicy.engine.pool import owners
from offpolicy.errors import OffPolicyError
from shard_worlds import stored


@pytest.fixture(scope="module")
def log() -> LoggedData:
    draw = np.random.default_rng(0)
    contexts = draw.integers(0, 5, (600, 3)).astype(float)
    return LoggedData.from_arrays(contexts, draw.integers(0, 4, 600), draw.random(600), actions=4).sharded(8)


@pytest.fixture(scope="module", params=["here", "local", "local3", "ray"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if request.param == "ray":
        yield request.getfixturevalue("local_ray")
        return
    name, workers = {"here": (None, 1), "local": ("local", 2), "local3": ("local", 3)}[request.param]
    with make_engine(name, workers) as made:
        yield made


@pytest.fixture(params=["local", "ray"])
def two(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if request.param == "ray":
        yield request.getfixturevalue("local_ray")
        return
    with make_engine("local", 2) as made:
        yield made


def test_results_come_in_shard_order_whoever_works(log: LoggedData, engine: Engine) -> None:
    expected = [(i, log.shard(i).n_rows, 2 * log.shard(i).reward.sum()) for i in range(log.n_shards)]
    with engine.over(log) as pool:
        assert pool.n_shards == log.n_shards == 8
        assert list(pool.map(reward_sum, 2.0)) == expected
        assert list(pool.map(reward_sum, 2.0, together=3)) == expected
        assert list(pool.map(reward_sum, 2.0, only=[5, 1, 6])) == [expected[i] for i in (5, 1, 6)]
        assert list(pool.map(reward_sum, 2.0, only=[])) == []


def test_a_shard_stays_with_its_worker_and_what_is_kept_beside_it(log: LoggedData, engine: Engine) -> None:
    with engine.over(log, groups=[[0, 4], [1, 5], [2, 6], [3, 7]]) as pool:
        first = list(pool.map(where))
        assert list(pool.map(where, only=[7, 2])) == [first[7], first[2]]
        assert first[:4] == first[4:]
        assert len(set(first)) == pool.workers == engine.workers
        assert [list(pool.map(times_seen)) for _ in range(3)] == [[n] * 8 for n in (1, 2, 3)]
        for _ in range(2):
            for index, found in enumerate(pool.map(doubled)):
                np.testing.assert_array_equal(found, 2 * log.shard(index).reward)
    with engine.over(log) as pool:
        assert list(pool.map(times_seen)) == [1] * 8  # a pool forgets


def test_what_is_kept_beside_shards_of_a_store_holds_no_files_open(log: LoggedData, tmp_path: Path) -> None:
    with make_engine(None).over(stored(log, tmp_path)) as pool:
        found = list(pool.map(open_files_with_many_arrays))
    assert found[-1] - found[0] < 10  # of 280 more arrays


def test_large_arrays_go_both_ways(log: LoggedData, engine: Engine) -> None:
    given = {"theta": np.random.default_rng(1).normal(size=(3, 250_000)).astype(np.float32), "none": np.empty(0)}
    with engine.over(log) as pool:
        for found in pool.map(echoed, given):
            np.testing.assert_array_equal(found["theta"], given["theta"])
            assert found["none"].size == 0


def test_an_error_of_the_function_is_the_callers(log: LoggedData, engine: Engine) -> None:
    with engine.over(log) as pool:
        results = pool.map(fails, "refused")
        assert next(results) == 0
        assert next(results) == 1
        with pytest.raises(ParameterError, match=r"Shard 2 is wrong\."):
            next(results)
        with pytest.raises((RuntimeError, ZeroDivisionError), match="by nought"):
            list(pool.map(fails, "failed"))
        assert list(pool.map(fails, "neither", only=[0, 7, 3])) == [0, 7, 3]  # what came too late is not taken for this


def test_a_map_that_was_overtaken_is_not_continued(log: LoggedData) -> None:
    with make_engine("local", 2) as engine, engine.over(log) as pool:
        first = pool.map(reward_sum, 1.0)
        next(first)
        assert len(list(pool.map(reward_sum, 1.0))) == 8
        with pytest.raises(RuntimeError, match="Another map"):
            next(first)


def test_a_lost_worker_is_replaced_and_nothing_is_lost(log: LoggedData, two: Engine, tmp_path: Path) -> None:
    with two.over(log) as pool:
        for together in (1, 2, 8):
            (tmp_path / "died").unlink(missing_ok=True)
            found = list(pool.map(dies_once, tmp_path, together=together))
            assert found == [(i, log.shard(i).reward.sum()) for i in range(8)]
            assert (tmp_path / "died").exists()
        victim = next(pool.map(where))
        os.kill(victim, signal.SIGKILL)
        time.sleep(0.2)
        assert [found[0] for found in pool.map(reward_sum, 1.0)] == list(range(8))
    with two.over(log) as pool:
        os.kill(next(pool.map(where)), signal.SIGKILL)
    with two.over(log) as pool:  # it is missed only by the next pool
        assert [found[0] for found in pool.map(reward_sum, 1.0)] == list(range(8))


def test_a_worker_that_ends_again_and_again_is_an_error(log: LoggedData, two: Engine) -> None:
    with two.over(log) as pool, pytest.raises(OffPolicyError, match="4 times in a row"):
        list(pool.map(dies))
    with two.over(log) as pool:
        assert len(list(pool.map(where))) == 8


def test_workers_end_with_a_driver_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(
        "import sys, numpy as np\n"
        "from offpolicy import LoggedData\n"
        "from offpolicy.engine import make_engine\n"
        "def mine(shard, index, folder):\n"  # what a script defines is sent along; no `if __name__`
        "    from engine_work import slow\n"
        "    return slow(shard, index, folder)\n"
        "log = LoggedData.from_arrays(np.arange(200.0)[:, None], np.zeros(200, int), np.ones(200), actions=2)\n"
        "from pathlib import Path\n"
        "with make_engine('local', 2) as engine, engine.over(log.sharded(64)) as pool:\n"
        "    for found in pool.map(mine, Path(sys.argv[1])):\n"
        "        print(found, flush=True)\n"
    )
    notes = tmp_path / "notes"
    notes.mkdir()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    driver = subprocess.Popen(
        [sys.executable, str(script), str(notes)], stdout=subprocess.PIPE, env=environment, text=True
    )
    assert driver.stdout is not None
    with driver.stdout:
        assert driver.stdout.readline() == "0\n"
        driver.kill()
        driver.wait()
    workers = [int(note.name) for note in notes.iterdir()]
    assert workers
    for _ in range(100):
        if not any(Path(f"/proc/{worker}").exists() for worker in workers):
            return
        time.sleep(0.1)
    pytest.fail("workers outlive their parent")


def test_shards_are_shared_by_rows(log: LoggedData) -> None:
    rows = np.diff(log.shard_rows or ())
    for workers in (1, 2, 3, 20):
        owned = owners(log, workers)
        assert sorted(index for mine in owned for index in mine) == list(range(8))
        held = [sum(rows[index] for index in mine) for mine in owned]
        assert max(held) - min(held) <= rows.max()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("spark",), "must be one of"), (("local", 0), "above 0"), (("local", 2, "here:1"), "needs engine 'ray'")],
)
def test_engines_that_are_refused(arguments: tuple[str, int, str], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        make_engine(*arguments)
