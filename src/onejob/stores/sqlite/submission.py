"""One submission: a new job, or what becomes of the job that is in its way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from onejob.jobs.model import Admission, Duplicate, Outcome, values_of
from onejob.stores.protocol import DUPLICATE_LIMIT, WINDOW_OVER
from onejob.uniqueness.on_duplicate import resolve

if TYPE_CHECKING:
    from onejob.jobs.model import Job, Submission
    from onejob.stores.sqlite.transaction import Transaction


def submit(tx: Transaction, submission: Submission, wake_in: float) -> Admission:
    """Write a submission unless it has been answered before, or a job holds its identity."""
    answered = tx.rows("find_key", key=submission.key) if submission.key is not None else []
    job = None if answered else _admit(tx, submission, wake_in)
    if job is None:
        own = tx.job("get", job_id=submission.id)
        if own is not None:
            follows_id = tx.job("get", job_id=own.follows_id) if own.follows_id else None
            return Admission.again(own, follows_id, submission.nonce)
        if answered:
            return _same_key(tx, submission, answered[0])
        job = _admit(tx, submission, wake_in) if _expire(tx, submission.identity) else None
    if job is not None:
        return _keep_key(tx, submission, Admission(job, Outcome.ADMITTED))
    return _meet_holder(tx, submission, wake_in)


def kept_duplicate(tx: Transaction, job_id: str, nonce: str, follows_id: str | None = None) -> Duplicate | None:
    """Return the duplicate that a submission has left with a job, or with the leader of that one."""
    rows = tx.rows("find_duplicate", job_id=job_id, follows_id=follows_id, submission_nonce=nonce)
    return Duplicate.from_row(rows[0]) if rows else None


def record(tx: Transaction, duplicate: Duplicate) -> None:
    """Keep the duplicate of somebody who has met a job, and count it, unless it is there already."""
    if duplicate.submission_nonce and kept_duplicate(tx, duplicate.job_id, duplicate.submission_nonce):
        return
    job = tx.job("bump_job" if duplicate.submission_nonce else "get", job_id=duplicate.job_id)
    if job is not None:
        leave_duplicate(tx, job, duplicate)


def leave_duplicate(tx: Transaction, job: Job, duplicate: Duplicate) -> None:
    """Keep and tally the duplicate of somebody who has met a job and was counted there."""
    tx.rows("insert_duplicate", duplicate_limit=DUPLICATE_LIMIT, **values_of(duplicate))
    tx.rows(
        "bump_stats", task=job.task, identity=job.identity, submitter=duplicate.submitter, outcome=duplicate.outcome
    )


def _admit(tx: Transaction, submission: Submission, wake_in: float) -> Job | None:
    job = tx.job("submit", wake_in=wake_in, **values_of(submission))
    if job is not None:
        tx.note(job.id, "submit", submission.source)
    return job


def _expire(tx: Transaction, identity: str) -> bool:
    """Free an identity whose holder's uniqueness window is over; tell whether there was one."""
    freed = tx.rows("expire", identity=identity)
    for row in freed:
        tx.note(row["id"], "release_identity", WINDOW_OVER)
    return bool(freed)


# --- meeting a job --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Met:
    """What came of meeting a job: the job that answers, and how."""

    job: Job
    outcome: Outcome
    rescheduled: bool = False


def _meet_holder(tx: Transaction, submission: Submission, wake_in: float) -> Admission:
    holder = tx.one("holder", identity=submission.identity)
    answer = _answer_before(tx, holder, submission)
    if answer is not None:
        return answer
    met = _met(tx, holder, submission, wake_in)
    if met.outcome is Outcome.QUEUED_NEXT:
        met = _queue_next(tx, holder, submission, wake_in)
    return _keep_key(tx, submission, _answer(tx, submission, holder, met))


def _answer_before(tx: Transaction, job: Job, submission: Submission) -> Admission | None:
    """Return the answer that a submission got from a job before, which was lost on its way; None for a new one."""
    duplicate = kept_duplicate(tx, job.id, submission.nonce, follows_id=job.follows_id)
    if duplicate is None:
        return None
    answer = tx.job("get", job_id=duplicate.answered_by) or job
    return Admission(answer, duplicate.outcome, rescheduled=duplicate.rescheduled)


def _met(tx: Transaction, job: Job, submission: Submission, wake_in: float) -> _Met:
    """Let a job become what comes of meeting it."""
    met = resolve(job, submission, now=tx.now)
    rescheduled, after = met.reschedules(job), job
    if rescheduled or met.takes_over:
        by = tx.now + submission.expires_in if submission.expires_in is not None else None
        rings = rescheduled and not job.queued_next
        after = tx.one(
            "attach", job_id=job.id, takes_over=met.takes_over, fingerprint=submission.fingerprint, payload=submission.payload,
            expires_at=by if met.takes_over else job.expires_at, run_at=met.run_at, priority_rank=met.priority_rank,
            wake_at=max(met.run_at, tx.now + wake_in if met.run_at <= tx.now else 0.0) if rings else None,
        )  # fmt: skip
    return _Met(after, met.outcome, rescheduled=rescheduled)


def _queue_next(tx: Transaction, holder: Job, submission: Submission, wake_in: float) -> _Met:
    """Queue a run after the holder's; when one is queued already, that is the job which is met."""
    job = tx.job("queue_next", follows_id=holder.id, **values_of(submission))
    if job is not None:
        tx.note(job.id, "queue_next", f"runs after {holder.id}")
        return _Met(job, Outcome.QUEUED_NEXT)
    return _met(tx, tx.one("next", identity=submission.identity), submission, wake_in)


def _answer(tx: Transaction, submission: Submission, in_the_way: Job, met: _Met) -> Admission:
    """Count a submission on the job in its way, leave its duplicate there, and write its follower if it needs one."""
    counted = tx.one("bump_job", job_id=in_the_way.id)
    answer = counted if met.job.id == in_the_way.id else met.job
    follower = None
    if submission.follows and answer.id != submission.id and met.outcome is not Outcome.REJECTED:
        follower = _write_follower(tx, submission, answer.id, "follow", f"follows {answer.id}")
    admission = Admission(answer, met.outcome, follower, rescheduled=met.rescheduled)
    leave_duplicate(tx, counted, Duplicate.of(submission, admission, in_the_way))
    return admission


# --- waiting for the end of a job -----------------------------------------------------------------------------------


def follow(tx: Transaction, submission: Submission, follows_id: str) -> Job | None:
    """Write a job that waits for the end of its leader; return it, or the one that has its id already."""
    own = tx.job("get", job_id=submission.id)
    if own is not None or tx.job("get", job_id=follows_id) is None:
        return own
    return _write_follower(tx, submission, follows_id, "wait", f"waits for the end of {follows_id}")


def _write_follower(tx: Transaction, submission: Submission, follows_id: str, event: str, reason: str) -> Job:
    job = tx.one("follow", follows_id=follows_id, reason=reason, **values_of(submission))
    tx.note(job.id, event, reason)
    return job


# --- idempotency keys -----------------------------------------------------------------------------------------------


def _same_key(tx: Transaction, submission: Submission, kept: dict[str, Any]) -> Admission:
    """Answer a submission whose idempotency key was used before."""
    job = tx.one("get", job_id=kept["job_id"])
    reused = kept["fingerprint"] != submission.fingerprint
    answer = _answer_before(tx, job, submission)
    if answer is not None:
        return replace(answer, key_reused=reused)
    ended = Outcome.REPLAYED if job.finished_at is not None else Outcome.ATTACHED
    met = _Met(job, Outcome.REJECTED if reused else ended)
    return replace(_answer(tx, submission, job, met), key_reused=reused)


def _keep_key(tx: Transaction, submission: Submission, admission: Admission) -> Admission:
    """Let the job that answers a submission answer its idempotency key from now on."""
    if submission.key is None or admission.outcome is Outcome.REJECTED:
        return admission
    values = {"job_id": admission.job.id, "key_for": submission.key_for}
    tx.rows("keep_key", key=submission.key, fingerprint=submission.fingerprint, **values)
    return replace(admission, job=tx.one("keep_for", **values))
