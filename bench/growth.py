"""The stage `growth`: whether operations take longer among many jobs than among few, by turns in both ledgers.

The store, its statements and the server are real; one client on one connection, over TCP, on the same machine.
"""

from __future__ import annotations

import random
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg

from bench import cloning
from bench.filling import TASKS, make, some
from onejob.jobs.handover import by_sweep
from onejob.jobs.model import Submission
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger
from onejob.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.servers import Servers
    from onejob.jobs.model import Admission, JobRow

LEASE = 7200.0  # nothing is due meanwhile
WARM_UP = 50
DUE = 20


@dataclass(slots=True)
class Side:
    """One of the ledgers that are compared, and the jobs that have been submitted there."""

    ledger: Ledger
    old: list[str]
    submitted: list[JobRow] = field(default_factory=list)
    runs: list[JobRow] = field(default_factory=list)

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

    def _submit(self, job_id: str, identity: str, wake_after: float) -> Admission:
        new = Submission(
            id=job_id, task="shop.task_1", identity=identity, fingerprint=identity, nonce=new_nonce(), lease=LEASE,
            payload='{"task": "shop.task_1", "args": [42, "customer-7"], "kwargs": {}, "options": {}}',
        )  # fmt: skip
        return self.ledger.submit(new, handover=by_sweep(wake_after))


OPERATIONS: dict[str, Callable[[Side, int], None]] = {
    "submit": Side.admit,
    "duplicate": Side.attach,
    "claim": Side.claim,
    "renew of 8 leases": Side.renew,
    "end": Side.finish,
    "get": Side.get,
    "take_due, nothing due": Side.take_due,
    f"take_due, {DUE} due": Side.take_due,
}


def measure(servers: Servers, stores: Sequence[str], sizes: Sequence[int], operations: int) -> list[dict[str, Any]]:
    """Return the medians of every operation among so many jobs, and their ratios to the first."""
    found: list[dict[str, Any]] = []
    for store in stores:
        with ExitStack() as stack:
            sides = [opened(servers, store, size) for size in sizes]
            for side in sides:
                stack.callback(side.ledger.close)
            found += [{"store": store, "jobs": list(sizes), **row} for row in _compare(sides, operations)]
    return found


def _compare(sides: Sequence[Side], operations: int) -> list[dict[str, Any]]:
    rows = []
    for name, operate in OPERATIONS.items():
        if name == f"take_due, {DUE} due":
            for side in sides:
                side.make_due()
        seconds = by_turns([(side, operate) for side in sides], operations)
        medians = [statistics.median(some) for some in seconds]
        highest = [statistics.quantiles(some, n=20)[18] for some in seconds]
        rows.append({"kind": name, "medians": medians, "p95": highest, "ratios": [one / medians[0] for one in medians]})
    return rows


def opened(servers: Servers, store: str, jobs: int) -> Side:
    """Return a ledger with so many jobs, its connection warm and its statements prepared."""
    url = servers.new_database(store)
    if store == "redis":
        ledger = Ledger(open_store(url))
        cloning.make(url, ledger, jobs)
        old = [cloning.job_id(random.randint(3, jobs)) for _ in range(10_000)]
    else:
        make(url, "onejob", jobs)
        with psycopg.connect(url) as connection:
            old = [job_id for job_id, _ in some(connection, "onejob", "completed", 10_000)]
        ledger = Ledger(open_store(url))
    return _warm(Side(ledger, old))


def _warm(side: Side) -> Side:
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
