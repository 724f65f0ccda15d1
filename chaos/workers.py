"""Celery workers in process groups of their own; a group dies with one SIGKILL, as with its node."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from chaos.testbed import ROOT
from tests.services import Daemon

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self


class Workers:
    """Some workers of one app; leaving a `with` block kills them. Use it from the main thread only."""

    def __init__(
        self, app: str, environment: Mapping[str, str], folder: Path, pool: str = "prefork", /, *, count: int,
        concurrency: int,
    ) -> None:  # fmt: skip
        self._app = app
        self._pool = pool
        ours = {name: value for name, value in environment.items() if name.startswith(("CHAOS_", "PYTHONPATH"))}
        self._variables = [f"{name}={value}" for name, value in ours.items()]
        self._folder = folder
        self._concurrency = concurrency
        self._workers = [self._start(index) for index in range(count)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for worker in self._workers:
            _kill(worker)

    @property
    def alive(self) -> int:
        """How many of them run."""
        return sum(worker.alive for worker in self._workers)

    def print_gone(self) -> None:
        """Print the end of the logs of those that do not run any more."""
        for index, worker in enumerate(self._workers):
            if not worker.alive:
                log = (self._folder / f"worker{index}.log").read_text(errors="replace")
                print(f"worker {index} has ended:", *log.splitlines()[-40:], sep="\n  ", file=sys.stderr)

    def kill_one(self, rng: random.Random) -> None:
        """Kill a random worker with all its children, and start another in its place."""
        index = rng.randrange(len(self._workers))
        _kill(self._workers[index])
        self._workers[index] = self._start(index)

    def freeze_one(self, rng: random.Random) -> int:
        """Stop a random worker with all its children, as a suspended machine does, and return what `thaw` takes."""
        pid = rng.choice(self._workers).pid
        _signal(pid, signal.SIGSTOP)
        return pid

    def thaw(self, pid: int) -> None:
        """Let a frozen worker go on, unless it was killed meanwhile."""
        _signal(pid, signal.SIGCONT)

    def start_ended(self) -> int:
        """Start those again that have ended by themselves, as a supervisor does, and return how many."""
        ended = [index for index, worker in enumerate(self._workers) if not worker.alive]
        for index in ended:
            _kill(self._workers[index])
            self._workers[index] = self._start(index)
        return len(ended)

    def count_in_logs(self, text: str) -> int:
        """Return how often a text occurs in their logs."""
        return sum(log.read_text(errors="replace").count(text) for log in self._folder.glob("worker*.log"))

    def _start(self, index: int) -> Daemon:
        name = f"chaos{index}-{time.monotonic_ns()}@localhost"
        options = ["-l", "WARNING", "-n", name, "-c", str(self._concurrency), "--without-gossip", "--without-mingle"]
        options += ["-P", self._pool]
        celery = [sys.executable, "-m", "celery", "-A", self._app, "worker", *options]
        command = ["env", *self._variables, *celery]
        return Daemon(command, log=self._folder / f"worker{index}.log", cwd=ROOT)


def _kill(worker: Daemon) -> None:
    """Kill a worker and its children; one that has ended has no process group."""
    _signal(worker.pid, signal.SIGKILL)
    worker.end(signal.SIGKILL)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, number)
