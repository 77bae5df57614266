"""Atomic files and folders: a reader sees the former content or the new one, also when the writer is killed.

What is written goes to a sibling called `name.tmp-xxxxxxxx` and is flushed to the disk. A file then takes its place by
one rename. A folder has versions: its files are in `versions/<id>/`, and the small file `CURRENT`, which is replaced
by one rename, names the version that readers take. The version before stays until the next one is published, so that
a reader of it can finish.

A writer holds a lock on its sibling for as long as it runs; a sibling without a lock is what a killed writer left
behind, and the next write to the same place removes it. Where the system has no such locks (Windows, some network file
systems) files and folders are as atomic, but nothing that killed writers left, and no former version, is removed.
"""

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from offpolicy.errors import OffPolicyError

CURRENT, VERSIONS = "CURRENT", "versions"
_ID = re.compile(r"[0-9a-f]{8}")


def _posix_locks() -> Any:
    try:
        import fcntl
    except ImportError:
        return None
    return fcntl


_locks = _posix_locks()


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path to write; it replaces `path` when the block ends, and is removed when it fails."""
    target = _resolved(path)
    if target.is_dir():
        raise OffPolicyError(f"{target} cannot be written as a file, because it is a folder. Choose another name.")
    with _readable_errors(target), _sibling(target, folder=False) as temporary:
        yield temporary
        flush(temporary)
        temporary.replace(target)
        flush(target.parent)


def write_atomic(path: str | Path, content: bytes | str) -> None:
    """Write a file atomically; text as UTF-8."""
    data = content.encode() if isinstance(content, str) else content
    with atomic_file(path) as temporary:
        temporary.write_bytes(data)


@contextmanager
def new_version(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder to fill; it is the folder's current version when the block ends, or removed if it fails.

    The former version stays, those before it are removed.
    """
    target = _resolved(path)
    if target.exists() and not target.is_dir():
        raise OffPolicyError(f"{target} cannot be written as a folder, because it is a file. Choose another name.")
    with _readable_errors(target), _sibling(target, folder=True) as temporary:
        version = temporary / VERSIONS / secrets.token_hex(4)
        version.mkdir(parents=True)
        yield version
        (temporary / CURRENT).write_text(version.name, encoding="ascii")
        for inside in (*temporary.rglob("*"), temporary):
            flush(inside)
        _publish(temporary, version, target)
        flush(target.parent)


def current_version(path: str | Path) -> Path:
    """The folder that holds the current files: a version, or `path` itself where it has no `CURRENT`.

    Two saves later the version is gone: a reader that finds files missing asks again.
    """
    folder = Path(path).expanduser()
    name = _current_id(folder)
    if name is None:
        return folder
    if not _ID.fullmatch(name):
        raise OffPolicyError(f"{folder / CURRENT} does not name a version. Copy the folder again in full.")
    return folder / VERSIONS / name


def _current_id(folder: Path) -> str | None:
    """What CURRENT says: nothing legible where it is damaged, None where it is missing."""
    try:
        return (folder / CURRENT).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return ""


def versions(path: str | Path) -> list[Path]:
    """Every version in a folder, the current one among them."""
    inside = Path(path).expanduser() / VERSIONS
    return sorted(one for one in inside.iterdir() if _ID.fullmatch(one.name)) if inside.is_dir() else []


def leftovers(path: str | Path) -> list[Path]:
    """What writers of this file or folder, killed or still alive, have beside it."""
    target = _resolved(path)
    pattern = re.compile(re.escape(target.name) + r"\.tmp-[0-9a-f]{8}")
    if not target.parent.is_dir():
        return []
    return sorted(other for other in target.parent.iterdir() if pattern.fullmatch(other.name))


def remove_leftovers(path: str | Path) -> None:
    """Remove what killed writers left beside this file or folder."""
    for other in leftovers(path):
        with suppress(OSError), lock(other, wait=False) as held:  # an error means that its writer is still running
            if held:
                _remove(other)


@contextmanager
def scratch_folder(path: str | Path) -> Iterator[Path]:
    """Yield an empty folder beside this path, of this process alone, which is removed when the block ends.

    What killed processes left of theirs is removed first.
    """
    with _sibling(_resolved(path), folder=True) as folder:
        yield folder


@contextmanager
def lock(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a file or folder against other processes; gives False where the system has no locks.

    Without `wait`, a BlockingIOError says that another process holds it. The end of a process ends its locks.
    """
    if _locks is None:
        yield False
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        held = True
        try:
            _locks.flock(handle, _locks.LOCK_EX | (0 if wait else _locks.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError:  # a file system without locks
            held = False
        yield held
    finally:
        os.close(handle)


def _resolved(path: str | Path) -> Path:
    return Path(os.path.realpath(Path(path).expanduser()))


@contextmanager
def _readable_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise OffPolicyError(
            f"{target} cannot be written: {reason}. Check the folder, your permission and the space on the disk."
        ) from error


@contextmanager
def _sibling(target: Path, folder: bool) -> Iterator[Path]:
    """A fresh sibling, locked until the block ends; what is left of it then is removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target)
    path, holding = _claimed(target, folder)
    with holding:
        try:
            yield path
        finally:
            _remove(path)


def _claimed(target: Path, folder: bool) -> tuple[Path, ExitStack]:
    """A fresh sibling and what keeps it locked."""
    while True:
        path = target.with_name(f"{target.name}.tmp-{secrets.token_hex(4)}")
        path.mkdir() if folder else path.touch(exist_ok=False)
        holding = ExitStack()
        with suppress(FileNotFoundError):  # another writer, cleaning up, was quicker than the lock: try again
            holding.enter_context(lock(path))
            if path.exists():
                return path, holding
        holding.close()


def _publish(temporary: Path, version: Path, target: Path) -> None:
    """Move a complete version to its place and point at it; a folder that is not yet there comes by one rename."""
    if not target.exists():
        with suppress(OSError):  # another writer was quicker: then this is the next version
            temporary.rename(target)
            return
    with lock(target) as held:
        former = _current_id(target)
        (target / VERSIONS).mkdir(exist_ok=True)
        version.rename(target / VERSIONS / version.name)
        flush(target / VERSIONS)
        (temporary / CURRENT).replace(target / CURRENT)
        flush(target)
        if held:
            for other in versions(target):
                if other.name not in (version.name, former):
                    _remove(other)


def flush(path: Path) -> None:
    """Have a file or folder on the disk, also after a power cut."""
    if os.name == "nt" and path.is_dir():
        return  # folders cannot be opened there
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_tree(folder: Path, *, inside: bool = False) -> None:
    """Remove a folder that a command made for itself; with `inside` only what it holds."""
    if inside:
        for one in folder.iterdir() if folder.is_dir() else ():
            _remove(one)
    else:
        _remove(folder)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
