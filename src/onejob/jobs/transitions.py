"""Builds the job that a submission becomes, and the changes that transitions make to jobs, by rules and policy."""

from __future__ import annotations

from secrets import token_bytes

from onejob.jobs.lifecycle import FINAL, RULES, State, Transition
from onejob.jobs.model import Cancel, Change, Job, Submission, is_plain
from onejob.jobs.policy import DAY, Policy

DST_SHIFT = 3 * 3600.0
"""Seconds by which a clock that is set back lengthens a calendar window, and a job's retention with it: at the end of
daylight saving time one hour, in Antarctica/Troll two; when Antarctica/Casey changed its zone, three."""
SUBMITTED = "submitted"
"""The reason of a job that was admitted."""
_VARIANT = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))


def new_id() -> str:
    """Return a random UUID (version 4), as the id of a job; `uuid.uuid4` makes an object first."""
    digits = token_bytes(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{_VARIANT[digits[16]]}{digits[17:20]}-{digits[20:]}"


def new_nonce() -> str:
    """Return 16 random hex digits that identify one request."""
    return token_bytes(8).hex()


def new_job(submission: Submission, *, now: float, wake_after: float, offers: bool = False) -> Job:
    """Return the queued job that a store writes for a submission that is admitted, so that it need not be read back.

    `wake_after`: seconds until a sweep processes a job that is due; 0: a sweep publishes it, and not the caller.
    `offers`: workers take it from the ledger, if its route is the name of a queue.
    """
    expires_at = None if submission.expires_in is None else now + submission.expires_in
    publishes = submission.delay <= 0 and wake_after > 0 and not (offers and is_plain(submission.route))
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
        published_at=now if publishes else None, publish_error="",
        cancel=Cancel.NO, canvas_pending=submission.canvas, key_retained_until=None, duplicate_count=0, progress=None,
        result=None, error=None, reason=SUBMITTED, publisher_task=submission.publisher_task,
        tag_lines=submission.tag_lines,
    )  # fmt: skip


def change_of(policy: Policy, job: Job, transition: Transition, reason: str | None, **values: object) -> Change:
    """Return the change that a transition makes to a job; `values` add to or override the fields set by its rule.

    Each change is a request of its own, unless `values` contains the `request_id` of an earlier one, which it repeats.

    `reason` explains the new state to people; it is also the history's detail, unless `values` contains `detail`.
    """
    rule, request_id = RULES[transition], values.pop("request_id", None) or new_nonce()
    by_rule: dict[str, object] = {"detail": reason or ""}
    if rule.target is not None:  # it is queued or ends: its publications are counted anew
        by_rule |= {"published": 0, "publish_error": ""}
    if rule.target in FINAL:
        wake_after = retention(policy, rule.target)
        if job.canvas_pending:  # a worker that ends a run notifies the canvas itself
            wake_after = job.lease if rule.fenced else 0.0
        by_rule |= {"ends": True, "keeps_identity": False, "wake_after": wake_after}
    return Change(
        job_id=job.id, identity=job.identity, request_id=request_id, event=transition,  # type: ignore[arg-type]
        sources=rule.sources, target=rule.target, reason=reason, **(by_rule | values),  # type: ignore[arg-type]
    )  # fmt: skip


def cancel_change(policy: Policy, job: Job, cancel: Cancel, reason: str) -> Change:
    """Return the change that cancels a waiting job, or the cancel request to a running one."""
    if job.state is State.RUNNING:
        strongest = max(cancel, job.cancel)
        return change_of(policy, job, Transition.REQUEST_CANCEL, None, cancel=strongest, token=job.token, detail=reason)
    return change_of(policy, job, Transition.CANCEL, reason)


def ending_change(policy: Policy, job: Job) -> Change | None:
    """Return the change that ends a waiting job with a cancel request or an expiry; None without either."""
    if job.cancel is not Cancel.NO:
        return change_of(policy, job, Transition.CANCEL, "canceled on request")
    if job.expires_at is not None:
        return change_of(policy, job, Transition.EXPIRE, "it expired before a run started", overdue=True)
    return None


def retention(policy: Policy, state: State, *, holds_identity: bool = False) -> float:
    """Return the seconds for which an ended job is kept, with a margin if it still holds its identity."""
    return policy.retention.get(state, DAY) + (DST_SHIFT if holds_identity else 0.0)
