"""Child processes that end when this process ends, also when it is killed.

A guard process reads the children's process groups from a pipe. When the pipe closes, because this process exited or
was killed with SIGKILL, the guard kills every group. Requires POSIX process groups.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_GUARD = """
import os, shutil, signal, sys
groups, folder = set(), sys.argv[1]
for line in sys.stdin:
    word, number = line.split()
    (groups.add if word == "add" else groups.discard)(int(number))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
if folder:
    shutil.rmtree(folder, ignore_errors=True)
"""


class Children:
    """Starts processes, each in its own process group, and ensures that they end.

    Their logs are written to `folder`, which is removed at the end unless `keep` is set.
    """

    def __init__(self, folder: Path, *, keep: bool = False) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        self._guard = subprocess.Popen(  # noqa: S603 - this interpreter
            [sys.executable, "-I", "-S", "-c", _GUARD, "" if keep else str(folder)],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a process whose output goes to `<name>.log` in the folder."""
        with (self._folder / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(  # noqa: S603 - fixed commands
                command,
                env=environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._running.append(child)
        self._send("add", child.pid)
        return child

    def end(self, child: subprocess.Popen[bytes], grace: float) -> None:
        """Terminate a process with SIGTERM, and kill its group after `grace` seconds."""
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(grace)
        self.kill(child)

    def kill(self, child: subprocess.Popen[bytes]) -> None:
        """Kill a process and its whole group with SIGKILL, like the loss of a node."""
        with suppress(ProcessLookupError, PermissionError):  # macOS raises the second for a group of zombies
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        self._running.remove(child)
        self._send("drop", child.pid)

    def close(self) -> None:
        """Kill all processes, and remove the folder unless it is kept."""
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        self._guard.wait()
        for child in self._running:
            child.wait()

    def _send(self, word: str, pid: int) -> None:
        if self._guard.stdin is not None:
            self._guard.stdin.write(f"{word} {pid}\n")
            self._guard.stdin.flush()
