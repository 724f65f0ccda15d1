"""The sweep: what becomes of the jobs whose alarm has rung. They are published, ended, recovered or purged."""

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
"""So many publications that fail in one sweep mean that the broker is away."""
LEASE_ERROR = '{"type": "WorkerLost", "message": "the lease ran out: the worker died or was cut off", "traceback": ""}'


@dataclass(slots=True)
class Swept:
    """What one sweep did, as counts of jobs."""

    published: int = 0
    lapsed: int = 0
    canceled: int = 0
    purged: int = 0
    seen: int = field(default=0, compare=False)
    """How many alarms had rung; as many as the limit when there may be more."""


def sweep(
    ledger: Ledger, publish: Publish, *, limit: int = 100, dispatchers: Mapping[str, Publish] | None = None
) -> Swept:
    """Look at every job whose alarm has rung: publish, expire, recover or purge it.

    `publish` sends a job's message. A job for which it raises is looked at again after `Policy.hold`, and the other
    jobs are not held up by it; but after three failures the broker is taken to be away, and no more are tried. What
    was raised first is raised at the end. Old jobs are purged last, in one call.

    `dispatchers`: by name of a task, who is given its jobs instead of the broker, and claims what it takes; what it leaves
    it is given again after `Policy.hold`.
    """
    due = ledger.take_due(limit=limit)
    each = _Sweep(ledger, publish, dispatchers or {}, Swept(seen=len(due)))
    random.shuffle(due)  # a job that always fails is not always the first
    for job in sorted(due, key=lambda job: job.state is not State.RUNNING):
        if len(each.errors) < PUBLISH_FAILURES or each.has_dispatcher(job):
            each.look_at(job)
    each.purge([job.id for job in due if job.state.final and not job.canvas_pending])
    ledger.emit(JobEvent(SWEEP, fields=values_of(each.swept)))
    if each.errors:
        raise each.errors[0]
    return each.swept


class _Sweep:
    """One sweep under way."""

    def __init__(self, ledger: Ledger, publish: Publish, dispatchers: Mapping[str, Publish], swept: Swept) -> None:
        self._ledger = ledger
        self._send = publish
        self._dispatchers = dispatchers
        self.swept = swept
        self.errors: list[Exception] = []

    def has_dispatcher(self, job: Job) -> bool:
        """Tell whether a job needs no broker."""
        return job.task in self._dispatchers

    def look_at(self, job: Job) -> None:
        """Do what one job needs; what a transport raises is kept for the end."""
        try:
            self._one(job)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a transport raises
            self.errors.append(error)

    def purge(self, old: Sequence[str]) -> None:
        """Delete old jobs at once; when the store refuses, one by one, so that only those stay which it refuses."""
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

    def _one(self, job: Job) -> None:
        if job.state is State.RUNNING:
            self._running(job)
        elif not job.state.final:
            self._waiting(job)
        elif job.canvas_pending:
            self._publish(job)
        elif job.holds_identity:  # its uniqueness window was over long ago, and nobody has asked for the identity since
            self._ledger.change(job, Transition.RELEASE_IDENTITY, None, keeps_identity=False, detail=WINDOW_OVER)

    def _running(self, job: Job) -> None:
        applied = self._ledger.crash(job, "its lease ran out", LEASE_ERROR, lapsed=True)
        self.swept.lapsed += applied.applied
        if applied.applied and applied.job is not None and applied.job.state is State.QUEUED:
            self._publish(applied.job)

    def _waiting(self, job: Job) -> None:
        job = self._ledger.cancel_if_due(job)
        if job.state.final:
            self.swept.canceled += 1
        elif not job.queued_next:
            self._publish_again(job)
        elif (promoted := self._ledger.promote(job)) is not None:
            self._publish_again(promoted)

    def _publish_again(self, job: Job) -> None:
        self._publish(job)
        if self.has_dispatcher(job):
            return
        wake_in = job.lease * min(2**job.published, self._ledger.policy.backoff_limit)
        again = f"published by the sweeper; again in {wake_in:g} s if nobody takes it"
        # The token guards against a claim between the publication and this note of it.
        values = {"token": job.token, "wake_in": wake_in, "published": job.published + 1, "detail": again}
        self._ledger.change(job, Transition.PUBLISH, None, **values)

    def _publish(self, job: Job) -> None:
        self._dispatchers.get(job.task, self._send)(job)
        self.swept.published += not self.has_dispatcher(job)
