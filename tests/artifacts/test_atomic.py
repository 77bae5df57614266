"""Files and folders appear whole or not at all; what killed writers left is recognised, what live ones hold is not."""

from pathlib import Path

import pytest

from offpolicy import atomic
from offpolicy.atomic import leftovers, remove_leftovers, whole_file, whole_folder, write_whole
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
    with whole_file(target) as temporary:
        temporary.write_text("one")
        assert not target.exists()
        assert leftovers(target) == [temporary]
    assert target.read_text() == "one"
    write_whole(target, "twö")
    assert target.read_bytes() == "twö".encode()
    assert names(target.parent) == ["out.txt"]


def test_a_failed_block_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    write_whole(target, b"old")
    with pytest.raises(StoppedError), whole_file(target) as temporary:
        stopped(temporary.write_text("half"))
    with pytest.raises(StoppedError), whole_folder(tmp_path / "folder") as folder:
        stopped(fill(folder, "half"))
    assert target.read_text() == "old"
    assert names(tmp_path) == ["out.txt"]


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_folder_replaces_the_former_one(tmp_path: Path, can_exchange: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not can_exchange:
        monkeypatch.setattr(atomic, "_exchanged", lambda one, other: False)
    target = tmp_path / "folder"
    with whole_folder(target) as folder:
        fill(folder, "one")
    with whole_folder(target) as folder:
        fill(folder, "two")
        (folder / "more.txt").write_text("two")
        assert (target / "b.txt").read_text() == "one"
    assert names(tmp_path) == ["folder"]
    assert names(target) == ["b.txt", "inner", "more.txt"]
    assert (target / "inner" / "a.txt").read_text() == "two"


def test_leftovers_of_dead_writers_go_and_those_of_live_ones_stay(tmp_path: Path) -> None:
    target = tmp_path / "out [1].txt"
    dead_file, dead_folder = (tmp_path / f"out [1].txt.tmp-0000000{i}" for i in (1, 2))
    dead_file.write_text("half")
    dead_folder.mkdir()
    fill(dead_folder, "half")
    unrelated = tmp_path / "out [1].txt.tmp-notes"
    unrelated.write_text("mine")
    with whole_file(target) as living:
        living.write_text("one")
        write_whole(target, "two")
        assert not dead_file.exists()
        assert not dead_folder.exists()
        assert living.exists()
    assert target.read_text() == "one"
    assert names(tmp_path) == ["out [1].txt", "out [1].txt.tmp-notes"]


def test_a_folder_moved_away_by_a_killed_writer_comes_back(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    moved = tmp_path / "folder.old-0123abcd"
    moved.mkdir()
    fill(moved, "former")
    (tmp_path / "folder.tmp-0123abcd").mkdir()
    remove_leftovers(target)
    assert names(tmp_path) == ["folder"]
    assert (target / "b.txt").read_text() == "former"


def test_errors_are_readable(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    with pytest.raises(OffPolicyError, match="it is a folder"):
        write_whole(tmp_path / "folder", "x")
    with pytest.raises(OffPolicyError, match="it is a file"), whole_folder(tmp_path / "file"):
        pass
    with pytest.raises(OffPolicyError, match="cannot be written"):
        write_whole(tmp_path / "file" / "below", "x")


def test_a_link_keeps_pointing_at_what_is_replaced(tmp_path: Path) -> None:
    write_whole(tmp_path / "real.txt", "one")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    write_whole(tmp_path / "link.txt", "two")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "two"
