"""The files of a SQLite database: their paths, their identities on disk, their owners and their modes."""

from __future__ import annotations

import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

MISSING = " does not exist"


def absolute_path(path: str | Path) -> Path:
    """Return the file that a path names in the present working directory; a database in memory stays as it is."""
    path = Path(path)
    return path if is_uri_path(path) else path.absolute()


def is_uri_path(path: Path) -> bool:
    """Return whether a path is SQLite's URI of a database, as `file:name?mode=memory`, and not the file `file:name`."""
    return str(path).startswith("file:") and "?" in str(path)


def create_file(path: Path) -> None:
    """Create an empty database for its owner only, where there is no file; -wal and -shm get its mode."""
    with suppress(OSError):  # it exists, or SQLite will report why it cannot be opened
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


FileId: TypeAlias = tuple[int, int]
"""The device and the inode of a file: equal for one and the same file, for as long as a process has it open."""


def file_id(path: str) -> FileId | None:
    """Return the `FileId` of the file at a path; None if there is no file."""
    try:
        found = os.stat(path)  # noqa: PTH116 - on the path of every transaction
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def wal_of(path: Path) -> str:
    """Return the name of the write-ahead log of a database."""
    return f"{path}-wal"


def rights_of(path: Path) -> str:
    """Return a text with the user of the process, and owner and mode of a database's folder and files; "" in memory."""
    if is_uri_path(path):
        return ""
    beside = [_describe(Path(f"{path}{suffix}")) for suffix in ("-wal", "-shm")]  # which need not exist
    found = [_describe(path.parent), _describe(path), *(each for each in beside if not each.endswith(MISSING))]
    return f"The process runs as {_user_name(os.geteuid())}; {'; '.join(found)}"


def _describe(path: Path) -> str:
    try:
        found, system = path.stat(), os.statvfs(path)
    except FileNotFoundError:
        return f"{path}{MISSING}"
    except OSError as error:  # the user may not look into its folder
        return f"{path} cannot be examined ({error.strerror})"
    read_only = " on a read-only file system" * bool(system.f_flag & os.ST_RDONLY)
    return f"{path} is {stat.filemode(found.st_mode)} of {_user_name(found.st_uid)}{read_only}"


def _user_name(number: int) -> str:
    with suppress(KeyError):
        return pwd.getpwuid(number).pw_name
    return str(number)
