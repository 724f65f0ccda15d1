"""A stand-in for a paid model provider: it does real work, takes a moment for each call, and keeps the bill."""

from __future__ import annotations

import sqlite3
import time
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

P = ParamSpec("P")
T = TypeVar("T")


class Provider:
    """Counts every call in a file, before it answers, as a provider does."""

    def __init__(self, bill: Path, latency: float) -> None:
        self._bill = bill
        self._latency = latency
        with self._open() as bill_file:
            bill_file.execute("create table if not exists calls (job_id text, call text)")

    def call(self, job_id: str, name: str, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Charge for one call, take `latency` seconds, and return what `work` returns."""
        with self._open() as bill_file:
            bill_file.execute("insert into calls values (?, ?)", (job_id, name))
        time.sleep(self._latency)
        return work(*args, **kwargs)

    def calls(self) -> int:
        """Return how many calls were charged altogether."""
        with self._open() as bill_file:
            return int(bill_file.execute("select count(*) from calls").fetchone()[0])

    def calls_of_one_run(self) -> dict[str, int]:
        """Return how many calls one undisturbed run of each job makes, as far as it has come."""
        with self._open() as bill_file:
            return dict(bill_file.execute("select job_id, count(distinct call) from calls group by job_id"))

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._bill, timeout=60)  # who calls waits as long as the provider takes
