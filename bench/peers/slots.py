"""What the modules with limits share: the keys of the jobs, and a body that records when it ran."""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

from bench.peers.common import SECOND, work

KEYS = "ONEJOB_BENCH_KEYS"
"""Environment variable: how many keys the jobs have."""
SECONDS = "ONEJOB_BENCH_SECONDS"
"""Environment variable: how many seconds a body takes."""
PLACES = "ONEJOB_BENCH_PLACES"
"""Environment variable: how many jobs a worker process runs at once."""
RECORDS = "ONEJOB_BENCH_RECORDS"
"""Environment variable: the folder where worker processes record when the bodies ran."""
POLL = "ONEJOB_BENCH_POLL"
"""Environment variable: how many seconds pass between two looks of a process at its queue, of a library that polls."""
RUNNING = 3
"""How many jobs of one key run at once, at most."""
PROCESSES = 2
"""How many worker processes each contender has."""


class Run(NamedTuple):
    """One run of a body, by the monotonic clock of the machine."""

    number: int
    key: int
    began: float
    ended: float


def key_of(number: int) -> int:
    """Return the key of the job of a number."""
    return number % int(os.environ[KEYS])


def places() -> int:
    """Return how many jobs a worker process runs at once."""
    return int(os.environ[PLACES])


def seconds() -> float:
    """Return how many seconds a body takes."""
    return float(os.environ[SECONDS])


def limited_work(number: int, key: int) -> int:
    """Take a while, and record it: the body of a job whose limit counts by `key`."""
    began = time.monotonic()
    if taken := seconds():
        time.sleep(taken)
    return record(number, key, began)


def record(number: int, key: int, began: float) -> int:
    """Record that a body has run, and count it."""
    line = f"{number} {key} {began!r} {time.monotonic()!r}\n"
    os.write(_file(os.getpid()), line.encode("ascii"))  # one system call, so that threads mix no lines
    return work(number, SECOND)


@cache
def _file(pid: int) -> int:
    return os.open(Path(os.environ[RECORDS]) / str(pid), os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def read_runs(folder: Path) -> list[Run]:
    """Return what was recorded, in the order of the beginnings."""
    lines = (line for path in folder.iterdir() for line in path.read_text(encoding="ascii").splitlines())
    runs = (
        Run(int(number), int(key), float(began), float(ended)) for number, key, began, ended in map(str.split, lines)
    )
    return sorted(runs, key=lambda run: run.began)
