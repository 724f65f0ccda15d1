"""Submits jobs: writes a new job, or resolves a duplicate of an existing job."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any

from onejob.errors import QuotaExceededError, StoreError
from onejob.jobs.handover import Handover, Way
from onejob.jobs.model import REDELIVERED, Admission, Duplicate, JobRow, Outcome, Submission, values_of
from onejob.jobs.on_duplicate import resolve
from onejob.jobs.transitions import new_job
from onejob.stores.holder_cache import HolderCache
from onejob.stores.protocol import DUPLICATE_LIMIT, HAS_EXPIRED, SUBMITTER_LIMIT, WINDOW_OVER
from onejob.stores.sqlite.limits import forfeit_room
from onejob.stores.sqlite.transaction import Transaction, positional

REDELIVERY_SLOT = -1
_SUBMIT, _FIELDS = positional("submit")
_values_of_new = attrgetter(*_FIELDS)


def submit_charged(
    tx: Transaction, submission: Submission, handover: Handover, holders: HolderCache
) -> Admission | QuotaExceededError:
    """Submit, and charge a new job; over a quota write no job, and return the error."""
    if not submission.charges:
        return submit(tx, submission, handover, holders).handed_over_by(handover)
    result: Admission | QuotaExceededError
    tx.execute("savepoint charged")
    try:
        result = submit(tx, submission, handover, holders).handed_over_by(handover)
    except QuotaExceededError as error:
        tx.execute("rollback to savepoint charged")
        release_expired(tx, submission.identity)
        result = error
    tx.execute("release savepoint charged")
    return result


def submit(tx: Transaction, submission: Submission, handover: Handover, holders: HolderCache) -> Admission:
    """Write a new job, unless the submission is repeated or a duplicate."""
    keyed = tx.rows("find_key", key=submission.key) if submission.key is not None else []
    admission = None if keyed else _try_all(tx, submission, handover, holders)
    if admission is not None:
        return _keep_key(tx, submission, admission)
    own = tx.job("get", job_id=submission.id)
    if own is not None:
        return _answer_by_id(tx, own, submission, keyed[0] if keyed else None)
    if keyed:
        return _answer_by_key(tx, submission, keyed[0])
    if release_expired(tx, submission.identity):
        return submit(tx, submission, handover, holders)
    holder = tx.existing_job("get_holder", identity=submission.identity)
    repeated = _repeated_admission(tx, holder, submission)
    if repeated is None:  # pragma: no cover - no other transaction writes meanwhile
        raise StoreError(f"the ledger is inconsistent: job {holder.id} refuses a duplicate")
    return repeated


def _try_all(tx: Transaction, submission: Submission, handover: Handover, holders: HolderCache) -> Admission | None:
    """Write a new job or resolve a duplicate, the likelier first; None for a repetition or an expired window."""
    if holders.get(submission.identity) is None:
        admission = admit(tx, submission, handover) or _resolve_duplicate(tx, submission, handover)
    else:
        admission = _resolve_duplicate(tx, submission, handover) or admit(tx, submission, handover)
    if admission is not None and admission.outcome is Outcome.ADMITTED:
        holders.pop(submission.identity, None)
    elif admission is not None:
        holders.put(submission.identity, admission.job.id)
    return admission


def find_duplicate(tx: Transaction, job_id: str, nonce: str, follows_id: str | None = None) -> Duplicate | None:
    """Return the stored duplicate that a submission left at a job, or at the job that this job follows."""
    rows = tx.rows("find_duplicate", job_id=job_id, follows_id=follows_id, submission_nonce=nonce)
    return Duplicate.from_row(rows[0]) if rows else None


def record(tx: Transaction, duplicate: Duplicate) -> None:
    """Store a duplicate and count it, unless it is stored already. Nothing happens if the job does not exist."""
    if duplicate.submission_nonce and find_duplicate(tx, duplicate.job_id, duplicate.submission_nonce):
        return
    job = tx.job("bump_job" if duplicate.submission_nonce else "get", job_id=duplicate.job_id)
    if job is not None:
        insert_duplicate(tx, job, duplicate)


def insert_duplicate(tx: Transaction, job: JobRow, duplicate: Duplicate) -> None:
    """Store a duplicate that is counted in the job's row, and count it by submitter and outcome."""
    is_submission = bool(duplicate.submission_nonce)
    slot = (job.duplicate_count - 1) % DUPLICATE_LIMIT if is_submission else REDELIVERY_SLOT
    tx.rows("insert_duplicate", slot=slot, **values_of(duplicate))
    tx.rows(
        "count_duplicate", job_id=job.id, submitter=duplicate.submitter, duplicate_count=job.duplicate_count,
        outcome=duplicate.outcome.value if is_submission else REDELIVERED,
        submitter_limit=SUBMITTER_LIMIT,
    )  # fmt: skip


def admit(tx: Transaction, submission: Submission, handover: Handover) -> Admission | None:
    """Write a new job; None when its id exists or another job holds its identity."""
    wake_after, is_sent = handover.columns(submission.lease)
    job = new_job(submission, now=tx.now, wake_after=wake_after, is_sent=is_sent)
    if not tx.execute(_SUBMIT, _values_of_new(job)).rowcount:
        return None
    if submission.charges:
        _charge(tx, submission)
    return Admission(job, Outcome.ADMITTED, handed_over=handover.way is Way.OFFERED)


def _charge(tx: Transaction, submission: Submission) -> None:
    """Charge the new job of a submission. Raises `QuotaExceededError`, after which its writes must be rolled back."""
    for charge in submission.charges:
        tx.rows("delete_quotas")
        quota = charge.quota
        if not tx.rows("charge", name=charge.name, limit=quota.limit, period=quota.period):
            window = tx.rows("get_quota", name=charge.name) if quota.limit else ()
            until = window[0]["until"] if window else tx.now + quota.period
            raise charge.exceeded(until, until - tx.now)


def release_expired(tx: Transaction, identity: str) -> bool:
    """Release an identity that a completed job holds after its window, or an expired job; return whether one did."""
    released = tx.rows("release_expired", identity=identity)
    for row in released:
        reason = HAS_EXPIRED if row["identity_until"] is None else WINDOW_OVER  # SQLite 3.40 cannot tell
        tx.append_history(row["id"], "release_identity", reason)
    return bool(released)


# --- duplicates -----------------------------------------------------------------------------------------------------


def _resolve_duplicate(tx: Transaction, submission: Submission, handover: Handover) -> Admission | None:
    """Count and store a duplicate of the job that holds the identity, and let it have its effect.

    None if no job holds the identity, for a repetition, and for a holder that has to be released (`release_expired`).
    """
    values = {"id": submission.id, "identity": submission.identity, "submission_nonce": submission.nonce}
    holder = tx.job("bump_holder", **values)
    if holder is None:
        return None
    answer = _update_job(tx, holder, submission, handover)
    if answer.outcome is Outcome.QUEUED_NEXT:
        answer = _queue_next(tx, holder, submission, handover)
    return _record_duplicate(tx, submission, holder, answer)


def _repeated_admission(tx: Transaction, job: JobRow, submission: Submission) -> Admission | None:
    """Return the first answer to a repeated submission; None for a new submission."""
    duplicate = find_duplicate(tx, job.id, submission.nonce, follows_id=job.follows_id)
    if duplicate is None:
        return None
    answer = tx.job("get", job_id=duplicate.answered_by) or job
    return Admission(answer, duplicate.outcome, rescheduled=duplicate.rescheduled)


def _update_job(tx: Transaction, job: JobRow, submission: Submission, handover: Handover) -> Admission:
    """Apply a duplicate to the job that answers it."""
    resolution = resolve(job, submission, now=tx.now)
    rescheduled, run_at = resolution.reschedules(job), resolution.run_at
    if resolution.changes(job):
        is_due, route = run_at <= tx.now, submission.route if resolution.takes_over else job.route
        wake_after, is_sent = handover.columns_for(submission.lease, route)
        wake_at = tx.now + wake_after if is_due else run_at
        if resolution.takes_over and job.limit_keys is not None:
            forfeit_room(tx, job.id, submission.limit_keys)
        job = tx.existing_job(
            "attach", job_id=job.id, takes_over=resolution.takes_over, fingerprint=submission.fingerprint,
            payload=submission.payload, route=submission.route, tag_lines=submission.tag_lines,
            limit_keys=submission.limit_keys, expires_at=resolution.expires_at, run_at=run_at,
            priority_rank=resolution.priority_rank,
            wake_at=wake_at if (rescheduled or not is_due) and not job.queued_next else None,
            published_at=tx.now if is_due and is_sent else None,
        )  # fmt: skip
    return Admission(job, resolution.outcome, rescheduled=rescheduled)


def _queue_next(tx: Transaction, holder: JobRow, submission: Submission, handover: Handover) -> Admission:
    """Queue a job to run after the holder; if a job is queued next already, update that job."""
    job = tx.job("queue_next", follows_id=holder.id, **values_of(submission))
    if job is not None:
        _charge(tx, submission)
        tx.append_history(job.id, "queue_next", f"runs after {holder.id}")
        return Admission(job, Outcome.QUEUED_NEXT)
    if tx.rows("release_next", identity=submission.identity):
        return _queue_next(tx, holder, submission, handover)
    queued = tx.existing_job("get_queued_next", identity=submission.identity)
    return _update_job(tx, queued, submission, handover)


def _record_duplicate(tx: Transaction, submission: Submission, existing: JobRow, answer: Admission) -> Admission:
    """Store a duplicate of the existing job, in whose row it is counted, and write a follower if it asks for one."""
    job = answer.job
    if submission.follows and job.id != submission.id and answer.outcome is not Outcome.REJECTED:
        answer = replace(answer, follower=_write_follower(tx, submission, job.id, "follow", f"follows {job.id}"))
    insert_duplicate(tx, existing, Duplicate.of(submission, answer, existing))
    return answer


# --- followers ------------------------------------------------------------------------------------------------------


def follow(tx: Transaction, submission: Submission, follows_id: str) -> JobRow | None:
    """Write a follower, and return it or the job that has its id; None if the followed job does not exist."""
    own = tx.job("get", job_id=submission.id)
    if own is not None or tx.job("get", job_id=follows_id) is None:
        return own
    _charge(tx, submission)
    return _write_follower(tx, submission, follows_id, "wait", f"waits for the end of {follows_id}")


def _write_follower(tx: Transaction, submission: Submission, follows_id: str, event: str, reason: str) -> JobRow:
    job = tx.existing_job("follow", follows_id=follows_id, reason=reason, **values_of(submission))
    tx.append_history(job.id, event, reason)
    return job


# --- idempotency keys -----------------------------------------------------------------------------------------------


def _answer_by_id(tx: Transaction, own: JobRow, submission: Submission, keyed: dict[str, Any] | None) -> Admission:
    """Answer a submission whose id exists; its idempotency key, if it is new, names the job that answers."""
    followed = tx.job("get", job_id=own.follows_id) if own.follows_id else None
    if keyed is not None:
        job, reused = tx.existing_job("get", job_id=keyed["job_id"]), keyed["fingerprint"] != submission.fingerprint
        return Admission.repeated(own, followed, submission, (job, reused))
    admission = Admission.repeated(own, followed, submission)
    return admission if own.submission_nonce == submission.nonce else _keep_key(tx, submission, admission)


def _answer_by_key(tx: Transaction, submission: Submission, keyed: dict[str, Any]) -> Admission:
    """Answer a submission whose idempotency key belongs to a job."""
    job = tx.existing_job("get", job_id=keyed["job_id"])
    key_reused = keyed["fingerprint"] != submission.fingerprint
    admission = _repeated_admission(tx, job, submission)
    if admission is None:
        holder = tx.job("find_existing", identity=submission.identity, key=None)
        repeated = holder and _repeated_admission(tx, holder, submission)
        if repeated:
            return repeated
        outcome = Outcome.REPLAYED if job.finished_at is not None else Outcome.ATTACHED
        job = tx.existing_job("bump_job", job_id=job.id)
        answer = Admission(job, Outcome.REJECTED if key_reused else outcome)
        admission = _record_duplicate(tx, submission, job, answer)
    return replace(admission, key_reused=key_reused)


def _keep_key(tx: Transaction, submission: Submission, admission: Admission) -> Admission:
    """Store the job that answers a submission as the answer to its idempotency key."""
    if submission.key is None or admission.outcome is Outcome.REJECTED:
        return admission
    values = {"job_id": admission.job.id, "key_for": submission.key_for}
    tx.rows("keep_key", key=submission.key, fingerprint=submission.fingerprint, **values)
    return replace(admission, job=tx.existing_job("extend_key_retention", **values))
