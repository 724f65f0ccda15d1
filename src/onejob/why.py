"""Why a job is where it is: its history in sentences."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from onejob.job import Cancel, Outcome
from onejob.lifecycle import Event, State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onejob.job import Entry, Job, Receipt

SENTENCES = {
    Event.CLAIM: "Attempt {attempt} started on {node}.",
    Event.COMPLETE: "Attempt {attempt} completed the job.",
    Event.FAIL: "Attempt {attempt} failed for good: {detail}.",
    Event.RETRY: "Attempt {attempt} asked to be run again: {detail}.",
    Event.RELEASE: "Attempt {attempt} was handed back to the queue: {detail}.",
    Event.CRASH: "Attempt {attempt} was lost, {detail}; the job went back to the queue with its steps kept.",
    Event.BURY: "Attempt {attempt} was lost and the job is a dead letter now: {detail}.",
    Event.ABANDON: "Attempt {attempt} stopped: {detail}.",
    Event.PUBLISH: "Nobody had taken the job, so its message was sent again: {detail}.",
    Event.ASK_CANCEL: "The running attempt {attempt} was asked to stop: {detail}.",
    Event.CANCEL: "The job was canceled before it ran: {detail}.",
    Event.EXPIRE: "The job was canceled: {detail}.",
    Event.REDRIVE: "The dead letter was sent again: {detail}.",
    Event.FREE: "It gave its identity back: {detail}.",
    Event.PROMOTE: "It holds its identity now: {detail}.",
    Event.DELIVER: "What waited for the job (links, chain or chord) has been told its end.",
}
ADMISSIONS = {
    "submit": "The job was admitted (through {detail}).",
    "follow": "An equal job was live, so this one {detail} and ends as it ends, without a run of its own.",
    "queue_next": "An equal job had begun, so this one {detail}.",
    "wait": "The job was written: it {detail}.",
}
MEETINGS = {
    Outcome.ATTACHED: "An equal request came in ({caller}) and was given this job.",
    Outcome.REPLAYED: "An equal request came in ({caller}) and was answered with what this job had come to.",
    Outcome.REPLACED: "A newer request came in ({caller}); its arguments took the place of the earlier ones.",
    Outcome.QUEUED_NEXT: "An equal request came in ({caller}) when this job had begun: job {answer} runs after it.",
    Outcome.REJECTED: "An equal request came in ({caller}) and was refused.",
}
REDELIVERED = "Its message came again (to {host}), and nothing was run."
KNOWN: dict[str, str] = {str(event): text for event, text in SENTENCES.items()} | ADMISSIONS
STATES = {
    State.QUEUED: "It waits for a worker.",
    State.RUNNING: "It runs on {node}; its lease holds until {lease_until}.",
    State.RETRYING: "It waits for its next attempt, due at {run_at}.",
    State.COMPLETED: "It has completed; its result is kept until {wake_at}.",
    State.FAILED: "It has failed: {reason}.",
    State.CANCELED: "It was canceled: {reason}.",
}


def explain(job: Job, history: Sequence[Entry], receipts: Sequence[Receipt] = ()) -> list[str]:
    """Return the life of a job as sentences, oldest first, the last one about now."""
    told = [(entry.at, _sentence(entry)) for entry in history] + [(each.at, _meeting(each)) for each in receipts]
    lines = [f"Job {job.id} runs the task {job.task}; its identity is {job.identity}."]
    lines += [f"{_moment(at)}  {sentence}" for at, sentence in sorted(told, key=lambda line: line[0])]
    if job.duplicates > sum(bool(receipt.submission) for receipt in receipts):
        lines.append(f"{job.duplicates} requests have met it altogether; the newest are kept.")
    return [*lines, _now(job)]


def _sentence(entry: Entry) -> str:
    text = KNOWN.get(entry.event, "{detail}")
    return text.format(attempt=entry.attempt, node=entry.node or "no node", detail=entry.detail.rstrip("."))


def _meeting(receipt: Receipt) -> str:
    if not receipt.submission:
        return REDELIVERED.format(host=receipt.host)
    by = f", by {receipt.submitter}" if receipt.submitter else ""
    text = MEETINGS[receipt.outcome].format(caller=f"through {receipt.door}{by}", answer=receipt.answer)
    if receipt.answer != receipt.job_id and receipt.outcome is not Outcome.QUEUED_NEXT:
        text += f" It met job {receipt.answer}, which waits to run after this one."
    if receipt.moved:
        text += " That moved the job to another time, or made it more urgent."
    return text


def _now(job: Job) -> str:
    waits_for_leader = job.state is State.QUEUED and job.leader is not None
    text = f"It waits for the end of job {job.leader}." if waits_for_leader else STATES[job.state]
    if job.queued_next:
        text = f"It runs when job {job.leader} has ended; newer requests until then change its arguments."
    if job.state is State.RUNNING and job.cancel is not Cancel.NO:
        text += " It has been asked to stop."
    if job.state is State.COMPLETED and job.holds:
        text += " It answers equal submissions until {identity_until}."
    if job.state.final and job.kept_until is not None:
        text += " It answers its idempotency key until {kept_until}."
    return text.format(
        node=job.node,
        reason=job.reason,
        lease_until=_moment(job.lease_until),
        run_at=_moment(job.run_at),
        wake_at=_moment(job.wake_at),
        identity_until=_moment(job.identity_until),
        kept_until=_moment(job.kept_until),
    )


def _moment(at: float | None) -> str:
    return "?" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
