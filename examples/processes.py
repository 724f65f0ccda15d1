"""The processes of an example: each in a group of its own, and ended with the example, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.services import Daemon

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class Processes:
    """Starts processes, from the main thread, whose output goes to `<name>.log` in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[Daemon] = []

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Daemon:
        """Start a process with this environment."""
        own = [f"{key}={value}" for key, value in environment.items() if os.environ.get(key) != value]
        process = Daemon(["env", *own, *command], log=self._folder / f"{name}.log", cwd=self._folder)
        self._running.append(process)
        return process

    def end(self, process: Daemon, grace: float) -> None:
        """Terminate a process with SIGTERM, and kill its group after `grace` seconds."""
        if process.alive:
            process.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.process.wait(grace)
        self.kill(process)

    def kill(self, process: Daemon) -> None:
        """Kill a process and its whole group with SIGKILL, like the loss of a node."""
        with suppress(ProcessLookupError, PermissionError):  # macOS raises the second for a group of zombies
            os.killpg(process.pid, signal.SIGKILL)
        process.end(signal.SIGKILL)
        self._running.remove(process)

    def close(self) -> None:
        """Kill all processes."""
        for process in [*self._running]:
            self.kill(process)
