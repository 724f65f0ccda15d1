"""The signals of a SQLite file: a thread looks at the size and the time of the files, and any change is a signal."""

from __future__ import annotations

import time
from pathlib import Path

from onejob.stores.listener import Listener
from onejob.stores.sqlite.connection import is_uri_path

LOOK_INTERVAL = 0.002
"""Seconds between two looks while the file changes."""
IDLE_INTERVAL = 0.015
"""Seconds between two looks at a file that has not changed for `IDLE_AFTER` seconds."""
IDLE_AFTER = 1.0
SETTLED_AFTER = 0.02
"""Seconds after a change in which another one may leave the same time and size: file systems count in ticks."""
READ_SECONDS = 1e-4
"""How long the read takes that each subscriber makes after a change: with many of them, fewer changes are signaled."""


class SQLiteSignals(Listener):
    """The signals of one file, which wake all subscribers.

    They never open the file: to close it would drop SQLite's locks.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(polls=is_uri_path(path))
        self._paths = (Path(f"{path}-wal"), path)  # the second one alone for a file that is not in WAL mode

    def _listen(self) -> None:
        seen: object = None  # so that the first look is a change
        changed_at, settles_at = time.monotonic(), float("inf")
        while channels := self._channels():
            version, now = [*map(_stat, self._paths)], time.monotonic()
            if version != seen or now >= settles_at:
                settles_at = float("inf") if version == seen else now + SETTLED_AFTER
                changed_at = changed_at if version == seen else now
                seen = version
                for channel in channels:
                    self._wake(channel, None)
            pause = LOOK_INTERVAL if now - changed_at < IDLE_AFTER else IDLE_INTERVAL
            with self._waiting():
                self._interrupted.wait(max(pause, READ_SECONDS * sum(map(len, self._subscribers.values()))))


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:  # it does not exist while no process has the ledger open
        return None
    return found.st_mtime_ns, found.st_size
