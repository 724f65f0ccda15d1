"""Worker processes that can be killed like the machines they would run on: the parent and its children at once."""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from examples.processes import Processes
    from tests.services import Daemon

PROCESSES = 2
"""Processes of one worker: so many jobs it runs at once."""


class Workers:
    """The workers of the shop."""

    def __init__(self, processes: Processes, folder: Path, environment: Mapping[str, str]) -> None:
        self._processes = processes
        self._folder = folder
        self._environment = environment
        self._numbers = itertools.count(1)
        self._running: dict[str, Daemon] = {}

    def start(self) -> str:
        """Start a worker under a new name, and return its node's name without waiting for it."""
        name = f"worker{next(self._numbers)}"
        options = f"-A examples.payments.shop worker -n {name}@shop -c {PROCESSES} -l INFO"
        command = [sys.executable, "-m", "celery", *options.split(), "--without-gossip", "--without-mingle"]
        self._running[f"{name}@shop"] = self._processes.start(name, command, self._environment)
        return f"{name}@shop"

    def ready(self, node: str) -> bool:
        """Return whether a worker consumes messages."""
        return b" ready." in (self._folder / f"{node.partition('@')[0]}.log").read_bytes()

    @property
    def nodes(self) -> list[str]:
        """The names of the workers that have not been killed."""
        return [*self._running]

    def kill(self, node: str) -> None:
        """Kill a worker's whole group with SIGKILL, and start another in its place."""
        self._processes.kill(self._running.pop(node))
        self.start()
