"""Commands over a prepared log: the same answer, to the last bit, as over the log in memory in as many shards."""

import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpolicy import LoggedData, open_store, read_log
from offpolicy.log import write_store
from offpolicy.workflows import LogSpec
from offpolicy.workflows.holdout import Holdout
from offpolicy.workflows.prepare import CACHE, resolve
from small_log import a_frame, refused, run

COLUMNS = ("--context", "segment", "--context", "age", "--action", "item", "--reward", "click", "--cluster", "user")
NAMED: dict[str, Any] = {"context": ["segment", "age"], "action": "item", "reward": "click", "cluster": "user"}
NAMED["propensity"] = "pscore"
QUICK = ("--no-propensity-models",)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """The log in two files."""
    rows = a_frame(1_200)
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    rows[:700].write_parquet(paths[0])
    rows[700:].write_parquet(paths[1])
    return paths


def test_a_store_in_the_place_of_a_log(files: list[Path], tmp_path: Path) -> None:
    """Prepared by the command, then inspected, evaluated and learned from by its name alone."""
    store = tmp_path / "store"
    made = run("prepare", *files, "--out", store, "--shards", "4", "--keep", "better", *COLUMNS, "--json")
    assert made.code == 0, made.err
    assert (made.json["rows"], made.json["shards"], made.json["clusters"]) == (1_200, 4, 600)
    assert open_store(store) == read_log(files, keep=["better"], **NAMED).sharded(4)
    looked = run("inspect", store, "--json").json
    assert looked["log"]["columns"] == {
        "segment": "categorical",
        "age": "numeric",
        "item": "action",
        "click": "reward",
        "user": "cluster",
        "pscore": "propensity",
    }
    found = run("evaluate", store, "--policy", "better", *QUICK, "--json")
    assert found.code == 0, found.err
    asked = ("evaluate", store, "--policy", "better", "--by", "segment", "--memory", "1GB", "--json")
    alone, together = (run(*asked, *more) for more in ((), ("--engine", "local", "--workers", "2")))
    assert (alone.code, together.code) == (0, 0), together.err
    assert together.json["evaluation"] == alone.json["evaluation"]
    assert together.json["propensity_models"] == alone.json["propensity_models"]
    learned = run("learn", store, "--method", "uips", "--epochs", "2", "--out", tmp_path / "run", *QUICK, "--json")
    assert learned.code == 0, learned.err
    parts = [open_store(tmp_path / "run" / "parts" / side).n_rows for side in ("train", "held_out")]
    assert sum(parts) == 1_200
    unseen = ("evaluate", store, "--policy", tmp_path / "run", *QUICK, "--json")
    kept = run(*unseen, "--out", tmp_path / "evaluated").json
    assert open_store(tmp_path / "evaluated" / "parts" / "evaluated").n_rows == kept["evaluation"]["log"]["rows"] < 600
    assert run(*unseen, "--engine", "local", "--workers", "2").json["evaluation"] == kept["evaluation"]
    tuning = ("tune", store, "--trials", "2", "--epochs", "2", "--json")
    here = run(*tuning, "--engine", "local", "--workers", "2")
    there = run(*tuning, "--out", tmp_path / "tuned")
    assert (here.code, there.code) == (0, 0), here.err
    assert [one["state"] for one in there.json["trials"]] == ["complete"] * 3
    assert there.json == run(*tuning, "--out", tmp_path / "tuned").json  # resumed
    assert here.json == run(*tuning).json
    assert run("doctor", store).code == 0
    assert run("convert", store, "--out", tmp_path / "log.dsjson").code == 0
    said = refused("evaluate", store, "--policy", "better", "--action", "segment")
    assert "was prepared with item as its action, not with segment" in said
    assert "is no column" in refused("evaluate", store, "--policy", "worse")
    assert "Prepare the log with keep" in refused(
        "evaluate", store, "--policy", "better", "--reward", "click", "--reward", "far"
    )


def test_roles_are_inferred_from_the_first_rows(files: list[Path], tmp_path: Path) -> None:
    """What `prepare` infers is what the other commands infer of the whole files."""
    run("prepare", *files, "--out", tmp_path / "store", "--exclude", "better", "--exclude", "far")
    log = open_store(tmp_path / "store")
    spec = resolve(LogSpec(f"{tmp_path}/*.parquet", exclude=("better", "far")))
    assert tuple(log.contexts) == spec.context
    assert log == spec.read().log.sharded(64)


def test_a_log_above_its_memory_is_prepared_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said, with the path; the next command finds it; the answer is that of the log in as many shards."""
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    a_frame(3_000).write_csv(tmp_path / "log.csv")
    monkeypatch.setattr("offpolicy.workflows.prepare.memory_needed", lambda paths: 10**12)
    words = ("convert", tmp_path / "log.csv", *COLUMNS, "--memory", "64MB", "--out")
    first = run(*words, tmp_path / "first.dsjson")
    assert first.code == 0, first.err
    [store] = (tmp_path / "cache").iterdir()
    assert "prepared as" in " ".join(first.out.split())
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    assert run(*words, tmp_path / "second.dsjson").code == 0
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before
    assert (tmp_path / "first.dsjson").read_bytes() == (tmp_path / "second.dsjson").read_bytes()
    assert open_store(store) == read_log(tmp_path / "log.csv", **NAMED).sharded()


def test_a_killed_evaluate_is_run_again(files: list[Path], tmp_path: Path) -> None:
    """kill -9 of the command at several moments: the next one ends with the same numbers, and fits β̂ no more."""
    store = tmp_path / "store"
    run("prepare", *files, "--out", store, "--shards", "4", "--keep", "better", *COLUMNS)
    asked = ("evaluate", str(store), "--policy", "better", "--logging-model", "linear", *QUICK)
    alone = run(*asked, "--json").json["evaluation"]
    out = tmp_path / "run"
    command = [
        sys.executable,
        "-c",
        "from offpolicy.cli import main; main()",
        *asked,
        "--out",
        str(out),
        "--engine",
        "local",
        "--workers",
        "2",
    ]
    for reached in ("run.json", "nuisances/*.safetensors"):
        killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not list(out.glob(reached)):
            assert killed.poll() is None
            time.sleep(0.01)
        killed.kill()
        killed.wait()
        assert not (out / "results.json").exists()
    resumed = run(*asked, "--out", out, "--json")
    assert resumed.code == 0, resumed.err
    assert "not fitted again" in " ".join(resumed.json["run"]["notes"])
    assert resumed.json["evaluation"] == alone


@pytest.mark.skipif(sys.platform != "linux", reason="arrays are mapped as on Linux")
def test_dividing_a_store_takes_no_memory_for_its_rows(tmp_path: Path) -> None:
    """The largest arrays in memory are of contexts, or pieces."""
    n = 3_000_000
    draw = np.random.default_rng(0)
    index = np.sort(draw.integers(0, 1_000, n))
    given: dict[str, Any] = {"context_index": index, "actions": 5}
    rewards = draw.random(n)
    log = LoggedData.from_arrays(draw.normal(size=(1_000, 2)), draw.integers(0, 5, n), rewards, **given)
    store = write_store(log, tmp_path / "store", shards=32)
    expected = [part.fingerprint for _, part in store.undivided.divide((0.8, 0.2))]
    sketch = np.unique(store.row_hashes)[:256].tolist()
    tracemalloc.start()
    try:
        rule = Holdout.of(store, 0.2, 0)
        train, held, _ = rule.divide(store)
        assert rule.recognises(store.row_hashes)
        _ = store.summary(), store.take(store.of_share(0.01, "sample"))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 6 * n  # less than any array of a number a row
    assert list(rule.sketch) == sketch
    assert [train.undivided.fingerprint, held.undivided.fingerprint] == expected
    assert (train.n_shards, held.n_shards) == (32, 32)
