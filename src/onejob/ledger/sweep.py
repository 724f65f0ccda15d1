"""The sweep: publishes, expires, recovers or purges the jobs whose `wake_at` is due.

A message that was sent is sent again only when it is known to be gone. One that cannot be sent is tried again: with a
back-off that doubles without a cap. That holds for waiting jobs, and for ended jobs whose canvas is not notified yet.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from onejob.errors import BrokerUnavailableError, StoreError, StoreUnavailableError, describe
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Applied, BrokerMessage, Job, values_of
from onejob.jobs.transitions import retention
from onejob.ledger.ledger import Ledger
from onejob.observability.events import SWEEP, JobEvent
from onejob.stores.protocol import WINDOW_OVER

PATIENCE_LEASES = 20
"""How many leases a sweep leaves a published job alone at most."""
MAX_DOUBLINGS = 32
"""Prevents an overflow only: so many doublings of a lease of one second take a century."""
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
    publication is recorded, and the job's attempts back off until it becomes a dead letter. Old jobs are purged last.

    `may_end_leases`: False while runs whose leases have expired may yet renew them, as after an outage of the store.
    """
    due = ledger.take_due(tasks=tasks, limit=limit, expired_runs=may_end_leases())
    if not may_end_leases():  # that call may have waited for the store
        due = [job for job in due if job.state is not State.RUNNING]
    run = _Sweep(ledger, publishing, tasks, SweepResult(seen=len(due)))
    run.waiting = run.unended([job for job in due if job.state is State.QUEUED and job.follows_id is not None])
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
        return job.task in self.publishing.dispatchers

    def process(self, job: Job) -> None:
        """Process one job; keep an error of its own, or of the broker, for the end."""
        try:
            if job.state is State.RUNNING:
                self._recover(job)
            elif not job.state.final:
                self._publish_waiting(job)
            elif job.canvas_pending:
                self._notify_canvas(job)
            elif job.holds_identity:  # its uniqueness window is over, and no later submission has released the identity
                self.ledger.change(job, Transition.RELEASE_IDENTITY, None, keeps_identity=False, detail=WINDOW_OVER)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - one job must not end the sweep
            self.outages += isinstance(error, BrokerUnavailableError)
            self.errors.append(error)

    def wake_overtaken_followers(self) -> None:
        """Make those due at once whose jobs ended while they were postponed: that end had made them due already."""
        unended = self.unended(self.postponed)
        for job in self.postponed:
            if job.id not in unended:
                self._postpone(job, 0.0)

    def _postpone(self, job: Job, wake_after: float) -> None:
        detail = f"job {job.follows_id} has not ended; its end makes this one due"
        self.ledger.change(job, Transition.POSTPONE, None, token=job.token, wake_after=wake_after, detail=detail)

    def unended(self, followers: Sequence[Job]) -> frozenset[str]:
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


# --- publications, and what a job keeps of them -----------------------------------------------------------------------


def backoff(job: Job, attempt: int) -> float:
    """Return the seconds from an attempt (1, 2, ...) to publish a job until the next one."""
    return float(job.lease * 2 ** min(attempt - 1, MAX_DOUBLINGS))


def note_publication(
    ledger: Ledger, job: Job, error: str, message: BrokerMessage | None = None, *, is_delivered: bool = False
) -> Applied:
    """Record an attempt to publish a waiting job; `error`: why it cannot be sent, "" if it was sent.

    `message`: what the store pushes with this change, instead of an earlier publication. `is_delivered`: workers take
    the job from the ledger, after the back-off.
    After `Policy.publish_limit` failed attempts in a row, the job becomes a dead letter. Refused after a claim, and
    when a duplicate has moved its time meanwhile.
    """
    attempt = job.published + 1 if bool(job.publish_error) == bool(error) else 1
    if error and attempt >= ledger.policy.publish_limit:
        return fail_unpublishable(ledger, job, f"its message could not be sent {attempt} times: {error}")
    wake_after = backoff(job, attempt) if error or not job.queue else job.lease
    detail = _describe(job, attempt, error) + (f"; again in {wake_after:g} s" if error else "")
    return ledger.change(
        job, Transition.PUBLISH, None, token=job.token, wake_after=wake_after, published=attempt, publishes=not error,
        publish_error=error, detail=detail, message=message, run_in=wake_after if is_delivered else None,
        seen_run_at=job.run_at,
    )  # fmt: skip


def note_unsent(ledger: Ledger, job: Job) -> Applied:
    """Record that the broker did not accept the message of a job that was just queued: a sweep publishes it soon."""
    return ledger.change(
        job, Transition.PUBLISH, None, token=job.token, wake_after=0.0, publishes=False,
        detail="the broker did not accept its message when it was queued; a sweep publishes it",
    )  # fmt: skip


def patience(job: Job, now: float) -> float:
    """Return the seconds until a sweep looks again at a job that is published or offered, and not known to be lost.

    As long again as it has waited, between one lease and `PATIENCE_LEASES`, so that a long queue costs little.
    """
    waited = now - (job.published_at or job.run_at)
    return min(max(waited, job.lease), PATIENCE_LEASES * job.lease)


def fail_unpublishable(ledger: Ledger, job: Job, reason: str) -> Applied:
    """Make a waiting job, whose message cannot be sent, a dead letter; refused if a worker has claimed it."""
    error = json.dumps({"type": "Unpublishable", "message": reason, "traceback": ""})
    return ledger.change(job, Transition.UNPUBLISHABLE, reason, token=job.token, error=error)


def note_notification(ledger: Ledger, job: Job, error: str) -> Applied:
    """Record a sweep's attempt to publish an ended job for its canvas; `error`: why it cannot be sent, "" if it was.

    The last attempt is followed by the end of the job's retention.
    """
    attempt = job.published + 1
    wake_after = min(backoff(job, attempt), retention_left(ledger, job))
    detail = f"{_describe(job, attempt, error)}; again in {wake_after:g} s unless its canvas is notified"
    return ledger.change(
        job, Transition.NOTIFY_CANVAS, None, token=job.token, unnotified=True, wake_after=wake_after, published=attempt,
        publishes=not error, publish_error=error or None, detail=detail,
    )  # fmt: skip


def note_canvas_error(ledger: Ledger, job: Job, error: str, *, wake_after: float | None = None) -> Applied:
    """Record why Celery could not notify the canvas of an ended job.

    `wake_after`: seconds until a sweep has it notified; None: when it would have, a lease after the end.
    """
    return ledger.change(
        job, Transition.NOTIFY_CANVAS, None, token=job.token, unnotified=True, publishes=False, publish_error=error,
        wake_after=wake_after, detail=f"Celery could not notify its canvas: {error}",
    )  # fmt: skip


def abandon_canvas(ledger: Ledger, job: Job) -> Applied:
    """Give up notifying the canvas of an ended job whose retention is over; the job is kept once more as long."""
    detail = f"{job.published} attempts" + (f"; the last error: {job.publish_error}" if job.publish_error else "")
    return ledger.change(
        job, Transition.CANVAS_ABANDONED, None, token=job.token, unnotified=True, canvas_pending=False,
        wake_after=retention(ledger.policy, job.state, holds_identity=job.holds_identity), detail=detail,
    )  # fmt: skip


def retention_left(ledger: Ledger, job: Job) -> float:
    """Return the seconds until the retention of an ended job is over, for a job that `take_due` has just returned."""
    now = (job.wake_at or 0.0) - ledger.policy.hold  # `take_due` has set `wake_at`, on the store's clock
    return (job.finished_at or 0.0) + retention(ledger.policy, job.state, holds_identity=job.holds_identity) - now


def _describe(job: Job, attempt: int, error: str) -> str:
    to = f" to queue {job.queue}" if job.queue else ""
    again = " again" if job.published_at is not None else ""
    return (
        f"its message could not be sent{to}, publication {attempt}: {error}"
        if error
        else f"published{again}{to}, publication {attempt}"
    )
