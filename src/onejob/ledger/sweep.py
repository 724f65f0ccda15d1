"""The sweep: publishes, expires, recovers or purges the jobs whose `wake_at` is due.

A message that was sent is sent again only when it is known to be gone. A message that cannot be sent is tried again
with a back-off that doubles without a cap. Both rules hold for waiting jobs, and for ended jobs whose canvas is not
notified yet.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from onejob.errors import BrokerUnavailableError, StoreError, StoreUnavailableError, StoreUnusableError, describe
from onejob.jobs.blocks import PARKED_SECONDS, Block
from onejob.jobs.handover import BY_CALLER, BY_SWEEP, Handover
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.limits import parked_on_key
from onejob.jobs.model import Applied, JobRow, values_of
from onejob.jobs.transitions import retention
from onejob.ledger.ledger import Ledger
from onejob.observability.events import SWEEP, JobEvent
from onejob.stores.protocol import WINDOW_OVER

PATIENCE_LEASES = 20
"""The maximum number of leases for which a sweep leaves a published job alone."""
MAX_DOUBLINGS = 32
"""The limit that prevents an overflow: 32 doublings of a lease of one second take a century."""
PUBLISH_FAILURES = 3
"""The number of failed publications in a sweep after which the broker counts as unavailable."""
LEASE_ERROR = (
    '{"type": "WorkerLost", "message": "the lease expired: the worker died or lost its connection", "traceback": ""}'
)


@dataclass(slots=True)
class SweepResult:
    """The result of a sweep, as numbers of jobs."""

    published: int = 0
    lapsed: int = 0
    canceled: int = 0
    purged: int = 0
    parked: int = field(default=0, compare=False)
    """The number of jobs whose pause goes on."""
    failed: int = field(default=0, compare=False)
    """The number of jobs whose messages could not be sent."""
    seen: int = field(default=0, compare=False)
    """How many jobs were due; if this is the limit, there may be more."""


@dataclass(frozen=True, slots=True)
class Publishing:
    """The functions by which a sweep publishes jobs, and knows that a message is gone."""

    publish: Callable[[JobRow], object]
    """A function that sends a job's message. An error is the job's own, unless it is a `BrokerUnavailableError`."""
    by_store: Callable[[JobRow], Handover | None] = lambda _: None
    """A function that returns how the store alone hands a job over, without `publish`; None: the store cannot."""
    gone_in: Callable[[JobRow], float | None] = lambda _: None
    """A function that returns the seconds until a published job's message is sent again.

    Then the message is known to be gone; 0: it is gone now; None: it may still be delivered. The message of a job
    without a queue is sent again after a back-off.
    """
    workers_take: Callable[[JobRow], bool] = lambda _: False
    """A function that returns whether workers take a job from the ledger, so that nothing has to be published."""
    dispatchers: Mapping[str, Callable[[JobRow], object]] = field(default_factory=dict)
    """Functions by task name that get the task's jobs instead of the broker.

    A function claims the jobs that it accepts, and gets the others again after `LedgerSettings.hold`.
    """


def sweep(
    ledger: Ledger, publishing: Publishing, *, tasks: frozenset[str], limit: int = 100,
    may_end_leases: Callable[[], bool] = lambda: True,
) -> SweepResult:  # fmt: skip
    """Publish, expire, recover or purge each job whose `wake_at` is due.

    `tasks`: the tasks that this sweeper knows, whose jobs it publishes. Jobs of other tasks wait for another sweeper,
    but runs of any task are recovered, and ended jobs purged.

    When the broker is unavailable, the job is due again after `LedgerSettings.hold`, and the sweep goes on with the
    other jobs; but after `PUBLISH_FAILURES` no more are published, and the first error is raised at the end. Any other
    error of a publication is recorded, and the job's attempts back off until it becomes a dead letter. Old jobs are
    purged last.

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
    ledger.free_slots(run.waited_for)
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
    """The number of publications that found the broker unavailable."""
    in_queue: dict[str, float] = field(default_factory=dict)
    """The jobs whose messages are not known to be gone, and the seconds until the next look at each."""
    waiting: frozenset[str] = frozenset()
    """The ids of the followers whose followed jobs have not ended."""
    postponed: list[JobRow] = field(default_factory=list)
    waited_for: dict[str, None] = field(default_factory=dict)
    """The keys of limits that parked jobs wait for: a crash may have hidden that they have room."""
    blocks: dict[str, Block] | None = None
    """The pauses and strikes by id, read when a due job is parked."""

    def has_dispatcher(self, job: JobRow) -> bool:
        return job.task in self.publishing.dispatchers

    def process(self, job: JobRow) -> None:
        """Process one job; keep an error of its own, or of the broker, for the end."""
        try:
            if job.state is State.RUNNING:
                self._recover(job)
            elif not job.state.final:
                self._publish_waiting(job)
            elif job.canvas_pending:
                self._notify_canvas(job)
            elif job.holds_identity:  # the uniqueness window is over, and no later submission has released the identity
                self.ledger.change(job, Transition.RELEASE_IDENTITY, None, keeps_identity=False, detail=WINDOW_OVER)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - one job must not end the sweep
            self.outages += isinstance(error, BrokerUnavailableError)
            self.errors.append(error)

    def wake_overtaken_followers(self) -> None:
        """Make followers due at once whose followed jobs ended while the followers were postponed."""
        unended = self.unended(self.postponed)
        for job in self.postponed:
            if job.id not in unended:
                self._postpone(job, 0.0)

    def _postpone(self, job: JobRow, wake_after: float) -> None:
        detail = f"job {job.follows_id} has not ended; its end makes this one due"
        self.ledger.change(job, Transition.POSTPONE, None, token=job.token, wake_after=wake_after, detail=detail)

    def unended(self, followers: Sequence[JobRow]) -> frozenset[str]:
        """Return the ids of the followers whose followed jobs exist and have not ended."""
        found = self.ledger.get_many([str(job.follows_id) for job in followers]) if followers else {}
        followed = {job_id for job_id, job in found.items() if not job.state.final}
        return frozenset(job.id for job in followers if job.follows_id in followed)

    def purge(self, old: Sequence[str]) -> None:
        """Delete old jobs in one call; after an error one by one, so that only the jobs that cause it stay."""
        try:
            self.swept.purged += len(self.ledger.purge(old)) if old else 0
        except (StoreUnavailableError, StoreUnusableError):
            raise
        except StoreError as error:
            if len(old) == 1:
                self.errors.append(error)
                return
            for job_id in old:
                self.purge([job_id])

    def _recover(self, job: JobRow) -> None:
        is_known = (job.publisher_task or job.task) in self.tasks
        # If the task is unknown here, the job is due at once, for a sweeper that knows the task.
        handover = self._by_store(job) or BY_CALLER if is_known else BY_SWEEP
        applied = self.ledger.crash(job, "its lease expired", LEASE_ERROR, lapsed=True, handover=handover)
        self.swept.lapsed += applied.applied
        if applied.handed_over:
            self.swept.published += 1
        elif is_known and applied.applied and applied.job is not None and applied.job.state is State.QUEUED:
            error = self._publish(applied.job)
            if error:
                note_publication(self.ledger, applied.job, error)

    def _publish_waiting(self, job: JobRow) -> None:
        job = self.ledger.cancel_if_due(job)
        if job.state.final:
            self.swept.canceled += 1
        elif job.queued_next and (promoted := self.ledger.promote(job)) is not None:
            self._republish(promoted)
        elif job.parked_on and self._stays_parked(job):
            self.swept.parked += 1
        elif job.id in self.waiting:
            self.postponed.append(job)
            # The job waits as long again as it has waited, so that a long wait costs little.
            self._postpone(job, max((job.wake_at or 0.0) - self.ledger.settings.hold - job.created_at, job.lease))
        elif not job.queued_next and self._needs_message(job):
            self._republish(job)

    def _stays_parked(self, job: JobRow) -> bool:
        """Return whether a parked job is due again later: it waits for room, or its pause is not over."""
        key = parked_on_key(job.parked_on)
        if key is not None:
            self.waited_for[key] = None
            self.in_queue[job.id] = PARKED_SECONDS
            return True
        if self.blocks is None:
            self.blocks = {block.id: block for block in self.ledger.store.blocks()}
        block, now = self.blocks.get(str(job.parked_on)), self.ledger.read_clock()
        if block is None:
            return False
        remaining = PARKED_SECONDS if block.until is None else block.until - now
        if remaining <= 0:
            self.ledger.unblock(block)
            del self.blocks[block.id]
            return True  # with all others of the pause, it is due for the next sweep
        self.in_queue[job.id] = min(remaining, PARKED_SECONDS)
        return True

    def _needs_message(self, job: JobRow) -> bool:
        """Return whether the message of a job has to be sent; if not, the job is due again later."""
        if self.has_dispatcher(job) or not job.queue:
            return True
        if job.published_at is None and not self.publishing.workers_take(job):
            return True
        gone_in = None if job.published_at is None else self.publishing.gone_in(job)
        if gone_in is None:
            gone_in = patience(job, now=(job.wake_at or 0.0) - self.ledger.settings.hold)
        if gone_in > 0:
            self.in_queue[job.id] = gone_in
        return gone_in <= 0

    def _republish(self, job: JobRow) -> None:
        handover = self._by_store(job)
        error = "" if handover is not None else self._publish(job)
        self.swept.published += handover is not None
        if not self.has_dispatcher(job):
            # The job's token detects a claim between the publication and this change.
            note_publication(self.ledger, job, error, handover or BY_CALLER)

    def _notify_canvas(self, job: JobRow) -> None:
        """Publish an ended job, so that Celery notifies its canvas; give up when its retention is over."""
        left = retention_left(self.ledger, job)
        if left <= 0:
            abandon_canvas(self.ledger, job)
        elif self._needs_message(job):
            note_notification(self.ledger, job, self._publish(job))
        else:
            self.in_queue[job.id] = min(self.in_queue[job.id], left)

    def _by_store(self, job: JobRow) -> Handover | None:
        return None if self.has_dispatcher(job) else self.publishing.by_store(job)

    def _publish(self, job: JobRow) -> str:
        """Send a job's message; return "", or the error that prevents it. Raises `BrokerUnavailableError`."""
        if self.has_dispatcher(job):
            self.publishing.dispatchers[job.task](job)
            return ""
        try:
            self.publishing.publish(job)
        except StoreError:
            raise
        except Exception as error:
            self.swept.failed += 1
            if isinstance(error, BrokerUnavailableError):
                raise
            return describe(error)  # recorded as the job's error
        self.swept.published += 1
        return ""


# --- publications, and what a job keeps of them -----------------------------------------------------------------------


def backoff(job: JobRow, attempt: int) -> float:
    """Return the seconds from an attempt (1, 2, ...) to publish a job until the next one."""
    return float(job.lease * 2 ** min(attempt - 1, MAX_DOUBLINGS))


def note_publication(
    ledger: Ledger, job: JobRow, error: str, handover: Handover = BY_CALLER, *, delays_run: bool = False
) -> Applied:
    """Record an attempt to publish a waiting job; `error`: why it cannot be sent, "" if it was sent.

    `handover`: how the store hands the job over with this change, if nothing was sent before. `delays_run`: the job is
    due after the back-off, since workers take it from the ledger.
    After `LedgerSettings.publish_limit` failed attempts in a row, the job becomes a dead letter. Refused after a claim,
    and when a duplicate has moved its time meanwhile.
    """
    attempt = job.published + 1 if bool(job.publish_error) == bool(error) else 1
    if error and attempt >= ledger.settings.publish_limit:
        return fail_unpublishable(ledger, job, f"its message could not be sent {attempt} times: {error}")
    wake_after = backoff(job, attempt) if error or not job.queue else job.lease
    detail = _describe(job, attempt, error) + (f"; again in {wake_after:g} s" if error else "")
    return ledger.change(
        job, Transition.PUBLISH, None, token=job.token, handover=BY_SWEEP if error else handover, wake_after=wake_after,
        published=attempt, publish_error=error, detail=detail, run_in=wake_after if delays_run else None,
        seen_run_at=job.run_at,
    )  # fmt: skip


def note_unsent(ledger: Ledger, job: JobRow) -> Applied:
    """Record that the broker did not accept the message of a job that was just queued: a sweep publishes it soon."""
    return ledger.change(
        job, Transition.PUBLISH, None, token=job.token, handover=BY_SWEEP,
        detail="the broker did not accept its message when it was queued; a sweep publishes it",
    )  # fmt: skip


def patience(job: JobRow, now: float) -> float:
    """Return the seconds until a job that is published or offered, and not known to be lost, is due for a sweep again.

    The job waits as long again as it has waited, between one lease and `PATIENCE_LEASES`, so that a long queue costs
    little.
    """
    waited = now - (job.published_at or job.run_at)
    return min(max(waited, job.lease), PATIENCE_LEASES * job.lease)


def fail_unpublishable(ledger: Ledger, job: JobRow, reason: str) -> Applied:
    """Make a waiting job, whose message cannot be sent, a dead letter; refused if a worker has claimed it."""
    error = json.dumps({"type": "Unpublishable", "message": reason, "traceback": ""})
    return ledger.change(job, Transition.UNPUBLISHABLE, reason, token=job.token, error=error)


def note_notification(ledger: Ledger, job: JobRow, error: str) -> Applied:
    """Record a sweep's attempt to publish an ended job for its canvas; `error`: why it cannot be sent, "" if it was.

    The last attempt is followed by the end of the job's retention.
    """
    attempt = job.published + 1
    wake_after = min(backoff(job, attempt), retention_left(ledger, job))
    detail = f"{_describe(job, attempt, error)}; again in {wake_after:g} s unless its canvas is notified"
    return ledger.change(
        job, Transition.NOTIFY_CANVAS, None, token=job.token, unnotified=True, wake_after=wake_after, published=attempt,
        handover=BY_SWEEP if error else BY_CALLER, publish_error=error or None, detail=detail,
    )  # fmt: skip


def note_canvas_error(ledger: Ledger, job: JobRow, error: str, *, wake_after: float | None = None) -> Applied:
    """Record the error by which Celery could not notify the canvas of an ended job.

    `wake_after`: seconds until a sweep notifies it; None: at the usual time, a lease after the end.
    """
    return ledger.change(
        job, Transition.NOTIFY_CANVAS, None, token=job.token, unnotified=True, handover=BY_SWEEP, publish_error=error,
        wake_after=wake_after, detail=f"Celery could not notify its canvas: {error}",
    )  # fmt: skip


def abandon_canvas(ledger: Ledger, job: JobRow) -> Applied:
    """Give up notifying the canvas of an ended job whose retention is over; the job is kept for a second retention."""
    detail = f"{job.published} attempts" + (f"; the last error: {job.publish_error}" if job.publish_error else "")
    return ledger.change(
        job, Transition.CANVAS_ABANDONED, None, token=job.token, unnotified=True, canvas_pending=False,
        wake_after=retention(ledger.settings, job.state, holds_identity=job.holds_identity), detail=detail,
    )  # fmt: skip


def retention_left(ledger: Ledger, job: JobRow) -> float:
    """Return the seconds until the retention of an ended job is over, for a job that `take_due` has just returned."""
    now = (job.wake_at or 0.0) - ledger.settings.hold  # `take_due` has set `wake_at`, on the store's clock
    return (job.finished_at or 0.0) + retention(ledger.settings, job.state, holds_identity=job.holds_identity) - now


def _describe(job: JobRow, attempt: int, error: str) -> str:
    to = f" to queue {job.queue}" if job.queue else ""
    again = " again" if job.published_at is not None else ""
    return (
        f"its message could not be sent{to}, publication {attempt}: {error}"
        if error
        else f"published{again}{to}, publication {attempt}"
    )
