"""The lifecycle of a job as one table: each transition with its source states, its target state and its fencing.

A *fenced* transition belongs to a run, and is applied only while that run's token is the job's token. A submitter, an
operator or the sweeper makes the others. Stores do not contain these rules: they apply the given change.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """The state of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    RETRYING = "retrying"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def final(self) -> bool:
        """Whether the job has ended: no further run starts."""
        return self in FINAL


class Transition(StrEnum):
    """The transitions of a job, by the names in its history."""

    CLAIM = "claim"
    RENEW = "renew"
    UPDATE_PROGRESS = "update_progress"
    COMPLETE = "complete"
    FAIL = "fail"
    RETRY = "retry"
    RELEASE = "release"
    REPLACE = "replace"
    CRASH = "crash"
    DEAD_LETTER = "dead_letter"
    ABANDON = "abandon"
    PUBLISH = "publish"
    UNPUBLISHABLE = "unpublishable"
    POSTPONE = "postpone"
    REQUEST_CANCEL = "request_cancel"
    CANCEL = "cancel"
    EXPIRE = "expire"
    NOTIFY_CANVAS = "notify_canvas"
    CANVAS_NOTIFIED = "canvas_notified"
    CANVAS_ABANDONED = "canvas_abandoned"
    RUN_NOW = "run_now"
    REDRIVE = "redrive"
    RELEASE_IDENTITY = "release_identity"
    PROMOTE = "promote"
    PARK = "park"
    STRIKE = "strike"


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table. `target` is None for a transition that keeps the state."""

    sources: frozenset[State]
    target: State | None
    meaning: str
    fenced: bool = False


FINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELED})
WAITING = frozenset({State.QUEUED, State.RETRYING})
"""The states of a job that waits for a run."""
_RUN = frozenset({State.RUNNING})
RULES: dict[Transition, Rule] = {
    Transition.CLAIM: Rule(WAITING, State.RUNNING, "a run starts: new lease, new token"),
    Transition.RENEW: Rule(_RUN, None, "a heartbeat of the worker extends the lease", fenced=True),
    Transition.UPDATE_PROGRESS: Rule(_RUN, None, "progress or a step of the run is kept", fenced=True),
    Transition.COMPLETE: Rule(_RUN, State.COMPLETED, "the run ended with a result", fenced=True),
    Transition.FAIL: Rule(_RUN, State.FAILED, "the run failed and is not retried", fenced=True),
    Transition.RETRY: Rule(_RUN, State.RETRYING, "the run ended, and is retried later", fenced=True),
    Transition.RELEASE: Rule(_RUN, State.QUEUED, "the worker requeues the job, as at shutdown", fenced=True),
    Transition.REPLACE: Rule(_RUN, State.QUEUED, "the run passes its job on to another task", fenced=True),
    Transition.CRASH: Rule(_RUN, State.QUEUED, "the worker died or its lease expired", fenced=True),
    Transition.DEAD_LETTER: Rule(_RUN, State.FAILED, "its workers were lost too often", fenced=True),
    Transition.ABANDON: Rule(_RUN, State.CANCELED, "the run stops after a cancel request", fenced=True),
    Transition.PUBLISH: Rule(WAITING, None, "a sweep sends the message, or fails to"),
    Transition.UNPUBLISHABLE: Rule(WAITING, State.FAILED, "its message can never be sent"),
    Transition.POSTPONE: Rule(frozenset({State.QUEUED}), None, "what it follows has not ended"),
    Transition.REQUEST_CANCEL: Rule(_RUN, None, "a cancel request during a run"),
    Transition.CANCEL: Rule(WAITING, State.CANCELED, "a cancellation before a run"),
    Transition.EXPIRE: Rule(WAITING, State.CANCELED, "the job expired before a run"),
    Transition.PARK: Rule(WAITING, None, "a pause or a limit delays its run"),
    Transition.STRIKE: Rule(WAITING, State.FAILED, "a strike matches the job, which fails without a run"),
    Transition.RUN_NOW: Rule(WAITING, None, "an operator makes a delayed job due at once"),
    Transition.REDRIVE: Rule(frozenset({State.FAILED}), State.QUEUED, "a dead letter is sent again"),
    Transition.RELEASE_IDENTITY: Rule(
        _RUN | {State.QUEUED, State.COMPLETED},
        None,
        "its window is over, or it has expired and another one is submitted",
    ),
    Transition.PROMOTE: Rule(frozenset({State.QUEUED}), None, "the identity was released to this job"),
    Transition.NOTIFY_CANVAS: Rule(FINAL, None, "its end is sent to Celery (again) for its canvas, or that failed"),
    Transition.CANVAS_NOTIFIED: Rule(FINAL, None, "Celery has dispatched its canvas"),
    Transition.CANVAS_ABANDONED: Rule(FINAL, None, "its retention is over, and its canvas could not be notified"),
}
