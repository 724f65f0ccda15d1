"""What every front end is asked for: each operation with a job that it applies to, and one that it refuses.

What an operation does, and to which jobs, are laws of the ledger (`tests/unit/test_operations.py`). A front end passes
it on, shows the answer, and records it in the audit log.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from onejob.celery.operations import Operation
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Job
from onejob.jobs.records import Query
from onejob.ledger.ledger import Ledger
from tests.fundamentals.shop import claimed, order

ERROR = '{"type": "ValueError", "message": "no", "traceback": "secret"}'
_numbers = count(1000)
"""Of the orders of jobs that shall be equal to no other."""


def queued(ledger: Ledger, order_id: int | None = None) -> Job:
    """Return a job that is due in an hour."""
    return ledger.submit(order(_number(order_id), delay=3600.0)).job


def running(ledger: Ledger, order_id: int | None = None) -> Job:
    """Return a job that runs."""
    return claimed(ledger, ledger.submit(order(_number(order_id))).job.id)


def completed(ledger: Ledger, order_id: int | None = None) -> Job:
    """Return a completed job."""
    return ledger.complete(running(ledger, order_id), "1")


def failed(ledger: Ledger, order_id: int | None = None) -> Job:
    """Return a dead letter."""
    return ledger.fail(running(ledger, order_id), ERROR, "ValueError: no")


def _number(order_id: int | None) -> int:
    return next(_numbers) if order_id is None else order_id


class Door(NamedTuple):
    """An operation; how a job is made that it applies to, and one that it refuses; and what becomes of the first."""

    operation: Operation
    accepted: Callable[[Ledger], Job]
    state: State | None
    """The state afterwards; None: the job is deleted."""
    refused: Callable[[Ledger], Job]
    problem: str
    """The type of the refusal over HTTP, which is its outcome in the audit log."""
    why: str
    """A part of the sentence that refuses."""

    @property
    def reason(self) -> str:
        """The beginning of the line in the history of the job, before the origin of the request."""
        return self.operation.done


DOORS = (
    Door(Operation.CANCEL, queued, State.CANCELED, completed, "job-ended", "is completed"),
    Door(Operation.FORCE_CANCEL, running, State.RUNNING, completed, "job-ended", "is completed"),
    Door(Operation.RUN_NOW, queued, State.QUEUED, running, "not-waiting", "only a waiting job"),
    Door(Operation.REDRIVE, failed, State.QUEUED, running, "not-a-dead-letter", "is running"),
    Door(Operation.DELETE, failed, None, running, "job-not-ended", "Cancel it first"),
)


def effects(ledger: Ledger) -> dict[str, tuple[str, str]]:
    """Return the state and the last line of the history of each job, by its id."""
    return {job.id: (str(job.state), ledger.history(job.id)[-1].detail) for job in ledger.find(Query(limit=1000))}
