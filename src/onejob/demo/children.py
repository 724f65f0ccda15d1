"""Child processes that end with this one, however it ends.

A guard process holds the other end of a pipe and the list of our children's process groups. When the pipe closes,
because we ended in order or were killed with SIGKILL, the guard kills every group. It works wherever there are groups.
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
    """Starts processes, each in a group of its own, and answers for their end.

    `folder` gets their logs; it is removed with the last process, unless it is to be kept.
    """

    def __init__(self, folder: Path, *, keep: bool = False) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        self._guard = subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, "-I", "-S", "-c", _GUARD, "" if keep else str(folder)],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a process whose output goes to `<name>.log` in the folder."""
        with (self._folder / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(  # noqa: S603 - our own programs
                command,
                env=environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._running.append(child)
        self._tell("add", child.pid)
        return child

    def end(self, child: subprocess.Popen[bytes], patience: float) -> None:
        """End a process in order with SIGTERM; kill what is left of its group after `patience` seconds."""
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(patience)
        self.kill(child)

    def kill(self, child: subprocess.Popen[bytes]) -> None:
        """Kill a process and its whole group with SIGKILL, as the loss of a node would."""
        with suppress(ProcessLookupError, PermissionError):  # macOS says the second of a group of zombies
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        self._running.remove(child)
        self._tell("drop", child.pid)

    def close(self) -> None:
        """End all of them, and remove the folder."""
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        self._guard.wait()
        for child in self._running:
            child.wait()

    def _tell(self, word: str, pid: int) -> None:
        if self._guard.stdin is not None:
            self._guard.stdin.write(f"{word} {pid}\n")
            self._guard.stdin.flush()
