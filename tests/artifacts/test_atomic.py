"""Files and folders are replaced atomically; what killed writers left is removed, what live ones hold is not."""

from pathlib import Path

import pytest

from offpolicy import atomic
from offpolicy.atomic import (
    CURRENT,
    VERSIONS,
    atomic_file,
    current_version,
    leftovers,
    lock,
    new_version,
    versions,
    write_atomic,
)
from offpolicy.errors import OffPolicyError


class StoppedError(Exception):
    pass


def stopped(written: object) -> None:
    raise StoppedError


def fill(folder: Path, text: str) -> int:
    (folder / "inner").mkdir()
    (folder / "inner" / "a.txt").write_text(text)
    return (folder / "b.txt").write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_takes_its_place_when_complete(tmp_path: Path) -> None:
    target = tmp_path / "new" / "out.txt"
    with atomic_file(target) as temporary:
        temporary.write_text("one")
        assert not target.exists()
        assert leftovers(target) == [temporary]
    assert target.read_text() == "one"
    write_atomic(target, "twö")
    assert target.read_bytes() == "twö".encode()
    assert names(target.parent) == ["out.txt"]


def test_a_failed_block_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    write_atomic(target, b"old")
    with pytest.raises(StoppedError), atomic_file(target) as temporary:
        stopped(temporary.write_text("half"))
    with pytest.raises(StoppedError), new_version(tmp_path / "folder") as folder:
        stopped(fill(folder, "half"))
    assert target.read_text() == "old"
    assert names(tmp_path) == ["out.txt"]


@pytest.fixture(params=[True, False], ids=["locks", "no locks"])
def locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the system can lock files; where it cannot, all but the removal of former versions is the same."""
    if not request.param:
        monkeypatch.setattr(atomic, "_locks", None)
    return bool(request.param)


def test_a_new_version_replaces_the_former_one_which_stays_for_its_readers(tmp_path: Path, locks: bool) -> None:
    target = tmp_path / "deep" / "folder"
    read: list[Path] = []
    for text in ("one", "two", "three"):
        with new_version(target) as folder:
            fill(folder, text)
            assert not read or current_version(target) == read[-1]
        read.append(current_version(target))
        assert (read[-1] / "inner" / "a.txt").read_text() == text
        assert all((one / "b.txt").read_text() for one in read[-2:])
        assert names(target) == sorted([CURRENT, VERSIONS])
        assert names(target.parent) == ["folder"]
    assert versions(target) == sorted(read[1:] if locks else read)


def test_a_version_that_was_placed_but_never_pointed_at_is_never_read(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    with new_version(target) as folder:
        fill(folder, "one")
    first = current_version(target)
    orphan = target / VERSIONS / "0123abcd"  # as a kill between the two renames leaves it
    orphan.mkdir()
    fill(orphan, "orphan")
    assert current_version(target) == first
    with new_version(target) as folder:
        fill(folder, "two")
    assert versions(target) == sorted([first, current_version(target)])
    assert (current_version(target) / "b.txt").read_text() == "two"


def test_two_writers_of_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    with new_version(tmp_path / "folder") as slow:
        fill(slow, "slow")
        with new_version(tmp_path / "folder") as quick:
            fill(quick, "quick")
    assert (current_version(tmp_path / "folder") / "b.txt").read_text() == "slow"
    assert len(versions(tmp_path / "folder")) == 2
    assert names(tmp_path) == ["folder"]


def test_a_folder_without_versions_is_its_own_and_a_damaged_pointer_is_refused(tmp_path: Path) -> None:
    assert current_version(tmp_path) == tmp_path
    for damaged in (b"", b"../../etc", b"0123abc", b"\xff\xff"):
        (tmp_path / CURRENT).write_bytes(damaged)
        with pytest.raises(OffPolicyError, match="CURRENT does not name a version"):
            current_version(tmp_path)
    with new_version(tmp_path) as folder:
        fill(folder, "new")
    assert (current_version(tmp_path) / "b.txt").read_text() == "new"


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    with lock(tmp_path) as held:
        assert held
        with pytest.raises(BlockingIOError), lock(tmp_path, wait=False):
            pass
    with lock(tmp_path, wait=False) as held:
        assert held


def test_leftovers_of_dead_writers_go_and_those_of_live_ones_stay(tmp_path: Path) -> None:
    target = tmp_path / "out [1].txt"
    dead_file, dead_folder = (tmp_path / f"out [1].txt.tmp-0000000{i}" for i in (1, 2))
    dead_file.write_text("half")
    dead_folder.mkdir()
    fill(dead_folder, "half")
    unrelated = tmp_path / "out [1].txt.tmp-notes"
    unrelated.write_text("mine")
    with atomic_file(target) as living:
        living.write_text("one")
        write_atomic(target, "two")
        assert not dead_file.exists()
        assert not dead_folder.exists()
        assert living.exists()
    assert target.read_text() == "one"
    assert names(tmp_path) == ["out [1].txt", "out [1].txt.tmp-notes"]


def test_errors_are_readable(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    with pytest.raises(OffPolicyError, match="it is a folder"):
        write_atomic(tmp_path / "folder", "x")
    with pytest.raises(OffPolicyError, match="it is a file"), new_version(tmp_path / "file"):
        pass
    with pytest.raises(OffPolicyError, match="cannot be written"):
        write_atomic(tmp_path / "file" / "below", "x")


def test_a_link_keeps_pointing_at_what_is_replaced(tmp_path: Path) -> None:
    write_atomic(tmp_path / "real.txt", "one")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    write_atomic(tmp_path / "link.txt", "two")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "two"
