"""What the modules of this package share: where the jobs go, and the body of the job."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

BROKER = "ONEJOB_BENCH_BROKER"
"""Environment variable: URL of the Redis of the messages."""
STORE = "ONEJOB_BENCH_STORE"
"""Environment variable: URL of the store of the jobs."""
CONF = "ONEJOB_BENCH_CONF"
"""Environment variable: settings, as JSON."""
MARKS = "ONEJOB_BENCH_MARKS"
"""Environment variable: the folder where worker processes count the jobs that they run."""
FIRST_RUN = "ONEJOB_BENCH_FIRST_RUN"
"""Environment variable: how many seconds the first run of all takes."""
SECOND = 7
"""The second argument of every job."""
WAIT_SECONDS = 60.0


class Peer:
    """How one library submits jobs. `commands` run its worker of two processes, as arguments of Python."""

    commands: Sequence[Sequence[str]] = ()

    def connect(self) -> None:
        """Do what each process that submits does at its start."""

    def prepare(self) -> None:
        """Make what the library needs in its database, once."""

    def submit(self, numbers: Sequence[int]) -> None:
        """Submit a job with each of these numbers, one after the other."""
        raise NotImplementedError

    def wait(self, numbers: Sequence[int]) -> None:
        """Submit a job with each of these numbers, and await its result before the next one."""
        raise NotImplementedError

    def submit_equal(self, numbers: Sequence[int]) -> None:
        """Submit equal jobs, one after the other."""
        self.submit(numbers)

    def submit_bulk(self, numbers: Sequence[int]) -> None:
        """Submit a job with each of these numbers in as few calls as the library can."""
        self.submit(numbers)


class CeleryPeer(Peer):
    """A Celery task of one kind or another."""

    def __init__(self, module: str, task: Any, pool: Sequence[str] = ("--concurrency=2",)) -> None:
        self.task = task
        options = (*pool, "--loglevel=warning", "--without-gossip", "--without-mingle")
        self.commands = (("-m", "celery", "-A", module, "worker", *options),)

    def submit(self, numbers: Sequence[int]) -> None:
        """Call `delay()` for each number."""
        delay = self.task.delay
        for number in numbers:
            delay(number, SECOND)

    def wait(self, numbers: Sequence[int]) -> None:
        """Call `delay()` and `get()` for each number."""
        for number in numbers:
            self.task.delay(number, SECOND).get(timeout=WAIT_SECONDS)


def celery_app(**conf: Any) -> Any:
    """Return a Celery app on the broker of this contender, with its settings."""
    from celery import Celery

    app = Celery("bench", broker=os.environ[BROKER])
    app.conf.update(conf | json.loads(os.environ.get(CONF, "{}")))
    return app


class _Counter:
    """Counts the runs of this process in a file that the bench reads: cheap, and no request to any server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value: Any = None

    def add(self) -> None:
        """Count one run."""
        with self._lock:
            if self._value is None:
                self._value = _shared_number(Path(os.environ[MARKS]) / str(os.getpid()))
            self._value.value += 1


def _shared_number(path: Path) -> Any:
    path.write_bytes(bytes(8))
    with path.open("r+b") as file:
        return ctypes.c_int64.from_buffer(mmap.mmap(file.fileno(), 8))


_counter = _Counter()
_FIRST_RUN = float(os.environ.get(FIRST_RUN, "0"))
os.register_at_fork(after_in_child=_counter.__init__)  # type: ignore[misc] # each process has a file of its own


def work(number: int, second: int) -> int:
    """Count the run, and return a number: the body of the job."""
    _counter.add()
    if _FIRST_RUN and counted(Path(os.environ[MARKS])) == 1:
        time.sleep(_FIRST_RUN)
    return number + second


def counted(folder: Path) -> int:
    """Return how many runs were counted."""
    return sum(int.from_bytes(path.read_bytes(), sys.byteorder) for path in folder.iterdir())
