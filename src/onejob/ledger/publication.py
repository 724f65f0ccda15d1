"""The model of publication, for waiting jobs and for ended jobs whose canvas is not notified yet.

A message that was sent is sent again only when it is known to be gone. One that cannot be sent is tried again: with a
back-off that doubles without a cap.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from onejob.jobs.lifecycle import Transition
from onejob.jobs.transitions import retention

if TYPE_CHECKING:
    from onejob.jobs.model import Applied, BrokerMessage, Job
    from onejob.ledger.ledger import Ledger

PATIENCE_LEASES = 20
"""How many leases a sweep leaves a published job alone at most."""
MAX_DOUBLINGS = 32
"""Prevents an overflow only: so many doublings of a lease of one second take a century."""


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


def note_canvas_error(ledger: Ledger, job: Job, error: str) -> Applied:
    """Record why Celery could not notify the canvas of an ended job."""
    return ledger.change(
        job, Transition.NOTIFY_CANVAS, None, token=job.token, unnotified=True, publishes=False, publish_error=error,
        detail=f"Celery could not notify its canvas: {error}",
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
