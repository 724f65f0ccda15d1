"""A ledger with its store, its clock and a publisher that records what it publishes."""

from collections.abc import Callable
from typing import Any

import pytest

from onejob.errors import BrokerUnavailableError, StoreRefusedError
from onejob.jobs.ledger_settings import LedgerSettings
from onejob.jobs.lifecycle import State
from onejob.jobs.model import JobRow
from onejob.ledger.ledger import Ledger, NextRun
from onejob.ledger.sweep import SweepResult
from onejob.stores.protocol import Store
from tests.stores import support
from tests.stores.support import not_none


class LedgerHarness:
    """What a test of the ledger uses, with jobs named by their ids."""

    def __init__(self, store: Store, clock: support.ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.use(LedgerSettings())
        self.sent: list[JobRow] = []

    @property
    def sent_ids(self) -> list[str]:
        """The ids of the published jobs, in their order."""
        return [job.id for job in self.sent]

    def use(self, settings: LedgerSettings) -> None:
        """Continue with other settings of the ledger."""
        self.settings = settings
        self.ledger = Ledger(self.store, settings)

    def submit(self, job_id: str = "job-1", **values: Any) -> JobRow:
        """Submit a job through the ledger."""
        return self.ledger.submit(support.submission(job_id, **values)).job

    def follow(self, job_id: str = "follower", *, follows: str = "job-1", **values: Any) -> JobRow:
        """Write a follower of a job."""
        return not_none(self.store.follow(support.submission(job_id, **values), follows_id=follows))

    def due(self, *job_ids: str, wake_after: float = 0.0, **values: Any) -> None:
        """Submit jobs that are due at once, or whose messages are looked after later."""
        for job_id in job_ids:
            support.submit(self.store, job_id, wake_after=wake_after, **values)

    def run(self, job_id: str = "job-1", **values: Any) -> JobRow:
        """Submit a job and claim it."""
        return support.run(self.store, job_id, **values)

    def start(self, job_id: str = "job-1") -> JobRow:
        """Claim a job that waits."""
        return support.start(self.store, job_id)

    def reach(self, state: State, job_id: str = "job-1") -> JobRow:
        """Submit a job and bring it into a state."""
        return support.steps_to(self.store, job_id, state)

    def read(self, job_id: str = "job-1") -> JobRow:
        """Return a job that exists."""
        return support.read(self.store, job_id)

    def gone(self, job_id: str = "job-1") -> bool:
        """Return whether a job does not exist."""
        return support.get(self.store, job_id) is None

    def events(self, job_id: str = "job-1") -> list[str]:
        """Return the names of the events in a job's history."""
        return support.events(self.store, job_id)

    def sweep(self, publish: Callable[[JobRow], object] | None = None, **values: Any) -> SweepResult:
        """Sweep once, with all tasks of these tests."""
        return support.sweep(self.ledger, publish or self.sent.append, **values)

    def meanwhile(self, operation: str, action: Callable[[], object]) -> None:
        """Continue with a ledger whose store runs an action just after the next call of one of its operations."""
        self.ledger = Ledger(support.after(self.store, operation, action), self.settings)

    def assert_legal(self, job_id: str = "job-1") -> None:
        """Assert that a job's history follows the lifecycle."""
        support.assert_legal(self.store.history(job_id), self.read(job_id))


def retry(ledger: Ledger, job: JobRow, **values: Any) -> JobRow:
    """End a run in a retry, at once unless there is a delay; `values` are those of `NextRun`."""
    next_run: dict[str, Any] = {"payload": "[]", "options": "[]", "retries": 1} | values
    return ledger.retry(job, NextRun(**next_run), error=None, reason="again")


def refuse(job: JobRow) -> None:
    """Fail like a message that cannot be sent, whatever the state of the broker."""
    raise LookupError(job.queue)


def refuse_store(job: JobRow) -> None:
    """Fail as a store that refuses a write."""
    raise StoreRefusedError(job.id)


def no_broker(job: JobRow) -> None:
    """Fail like an unavailable broker."""
    msg = f"no broker for {job.id}"
    raise BrokerUnavailableError(msg)


def publish_nothing(job: JobRow) -> None:
    """Fail for any publication: with what no sweep takes for an error of the job."""
    pytest.fail(f"published {job.id}")
