"""The folder of a stack that runs: its data, its logs, its key, and a file that tells what runs."""

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
    """The stack does not do what was asked for. The message says why, and what to do."""


class Place:
    """Where one stack keeps everything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.logs = self.folder / "logs"
        self.key = self.folder / "key"
        self.keys = self.folder / "keys.json"
        self.paused = self.folder / "paused"
        """Exists while no worker is wanted."""
        self._state = self.folder / "state.json"
        self._lock = self.folder / "lock"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the one stack that runs here. Raises `StackError` when there is one."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with self._lock.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                msg = f"it is up already, at {self.state().get('url', 'an address to come')}: `make down` ends it"
                raise StackError(msg) from None
            self.paused.unlink(missing_ok=True)
            for log in self.logs.iterdir():
                log.unlink()
            self.tell({"pid": os.getpid()})
            try:
                yield
            finally:
                self._state.unlink(missing_ok=True)

    @property
    def taken(self) -> bool:
        """Whether a stack runs here. The lock tells, which goes with its holder, and not a process id."""
        try:
            with self._lock.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def tell(self, state: Mapping[str, Any]) -> None:
        """Write down what runs, at once, so that nobody reads half of it."""
        part = self._state.with_suffix(".part")
        part.write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
        part.replace(self._state)

    def state(self) -> dict[str, Any]:
        """Return what was written down last; nothing, when nothing was."""
        try:
            found: dict[str, Any] = json.loads(self._state.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return found
