"""The folder of a running stack: its data, its logs, its key, and a file with the state of its processes."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


class StackError(RuntimeError):
    """A command of the stack failed. The message has the reason, and what to do."""


class Place:
    """Where one stack keeps everything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.logs = self.folder / "logs"
        self.key = self.folder / "key"
        self.keys = self.folder / "keys.json"
        self.paused = self.folder / "paused"
        """A file that exists while no worker shall run."""
        self._state = self.folder / "state.json"
        self._lock = self.folder / "lock"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder as the one stack that runs here. Raises `StackError` when there is one."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with self._lock.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                msg = f"it is up already, at {self.state().get('url', 'an address not known yet')}: `make down` ends it"
                raise StackError(msg) from None
            self.paused.unlink(missing_ok=True)
            for log in self.logs.iterdir():
                log.unlink()
            self.write_state({"pid": os.getpid()})
            try:
                yield
            finally:
                self._state.unlink(missing_ok=True)

    @property
    def taken(self) -> bool:
        """Whether a stack runs here: whether the lock is held, which ends with its holder, unlike a process id."""
        try:
            with self._lock.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def write_state(self, state: Mapping[str, Any]) -> None:
        """Write the state of the processes atomically."""
        part = self._state.with_suffix(".part")
        part.write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
        part.replace(self._state)

    def state(self) -> dict[str, Any]:
        """Return the state that was written last; empty if there is none."""
        try:
            found: dict[str, Any] = json.loads(self._state.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return found
