"""Facts: what the ledger tells, whenever something has happened, to whoever counts it or writes it down.

A fact has nothing in it that a caller has chosen freely: no arguments, no payload, no result, no text of an error, no
submitter and no key. Ids, names of tasks and names of nodes are in it, as texts of one line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from onejob.job import Cancel
from onejob.lifecycle import RULES, Event

if TYPE_CHECKING:
    from onejob.job import Admission, Change, Job

Value: TypeAlias = str | int | float | bool


class Fact(NamedTuple):
    """One thing that has happened: its name, the job it happened to (if it was one), and what is known besides."""

    event: str
    job_id: str = ""
    task: str = ""
    fields: Mapping[str, Value] = MappingProxyType({})


Tell: TypeAlias = Callable[[Fact], object]

SUBMITTED = "job_submitted"
CLAIM_REFUSED = "claim_refused"
DROPPED = "job_dropped"
PURGED = "jobs_purged"
SWEEP = "sweep"
HEARTBEAT_LATE = "heartbeat_late"
NAMES: Mapping[Event, str] = {
    Event.CLAIM: "job_claimed",
    Event.COMPLETE: "job_completed",
    Event.FAIL: "job_failed",
    Event.RETRY: "job_retrying",
    Event.RELEASE: "job_released",
    Event.CRASH: "job_crashed",
    Event.BURY: "job_buried",
    Event.ABANDON: "job_canceled",
    Event.PUBLISH: "job_published",
    Event.ASK_CANCEL: "job_cancel_asked",
    Event.CANCEL: "job_canceled",
    Event.EXPIRE: "job_expired",
    Event.DELIVER: "job_delivered",
    Event.REDRIVE: "job_redriven",
    Event.FREE: "job_freed",
    Event.PROMOTE: "job_promoted",
}
"""What an event of the lifecycle is called as a fact. Renewals and reports are none: there are too many of them."""
EVENTS = (SUBMITTED, CLAIM_REFUSED, *dict.fromkeys(NAMES.values()), DROPPED, PURGED, SWEEP, HEARTBEAT_LATE)
"""The names of all facts."""


def submitted(admission: Admission) -> Fact:
    """Return what came of a submission, as a fact about the job that answers."""
    fields: dict[str, Value] = {"outcome": admission.outcome.value}
    if admission.follower is not None:
        fields["follower"] = one_line(admission.follower.id)
    return _about(SUBMITTED, admission.job, fields)


def claimed(job: Job) -> Fact:
    """Return that a run has begun. How long the job waited is known of its first run."""
    fields = _run_of(job)
    if job.attempt == 1 and job.started_at is not None:
        fields["wait_seconds"] = job.started_at - job.run_at
    return _about(NAMES[Event.CLAIM], job, fields)


def claim_refused(job: Job, node: str) -> Fact:
    """Return that a message came for a job that could not run, or needed no run."""
    return _about(CLAIM_REFUSED, job, {"state": job.state.value, "node": one_line(node)})


def changed(change: Change, job: Job) -> Fact:
    """Return what a change was, as a fact about the job as it is afterwards."""
    return happened(change.event, job, change)


def happened(event: Event, job: Job, change: Change | None = None) -> Fact:
    """Return what an event was, by the change that it was, if that is at hand."""
    rule = RULES[event]
    fields: dict[str, Value] = {}
    if rule.fenced and rule.target is not None:
        fields = _run_of(job)
        fields["run_seconds"] = _run_seconds(job, change)
    if change is not None:
        fields |= _besides(change)
    return _about(NAMES[event], job, fields)


def purged(count: int) -> Fact:
    """Return that so many old jobs were removed."""
    return Fact(PURGED, fields={"count": count})


def one_line(text: str) -> str:
    """Return a text as it can be written on one line, with its odd characters escaped: a forged id forges no line."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def _about(event: str, job: Job, fields: dict[str, Value]) -> Fact:
    if job.leader is not None:
        fields["leader"] = one_line(job.leader)
    return Fact(event, one_line(job.id), one_line(job.task), fields)


def _run_of(job: Job) -> dict[str, Value]:
    return {"attempt": job.attempt, "token": job.token, "node": one_line(job.node)}


def _run_seconds(job: Job, change: Change | None) -> float:
    """Return how long a run took that has just ended.

    The end of a run that does not end the job is kept nowhere; but its next alarm is, and how far off that was then.
    """
    ended_at = job.finished_at
    if ended_at is None and change is not None and job.wake_at is not None:
        ended_at = job.wake_at - (change.wake_in or 0.0)
    return max(0.0, (ended_at or 0.0) - (job.started_at or 0.0))


def _besides(change: Change) -> dict[str, Value]:
    match change.event:
        case Event.CRASH | Event.BURY:
            return {"lapsed": change.lapsed}
        case Event.RETRY:
            return {"delay": change.run_in or 0.0}
        case Event.PUBLISH:
            return {"times": change.published or 0}
        case Event.ASK_CANCEL:
            return {"force": change.cancel is Cancel.FORCED}
        case _:
            return {}
