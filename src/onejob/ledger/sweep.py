"""The sweep: publishes, expires, recovers or purges the jobs whose `wake_at` is due."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onejob.errors import BrokerUnavailableError, StoreError, StoreUnavailableError, describe
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import values_of
from onejob.ledger.publication import abandon_canvas, note_notification, note_publication, patience, retention_left
from onejob.observability.events import SWEEP, JobEvent
from onejob.stores.protocol import WINDOW_OVER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from onejob.jobs.model import BrokerMessage, Job
    from onejob.ledger.ledger import Ledger

PUBLISH_FAILURES = 3
"""After so many failed publications in one sweep, the broker is regarded as unavailable."""
LEASE_ERROR = (
    '{"type": "WorkerLost", "message": "the lease expired: the worker died or lost its connection", "traceback": ""}'
)


@dataclass(slots=True)
class SweepResult:
    """What one sweep did, as numbers of jobs."""

    published: int = 0
    lapsed: int = 0
    canceled: int = 0
    purged: int = 0
    failed: int = field(default=0, compare=False)
    """Whose messages could not be sent."""
    seen: int = field(default=0, compare=False)
    """How many jobs were due; if this is the limit, there may be more."""


@dataclass(frozen=True, slots=True)
class Publishing:
    """How a sweep publishes jobs, and how it knows that a message is gone."""

    publish: Callable[[Job], object]
    """Sends the message of a job. An error is the job's own, unless it is a `BrokerUnavailableError`."""
    message_of: Callable[[Job], BrokerMessage | None] = lambda _: None
    """Returns the message of a job if the store can push it; `publish` does not send it then."""
    gone_in: Callable[[Job], float | None] = lambda _: None
    """In how many seconds the message of a published job is known to be gone, and sent again: 0 if it is known now,
    None if it may still be delivered. The message of a job without a queue is sent again after a back-off."""
    is_delivered: Callable[[Job], bool] = lambda _: False
    """Whether workers take a job from the ledger, so that nothing has to be published."""
    dispatchers: Mapping[str, Callable[[Job], object]] = field(default_factory=dict)
    """By name of a task, what gets its jobs instead of the broker, and claims those that it accepts; it gets the others
    again after `Policy.hold`."""


def sweep(
    ledger: Ledger, publishing: Publishing, *, tasks: frozenset[str], limit: int = 100,
    may_end_leases: Callable[[], bool] = lambda: True,
) -> SweepResult:  # fmt: skip
    """Publish, expire, recover or purge each job whose `wake_at` is due.

    `tasks`: the tasks that this sweeper knows, whose jobs it publishes. Those of other tasks wait for another sweeper,
    but runs of any task are recovered, and ended jobs purged.

    When the broker is unavailable, the job is due again after `Policy.hold`, and the sweep goes on with the other jobs;
    but after `PUBLISH_FAILURES` no more are published, and the first error is raised at the end. Any other error of a
    publication is recorded, and the job's attempts back off until it becomes a dead letter. Old jobs are purged last,
    in one call.

    `may_end_leases`: False while runs whose leases have expired may yet renew them, as after an outage of the store.
    """
    due = ledger.take_due(tasks=tasks, limit=limit, expired_runs=may_end_leases())
    if not may_end_leases():  # that call may have waited for the store
        due = [job for job in due if job.state is not State.RUNNING]
    run = _Sweep(ledger, publishing, tasks, SweepResult(seen=len(due)))
    run.find_waiting_followers(due)
    random.shuffle(due)  # so that a job that always fails is not always the first
    for job in sorted(due, key=lambda job: job.state is not State.RUNNING):
        if run.outages < PUBLISH_FAILURES or run.has_dispatcher(job):
            run.process(job)
    run.wake_overtaken_followers()
    ledger.postpone(run.in_queue, {job.id: job.wake_at for job in due if job.wake_at is not None})
    run.purge([job.id for job in due if job.state.final and not job.canvas_pending])
    ledger.emit(JobEvent(SWEEP, fields=values_of(run.swept)))
    if run.errors:
        raise run.errors[0]
    return run.swept


@dataclass(slots=True)
class _Sweep:
    """One sweep: its arguments, counts and errors."""

    ledger: Ledger
    publishing: Publishing
    tasks: frozenset[str]
    swept: SweepResult
    errors: list[Exception] = field(default_factory=list)
    outages: int = 0
    """How many publications found the broker unavailable."""
    in_queue: dict[str, float] = field(default_factory=dict)
    """The jobs whose messages are not known to be gone, and the seconds until the next look at each."""
    waiting: frozenset[str] = frozenset()
    """The ids of the followers whose followed jobs have not ended."""
    postponed: list[Job] = field(default_factory=list)

    def has_dispatcher(self, job: Job) -> bool:
        """Return whether a job is dispatched without the broker."""
        return job.task in self.publishing.dispatchers

    def process(self, job: Job) -> None:
        """Process one job; keep an outage of the broker for the end."""
        try:
            self._transition(job)
        except BrokerUnavailableError as error:
            self.outages += 1
            self.errors.append(error)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - one job must not end the sweep
            self.errors.append(error)

    def find_waiting_followers(self, due: Sequence[Job]) -> None:
        """Find the jobs to postpone: the followers of jobs that have not ended."""
        followers = [job for job in due if job.state is State.QUEUED and job.follows_id is not None]
        self.waiting = self._unended(followers)

    def wake_overtaken_followers(self) -> None:
        """Make those due at once whose jobs ended while they were postponed: that end had made them due already."""
        unended = self._unended(self.postponed)
        for job in self.postponed:
            if job.id not in unended:
                self._postpone(job, 0.0)

    def _postpone(self, job: Job, wake_after: float) -> None:
        detail = f"job {job.follows_id} has not ended; its end makes this one due"
        self.ledger.change(job, Transition.POSTPONE, None, token=job.token, wake_after=wake_after, detail=detail)

    def _unended(self, followers: Sequence[Job]) -> frozenset[str]:
        """Return the ids of the followers whose followed jobs exist and have not ended."""
        found = self.ledger.get_many([str(job.follows_id) for job in followers]) if followers else {}
        followed = {job_id for job_id, job in found.items() if not job.state.final}
        return frozenset(job.id for job in followers if job.follows_id in followed)

    def purge(self, old: Sequence[str]) -> None:
        """Delete old jobs in one call; after an error one by one, so that only those stay which cause it."""
        try:
            self.swept.purged += len(self.ledger.purge(old)) if old else 0
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
            self.ledger.change(job, Transition.RELEASE_IDENTITY, None, keeps_identity=False, detail=WINDOW_OVER)

    def _recover(self, job: Job) -> None:
        is_known = (job.publisher_task or job.task) in self.tasks
        wake_after = None if is_known else 0.0  # due at once, for a sweeper that knows the task
        message = self._find_message(job) if is_known else None
        applied = self.ledger.crash(
            job, "its lease expired", LEASE_ERROR, lapsed=True, wake_after=wake_after, message=message
        )
        self.swept.lapsed += applied.applied
        if is_known and applied.applied and applied.job is not None and applied.job.state is State.QUEUED:
            error = self._publish(applied.job, message)
            if error:
                note_publication(self.ledger, applied.job, error)

    def _publish_waiting(self, job: Job) -> None:
        job = self.ledger.cancel_if_due(job)
        if job.state.final:
            self.swept.canceled += 1
        elif job.queued_next and (promoted := self.ledger.promote(job)) is not None:
            self._republish(promoted)
        elif job.id in self.waiting:
            self.postponed.append(job)
            # As long again as it has waited: a long wait costs little.
            self._postpone(job, max((job.wake_at or 0.0) - self.ledger.policy.hold - job.created_at, job.lease))
        elif not job.queued_next and self._needs_message(job):
            self._republish(job)

    def _needs_message(self, job: Job) -> bool:
        """Return whether the message of a job has to be sent; otherwise it is looked at again later."""
        if self.has_dispatcher(job) or not job.queue:
            return True
        if job.published_at is None and not self.publishing.is_delivered(job):
            return True
        gone_in = None if job.published_at is None else self.publishing.gone_in(job)
        if gone_in is None:
            gone_in = patience(job, now=(job.wake_at or 0.0) - self.ledger.policy.hold)
        if gone_in > 0:
            self.in_queue[job.id] = gone_in
        return gone_in <= 0

    def _republish(self, job: Job) -> None:
        message = self._find_message(job)
        error = self._publish(job, message)
        if not self.has_dispatcher(job):
            # The job's token detects a claim between the publication and this change.
            note_publication(self.ledger, job, error, message)

    def _notify_canvas(self, job: Job) -> None:
        """Publish an ended job, so that Celery notifies its canvas; give up when its retention is over."""
        left = retention_left(self.ledger, job)
        if left <= 0:
            abandon_canvas(self.ledger, job)
        elif self._needs_message(job):
            note_notification(self.ledger, job, self._publish(job))
        else:
            self.in_queue[job.id] = min(self.in_queue[job.id], left)

    def _find_message(self, job: Job) -> BrokerMessage | None:
        return None if self.has_dispatcher(job) else self.publishing.message_of(job)

    def _publish(self, job: Job, message: BrokerMessage | None = None) -> str:
        """Send a job's message, and return "", or why it cannot be sent. Raises `BrokerUnavailableError`.

        With `message` the store pushes it, and nothing is sent.
        """
        if self.has_dispatcher(job):
            self.publishing.dispatchers[job.task](job)
            return ""
        try:
            if message is None:
                self.publishing.publish(job)
        except StoreError:
            raise
        except Exception as error:
            self.swept.failed += 1
            if isinstance(error, BrokerUnavailableError):
                raise
            return describe(error)  # recorded as that of the job
        self.swept.published += 1
        return ""
