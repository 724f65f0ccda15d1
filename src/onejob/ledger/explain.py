"""Why a job is where it is: its history in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Cancel, Outcome
from onejob.jobs.timestamps import format_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onejob.jobs.model import Duplicate, Entry, Job

SENTENCES = {
    Transition.CLAIM: "Attempt {attempt} started on {node}.",
    Transition.COMPLETE: "Attempt {attempt} completed the job.",
    Transition.FAIL: "Attempt {attempt} failed for good: {detail}.",
    Transition.RETRY: "Attempt {attempt} asked to be run again: {detail}.",
    Transition.RELEASE: "Attempt {attempt} was handed back to the queue: {detail}.",
    Transition.CRASH: "Attempt {attempt} was lost, {detail}; the job went back to the queue with its steps kept.",
    Transition.DEAD_LETTER: "Attempt {attempt} was lost and the job is a dead letter now: {detail}.",
    Transition.ABANDON: "Attempt {attempt} stopped: {detail}.",
    Transition.PUBLISH: "Nobody had taken the job, so its message was sent again: {detail}.",
    Transition.REQUEST_CANCEL: "The running attempt {attempt} was asked to stop: {detail}.",
    Transition.CANCEL: "The job was canceled before it ran: {detail}.",
    Transition.EXPIRE: "The job was canceled: {detail}.",
    Transition.REDRIVE: "The dead letter was sent again: {detail}.",
    Transition.RELEASE_IDENTITY: "It gave its identity back: {detail}.",
    Transition.PROMOTE: "It holds its identity now: {detail}.",
    Transition.CANVAS_NOTIFIED: "What waited for the job (links, chain or chord) has been told its end.",
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
    Outcome.QUEUED_NEXT: "An equal request came in ({caller}) when this job had begun: job {answered_by} runs after it.",
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


def explain(
    job: Job,
    history: Sequence[Entry],
    duplicates: Sequence[Duplicate] = (),
    *,
    text: Callable[[float], str] = format_timestamp,
) -> list[str]:
    """Return the life of a job as sentences, oldest first, the last one about now. `text` formats its times."""
    told = [(entry.at, _sentence(entry)) for entry in history] + [(each.at, _meeting(each)) for each in duplicates]
    lines = [f"Job {job.id} runs the task {job.task}; its identity is {job.identity}."]
    lines += [f"{text(at)}  {sentence}" for at, sentence in sorted(told, key=lambda line: line[0])]
    if job.duplicate_count > sum(bool(duplicate.submission_nonce) for duplicate in duplicates):
        lines.append(f"{job.duplicate_count} requests have met it altogether; the newest are kept.")
    return [*lines, _now(job, text)]


def _sentence(entry: Entry) -> str:
    text = KNOWN.get(entry.event, "{detail}")
    return text.format(attempt=entry.attempt, node=entry.node or "no node", detail=entry.detail.rstrip("."))


def _meeting(duplicate: Duplicate) -> str:
    if not duplicate.submission_nonce:
        return REDELIVERED.format(host=duplicate.host)
    by = f", by {duplicate.submitter}" if duplicate.submitter else ""
    text = MEETINGS[duplicate.outcome].format(
        caller=f"through {duplicate.source}{by}", answered_by=duplicate.answered_by
    )
    if duplicate.answered_by != duplicate.job_id and duplicate.outcome is not Outcome.QUEUED_NEXT:
        text += f" It met job {duplicate.answered_by}, which waits to run after this one."
    if duplicate.rescheduled:
        text += " That moved the job to another time, or made it more urgent."
    return text


def _now(job: Job, time: Callable[[float], str]) -> str:
    waits_for_leader = job.state is State.QUEUED and job.follows_id is not None
    text = f"It waits for the end of job {job.follows_id}." if waits_for_leader else STATES[job.state]
    if job.queued_next:
        text = f"It runs when job {job.follows_id} has ended; newer requests until then change its arguments."
    if job.state is State.RUNNING and job.cancel is not Cancel.NO:
        text += " It has been asked to stop."
    if job.state is State.COMPLETED and job.holds_identity:
        text += " It answers equal submissions until {identity_until}."
    if job.state.final and job.key_retained_until is not None:
        text += " It answers its idempotency key until {key_retained_until}."

    def when(at: float | None) -> str:
        return "?" if at is None else time(at)

    return text.format(
        node=job.node,
        reason=job.reason,
        lease_until=when(job.lease_until),
        run_at=when(job.run_at),
        wake_at=when(job.wake_at),
        identity_until=when(job.identity_until),
        key_retained_until=when(job.key_retained_until),
    )
