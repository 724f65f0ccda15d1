"""The sweep: publishes, expires, recovers or purges the jobs whose `wake_at` is due."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onejob.errors import BrokerUnavailableError, StoreError, StoreUnavailableError, describe
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import values_of
from onejob.ledger.publication import (
    abandon_canvas,
    note_notification,
    note_publication,
    retention_left,
)
from onejob.observability.events import SWEEP, JobEvent
from onejob.stores.protocol import WINDOW_OVER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger

    Publish = Callable[[Job], object]

PUBLISH_FAILURES = 3
"""After so many failed publications in one sweep, the broker is regarded as unavailable."""
LEASE_ERROR = (
    '{"type": "WorkerLost", "message": "the lease expired: the worker died or lost its connection", "traceback": ""}'
)


@dataclass(slots=True)
class Swept:
    """What one sweep did, as numbers of jobs."""

    published: int = 0
    lapsed: int = 0
    canceled: int = 0
    purged: int = 0
    seen: int = field(default=0, compare=False)
    """How many jobs were due; if this is the limit, there may be more."""


def sweep(
    ledger: Ledger, publish: Publish, *, limit: int = 100, dispatchers: Mapping[str, Publish] | None = None
) -> Swept:
    """Publish, expire, recover or purge each job whose `wake_at` is due.

    `publish` sends a job's message. When it raises `BrokerUnavailableError`, the job is due again after `Policy.hold`,
    and the sweep goes on with the other jobs; but after `PUBLISH_FAILURES` no more are published, and the first error
    is raised at the end. Any other error is the job's own: it is recorded, and the job's attempts back off until it
    becomes a dead letter. Old jobs are purged last, in one call.

    `dispatchers`: by name of a task, what gets its jobs instead of the broker, and claims those that it accepts; it
    gets the others again after `Policy.hold`.
    """
    due = ledger.take_due(limit=limit)
    run = _Sweep(ledger, publish, dispatchers or {}, Swept(seen=len(due)))
    random.shuffle(due)  # so that a job that always fails is not always the first
    for job in sorted(due, key=lambda job: job.state is not State.RUNNING):
        if run.outages < PUBLISH_FAILURES or run.has_dispatcher(job):
            run.process(job)
    run.purge([job.id for job in due if job.state.final and not job.canvas_pending])
    ledger.emit(JobEvent(SWEEP, fields=values_of(run.swept)))
    if run.errors:
        raise run.errors[0]
    return run.swept


class _Sweep:
    """One sweep: its arguments, counts and errors."""

    def __init__(self, ledger: Ledger, publish: Publish, dispatchers: Mapping[str, Publish], swept: Swept) -> None:
        self._ledger = ledger
        self._send = publish
        self._dispatchers = dispatchers
        self.swept = swept
        self.errors: list[Exception] = []
        self.outages = 0
        """How many publications found the broker unavailable."""

    def has_dispatcher(self, job: Job) -> bool:
        """Return whether a job is dispatched without the broker."""
        return job.task in self._dispatchers

    def process(self, job: Job) -> None:
        """Process one job; keep an outage of the broker for the end."""
        try:
            self._transition(job)
        except BrokerUnavailableError as error:
            self.outages += 1
            self.errors.append(error)

    def purge(self, old: Sequence[str]) -> None:
        """Delete old jobs in one call; after an error one by one, so that only those stay which cause it."""
        try:
            self.swept.purged += len(self._ledger.purge(old)) if old else 0
        except StoreUnavailableError:
            raise
        except StoreError as error:
            if len(old) == 1:
                self.errors.append(error)
                return
            for job_id in old:
                self.purge([job_id])

    def _transition(self, job: Job) -> None:
        if job.state is State.RUNNING:
            self._recover(job)
        elif not job.state.final:
            self._publish_waiting(job)
        elif job.canvas_pending:
            self._notify_canvas(job)
        elif job.holds_identity:  # its uniqueness window is over, and no later submission has released the identity
            self._ledger.change(job, Transition.RELEASE_IDENTITY, None, keeps_identity=False, detail=WINDOW_OVER)

    def _recover(self, job: Job) -> None:
        applied = self._ledger.crash(job, "its lease expired", LEASE_ERROR, lapsed=True)
        self.swept.lapsed += applied.applied
        if applied.applied and applied.job is not None and applied.job.state is State.QUEUED:
            error = self._publish(applied.job)
            if error:
                note_publication(self._ledger, applied.job, error)

    def _publish_waiting(self, job: Job) -> None:
        job = self._ledger.cancel_if_due(job)
        if job.state.final:
            self.swept.canceled += 1
        elif not job.queued_next:
            self._republish(job)
        elif (promoted := self._ledger.promote(job)) is not None:
            self._republish(promoted)

    def _republish(self, job: Job) -> None:
        error = self._publish(job)
        if not self.has_dispatcher(job):
            # The job's token detects a claim between the publication and this change.
            note_publication(self._ledger, job, error)

    def _notify_canvas(self, job: Job) -> None:
        """Publish an ended job, so that Celery notifies its canvas; give up when its retention is over."""
        if retention_left(self._ledger, job) > 0:
            note_notification(self._ledger, job, self._publish(job))
        else:
            abandon_canvas(self._ledger, job)

    def _publish(self, job: Job) -> str:
        """Send a job's message, and return "", or why it cannot be sent. Raises `BrokerUnavailableError`."""
        if self.has_dispatcher(job):
            self._dispatchers[job.task](job)
            return ""
        try:
            self._send(job)
        except (BrokerUnavailableError, StoreError):
            raise
        except Exception as error:  # noqa: BLE001 - one job must not end the sweep
            return describe(error)
        self.swept.published += 1
        return ""
