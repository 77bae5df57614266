"""A prepared folder: the log that was written, mapped from disk, refused where it is damaged."""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from log_frames import COLUMNS, WAYS, frame
from offpolicy import LogError, LoggedData, OffPolicyError, read_log
from offpolicy.log import in_store, open_store, write_store
from offpolicy.log.mapped import mapped_file


def in_memory(way: str) -> LoggedData:
    return read_log(frame(), **COLUMNS, **WAYS[way]).sharded(8)


@pytest.mark.parametrize("way", WAYS)
def test_a_store_is_the_log_that_was_written(way: str, tmp_path: Path) -> None:
    """Arrays, shards and fingerprints agree; nothing is copied on opening; a process gets it by its path alone."""
    log = in_memory(way)
    store = write_store(log, tmp_path / "store")
    assert store == log
    assert store.store == tmp_path / "store"
    assert (store.fingerprint, store.rows_fingerprint) == (log.fingerprint, log.rows_fingerprint)
    assert isinstance(store.reward.base, np.memmap)
    assert not store.action.flags.writeable
    for mine, theirs in zip(store.shards, log.shards, strict=True):
        assert mine == theirs
        assert mine.fingerprint == theirs.fingerprint
        assert pickle.loads(pickle.dumps(mine)) == theirs
        assert LoggedData(**mine._fields) == theirs
    assert len(pickle.dumps(store)) < 500
    assert pickle.loads(pickle.dumps(store)) == log
    assert store.weighted(np.ones(store.n_rows)).store is None
    assert store.take(np.arange(50)) == log.take(np.arange(50))


def test_every_flipped_byte_is_refused_by_name(tmp_path: Path) -> None:
    """A changed byte anywhere: the whole store is refused on opening, lazily opened the shard that holds it."""
    write_store(in_memory("clusters"), tmp_path / "good")
    for number, path in enumerate(sorted(one for one in (tmp_path / "good").rglob("*") if one.is_file())):
        bad = tmp_path / f"bad{number}"
        shutil.copytree(tmp_path / "good", bad)
        damaged = bad / path.relative_to(tmp_path / "good")
        content = bytearray(damaged.read_bytes())
        content[len(content) // 2] ^= 4
        damaged.write_bytes(content)
        with pytest.raises(LogError, match=damaged.name):
            open_store(bad)
        if path.parent.name in ("arrays", "kept"):
            lazily = open_store(bad, verify=False)
            with pytest.raises(LogError, match=damaged.name):
                list(lazily.shards)


def test_a_store_is_never_written_over(tmp_path: Path) -> None:
    write_store(in_memory("contexts"), tmp_path / "store")
    with pytest.raises(OffPolicyError, match="there already"):
        write_store(in_memory("contexts"), tmp_path / "store")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["store"]
    with pytest.raises(LogError, match=r"manifest\.json cannot be read"):
        open_store(tmp_path)


def test_a_store_that_was_replaced_is_not_taken_for_the_former(tmp_path: Path) -> None:
    """What was sent to a process names the log it means."""
    sent = pickle.dumps(write_store(in_memory("contexts"), tmp_path / "store"))
    shutil.rmtree(tmp_path / "store")
    write_store(in_memory("clusters"), tmp_path / "store")
    with pytest.raises(LogError, match="has changed"):
        pickle.loads(sent)


def test_large_parts_of_a_store_are_mapped_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits, hashes and batches of a store are those of the log in memory, in files that nobody sees."""
    monkeypatch.setattr("offpolicy.log.mapped.SMALL", 0)
    monkeypatch.setattr("offpolicy.log.mapped.AT_ONCE", 7)
    for way in WAYS:
        log = in_memory(way)
        store = write_store(log, tmp_path / way)
        mine, theirs = store.divide((0.7, 0.3)), log.divide((0.7, 0.3))
        for (rows, part), (expected, other) in zip(mine, theirs, strict=True):
            assert np.array_equal(rows, expected)
            assert part == other
            assert mapped_file(part.reward) is not None
            assert np.array_equal(part.context_hashes, other.context_hashes)
            assert part.take(np.arange(part.n_rows)[::-3]) == other.take(np.arange(part.n_rows)[::-3])
        assert np.array_equal(store.row_hashes, log.undivided.row_hashes)
        assert np.array_equal(store.duplicates, log.undivided.duplicates)
        assert np.array_equal(store.action_count, log.undivided.action_count)
        assert store.summary() == log.undivided.summary()
        for budget in (None, 500):
            batches = list(store.batches(budget))
            assert np.array_equal(np.sort(np.concatenate([one.rows for one in batches])), np.arange(store.n_rows))
            for one in batches:
                assert np.array_equal(store.context_index[one.rows], one.contexts.start + one.row_context)
                assert np.array_equal(store.action[one.rows], one.row_action)
    assert sorted(one.name for one in tmp_path.rglob("*") if one.is_dir() and one.parent == tmp_path) == sorted(WAYS)


def test_a_part_of_a_store_becomes_a_store_once(tmp_path: Path) -> None:
    """What is learned from is written beside the run, taken up by the next, and replaced where it is another part."""
    log = write_store(in_memory("clusters"), tmp_path / "whole")
    train, held = log.split((0.8, 0.2))
    made = in_store(train, tmp_path / "run" / "train")
    assert made == train
    assert (made.lineage, made.fingerprint) == (train.lineage, train.fingerprint)
    assert [one.tolist() for one in (made.folds(3), made.row_folds(3))] == [
        one.tolist() for one in (train.folds(3), train.row_folds(3))
    ]
    before = (tmp_path / "run" / "train" / "manifest.json").stat().st_mtime_ns
    assert in_store(train, tmp_path / "run" / "train") == train
    assert (tmp_path / "run" / "train" / "manifest.json").stat().st_mtime_ns == before
    assert in_store(held, tmp_path / "run" / "train") == held
