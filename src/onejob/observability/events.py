"""Facts: what the ledger tells, whenever something has happened, to whoever counts it or writes it down.

A fact has nothing in it that a caller has chosen freely: no arguments, no payload, no result, no text of an error, no
submitter and no key. Ids, names of tasks and names of nodes are in it, as texts of one line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from onejob.jobs.lifecycle import RULES, Transition
from onejob.jobs.model import Cancel

if TYPE_CHECKING:
    from onejob.jobs.model import Admission, Change, Job

Value: TypeAlias = str | int | float | bool


class JobEvent(NamedTuple):
    """One thing that has happened: its name, the job it happened to (if it was one), and what is known besides."""

    event: str
    job_id: str = ""
    task: str = ""
    fields: Mapping[str, Value] = MappingProxyType({})


Listener: TypeAlias = Callable[[JobEvent], object]

SUBMITTED = "job_submitted"
CLAIM_REFUSED = "claim_refused"
DROPPED = "job_dropped"
PURGED = "jobs_purged"
SWEEP = "sweep"
HEARTBEAT_LATE = "heartbeat_late"
NAMES: Mapping[Transition, str] = {
    Transition.CLAIM: "job_claimed",
    Transition.COMPLETE: "job_completed",
    Transition.FAIL: "job_failed",
    Transition.RETRY: "job_retrying",
    Transition.RELEASE: "job_released",
    Transition.CRASH: "job_crashed",
    Transition.DEAD_LETTER: "job_dead_lettered",
    Transition.ABANDON: "job_canceled",
    Transition.PUBLISH: "job_published",
    Transition.REQUEST_CANCEL: "job_cancel_requested",
    Transition.CANCEL: "job_canceled",
    Transition.EXPIRE: "job_expired",
    Transition.CANVAS_NOTIFIED: "job_canvas_notified",
    Transition.REDRIVE: "job_redriven",
    Transition.RELEASE_IDENTITY: "job_identity_released",
    Transition.PROMOTE: "job_promoted",
}
"""What an event of the lifecycle is called as a fact. Renewals and reports are none: there are too many of them."""
EVENTS = (SUBMITTED, CLAIM_REFUSED, *dict.fromkeys(NAMES.values()), DROPPED, PURGED, SWEEP, HEARTBEAT_LATE)
"""The names of all facts."""


def submission_event(admission: Admission) -> JobEvent:
    """Return what came of a submission, as a fact about the job that answers."""
    fields: dict[str, Value] = {"outcome": admission.outcome.value}
    if admission.follower is not None:
        fields["follower"] = one_line(admission.follower.id)
    return _about(SUBMITTED, admission.job, fields)


def claim_event(job: Job) -> JobEvent:
    """Return that a run has begun. How long the job waited is known of its first run."""
    fields = _run_of(job)
    if job.attempt == 1 and job.started_at is not None:
        fields["wait_seconds"] = job.started_at - job.run_at
    return _about(NAMES[Transition.CLAIM], job, fields)


def claim_refused_event(job: Job, node: str) -> JobEvent:
    """Return that a message came for a job that could not run, or needed no run."""
    return _about(CLAIM_REFUSED, job, {"state": job.state.value, "node": one_line(node)})


def change_event(change: Change, job: Job) -> JobEvent:
    """Return what a change was, as a fact about the job as it is afterwards."""
    return transition_event(change.event, job, change)


def transition_event(event: Transition, job: Job, change: Change | None = None) -> JobEvent:
    """Return what an event was, by the change that it was, if that is at hand."""
    rule = RULES[event]
    fields: dict[str, Value] = {}
    if rule.fenced and rule.target is not None:
        fields = _run_of(job)
        fields["run_seconds"] = _run_seconds(job, change)
    if change is not None:
        fields |= _besides(change)
    return _about(NAMES[event], job, fields)


def purge_event(count: int) -> JobEvent:
    """Return that so many old jobs were removed."""
    return JobEvent(PURGED, fields={"count": count})


def one_line(text: str) -> str:
    """Return a text as it can be written on one line, with its odd characters escaped: a forged id forges no line."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def _about(event: str, job: Job, fields: dict[str, Value]) -> JobEvent:
    if job.follows_id is not None:
        fields["follows_id"] = one_line(job.follows_id)
    return JobEvent(event, one_line(job.id), one_line(job.task), fields)


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
        case Transition.CRASH | Transition.DEAD_LETTER:
            return {"lapsed": change.lapsed}
        case Transition.RETRY:
            return {"delay": change.run_in or 0.0}
        case Transition.PUBLISH:
            return {"times": change.published or 0}
        case Transition.REQUEST_CANCEL:
            return {"force": change.cancel is Cancel.FORCED}
        case _:
            return {}
