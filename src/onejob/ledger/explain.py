"""Explains a job in sentences for the API, the CLI and the pages: its history, its present state, and its future."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from onejob.jobs.history import Entry
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Cancel, Duplicate, JobRow, Outcome
from onejob.jobs.run_log import holds_in
from onejob.jobs.timestamps import duration_text, format_timestamp, relative_text
from onejob.jobs.workers import WorkerInfo
from onejob.ledger.limits import describe_wait
from onejob.ledger.reader import JobReader
from onejob.ledger.stuck import Snapshot, Stuck, find_stuck, follows_another, last_queued

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
    Transition.PUBLISH: "The job was due, and not claimed yet: {detail}.",
    Transition.UNPUBLISHABLE: "The job is a dead letter now: {detail}.",
    Transition.POSTPONE: "A sweep found nothing to do: {detail}.",
    Transition.PARK: "The job was due, and is {detail}.",
    Transition.STRIKE: "The job is a dead letter without a run: it was {detail}.",
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
TEMPLATES: dict[str, str] = {str(event): text for event, text in SENTENCES.items()} | ADMISSIONS
NAMED_WORKERS = 10
"""The maximum number of workers that a sentence names."""


class Explanation(NamedTuple):
    """A job with its records, the reason why it is stuck (None: it is not), and sentences about them."""

    job: JobRow
    history: Sequence[Entry]
    duplicates: Sequence[Duplicate]
    stuck: Stuck | None
    sentences: list[str]


def explain(
    ledger: JobReader, job_id: str, *, format_time: Callable[[float], str] = format_timestamp,
    redact: Callable[[str], str] | None = None,
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
        details = [each.detail if each.event in ADMISSIONS else redact(each.detail) for each in history]
        history = [replace(each, detail=text) for each, text in zip(history, details, strict=True)]
        job = replace(job, reason=redact(job.reason), publish_error=redact(job.publish_error))
    else:
        subject += f"; its identity is {job.identity}"
    followed = None if job.follows_id is None else ledger.get_or_none(job.follows_id)
    sentences = [f"{subject}.", *_describe_past(job, history, duplicates, format_time)]
    parts, wait = _parts_of(ledger, job), describe_wait(ledger, job, snapshot.now, redact=redact or str)
    sentences += Situation(job, snapshot, queued_at, followed, format_time, wait, parts).describe()
    if job.attempt:
        sentences += _describe_holds(ledger, job)
    if stuck is not None:
        sentences.append(f"It is stuck: {stuck}.")
    return Explanation(job, history, duplicates, stuck, sentences)


def _describe_holds(ledger: JobReader, job: JobRow) -> Iterator[str]:
    """Yield the sentence about the latest time in which the latest run has kept the others of its worker waiting."""
    holds = [hold for log in ledger.run_logs(job)[-1:] if log.attempt == job.attempt for hold in holds_in(log)]
    if holds:
        times = "" if len(holds) == 1 else f" {len(holds)} times, at last"
        yield f"Its run held the event loop of its worker{times} for {holds[-1]}, in which no other run went on."


def _parts_of(ledger: JobReader, job: JobRow) -> list[JobRow] | None:
    """Return the jobs of the canvas by which `Task.replace` has replaced a job; None if the job was not replaced."""
    try:
        ids = json.loads(job.payload)["replaced_by"]
    except (ValueError, LookupError, TypeError):
        return None
    return ledger.get_each(ids or ())


def _describe_past(
    job: JobRow, history: Sequence[Entry], duplicates: Sequence[Duplicate], format_time: Callable[[float], str]
) -> list[str]:
    events = []
    for entry in history:
        text = TEMPLATES.get(entry.event, "{detail}")
        by = f", by {job.submitter}" if entry.event == "submit" and job.submitter else ""
        detail = entry.detail.rstrip(".") + by
        events.append((entry.at, text.format(attempt=entry.attempt, node=entry.node or "no node", detail=detail)))
    events += [(duplicate.at, _describe_duplicate(duplicate)) for duplicate in duplicates]
    lines = [f"{format_time(at)}  {sentence}" for at, sentence in sorted(events, key=lambda event: event[0])]
    if job.duplicate_count > sum(bool(duplicate.submission_nonce) for duplicate in duplicates):
        lines.append(f"It has had {job.duplicate_count} duplicates altogether; the newest are kept.")
    return lines


def _describe_duplicate(duplicate: Duplicate) -> str:
    if not duplicate.submission_nonce:
        return f"Its message was redelivered (to {duplicate.host}), and nothing was run."
    by = f", by {duplicate.submitter}" if duplicate.submitter else ""
    text = DUPLICATES[duplicate.outcome].format(
        submitter=f"through {duplicate.source}{by}", answered_by=duplicate.answered_by
    )
    if duplicate.answered_by != duplicate.job_id and duplicate.outcome is not Outcome.QUEUED_NEXT:
        text += f" Job {duplicate.answered_by} answered it, which is queued next."
    if duplicate.rescheduled:
        text += " That rescheduled the job."
    return text


# --- the present state ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Situation:
    """A job, and the other facts that its sentences depend on."""

    job: JobRow
    snapshot: Snapshot
    queued_at: float
    """The time at which the job was last queued."""
    followed: JobRow | None
    """The job that this job follows, if it exists."""
    format_time: Callable[[float], str]
    wait: str | None = None
    """The sentence about a job that waits for room on a key of a limit; None for any other job."""
    parts: Sequence[JobRow] | None = None
    """For a job that was replaced: the jobs before the task that has its id, as far as they exist."""

    def is_past(self, at: float | None) -> bool:
        """Return whether a time is in the past."""
        return (at or 0.0) <= self.snapshot.now

    def time_text(self, at: float | None) -> str:
        """Return an exact time, and its distance from now."""
        at = at or 0.0
        return f"{self.format_time(at)} ({relative_text(at, self.snapshot.now)})"

    def describe(self) -> Iterator[str]:
        """Yield the sentences about the state of the job."""
        job = self.job
        if job.state is State.RUNNING:
            yield from self._describe_run()
        elif job.state.final:
            yield from self._describe_end()
        elif follows_another(job):
            yield from self._describe_follower()
        elif job.attempt == 0 and job.expires_at is not None and self.is_past(job.expires_at):
            yield f"It expired at {self.time_text(job.expires_at)}: the next sweep, or a claim, cancels it."
            yield self._describe_workers()
        elif self.parts is not None:
            yield from self._describe_replacement(self.parts)
        elif self.wait is not None:
            yield self.wait
            yield from self._describe_expiry()
        elif job.parked_on:
            yield f"It is {job.reason.rstrip('.')}, and due when the pause ends."
            yield from self._describe_expiry()
        else:
            yield self._describe_wait()
            yield from self._describe_publication()
            yield from self._describe_expiry()
            yield self._describe_workers()
            yield from self._describe_others()
            for worker in () if job.publisher_task else self.snapshot.able(job)[:NAMED_WORKERS]:
                if worker.silent_since:
                    seconds = duration_text(self.snapshot.now - worker.silent_since)
                    yield f"Worker {worker.name} has heard nothing from its broker for {seconds}."

    def _describe_wait(self) -> str:
        job, followed = self.job, self.followed
        if not self.is_past(job.run_at):
            what = "for its next attempt, which" if job.state is State.RETRYING else "until it"
            return f"It waits {what} is due at {self.time_text(job.run_at)}."
        due_since = max(job.run_at, self.queued_at)
        if job.attempt == 0 and followed is not None and followed.finished_at is not None:
            due_since = followed.finished_at
        return f"It has been due since {self.time_text(due_since)} and waits for a worker."

    def _describe_replacement(self, parts: Sequence[JobRow]) -> Iterator[str]:
        current = next((part for part in parts if not part.state.final), None)
        if current is not None:
            yield f"It waits for the chain that replaced it: task {current.task}, job {current.id}, is {current.state}."
        else:
            yield "It waits for the task that has its id now, the last one of what replaced it."
        yield f"That end is looked for at {self.time_text(self.job.wake_at)}."

    def _describe_publication(self) -> Iterator[str]:
        job = self.job
        to = f" to the queue {job.queue}" if job.queue else ""
        if job.publisher_task:
            yield f"A worker that has the task {job.publisher_task} sends it without the broker."
            return
        if job.publish_error:
            yield f"Its message could not be sent{to}, {_times(job.published)}: {job.publish_error.rstrip('.')}."
        elif job.queue and any(worker.takes_jobs for worker in self.snapshot.able(job)):
            if job.published_at is None:
                worker = f"A worker of the queue {job.queue}"
                yield f"{worker} takes it from the ledger when it is due and a process is free."
            else:
                yield f"A worker took it from the ledger at {self.time_text(job.published_at)}."
                yield "It is offered again when no live worker holds it."
            return
        elif job.published_at is not None:
            by = f" by a sweep ({_times(job.published)})" if job.published else ""
            yield f"Its message was sent{to} at {self.time_text(job.published_at)}{by}."
            yield "It is sent again when it is known to be lost."
            return
        if job.attempt == 0 and job.expires_at is not None and job.expires_at <= (job.wake_at or 0.0):
            return  # the next sweep cancels the job
        wake_text = self.time_text(job.wake_at)
        if not self.snapshot.workers:  # no sweep runs, and nothing tells whether the ledger is the broker
            yield f"A worker that starts takes it from the ledger, or sends its message{to}, when it is due."
        elif self.is_past(job.wake_at):
            yield f"The next sweep of a worker that has its task sends its message{to}: that was due at {wake_text}."
        else:
            yield f"A sweep sends its message{to} at {wake_text}."

    def _describe_expiry(self) -> Iterator[str]:
        job = self.job
        if job.expires_at is not None and job.attempt == 0:
            yield f"If no run starts before it expires at {self.time_text(job.expires_at)}, it is canceled."

    def _describe_workers(self) -> str:
        """Return a sentence about the live workers that can run the job, or why none can."""
        job, snapshot = self.job, self.snapshot
        if not snapshot.workers:
            return "No worker of this ledger is alive: none has sent a heartbeat lately."
        if not (known := snapshot.with_task_of(job)):
            return f"No live worker has the task {job.publisher_task or job.task}. Alive: {_names(snapshot.workers)}."
        if not (able := snapshot.able(job)):
            consumed = "; ".join(
                f"{worker.name} consumes {', '.join(worker.queues)}" for worker in known[:NAMED_WORKERS]
            )
            return f"No live worker that has the task consumes the queue {job.queue}: {consumed}."
        return f"Live workers that can run it: {_names(able)}."

    def _describe_others(self) -> Iterator[str]:
        """Yield sentences about workers of its queue that cannot run it, although a broker may deliver it to them."""
        job, able = self.job, self.snapshot.able(self.job)
        unable = [each for each in self.snapshot.workers if job.queue in each.queues and each not in able]
        if unable and able and not any(worker.takes_jobs for worker in able):
            yield f"Its broker may deliver it to a worker that lacks the task, and discards it: {_names(unable)}."
            yield "It is sent again then."

    def _describe_follower(self) -> Iterator[str]:
        job, followed = self.job, self.followed
        if followed is None:
            yield f"Job {job.follows_id}, whose end it waited for, does not exist any more."
        elif followed.state.final:
            at = self.time_text(followed.finished_at)
            yield f"Job {followed.id}, whose end it waited for, ended at {at}: it is {followed.state}."
        elif job.queued_next:
            yield f"It runs when job {followed.id} has ended, which is {followed.state}."
            yield "Newer submissions until then replace its arguments."
            yield from self._describe_expiry()
            return
        else:
            yield f"It waits for the end of job {followed.id}, which is {followed.state}."
            return
        yield f"A sweep of a worker that has its task processes it; that is due at {self.time_text(job.wake_at)}."
        yield self._describe_workers()

    def _describe_run(self) -> Iterator[str]:
        job = self.job
        started = f"attempt {job.attempt}, which started at {self.time_text(job.started_at)}"
        if self.is_past(job.lease_until):
            yield f"It ran on {job.node}: {started}. Its lease expired at {self.time_text(job.lease_until)}."
            if self.snapshot.workers:
                yield f"A sweep of a live worker recovers it. Alive: {_names(self.snapshot.workers)}."
            else:
                yield "No worker of this ledger is alive, so no sweep recovers it: start a worker."
        else:
            yield f"It runs on {job.node}: {started}."
            renewed_at = (job.lease_until or 0.0) - job.lease
            yield (
                f"Its latest heartbeat was {relative_text(renewed_at, self.snapshot.now)}: "
                f"its lease ends at {self.time_text(job.lease_until)}, unless the worker renews it."
            )
            started_at = [worker.started_at for worker in self.snapshot.workers if worker.name == job.node]
            if not started_at:
                yield (
                    f"The worker {job.node} has no valid heartbeat: if it is dead, a sweep recovers the job after that."
                )
            elif started_at[0] > (job.started_at or 0.0):
                yield (
                    f"The worker {job.node} has started again since then, and does not renew the lease of a run that "
                    "it has not started: a sweep recovers the job after that."
                )
        if job.cancel is not Cancel.NO:
            yield f"Its {'forced ' if job.cancel is Cancel.FORCED else ''}cancellation was requested."

    def _describe_end(self) -> Iterator[str]:
        job, at = self.job, self.time_text(self.job.finished_at)
        reason = job.reason.rstrip(".")
        if job.state is State.COMPLETED:
            yield f"It completed at {at}."
        elif job.state is State.FAILED:
            yield f"It failed at {at}: {reason}. It is a dead letter."
            if any(part.state is State.FAILED for part in self.parts or ()):
                yield "Redriving it, or the job that failed, has that job run again, and then the rest of the chain."
        else:
            yield f"It was canceled at {at}: {reason}."
        kept_until = self.time_text(job.wake_at)
        if job.canvas_pending:
            yield from self._describe_canvas()
        elif self.is_past(job.wake_at):
            yield f"Its retention ended at {kept_until}: a sweep purges it."
        else:
            yield f"It is kept at least until {kept_until}."
        if job.holds_identity:
            until = self.time_text(job.identity_until)
            if self.is_past(job.identity_until):
                yield f"Its uniqueness window ended at {until}: the next submission or sweep releases its identity."
            else:
                yield f"It answers duplicates until {until}."
        if job.key_retained_until is not None and not self.is_past(job.key_retained_until):
            yield f"It answers its idempotency key until {self.time_text(job.key_retained_until)}."

    def _describe_canvas(self) -> Iterator[str]:
        job = self.job
        error = f" The last error: {job.publish_error.rstrip('.')}." if job.publish_error else ""
        yield "Its canvas (links, chain or chord) is still to be notified of its end." + error
        if job.published:
            yield f"Sweeps have sent its end to Celery for that {_times(job.published)}."
        wake_text = self.time_text(job.wake_at)
        if self.is_past(job.wake_at):
            yield f"The next sweep of a worker that has its task does so: that was due at {wake_text}."
        else:
            yield f"Unless a worker does it first, a sweep does so at {wake_text}."


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times in a row"


def _names(workers: Sequence[WorkerInfo]) -> str:
    more = f" and {len(workers) - NAMED_WORKERS} more" if len(workers) > NAMED_WORKERS else ""
    return ", ".join(worker.name for worker in workers[:NAMED_WORKERS]) + more
