"""Measure whether operations take longer among a million jobs than among a thousand: the same ones, by turns, in both.

    python -m bench.rows --operations 2000 --fsync on

The store, its statements and the server are real; one client on one connection, over TCP, on the same machine.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg

from bench.filling import TASKS, make, some
from onejob.jobs.model import Submission
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger
from onejob.stores.postgres import PostgresStore
from tests.services import start_postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from onejob.jobs.model import Admission, Job

LEASE = 7200.0  # nothing is due meanwhile
WARM_UP = 50
DUE = 20


@dataclass(slots=True)
class Side:
    """One of the ledgers that are compared, and the jobs that have been submitted there."""

    ledger: Ledger
    old: list[str]
    submitted: list[Job] = field(default_factory=list)
    runs: list[Job] = field(default_factory=list)

    def admit(self, _number: int) -> None:
        """Submit a job that is new."""
        self.submitted.append(self._submit(str(uuid4()), f"v1-{sha256(uuid4().bytes).hexdigest()}", LEASE).job)

    def attach(self, number: int) -> None:
        """Submit the same job once more."""
        self._submit(str(uuid4()), self.submitted[number].identity, LEASE)

    def claim(self, number: int) -> None:
        """Start a run."""
        claimed = self.ledger.claim(self.submitted[number].id, nonce=new_nonce(), node="worker-1").job
        if claimed is not None:
            self.runs.append(claimed)

    def renew(self, _number: int) -> None:
        """Renew the leases of eight runs."""
        self.ledger.renew([(job.id, job.claim) for job in random.sample(self.runs, 8)])

    def finish(self, number: int) -> None:
        """End a run with its result."""
        self.ledger.complete(self.runs[number], '{"invoice": 42}')

    def get(self, _number: int) -> None:
        """Read a job of the day before."""
        self.ledger.get(random.choice(self.old))

    def take_due(self, _number: int) -> None:
        """Take the due jobs; they stay due."""
        self.ledger.store.take_due(tasks=TASKS, limit=100, hold=0)

    def make_due(self) -> None:
        """Submit some jobs that are due now."""
        for _ in range(DUE):
            self._submit(str(uuid4()), f"v1-{sha256(uuid4().bytes).hexdigest()}", 0)

    def _submit(self, job_id: str, identity: str, wake_in: float) -> Admission:
        new = Submission(
            id=job_id, task="shop.task_1", identity=identity, fingerprint=identity, nonce=new_nonce(), lease=LEASE,
            payload='{"task": "shop.task_1", "args": [42, "customer-7"], "kwargs": {}, "options": {}}',
        )  # fmt: skip
        return self.ledger.submit(new, wake_in=wake_in)


OPERATIONS: dict[str, Callable[[Side, int], None]] = {
    "admission, new": Side.admit,
    "admission, duplicate": Side.attach,
    "claim": Side.claim,
    "renew of 8 leases": Side.renew,
    "finish": Side.finish,
    "get": Side.get,
    "take_due, nothing due": Side.take_due,
    f"take_due, {DUE} due": Side.take_due,
}


def main() -> None:
    """Fill, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs=2, default=(1_000, 1_000_000), metavar=("FEW", "MANY"))
    parser.add_argument("--operations", type=int, default=2_000, help="of each kind, in each ledger")
    parser.add_argument("--fsync", choices=("on", "off"), default="on", help="whether a commit waits for the disk")
    parser.add_argument("--memory", default="2GB", help="shared_buffers; the larger ledger takes 1.6 GB")
    parser.add_argument("--url", help="a server for trials; one of our own by default")
    options = parser.parse_args()
    settings = (f"fsync={options.fsync}", f"shared_buffers={options.memory}", "max_wal_size=4GB")
    if options.url:
        measure(options.url, options.jobs, options.operations)
        return
    server = start_postgres(*settings)
    try:
        measure(server.url, options.jobs, options.operations)
    finally:
        server.remove()


def measure(url: str, jobs: Iterable[int], operations: int) -> None:
    """Measure on ledgers with so many jobs, made where they are missing, and print a table."""
    sides = [opened(url, f"bench_{count}", count) for count in jobs]
    few, many = (f"{count:,}" for count in jobs)
    print(f"{operations:,} operations of each kind; median / 95th percentile in milliseconds\n")
    print(f"| | {few} jobs | {many} jobs | ratio of medians |\n|---|---|---|---|")
    for name, operate in OPERATIONS.items():
        if name == f"take_due, {DUE} due":
            for side in sides:
                side.make_due()
        seconds = by_turns([(side, operate) for side in sides], operations)
        print(f"| {name} | {' | '.join(map(format_seconds, seconds))} | {ratio(*seconds):.2f} |", flush=True)
    for side in sides:
        side.ledger.close()


def opened(url: str, schema: str, jobs: int) -> Side:
    """Return a ledger with so many jobs, its connection warm and its statements prepared."""
    make(url, schema, jobs)
    with psycopg.connect(url) as connection:
        old = [job_id for job_id, _ in some(connection, schema, "completed", 10_000)]
    side = Side(Ledger(PostgresStore(url, schema=schema)), old)
    for number in range(WARM_UP):
        for operate in (Side.admit, Side.attach, Side.claim):
            operate(side, number)
        if number >= 8:
            side.renew(number)
    for number in range(WARM_UP):
        for operate in (Side.finish, Side.get, Side.take_due):
            operate(side, number)
    side.submitted.clear()
    side.runs.clear()
    side.ledger.store.take_due(tasks=TASKS, limit=10_000, hold=LEASE)  # what an earlier measurement left ringing
    return side


def by_turns(sides: list[tuple[Side, Callable[[Side, int], None]]], operations: int) -> list[list[float]]:
    """Do an operation by turns in each ledger; return the seconds that each took."""
    seconds: list[list[float]] = [[] for _ in sides]
    for number in range(operations):
        order = list(enumerate(sides))
        for index, (side, operate) in order if number % 2 else reversed(order):
            start = time.perf_counter()
            operate(side, number)
            seconds[index].append(time.perf_counter() - start)
    return seconds


def format_seconds(seconds: list[float]) -> str:
    """Return median and 95th percentile in milliseconds."""
    return f"{statistics.median(seconds) * 1000:.3f} / {statistics.quantiles(seconds, n=20)[18] * 1000:.3f}"


def ratio(few: list[float], many: list[float]) -> float:
    """Return how much longer an operation takes among many jobs."""
    return statistics.median(many) / statistics.median(few)


if __name__ == "__main__":
    main()
