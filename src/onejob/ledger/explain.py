"""Explains the state of a job: its history in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Cancel, Outcome
from onejob.jobs.timestamps import format_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onejob.jobs.model import Duplicate, Job
    from onejob.jobs.records import Entry

SENTENCES = {
    Transition.CLAIM: "Attempt {attempt} started on {node}.",
    Transition.COMPLETE: "Attempt {attempt} completed the job.",
    Transition.FAIL: "Attempt {attempt} failed for good: {detail}.",
    Transition.RETRY: "Attempt {attempt} will be retried: {detail}.",
    Transition.RELEASE: "Attempt {attempt} returned the job to the queue: {detail}.",
    Transition.REPLACE: "Attempt {attempt} passed the job on: {detail}.",
    Transition.CRASH: "Attempt {attempt} was lost, {detail}; the job was queued again, with its steps.",
    Transition.DEAD_LETTER: "Attempt {attempt} was lost, and the job is a dead letter now: {detail}.",
    Transition.ABANDON: "Attempt {attempt} stopped: {detail}.",
    Transition.PUBLISH: "Sweep: {detail}.",
    Transition.UNPUBLISHABLE: "The job is a dead letter now: {detail}.",
    Transition.POSTPONE: "It waited on: {detail}.",
    Transition.REQUEST_CANCEL: "The cancellation of the running attempt {attempt} was requested: {detail}.",
    Transition.CANCEL: "The job was canceled before it ran: {detail}.",
    Transition.EXPIRE: "The job was canceled: {detail}.",
    Transition.REDRIVE: "The dead letter was redriven: {detail}.",
    Transition.RELEASE_IDENTITY: "It released its identity: {detail}.",
    Transition.PROMOTE: "It holds its identity now: {detail}.",
    Transition.NOTIFY_CANVAS: "The canvas that waits for its end was not notified yet: {detail}.",
    Transition.CANVAS_ABANDONED: "The notification of its canvas was given up when its retention was over: {detail}.",
    Transition.CANVAS_NOTIFIED: "The canvas that waited for the job (links, chain or chord) was notified of its end.",
}
ADMISSIONS = {
    "submit": "The job was admitted (through {detail}).",
    "follow": "An equal job was live, so this one {detail} and ends as it ends, without a run of its own.",
    "queue_next": "An equal job had started, so this one {detail}.",
    "wait": "The job was written: it {detail}.",
}
DUPLICATES = {
    Outcome.ATTACHED: "A duplicate ({submitter}) was attached to this job.",
    Outcome.REPLAYED: "A duplicate ({submitter}) was answered with the result of this job.",
    Outcome.REPLACED: "A newer submission ({submitter}) replaced the arguments.",
    Outcome.QUEUED_NEXT: "A duplicate ({submitter}) was queued next: job {answered_by} runs after this one.",
    Outcome.REJECTED: "A duplicate ({submitter}) was rejected.",
}
REDELIVERED = "Its message was redelivered (to {host}), and nothing was run."
TEMPLATES: dict[str, str] = {str(event): text for event, text in SENTENCES.items()} | ADMISSIONS
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
    format_time: Callable[[float], str] = format_timestamp,
) -> list[str]:
    """Return the history of a job as sentences, oldest first; the last one is about its present state."""
    events = [(entry.at, _describe_entry(entry)) for entry in history]
    events += [(duplicate.at, _describe_duplicate(duplicate)) for duplicate in duplicates]
    lines = [f"Job {job.id} runs the task {job.task}; its identity is {job.identity}."]
    lines += [f"{format_time(at)}  {sentence}" for at, sentence in sorted(events, key=lambda event: event[0])]
    if job.duplicate_count > sum(bool(duplicate.submission_nonce) for duplicate in duplicates):
        lines.append(f"It has had {job.duplicate_count} duplicates altogether; the newest are kept.")
    return [*lines, _describe_state(job, format_time)]


def _describe_entry(entry: Entry) -> str:
    text = TEMPLATES.get(entry.event, "{detail}")
    return text.format(attempt=entry.attempt, node=entry.node or "no node", detail=entry.detail.rstrip("."))


def _describe_duplicate(duplicate: Duplicate) -> str:
    if not duplicate.submission_nonce:
        return REDELIVERED.format(host=duplicate.host)
    by = f", by {duplicate.submitter}" if duplicate.submitter else ""
    text = DUPLICATES[duplicate.outcome].format(
        submitter=f"through {duplicate.source}{by}", answered_by=duplicate.answered_by
    )
    if duplicate.answered_by != duplicate.job_id and duplicate.outcome is not Outcome.QUEUED_NEXT:
        text += f" Job {duplicate.answered_by} answered it, which is queued next."
    if duplicate.rescheduled:
        text += " That rescheduled the job."
    return text


def _describe_state(job: Job, format_time: Callable[[float], str]) -> str:
    is_follower = job.state is State.QUEUED and job.follows_id is not None
    text = "It waits for the end of job {follows_id}." if is_follower else STATES[job.state]
    if job.queued_next:
        text = "It runs when job {follows_id} has ended; newer submissions until then replace its arguments."
    if job.state is State.RUNNING and job.cancel is not Cancel.NO:
        text += " Its cancellation was requested."
    if job.publish_error and not job.state.final:
        text += f" Its message could not be sent: {_literal(job.publish_error)}; attempt {job.published}."
    if job.state.final and job.canvas_pending:
        text += _describe_canvas(job)
    if job.state is State.COMPLETED and job.holds_identity:
        text += " It answers duplicates until {identity_until}."
    if job.state.final and job.key_retained_until is not None:
        text += " It answers its idempotency key until {key_retained_until}."

    def format_optional(at: float | None) -> str:
        return "?" if at is None else format_time(at)

    return text.format(
        follows_id=job.follows_id,
        node=job.node,
        reason=job.reason,
        lease_until=format_optional(job.lease_until),
        run_at=format_optional(job.run_at),
        wake_at=format_optional(job.wake_at),
        identity_until=format_optional(job.identity_until),
        key_retained_until=format_optional(job.key_retained_until),
    )


def _describe_canvas(job: Job) -> str:
    if not (job.published or job.publish_error):
        return " Its canvas is still to be notified of its end."
    error = f" ({_literal(job.publish_error)})" if job.publish_error else ""
    return f" Its end could not be notified to its canvas{error}: {job.published} attempts, next at {{wake_at}}."


def _literal(text: str) -> str:
    """Return a text without placeholders."""
    return text.replace("{", "{{").replace("}", "}}")
