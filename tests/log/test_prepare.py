"""`prepare_log`: files become the same log as reading them at once, in bounded memory, whatever happens on the way."""

import gzip
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import offpolicy.log.prepare as preparing
from log_frames import COLUMNS, WAYS, frame
from offpolicy import LogError, OffPolicyError, ParameterError, open_store, prepare_log, read_log

LITTLE = 64 * 2**20


def many_pieces(monkeypatch: pytest.MonkeyPatch, memory: int = LITTLE) -> None:
    """Pieces of a few kilobytes, so that small files are read in many."""
    monkeypatch.setattr(preparing, "PIECES", memory // 4096)
    monkeypatch.setattr(preparing, "LEAST_PIECE", 4096)


def written(rows: pl.DataFrame, folder: Path, form: str) -> list[Path]:
    """The rows as three files of a format."""
    flat = rows.with_columns(pl.col("tags").list.join("|")) if form.startswith("csv") else rows
    parts = [flat[:200], flat[200:201], flat[201:]]
    paths = [folder / f"part{number}.{form}" for number in range(3)]
    for part, path in zip(parts, paths, strict=True):
        if form == "parquet":
            part.write_parquet(path, row_group_size=37)
            continue
        text = part.write_csv() if form.startswith("csv") else part.write_ndjson()
        path.write_bytes(gzip.compress(text.encode()) if form.endswith("gz") else text.encode())
    return paths


@pytest.mark.parametrize("form", ["parquet", "csv", "csv.gz", "ndjson", "ndjson.gz"])
@pytest.mark.parametrize("way", WAYS)
def test_a_store_is_the_log_read_at_once(way: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every format in many pieces: bit for bit the log that reading the files at once gives."""
    many_pieces(monkeypatch)
    paths = written(frame(3_000), tmp_path, form)
    options: dict[str, Any] = COLUMNS | WAYS[way]
    if form.startswith("csv"):
        options |= {"kinds": {"tags": "bag"}}
    store = prepare_log(paths, tmp_path / "store", shards=5, memory=LITTLE, **options)
    log = read_log(paths, **options).sharded(5)
    assert store == log
    assert store.fingerprint == log.fingerprint
    assert store.kept is None or (log.kept is not None and store.kept.equals(log.kept))
    assert (store.reward_name, store.frames) == (log.reward_name, log.frames)
    assert open_store(tmp_path / "store") == log
    assert sorted(one.name for one in tmp_path.iterdir() if one.is_dir()) == ["store"]


def awkward(rows: int = 800) -> pl.DataFrame:
    """Columns whose type is a matter of all their values: late text, late fractions, dates with a late time."""
    draw = np.random.default_rng(1)
    late = np.arange(rows) > rows - 20
    return pl.DataFrame(
        {
            "late_text": [f"x{i % 7}" if late[i] else str(i % 7) for i in range(rows)],
            "late_number": [f"{i % 5}.5" if late[i] else str(i % 5) for i in range(rows)],
            "zip": [f"0{i % 9}" if late[i] else str(i % 9) for i in range(rows)],
            "day": [f"2024-03-{1 + i % 28:02}" + (" 10:00:00" if late[i] else "") for i in range(rows)],
            "member": [str(i % 3 == 0) for i in range(rows)],
            "once_unsure": ["maybe" if i == rows - 1 else str(i % 2 == 0) for i in range(rows)],
            "score": [None if i % 400 == 399 else i % 4 / 4 for i in range(rows)],
            "bag": ["1;2" if late[i] else f"{i % 3}" for i in range(rows)],
            "action": draw.integers(0, 3, rows),
            "reward": draw.integers(0, 2, rows) + 0.0,
            "price": draw.integers(1, 3, rows),
        }
    )


@pytest.mark.parametrize("missing", ["indicator", "zero", "drop"])
def test_columns_are_typed_by_all_of_their_values(
    missing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only the last piece of a text file tells holds for the first too; so do flags of missing values."""
    many_pieces(monkeypatch)
    rows = awkward()
    path = tmp_path / "log.csv"
    rows.write_csv(path)
    options: dict[str, Any] = {
        "context": ["late_text", "late_number", "zip", "day", "score", "bag", "member", "once_unsure"],
        "action": "action",
        "reward": "value=reward*price",
        "reward_range": (0.0, 2.0),
        "kinds": {"late_text": "categorical", "bag": "bag"},
        "missing": {"score": missing},
        "keep": ["price"],
    }
    store = prepare_log(path, tmp_path / "store", shards=3, memory=LITTLE, **options)
    log = read_log(path, **options).sharded(3)
    assert store == log
    assert {name: one.kind for name, one in store.contexts.items()}["late_number"] == "numeric"
    assert store.kept is not None
    assert log.kept is not None
    assert store.kept.equals(log.kept)


def test_candidates_and_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many_pieces(monkeypatch)
    draw = np.random.default_rng(0)
    sets = [sorted(draw.choice(5, 3, replace=False).tolist()) for _ in range(900)]
    rows = pl.DataFrame(
        {
            "x": draw.integers(0, 30, 900),
            "offered": sets,
            "price": [[(i + k) % 4 / 2 for k in range(3)] for i in range(900)],
            "brand": [[f"b{(i * k) % 3}" for k in range(3)] for i in range(900)],
            "action": [one[i % 3] for i, one in enumerate(sets)],
            "reward": draw.integers(0, 2, 900) + 0.0,
        }
    )
    rows.write_parquet(tmp_path / "log.parquet", row_group_size=50)
    options: dict[str, Any] = {
        "context": ["x"],
        "action": "action",
        "reward": "reward",
        "candidates": "offered",
        "candidate_features": ["price", "brand"],
    }
    store = prepare_log(tmp_path / "log.parquet", tmp_path / "store", shards=4, memory=LITTLE, **options)
    log = read_log(tmp_path / "log.parquet", **options).sharded(4)
    assert store == log
    assert [one.fingerprint for one in store.shards] == [one.fingerprint for one in log.shards]


def told(error: LogError) -> list[str]:
    """Every problem, without the hint that looks at all rewards."""
    return sorted(str(one).partition(" (99 %")[0].rstrip(".") for one in error.problems)


def test_problems_are_those_of_reading_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One error with every problem, its first file and row, and the rows of all pieces counted."""
    many_pieces(monkeypatch)
    place = pl.int_range(2_000)
    rows = frame(2_000).with_columns(
        age=pl.when(place % 300 == 299).then(None).otherwise("age"),
        reward=pl.when(place == 1_500).then(7.0).when(place == 900).then(-1.0).otherwise("reward"),
        prob=pl.when(place == 1_234).then(0.0).otherwise("prob"),
    )
    options: dict[str, Any] = {**COLUMNS, "context": ["age", "country"], "propensity": "prob"}
    for form in ("parquet", "csv"):
        paths = written(rows, tmp_path, form)
        with pytest.raises(LogError) as expected:
            read_log(paths, **options)
        with pytest.raises(LogError) as found:
            prepare_log(paths, tmp_path / "store", memory=LITTLE, **options)
        same = [
            sorted(str(one).partition(" (99 %")[0].rstrip(".") for one in e.value.problems) for e in (found, expected)
        ]
        assert same[0] == same[1]
        assert len(found.value.problems) == 3
    assert not (tmp_path / "store").exists()
    assert not list(tmp_path.glob("*.preparing"))


def test_duplicates_are_dropped(tmp_path: Path) -> None:
    paths = written(frame(2_000), tmp_path, "parquet")
    options: dict[str, Any] = COLUMNS | {"context": ["age"], "drop_duplicates": True}
    store = prepare_log(paths, tmp_path / "store", shards=4, **options)
    log = read_log(paths, **options)
    assert store.n_rows == log.n_rows < 2_000
    assert store == log.sharded(4)


def test_files_are_added(tmp_path: Path) -> None:
    """The old shards keep every byte; ids grow at the end; rows are those of both files; returning units are told."""
    rows = frame(1_200)
    later = frame(500, seed=5).with_columns(user=pl.col("user") + 40, country=pl.lit("es"), action=pl.lit("w"))
    rows.write_parquet(tmp_path / "a.parquet")
    later.write_parquet(tmp_path / "b.parquet")
    options: dict[str, Any] = COLUMNS | WAYS["clusters"]
    old = prepare_log(tmp_path / "a.parquet", tmp_path / "store", shards=4, **options)
    before = {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()}
    parts = list(old.shards)
    store = prepare_log(tmp_path / "b.parquet", tmp_path / "store", shards=4, append=True)
    for path, content in before.items():
        if path.name != "manifest.json":
            assert path.read_bytes()[: len(content)] == content, path
    assert store == open_store(tmp_path / "store")
    assert store.n_rows == 1_700
    assert store.actions.vocabulary.to_list() == ["x", "y", "z", "w"]
    assert [one.rows_digest for one in store.shards][: len(parts)] == [one.rows_digest for one in parts]
    fresh = prepare_log([tmp_path / "a.parquet", tmp_path / "b.parquet"], tmp_path / "both", shards=4, **options)
    assert np.array_equal(np.sort(fresh.row_hashes), np.sort(store.row_hashes))
    assert "20 units of the files added last were in the store before" in store.treated[0]
    train, held = store.split((0.7, 0.3))  # a returning unit is on one side, with all of its rows
    assert not set(train.cluster_hashes.tolist()) & set(held.cluster_hashes.tolist())
    assert pickle.loads(pickle.dumps(train)) == train
    assert sorted(train.shard(0).sharded(3).cluster_hashes.tolist()) == sorted(train.shard(0).cluster_hashes.tolist())
    assert len(set(store.sharded(4).cluster_hashes.tolist())) == 100
    assert old.n_rows == 1_200  # whoever had it open has what was there
    assert np.array_equal(np.sort(old.row_hashes), np.sort(read_log(tmp_path / "a.parquet", **options).row_hashes))
    with pytest.raises(ParameterError, match="other columns"):
        prepare_log(tmp_path / "b.parquet", tmp_path / "store", append=True, **{**options, "keep": ()})


def test_a_store_is_replaced_with_force_only(tmp_path: Path) -> None:
    paths = written(frame(300), tmp_path, "parquet")
    prepare_log(paths, tmp_path / "store", **COLUMNS)
    with pytest.raises(ParameterError, match="there already"):
        prepare_log(paths, tmp_path / "store", **COLUMNS)
    assert prepare_log(paths[:1], tmp_path / "store", force=True, **COLUMNS).n_rows == 200
    (tmp_path / "other").mkdir()
    with pytest.raises(ParameterError, match="not replaced"):
        prepare_log(paths, tmp_path / "other", force=True, **COLUMNS)
    assert {one.name for one in tmp_path.iterdir() if one.is_dir()} == {"store", "other"}


KILLED = """
import sys, json
from offpolicy import prepare_log
prepare_log(sys.argv[1], sys.argv[2], shards=40, memory="64MB", **json.loads(sys.argv[3]))
"""


def test_a_killed_preparation_goes_on(tmp_path: Path) -> None:
    """Killed at moments spread over its whole run: run again it ends with the store of an undisturbed one."""
    frame(4_000).write_parquet(tmp_path / "log.parquet")
    options: dict[str, Any] = COLUMNS | WAYS["clusters"]
    expected = prepare_log(tmp_path / "log.parquet", tmp_path / "expected", shards=40, **options)
    words = [sys.executable, "-c", KILLED, str(tmp_path / "log.parquet"), str(tmp_path / "store"), json.dumps(options)]
    staging, resumed = tmp_path / "store.preparing", 0
    for shards in (1, 9, 30):
        process = subprocess.Popen(words, env=os.environ)
        while process.poll() is None:
            state = staging / "state.json"
            if state.exists() and json.loads(state.read_text())["next"] >= shards:
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.001)
        process.wait()
        if staging.exists() and (staging / "state.json").exists():
            resumed += json.loads((staging / "state.json").read_text())["next"] >= shards
        if (tmp_path / "store").exists():
            break
    assert resumed
    written_before = json.loads((staging / "state.json").read_text())["next"] if staging.exists() else 40
    store = prepare_log(tmp_path / "log.parquet", tmp_path / "store", shards=40, memory=LITTLE, **options)
    assert written_before >= 1
    assert store == expected
    assert not staging.exists()


@pytest.mark.parametrize("append", [False, True])
def test_a_full_disk_leaves_nothing_half_written(append: bool, tmp_path: Path) -> None:
    """Files may not grow beyond a limit, as on a full disk: an error in words, and everything as it was before."""
    paths = written(frame(4_000), tmp_path, "parquet")
    if append:
        prepare_log(paths, tmp_path / "store", shards=2, **COLUMNS)
    before = {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (2_000, 20_000, 60_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(OffPolicyError, match=r"cannot be|too large"):
                prepare_log(paths, tmp_path / "store", shards=2, append=append, **COLUMNS)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()} == before
        assert not list(tmp_path.glob("*.preparing"))
