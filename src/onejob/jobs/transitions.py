"""Builds the job that a submission becomes, and the changes that transitions make to jobs."""

from __future__ import annotations

from secrets import token_bytes
from uuid import uuid4

from onejob.jobs.durations import DAY
from onejob.jobs.handover import Handover
from onejob.jobs.ledger_settings import LedgerSettings
from onejob.jobs.lifecycle import FINAL, RULES, WAITING, State, Transition
from onejob.jobs.limits import parked_on_key, waits_for
from onejob.jobs.model import Cancel, Change, JobRow, Submission

DST_SHIFT = 3 * 3600.0
"""Seconds by which a clock that is set back lengthens a calendar window, and a job's retention with it: at the end of
daylight saving time one hour, in Antarctica/Troll two; when Antarctica/Casey changed its zone, three."""
SUBMITTED = "submitted"
"""The reason of a job that was admitted."""


def new_id() -> str:
    """Return a random UUID (version 4), as the id of a job."""
    return str(uuid4())


def new_nonce() -> str:
    """Return 16 random hex digits that identify one request."""
    return token_bytes(8).hex()


def first_reason(submission: Submission) -> str:
    """Return the reason of the new job of a submission that holds its identity."""
    key = parked_on_key(submission.parked_on)
    return SUBMITTED if key is None else waits_for(key)


def new_job(submission: Submission, *, now: float, wake_after: float, is_sent: bool) -> JobRow:
    """Return the queued job that a store writes for a submission that is admitted, so that it need not be read back.

    `wake_after`, `is_sent`: the `columns` of its hand-over, if it is due now.
    """
    expires_at = None if submission.expires_in is None else now + submission.expires_in
    is_due = submission.delay <= 0
    wake_at = now + (wake_after if is_due else submission.delay)
    return JobRow(
        id=submission.id, task=submission.task, identity=submission.identity, fingerprint=submission.fingerprint,
        submission_nonce=submission.nonce, submitter=submission.submitter, source=submission.source,
        payload=submission.payload, options=submission.options, route=submission.route,
        priority_rank=submission.priority_rank, state=State.QUEUED, holds_identity=True, queued_next=False,
        identity_until=None, follows_id=None, token=0, claim="", node="", attempt=0, retries=submission.retries,
        crashes=0, lease=float(submission.lease), lease_until=None, created_at=now, run_at=now + submission.delay,
        expires_at=expires_at, started_at=None, finished_at=None,
        wake_at=wake_at if expires_at is None else min(wake_at, expires_at), published=0,
        published_at=now if is_due and is_sent else None, publish_error="",
        cancel=Cancel.NO, canvas_pending=submission.canvas, key_retained_until=None, duplicate_count=0, progress=None,
        result=None, error=None,
        reason=SUBMITTED if submission.parked_on is None else first_reason(submission),
        publisher_task=submission.publisher_task,
        tag_lines=submission.tag_lines, parked_on=submission.parked_on, limit_keys=submission.limit_keys,
    )  # fmt: skip


def change_of(
    settings: LedgerSettings, job: JobRow, transition: Transition, reason: str | None, **values: object
) -> Change:
    """Return the change that a transition makes to a job; `values` add to or override the fields set by its rule.

    Each change is a request of its own, unless `values` contains the `request_id` of an earlier one, which it repeats.

    `reason` explains the new state to people; it is also the history's detail, unless `values` contains `detail`.
    """
    rule, request_id = RULES[transition], values.pop("request_id", None) or new_nonce()
    by_rule: dict[str, object] = {"sources": rule.sources, "detail": reason or ""}
    if rule.target is not None:  # it is queued or ends: its publications are counted anew
        by_rule |= {"published": 0, "publish_error": ""}
    if rule.target in FINAL:
        wake_after = retention(settings, rule.target)
        if job.canvas_pending:  # a worker that ends a run notifies the canvas itself
            wake_after = job.lease if rule.fenced else 0.0
        by_rule |= {"ends": True, "keeps_identity": False, "wake_after": wake_after}
    handover = values.get("handover")
    # A run is parked on nothing: its claim has ended that. A job that is parked only since it was read stays so.
    if rule.sources & WAITING and (rule.target is not None or (handover is not None and job.parked_on is not None)):
        by_rule["parked_on"] = ""
    if isinstance(handover, Handover):
        values = {"wake_after": job.lease if handover.after is None else handover.after} | values
    return Change(
        job_id=job.id, identity=job.identity, request_id=request_id, event=transition,  # type: ignore[arg-type]
        target=rule.target, reason=reason, **(by_rule | values),  # type: ignore[arg-type]
    )  # fmt: skip


def cancel_change(settings: LedgerSettings, job: JobRow, cancel: Cancel, reason: str) -> Change:
    """Return the change that cancels a waiting job, or that requests the cancellation of a running job."""
    if job.state is State.RUNNING:
        strongest = max(cancel, job.cancel)
        return change_of(
            settings, job, Transition.REQUEST_CANCEL, None, cancel=strongest, token=job.token, detail=reason
        )
    return change_of(settings, job, Transition.CANCEL, reason)


def ending_change(settings: LedgerSettings, job: JobRow) -> Change | None:
    """Return the change that ends a waiting job with a cancel request or an expiry; None if the job has neither."""
    if job.cancel is not Cancel.NO:
        return change_of(settings, job, Transition.CANCEL, "canceled on request")
    if job.expires_at is not None:
        return change_of(settings, job, Transition.EXPIRE, "it expired before a run started", overdue=True)
    return None


def retention(settings: LedgerSettings, state: State, *, holds_identity: bool = False) -> float:
    """Return the seconds for which an ended job is kept, with a margin if it still holds its identity."""
    return settings.retention.get(state, DAY) + (DST_SHIFT if holds_identity else 0.0)
