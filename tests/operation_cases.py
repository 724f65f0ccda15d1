"""What every front end is asked for: each operation with a job that it applies to, and one that it refuses.

What an operation does, and to which jobs, are laws of the ledger (`tests/client/test_operator.py`). A front end passes
it on, shows the answer, and records it in the audit log.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from onejob.client.operation import Operation
from onejob.jobs.lifecycle import State
from onejob.jobs.model import JobRow
from onejob.jobs.query import Query
from onejob.ledger.ledger import Ledger
from tests.fundamentals.shop import claimed, order

ERROR = '{"type": "ValueError", "message": "no", "traceback": "secret"}'
_numbers = count(1000)
"""Of the orders of jobs that shall be equal to no other."""


def queued(ledger: Ledger, order_id: int | None = None) -> JobRow:
    """Return a job that is due in an hour."""
    return ledger.submit(order(_number(order_id), delay=3600.0)).job


def running(ledger: Ledger, order_id: int | None = None) -> JobRow:
    """Return a job that runs."""
    return claimed(ledger, ledger.submit(order(_number(order_id))).job.id)


def completed(ledger: Ledger, order_id: int | None = None) -> JobRow:
    """Return a completed job."""
    return ledger.complete(running(ledger, order_id), "1")


def failed(ledger: Ledger, order_id: int | None = None) -> JobRow:
    """Return a dead letter."""
    return ledger.fail(running(ledger, order_id), ERROR, "ValueError: no")


def keyed(ledger: Ledger) -> JobRow:
    """Return a completed job that an idempotency key names."""
    job = ledger.submit(order(_number(None), key=f"key-{next(_numbers)}")).job
    return ledger.complete(claimed(ledger, job.id), "1")


def followed(ledger: Ledger) -> JobRow:
    """Return a completed job whose follower has not ended."""
    number = _number(None)
    run = running(ledger, number)
    ledger.submit(order(number, follows=True))
    return ledger.complete(run, "1")


def unnotified(ledger: Ledger) -> JobRow:
    """Return a completed job whose canvas was not notified of its end."""
    return ledger.complete(claimed(ledger, ledger.submit(order(_number(None), canvas=True)).job.id), "1")


def _number(order_id: int | None) -> int:
    return next(_numbers) if order_id is None else order_id


class OperationCase(NamedTuple):
    """An operation; how a job is made that it applies to, and one that it refuses; and what becomes of the first."""

    operation: Operation
    accepted: Callable[[Ledger], JobRow]
    state: State | None
    """The state afterwards; None: the job is deleted."""
    refused: Callable[[Ledger], JobRow]
    problem: str
    """The type of the refusal over HTTP, which is its outcome in the audit log."""
    why: str
    """A part of the sentence that refuses."""

    @property
    def reason(self) -> str:
        """The beginning of the line in the history of the job, before the origin of the request."""
        return self.operation.done


OPERATION_CASES = (
    OperationCase(Operation.CANCEL, queued, State.CANCELED, completed, "job-ended", "is completed"),
    OperationCase(Operation.FORCE_CANCEL, running, State.RUNNING, completed, "job-ended", "is completed"),
    OperationCase(Operation.RUN_NOW, queued, State.QUEUED, running, "not-waiting", "only a waiting job"),
    OperationCase(Operation.REDRIVE, failed, State.QUEUED, running, "not-a-dead-letter", "is running"),
    OperationCase(Operation.DELETE, failed, None, running, "job-not-ended", "Cancel it first"),
    OperationCase(Operation.FORCE_DELETE, keyed, None, running, "job-not-ended", "Cancel it first"),
    OperationCase(Operation.FORCE_DELETE, followed, None, running, "job-not-ended", "Cancel it first"),
    OperationCase(Operation.FORCE_DELETE, unnotified, None, running, "job-not-ended", "Cancel it first"),
)
NEEDED = (
    OperationCase(Operation.DELETE, failed, None, keyed, "job-needed", "answers its idempotency key until"),
    OperationCase(Operation.DELETE, failed, None, followed, "job-needed", "is still to be passed on to a follower"),
    OperationCase(
        Operation.DELETE, failed, None, unnotified, "job-needed", "its canvas (links, chain or chord) is still"
    ),
)
"""Jobs in a state in which an operation applies, which it refuses unless it is forced."""


def effects(ledger: Ledger) -> dict[str, tuple[str, str]]:
    """Return the state and the last line of the history of each job, by its id."""
    return {job.id: (str(job.state), ledger.history(job.id)[-1].detail) for job in ledger.find(Query(limit=1000))}
