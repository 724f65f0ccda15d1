"""The file by which a probe on the same machine sees whether a worker is alive, and reaches its store and broker."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from onejob.errors import ConfigurationError

MAX_AGE = 60.0
"""For how many seconds a file is fresh, by default."""
WIDTH = 20
"""How many characters the time in a file has."""
SILENT = "silent"
"""The word after the time in a file if the worker hears nothing from its broker."""


class ProbeFile:
    """The probe file of a worker at `path`; without a path nothing is written."""

    def __init__(self, path: str) -> None:
        self._path = path

    def create(self) -> None:
        """Create the file, empty. Raises `ConfigurationError` if it cannot be written."""
        if not self._path:
            return
        try:
            Path(self._path).write_text("", encoding="ascii")
        except OSError as error:
            msg = f"onejob_probe_file={self._path!r} cannot be written: {error}. Name a file in a writable folder"
            raise ConfigurationError(msg) from error

    def touch(self) -> None:
        """Update the file's time: the worker is alive."""
        if self._path:
            with suppress(OSError):  # the probe will tell
                os.utime(self._path)

    def write_contact(self, *, silent: bool = False) -> None:
        """Write the time at which the store has accepted a heartbeat. A reader sees the former time, or the new time.

        `silent`: whether the worker hears nothing from its broker while jobs wait.
        """
        if self._path:
            with suppress(OSError):
                file = os.open(self._path, os.O_WRONLY)
                try:
                    word = SILENT if silent else " " * len(SILENT)
                    os.pwrite(file, f"{time.time():0{WIDTH}.6f} {word}".encode("ascii"), 0)
                finally:
                    os.close(file)

    def remove(self) -> None:
        """Remove the file: the worker ends."""
        if self._path:
            Path(self._path).unlink(missing_ok=True)


def find_fault(path: Path, now: float, *, max_age: float = MAX_AGE, ready: bool = False) -> str | None:
    """Return why the worker of a file is not alive, or not `ready`; None without a fault. `now`: epoch seconds."""
    try:
        alive_at, text = path.stat().st_mtime, path.read_text(encoding="ascii")
        reached_at = float(text[:WIDTH] or 0)
    except (OSError, ValueError) as error:
        return f"no worker writes {path}: {getattr(error, 'strerror', 'it has other content')}"
    if now - alive_at > max_age:
        return f"the worker of {path} has not moved for {now - alive_at:.0f} s"
    if ready and not text:
        return f"the worker of {path} has not reached the store yet"
    if ready and now - reached_at > max_age:
        return f"the worker of {path} has not reached the store for {now - reached_at:.0f} s"
    if ready and text.endswith(SILENT):
        return f"the worker of {path} hears nothing from its broker, and jobs wait for it"
    return None
