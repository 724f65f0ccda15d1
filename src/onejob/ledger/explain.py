"""Explains a job: its history and its present state in sentences, the same in the API and the CLI."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from onejob.jobs.lifecycle import Transition
from onejob.jobs.model import Outcome
from onejob.jobs.timestamps import format_timestamp
from onejob.ledger.present_state import Situation, describe_state
from onejob.ledger.stuck import Snapshot, find_stuck, last_queued

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onejob.jobs.model import Duplicate, Job
    from onejob.jobs.records import Entry
    from onejob.ledger.reader import JobReader
    from onejob.ledger.stuck import Stuck

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
    Transition.PUBLISH: "A sweep found the job due and unclaimed: {detail}.",
    Transition.UNPUBLISHABLE: "The job is a dead letter now: {detail}.",
    Transition.POSTPONE: "A sweep found nothing to do: {detail}.",
    Transition.REQUEST_CANCEL: "The cancellation of the running attempt {attempt} was requested: {detail}.",
    Transition.CANCEL: "The job was canceled before it ran: {detail}.",
    Transition.EXPIRE: "The job was canceled: {detail}.",
    Transition.RUN_NOW: "The job was made due at once: {detail}.",
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


class Explanation(NamedTuple):
    """A job, what is recorded of it, why it is stuck (None: it is not), and all of that in sentences."""

    job: Job
    history: Sequence[Entry]
    duplicates: Sequence[Duplicate]
    stuck: Stuck | None
    sentences: list[str]


def explain(
    ledger: JobReader, job_id: str, *, format_time: Callable[[float], str] = format_timestamp,
    redact: Callable[[Job, str], str] | None = None,
) -> Explanation:  # fmt: skip
    """Explain a job: the sentences of its history, oldest first, and then those of its present state.

    `redact`: returns the text to use instead of the reason or the publication error of the job, or of a detail of its
    history. With it the identity, a hash of the arguments, is left out.

    Raises `JobNotFoundError`, and `JobPurgedError`, whose message says how the job ended and when it was purged.
    """
    job, history, duplicates = ledger.get(job_id), ledger.history(job_id), ledger.duplicates(job_id)
    snapshot, queued_at = Snapshot.of(ledger), last_queued(job, history)
    stuck = find_stuck(job, snapshot, queued_at)
    subject = f"Job {job.id} runs the task {job.task}"
    if redact is not None:
        details = [each.detail if each.event in ADMISSIONS else redact(job, each.detail) for each in history]
        history = [replace(each, detail=text) for each, text in zip(history, details, strict=True)]
        job = replace(job, reason=redact(job, job.reason), publish_error=redact(job, job.publish_error))
    else:
        subject += f"; its identity is {job.identity}"
    followed = None if job.follows_id is None else ledger.get_or_none(job.follows_id)
    sentences = [f"{subject}.", *_describe_past(job, history, duplicates, format_time)]
    sentences += describe_state(Situation(job, snapshot, queued_at, followed, format_time))
    if stuck is not None:
        sentences.append(f"It is stuck: {stuck}.")
    return Explanation(job, history, duplicates, stuck, sentences)


def _describe_past(
    job: Job, history: Sequence[Entry], duplicates: Sequence[Duplicate], format_time: Callable[[float], str]
) -> list[str]:
    events = [(entry.at, _describe_entry(entry)) for entry in history]
    events += [(duplicate.at, _describe_duplicate(duplicate)) for duplicate in duplicates]
    lines = [f"{format_time(at)}  {sentence}" for at, sentence in sorted(events, key=lambda event: event[0])]
    if job.duplicate_count > sum(bool(duplicate.submission_nonce) for duplicate in duplicates):
        lines.append(f"It has had {job.duplicate_count} duplicates altogether; the newest are kept.")
    return lines


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
