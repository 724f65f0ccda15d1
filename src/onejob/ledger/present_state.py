"""Describes the present state of a job in sentences: what it waits for, and what happens next, when and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from onejob.jobs.lifecycle import State
from onejob.jobs.model import Cancel
from onejob.jobs.timestamps import relative_text
from onejob.ledger.stuck import follows_another

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from onejob.jobs.model import Job
    from onejob.jobs.records import WorkerInfo
    from onejob.ledger.stuck import Snapshot

NAMED_WORKERS = 10
"""How many workers a sentence names at most."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A job, and what its sentences depend on besides."""

    job: Job
    snapshot: Snapshot
    queued_at: float
    """When it was last queued."""
    followed: Job | None
    """The job that it follows, if that exists."""
    format_time: Callable[[float], str]

    @property
    def due_since(self) -> float:
        """When a waiting job that is due became due; a follower does with the end of the job that it follows."""
        if self.job.attempt == 0 and self.followed is not None and self.followed.finished_at is not None:
            return self.followed.finished_at
        return max(self.job.run_at, self.queued_at)

    @property
    def has_expired(self) -> bool:
        """Whether a waiting job has expired before its first run."""
        return self.job.attempt == 0 and self.job.expires_at is not None and self.is_past(self.job.expires_at)

    def is_past(self, at: float | None) -> bool:
        """Return whether a time has come."""
        return (at or 0.0) <= self.snapshot.now

    def time_text(self, at: float | None) -> str:
        """Return an exact time, and its distance from now."""
        at = at or 0.0
        return f"{self.format_time(at)} ({relative_text(at, self.snapshot.now)})"


def describe_state(scene: Situation) -> list[str]:
    """Return the sentences about the state of a job."""
    job = scene.job
    if job.state is State.RUNNING:
        return [*_describe_run(scene)]
    if job.state.final:
        return [*_describe_end(scene)]
    if follows_another(job):
        return [*_describe_follower(scene)]
    if scene.has_expired:
        expired = f"It expired at {scene.time_text(job.expires_at)}: the next sweep, or a claim, cancels it."
        return [expired, _describe_workers(scene)]
    return [*_describe_wait(scene), *_describe_publication(scene), *_describe_expiry(scene), _describe_workers(scene)]


# --- waiting --------------------------------------------------------------------------------------------------------


def _describe_wait(scene: Situation) -> Iterator[str]:
    job, time_text = scene.job, scene.time_text
    if not scene.is_past(job.run_at):
        what = "for its next attempt, which" if job.state is State.RETRYING else "until it"
        yield f"It waits {what} is due at {time_text(job.run_at)}."
    else:
        yield f"It has been due since {time_text(scene.due_since)} and waits for a worker."


def _describe_publication(scene: Situation) -> Iterator[str]:
    job = scene.job
    to = f" to the queue {job.queue}" if job.queue else ""
    if job.publisher_task:
        yield f"A worker that has the task {job.publisher_task} sends it without the broker."
        return
    if job.publish_error:
        yield f"Its message could not be sent{to}, {_times(job.published)}: {job.publish_error.rstrip('.')}."
    elif job.published_at is not None:
        by = f" by a sweep ({_times(job.published)})" if job.published else ""
        yield f"Its message was sent{to} at {scene.time_text(job.published_at)}{by}."
        yield "It is sent again when it is known to be lost."
        return
    if job.attempt == 0 and job.expires_at is not None and job.expires_at <= (job.wake_at or 0.0):
        return  # the next sweep cancels it
    if scene.is_past(job.wake_at):
        when = f"that was due at {scene.time_text(job.wake_at)}"
        yield f"The next sweep of a worker that has its task sends its message{to}: {when}."
    else:
        yield f"A sweep sends its message{to} at {scene.time_text(job.wake_at)}."


def _describe_expiry(scene: Situation) -> Iterator[str]:
    job = scene.job
    if job.expires_at is not None and job.attempt == 0:
        yield f"If no run starts before it expires at {scene.time_text(job.expires_at)}, it is canceled."


def _describe_workers(scene: Situation) -> str:
    """Return which live workers can run a job, or why none can."""
    job, snapshot = scene.job, scene.snapshot
    if not snapshot.workers:
        return "No worker of this ledger is alive: none has sent a heartbeat lately."
    if not (known := snapshot.with_task(job)):
        return f"No live worker has the task {job.publisher_task or job.task}. Alive: {_names(snapshot.workers)}."
    if not (able := snapshot.able(job)):
        consumed = "; ".join(f"{worker.name} consumes {', '.join(worker.queues)}" for worker in known[:NAMED_WORKERS])
        return f"No live worker that has the task consumes the queue {job.queue}: {consumed}."
    return f"Live workers that can run it: {_names(able)}."


def _describe_follower(scene: Situation) -> Iterator[str]:
    job, followed = scene.job, scene.followed
    if followed is None:
        yield f"Job {job.follows_id}, whose end it waited for, does not exist any more."
    elif followed.state.final:
        at = scene.time_text(followed.finished_at)
        yield f"Job {followed.id}, whose end it waited for, ended at {at}: it is {followed.state}."
    elif job.queued_next:
        yield f"It runs when job {followed.id} has ended, which is {followed.state}."
        yield "Newer submissions until then replace its arguments."
        yield from _describe_expiry(scene)
        return
    else:
        yield f"It waits for the end of job {followed.id}, which is {followed.state}."
        return
    yield f"A sweep of a worker that has its task processes it; that is due at {scene.time_text(job.wake_at)}."
    yield _describe_workers(scene)


# --- running and ended ----------------------------------------------------------------------------------------------


def _describe_run(scene: Situation) -> Iterator[str]:
    job = scene.job
    node = next((worker for worker in scene.snapshot.workers if worker.name == job.node), None)
    started = f"attempt {job.attempt}, which started at {scene.time_text(job.started_at)}"
    if scene.is_past(job.lease_until):
        yield f"It ran on {job.node}: {started}. Its lease expired at {scene.time_text(job.lease_until)}."
        if scene.snapshot.workers:
            yield f"A sweep of a live worker recovers it. Alive: {_names(scene.snapshot.workers)}."
        else:
            yield "No worker of this ledger is alive, so no sweep recovers it: start a worker."
    else:
        yield f"It runs on {job.node}: {started}."
        renewed_at = (job.lease_until or 0.0) - job.lease
        yield (
            f"Its latest heartbeat was {relative_text(renewed_at, scene.snapshot.now)}: "
            f"its lease ends at {scene.time_text(job.lease_until)}, unless the worker renews it."
        )
        if node is None:
            yield f"The worker {job.node} has no valid heartbeat: if it is dead, a sweep recovers the job after that."
    if job.cancel is not Cancel.NO:
        yield f"Its {'forced ' if job.cancel is Cancel.FORCED else ''}cancellation was requested."


def _describe_end(scene: Situation) -> Iterator[str]:
    job, at = scene.job, scene.time_text(scene.job.finished_at)
    reason = job.reason.rstrip(".")
    if job.state is State.COMPLETED:
        yield f"It completed at {at}."
    elif job.state is State.FAILED:
        yield f"It failed at {at}: {reason}. It is a dead letter."
    else:
        yield f"It was canceled at {at}: {reason}."
    yield from _describe_canvas(scene) if job.canvas_pending else _describe_retention(scene)
    if job.holds_identity:
        over = scene.is_past(job.identity_until)
        until = scene.time_text(job.identity_until)
        yield (
            f"Its uniqueness window ended at {until}: the next submission or sweep releases its identity."
            if over
            else f"It answers duplicates until {until}."
        )
    if job.key_retained_until is not None and not scene.is_past(job.key_retained_until):
        yield f"It answers its idempotency key until {scene.time_text(job.key_retained_until)}."


def _describe_canvas(scene: Situation) -> Iterator[str]:
    job = scene.job
    error = f" The last error: {job.publish_error.rstrip('.')}." if job.publish_error else ""
    yield "Its canvas (links, chain or chord) is still to be notified of its end." + error
    if job.published:
        yield f"Sweeps have sent its end to Celery for that {_times(job.published)}."
    if scene.is_past(job.wake_at):
        yield f"The next sweep of a worker that has its task does so: that was due at {scene.time_text(job.wake_at)}."
    else:
        yield f"Unless a worker does it first, a sweep does so at {scene.time_text(job.wake_at)}."


def _describe_retention(scene: Situation) -> Iterator[str]:
    until = scene.time_text(scene.job.wake_at)
    if scene.is_past(scene.job.wake_at):
        yield f"Its retention ended at {until}: a sweep purges it."
    else:
        yield f"It is kept at least until {until}."


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times in a row"


def _names(workers: Sequence[WorkerInfo]) -> str:
    more = f" and {len(workers) - NAMED_WORKERS} more" if len(workers) > NAMED_WORKERS else ""
    return ", ".join(worker.name for worker in workers[:NAMED_WORKERS]) + more
