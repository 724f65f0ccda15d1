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


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table. `target` is None for a transition that keeps the state."""

    sources: frozenset[State]
    target: State | None
    fenced: bool
    meaning: str


FINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELED})
_QUEUED, _RUNNING, _RETRYING = State.QUEUED, State.RUNNING, State.RETRYING


def _rule(sources: set[State] | frozenset[State], target: State | None, *, fenced: bool, meaning: str) -> Rule:
    return Rule(frozenset(sources), target, fenced, meaning)


RULES: dict[Transition, Rule] = {
    Transition.CLAIM: _rule({_QUEUED, _RETRYING}, _RUNNING, fenced=False, meaning="a run starts: new lease, new token"),
    Transition.RENEW: _rule({_RUNNING}, None, fenced=True, meaning="a heartbeat of the worker extends the lease"),
    Transition.UPDATE_PROGRESS: _rule({_RUNNING}, None, fenced=True, meaning="progress or a step of the run is kept"),
    Transition.COMPLETE: _rule({_RUNNING}, State.COMPLETED, fenced=True, meaning="the run ended with a result"),
    Transition.FAIL: _rule({_RUNNING}, State.FAILED, fenced=True, meaning="the run failed and is not retried"),
    Transition.RETRY: _rule({_RUNNING}, _RETRYING, fenced=True, meaning="the run ended, and is retried later"),
    Transition.RELEASE: _rule({_RUNNING}, _QUEUED, fenced=True, meaning="the worker requeues the job, as at shutdown"),
    Transition.REPLACE: _rule({_RUNNING}, _QUEUED, fenced=True, meaning="the run passes its job on to another task"),
    Transition.CRASH: _rule({_RUNNING}, _QUEUED, fenced=True, meaning="the worker died or its lease expired"),
    Transition.DEAD_LETTER: _rule({_RUNNING}, State.FAILED, fenced=True, meaning="its workers were lost too often"),
    Transition.ABANDON: _rule({_RUNNING}, State.CANCELED, fenced=True, meaning="the run stops after a cancel request"),
    Transition.PUBLISH: _rule(
        {_QUEUED, _RETRYING}, None, fenced=False, meaning="a sweep sends the message, or fails to"
    ),
    Transition.UNPUBLISHABLE: _rule(
        {_QUEUED, _RETRYING}, State.FAILED, fenced=False, meaning="its message can never be sent"
    ),
    Transition.POSTPONE: _rule({_QUEUED}, None, fenced=False, meaning="what it follows has not ended"),
    Transition.REQUEST_CANCEL: _rule({_RUNNING}, None, fenced=False, meaning="a cancel request during a run"),
    Transition.CANCEL: _rule({_QUEUED, _RETRYING}, State.CANCELED, fenced=False, meaning="a cancellation before a run"),
    Transition.EXPIRE: _rule(
        {_QUEUED, _RETRYING}, State.CANCELED, fenced=False, meaning="the job expired before a run"
    ),
    Transition.RUN_NOW: _rule(
        {_QUEUED, _RETRYING}, None, fenced=False, meaning="an operator makes a delayed job due at once"
    ),
    Transition.REDRIVE: _rule({State.FAILED}, _QUEUED, fenced=False, meaning="a dead letter is sent again"),
    Transition.RELEASE_IDENTITY: _rule(
        {_RUNNING, State.COMPLETED}, None, fenced=False, meaning="the uniqueness window has ended"
    ),
    Transition.PROMOTE: _rule({_QUEUED}, None, fenced=False, meaning="the identity was released to this job"),
    Transition.NOTIFY_CANVAS: _rule(
        FINAL, None, fenced=False, meaning="its end is sent to Celery (again) for its canvas, or that failed"
    ),
    Transition.CANVAS_NOTIFIED: _rule(FINAL, None, fenced=False, meaning="Celery has dispatched its canvas"),
    Transition.CANVAS_ABANDONED: _rule(
        FINAL, None, fenced=False, meaning="its retention is over, and its canvas could not be notified"
    ),
}
