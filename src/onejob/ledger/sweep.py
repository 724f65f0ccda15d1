"""The sweep: publishes, expires, recovers or purges the jobs whose `wake_at` is due."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onejob.errors import StoreError, StoreUnavailableError
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import values_of
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
    ledger: Ledger, publish: Publish, *, limit: int = 100, dispatchers: Mapping[str, Publish] | None = None,
    may_end_leases: Callable[[], bool] = lambda: True,
) -> Swept:  # fmt: skip
    """Publish, expire, recover or purge each job whose `wake_at` is due.

    `publish` sends a job's message. A job for which it raises is due again after `Policy.hold`, and the sweep goes on
    with the other jobs; but after `PUBLISH_FAILURES` no more are published. The first error is raised at the end. Old
    jobs are purged last, in one call.

    `dispatchers`: by name of a task, what gets its jobs instead of the broker, and claims those that it accepts; it
    gets the others again after `Policy.hold`.

    `may_end_leases`: False while runs whose leases have expired may yet renew them, as after an outage of the store.
    """
    due = ledger.take_due(limit=limit)
    run = _Sweep(ledger, publish, dispatchers or {}, Swept(seen=len(due)))
    random.shuffle(due)  # so that a job that always fails is not always the first
    if not may_end_leases():
        due = [job for job in due if job.state is not State.RUNNING]
    for job in sorted(due, key=lambda job: job.state is not State.RUNNING):
        if len(run.errors) < PUBLISH_FAILURES or run.has_dispatcher(job):
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

    def has_dispatcher(self, job: Job) -> bool:
        """Return whether a job is dispatched without the broker."""
        return job.task in self._dispatchers

    def process(self, job: Job) -> None:
        """Process one job; keep the errors of `publish` for the end."""
        try:
            self._transition(job)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - any error of a transport
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
            self._publish(job)
        elif job.holds_identity:  # its uniqueness window is over, and no later submission has released the identity
            self._ledger.change(job, Transition.RELEASE_IDENTITY, None, keeps_identity=False, detail=WINDOW_OVER)

    def _recover(self, job: Job) -> None:
        applied = self._ledger.crash(job, "its lease expired", LEASE_ERROR, lapsed=True)
        self.swept.lapsed += applied.applied
        if applied.applied and applied.job is not None and applied.job.state is State.QUEUED:
            self._publish(applied.job)

    def _publish_waiting(self, job: Job) -> None:
        job = self._ledger.cancel_if_due(job)
        if job.state.final:
            self.swept.canceled += 1
        elif not job.queued_next:
            self._republish(job)
        elif (promoted := self._ledger.promote(job)) is not None:
            self._republish(promoted)

    def _republish(self, job: Job) -> None:
        self._publish(job)
        if self.has_dispatcher(job):
            return
        wake_in = job.lease * min(2**job.published, self._ledger.policy.backoff_limit)
        detail = f"published by the sweeper; again in {wake_in:g} s unless a worker claims it"
        # The token detects a claim between the publication and this change.
        values = {"token": job.token, "wake_in": wake_in, "published": job.published + 1, "detail": detail}
        self._ledger.change(job, Transition.PUBLISH, None, **values)

    def _publish(self, job: Job) -> None:
        self._dispatchers.get(job.task, self._send)(job)
        self.swept.published += not self.has_dispatcher(job)
