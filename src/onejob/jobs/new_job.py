"""The job that a submission becomes if it is admitted: what a store writes, so that it need not be read back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.jobs.lifecycle import State
from onejob.jobs.model import Cancel, Job

if TYPE_CHECKING:
    from onejob.jobs.model import Submission

SUBMITTED = "submitted"
"""The reason of a job that was admitted."""


def new_job(submission: Submission, *, now: float, wake_after: float) -> Job:
    """Return the queued job that holds its identity.

    `wake_after`: seconds until a sweep processes a job that is due; 0: a sweep publishes it, and not the caller.
    """
    expires_at = None if submission.expires_in is None else now + submission.expires_in
    wake_at = now + (submission.delay if submission.delay > 0 else wake_after)
    return Job(
        id=submission.id, task=submission.task, identity=submission.identity, fingerprint=submission.fingerprint,
        submission_nonce=submission.nonce, submitter=submission.submitter, source=submission.source,
        payload=submission.payload, options=submission.options, route=submission.route,
        priority_rank=submission.priority_rank, state=State.QUEUED, holds_identity=True, queued_next=False,
        identity_until=None, follows_id=None, token=0, claim="", node="", attempt=0, retries=submission.retries,
        crashes=0, lease=float(submission.lease), lease_until=None, created_at=now, run_at=now + submission.delay,
        expires_at=expires_at, started_at=None, finished_at=None,
        wake_at=wake_at if expires_at is None else min(wake_at, expires_at), published=0,
        published_at=now if submission.delay <= 0 and wake_after > 0 else None, publish_error="",
        cancel=Cancel.NO, canvas_pending=submission.canvas, key_retained_until=None, duplicate_count=0, progress=None,
        result=None, error=None, reason=SUBMITTED, publisher_task=submission.publisher_task,
    )  # fmt: skip
