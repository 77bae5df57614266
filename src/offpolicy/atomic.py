"""Files and folders that appear whole or not at all, also when the process is killed while writing.

What is written goes to a sibling called `name.tmp-xxxxxxxx`, is flushed to the disk, and takes its place by one
rename. A writer holds a lock on its sibling for as long as it lives; a sibling without a lock is what a killed writer
left behind, and the next write to the same place removes it.
"""

import ctypes
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from offpolicy.errors import OffPolicyError

AT_FDCWD = -100  # "relative to the working directory", from the Linux headers
RENAME_EXCHANGE = 2


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path to write; it replaces `path` when the block ends, and vanishes when it fails."""
    target = _resolved(path)
    if target.is_dir():
        raise OffPolicyError(f"{target} cannot be written as a file, because it is a folder. Choose another name.")
    with _readable_errors(target), _sibling(target, folder=False) as temporary:
        yield temporary
        _flush(temporary)
        temporary.replace(target)
        _flush(target.parent)


@contextmanager
def whole_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder to fill; it replaces `path` when the block ends, and vanishes when it fails.

    A folder that was there before stays until the new one is complete.
    """
    target = _resolved(path)
    if target.exists() and not target.is_dir():
        raise OffPolicyError(f"{target} cannot be written as a folder, because it is a file. Choose another name.")
    with _readable_errors(target), _sibling(target, folder=True) as temporary:
        yield temporary
        for inside in temporary.rglob("*"):
            _flush(inside)
        _flush(temporary)
        _publish(temporary, target)
        _flush(target.parent)


def write_whole(path: str | Path, content: bytes | str) -> None:
    """Write a file that appears whole or not at all; text as UTF-8."""
    data = content.encode() if isinstance(content, str) else content
    with whole_file(path) as temporary:
        temporary.write_bytes(data)


def leftovers(path: str | Path) -> list[Path]:
    """What writers of this file or folder, killed or still alive, have beside it."""
    target = _resolved(path)
    pattern = re.compile(re.escape(target.name) + r"\.(tmp|old)-[0-9a-f]{8}")
    if not target.parent.is_dir():
        return []
    return sorted(other for other in target.parent.iterdir() if pattern.fullmatch(other.name))


def remove_leftovers(path: str | Path) -> None:
    """Remove what killed writers left beside this file or folder, after restoring a folder they had moved away."""
    target = _resolved(path)
    for other in leftovers(target):
        with suppress(OSError), _opened(other) as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an error means that its writer lives
            if ".old-" in other.name and not target.exists():
                other.rename(target)
            else:
                _remove(other)


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
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target)
    path, handle = _claimed(target, folder)
    try:
        yield path
    finally:
        _remove(path)  # nothing where it took its place, the former folder where it exchanged places
        os.close(handle)


def _claimed(target: Path, folder: bool) -> tuple[Path, int]:
    """A fresh sibling and the handle that keeps it locked."""
    while True:
        path = target.with_name(f"{target.name}.tmp-{secrets.token_hex(4)}")
        path.mkdir() if folder else path.touch(exist_ok=False)
        with suppress(FileNotFoundError):  # another writer, cleaning up, was quicker than the lock: try again
            handle = os.open(path, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks: then nothing is ever cleaned up either
                fcntl.flock(handle, fcntl.LOCK_EX)
            if path.exists():
                return path, handle
            os.close(handle)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)


def _flush(path: Path) -> None:
    with _opened(path) as handle:
        os.fsync(handle)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _publish(new: Path, target: Path) -> None:
    """Move a complete folder to its place; a former one ends up under the temporary name."""
    if not target.exists():
        new.rename(target)
    elif not _exchanged(new, target):
        former = target.with_name(f"{target.name}.old-{secrets.token_hex(4)}")
        with _opened(target) as handle:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)  # so that nobody takes it for a leftover
            target.rename(former)  # killed here, the next writer or reader puts it back
            new.rename(target)
            _remove(former)


def _exchanged(one: Path, other: Path) -> bool:
    """Whether the system could swap two folders in one step."""
    swap = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if swap is None:
        return False
    swap.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return bool(swap(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0)
