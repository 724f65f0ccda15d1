"""One submission: a new job, or what becomes of the job that is in its way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from onejob.job import Admission, Outcome, Receipt, values_of
from onejob.reaction import meet
from onejob.store import RECEIPT_LIMIT, WINDOW_OVER

if TYPE_CHECKING:
    from onejob.job import Job, Submission
    from onejob.stores.sqlite.transaction import Transaction


def submit(tx: Transaction, new: Submission, wake_in: float) -> Admission:
    """Write a submission unless it has been answered before, or a job holds its identity."""
    answered = tx.rows("find_key", key=new.key) if new.key is not None else []
    job = None if answered else _admit(tx, new, wake_in)
    if job is None:
        own = tx.job("get", job_id=new.id)
        if own is not None:
            leader = tx.job("get", job_id=own.leader) if own.leader else None
            return Admission.again(own, leader, new.nonce)
        if answered:
            return _same_key(tx, new, answered[0])
        job = _admit(tx, new, wake_in) if _expire(tx, new.identity) else None
    if job is not None:
        return _keep_key(tx, new, Admission(job, Outcome.ADMITTED))
    return _meet_holder(tx, new, wake_in)


def kept_receipt(tx: Transaction, job_id: str, nonce: str, leader: str | None = None) -> Receipt | None:
    """Return the receipt that a submission has left with a job, or with the leader of that one."""
    rows = tx.rows("receipt_of", job_id=job_id, leader=leader, submission=nonce)
    return Receipt.from_row(rows[0]) if rows else None


def record(tx: Transaction, receipt: Receipt) -> None:
    """Keep the receipt of somebody who has met a job, and count it, unless it is there already."""
    if receipt.submission and kept_receipt(tx, receipt.job_id, receipt.submission):
        return
    job = tx.job("count" if receipt.submission else "get", job_id=receipt.job_id)
    if job is not None:
        leave_receipt(tx, job, receipt)


def leave_receipt(tx: Transaction, job: Job, receipt: Receipt) -> None:
    """Keep and tally the receipt of somebody who has met a job and was counted there."""
    tx.rows("receipt", receipt_limit=RECEIPT_LIMIT, **values_of(receipt))
    tx.rows("tally", task=job.task, identity=job.identity, submitter=receipt.submitter, outcome=receipt.outcome)


def _admit(tx: Transaction, new: Submission, wake_in: float) -> Job | None:
    job = tx.job("submit", wake_in=wake_in, **values_of(new))
    if job is not None:
        tx.note(job.id, "submit", new.door)
    return job


def _expire(tx: Transaction, identity: str) -> bool:
    """Free an identity whose holder's uniqueness window is over; tell whether there was one."""
    freed = tx.rows("expire", identity=identity)
    for row in freed:
        tx.note(row["id"], "free", WINDOW_OVER)
    return bool(freed)


# --- meeting a job --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Met:
    """What came of meeting a job: the job that answers, and how."""

    job: Job
    outcome: Outcome
    differs: bool
    moved: bool = False


def _meet_holder(tx: Transaction, new: Submission, wake_in: float) -> Admission:
    holder = tx.one("holder", identity=new.identity)
    answer = _answer_before(tx, holder, new)
    if answer is not None:
        return answer
    met = _met(tx, holder, new, wake_in)
    if met.outcome is Outcome.QUEUED_NEXT:
        met = _queue_next(tx, holder, new, wake_in)
    return _keep_key(tx, new, _answer(tx, new, holder, met))


def _answer_before(tx: Transaction, job: Job, new: Submission) -> Admission | None:
    """Return the answer that a submission got from a job before, which was lost on its way; None for a new one."""
    receipt = kept_receipt(tx, job.id, new.nonce, leader=job.leader)
    if receipt is None:
        return None
    answer = tx.job("get", job_id=receipt.answer) or job
    return Admission(answer, receipt.outcome, moved=receipt.moved)


def _met(tx: Transaction, job: Job, new: Submission, wake_in: float) -> _Met:
    """Let a job become what comes of meeting it."""
    met = meet(job, new, now=tx.now)
    moved, after = met.moves(job), job
    if moved or met.takes_over:
        by = tx.now + new.expires_in if new.expires_in is not None else None
        rings = moved and not job.queued_next
        after = tx.one(
            "attach", job_id=job.id, takes_over=met.takes_over, fingerprint=new.fingerprint, payload=new.payload,
            expires_at=by if met.takes_over else job.expires_at, run_at=met.run_at, urgency=met.urgency,
            wake_at=max(met.run_at, tx.now + wake_in if met.run_at <= tx.now else 0.0) if rings else None,
        )  # fmt: skip
    return _Met(after, met.outcome, differs=new.fingerprint != job.fingerprint, moved=moved)


def _queue_next(tx: Transaction, holder: Job, new: Submission, wake_in: float) -> _Met:
    """Queue a run after the holder's; when one is queued already, that is the job which is met."""
    job = tx.job("queue_next", leader=holder.id, **values_of(new))
    if job is not None:
        tx.note(job.id, "queue_next", f"runs after {holder.id}")
        return _Met(job, Outcome.QUEUED_NEXT, differs=new.fingerprint != holder.fingerprint)
    queued = tx.one("next", identity=new.identity)
    return replace(_met(tx, queued, new, wake_in), differs=new.fingerprint != holder.fingerprint)


def _answer(tx: Transaction, new: Submission, in_the_way: Job, met: _Met) -> Admission:
    """Count a submission on the job in its way, leave its receipt there, and write its follower if it needs one."""
    counted = tx.one("count", job_id=in_the_way.id)
    answer = counted if met.job.id == in_the_way.id else met.job
    leave_receipt(
        tx,
        counted,
        Receipt(
            job_id=counted.id, submission=new.nonce, outcome=met.outcome, answer=answer.id, door=new.door,
            submitter=new.submitter, host=new.host, fingerprint=new.fingerprint, differs=met.differs, moved=met.moved,
        ),
    )  # fmt: skip
    follower = None
    if new.follows and answer.id != new.id and met.outcome is not Outcome.REJECTED:
        follower = _write_follower(tx, new, answer.id, "follow", f"follows {answer.id}")
    return Admission(answer, met.outcome, follower, moved=met.moved)


# --- waiting for the end of a job -----------------------------------------------------------------------------------


def follow(tx: Transaction, new: Submission, leader: str) -> Job | None:
    """Write a job that waits for the end of its leader; return it, or the one that has its id already."""
    own = tx.job("get", job_id=new.id)
    if own is not None or tx.job("get", job_id=leader) is None:
        return own
    return _write_follower(tx, new, leader, "wait", f"waits for the end of {leader}")


def _write_follower(tx: Transaction, new: Submission, leader: str, event: str, reason: str) -> Job:
    job = tx.one("follow", leader=leader, reason=reason, **values_of(new))
    tx.note(job.id, event, reason)
    return job


# --- idempotency keys -----------------------------------------------------------------------------------------------


def _same_key(tx: Transaction, new: Submission, kept: dict[str, Any]) -> Admission:
    """Answer a submission whose idempotency key was used before."""
    job = tx.one("get", job_id=kept["job_id"])
    reused = kept["fingerprint"] != new.fingerprint
    answer = _answer_before(tx, job, new)
    if answer is not None:
        return replace(answer, key_reused=reused)
    ended = Outcome.REPLAYED if job.finished_at is not None else Outcome.ATTACHED
    met = _Met(job, Outcome.REJECTED if reused else ended, differs=new.fingerprint != job.fingerprint)
    return replace(_answer(tx, new, job, met), key_reused=reused)


def _keep_key(tx: Transaction, new: Submission, admission: Admission) -> Admission:
    """Let the job that answers a submission answer its idempotency key from now on."""
    if new.key is None or admission.outcome is Outcome.REJECTED:
        return admission
    values = {"job_id": admission.job.id, "key_for": new.key_for}
    tx.rows("keep_key", key=new.key, fingerprint=new.fingerprint, **values)
    return replace(admission, job=tx.one("keep_for", **values))
