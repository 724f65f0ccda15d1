"""A stand-in for a paid model provider: computes real results, adds latency to each call, and records the bill."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

P = ParamSpec("P")
T = TypeVar("T")


class Provider:
    """Records every call in a SQLite file before it responds, as a provider does."""

    def __init__(self, bill: Path, latency: float) -> None:
        self._bill = bill
        self._latency = latency
        with self._open() as bill_file:
            bill_file.execute("create table if not exists calls (job_id text, call text)")

    def call(self, job_id: str, name: str, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Record one call, wait `latency` seconds, and return the result of `work`."""
        with self._open() as bill_file:
            bill_file.execute("insert into calls values (?, ?)", (job_id, name))
        time.sleep(self._latency)
        return work(*args, **kwargs)

    def calls(self) -> int:
        """Return the number of recorded calls."""
        with self._open() as bill_file:
            return int(bill_file.execute("select count(*) from calls").fetchone()[0])

    def calls_of_one_run(self) -> dict[str, int]:
        """Return by job the number of distinct calls so far: those that one uninterrupted run makes."""
        with self._open() as bill_file:
            return dict(bill_file.execute("select job_id, count(distinct call) from calls group by job_id"))

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open the bill for a transaction."""
        with closing(sqlite3.connect(self._bill, timeout=60)) as bill_file, bill_file:  # waits for the lock
            yield bill_file
