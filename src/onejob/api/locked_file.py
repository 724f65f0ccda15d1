"""A file that several processes change: one at a time, and each change replaces the whole file."""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PRIVATE = 0o600


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is that of another file beside it, since a change replaces the file itself."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path.with_name(f".{path.name}.lock"), flags, PRIVATE)
    try:
        _copy_owner(path, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def replace_file(path: Path, text: str) -> None:
    """Replace the content of a file atomically and durably; it keeps its mode and owner, a new one is private."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # has mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if path.exists():
                _copy_owner(path, descriptor)
                os.fchmod(descriptor, path.stat().st_mode & 0o777)
            os.fsync(descriptor)
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise
    _sync_directory(path.parent)


def _copy_owner(path: Path, descriptor: int) -> None:
    """Give an open file the owner of another one, so that the user who owns that one can still use it."""
    if not path.exists():
        return
    wanted, present = path.stat(), os.fstat(descriptor)
    if (wanted.st_uid, wanted.st_gid) != (present.st_uid, present.st_gid):
        os.fchown(descriptor, wanted.st_uid, wanted.st_gid)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
