"""Job events: the ledger emits one after each transition, for logs and metrics.

An event contains no free text from callers: no arguments, payload, result, error message, submitter or key. Ids, task
names and node names are escaped to one line.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from onejob.jobs.costs import SAVED, Amounts, JobCosts, amount_text, times
from onejob.jobs.lifecycle import RULES, Transition
from onejob.jobs.model import Admission, Cancel, Change, JobRow

Value: TypeAlias = str | int | float | bool


class CostOfEvent(NamedTuple):
    """The amounts of an event by unit, and those that duplicates have saved by it, of the job that has the costs."""

    job: JobRow
    spent: Amounts
    saved: Amounts
    is_stored: bool
    """Whether the sums in the store have it already."""


class JobEvent(NamedTuple):
    """An event: its name, its job (if it is about one), and its fields."""

    name: str
    job_id: str = ""
    task: str = ""
    fields: Mapping[str, Value] = MappingProxyType({})
    costs: CostOfEvent | None = None
    """The amounts that the event has spent or saved; None: there are none. They are counted, and not logged."""


Listener: TypeAlias = Callable[[JobEvent], object]

SUBMITTED = "job_submitted"
CLAIM_REFUSED = "claim_refused"
DELETED = "job_deleted"
PURGED = "jobs_purged"
SWEEP = "sweep"
COST_ADDED = "cost_added"
HEARTBEAT_LATE = "heartbeat_late"
WORKER_SILENT = "worker_silent"
LOOP_HELD = "loop_held"
EVENT_NAMES: Mapping[Transition, str] = {
    Transition.CLAIM: "job_claimed",
    Transition.COMPLETE: "job_completed",
    Transition.FAIL: "job_failed",
    Transition.RETRY: "job_retrying",
    Transition.RELEASE: "job_released",
    Transition.REPLACE: "job_replaced",
    Transition.CRASH: "job_crashed",
    Transition.DEAD_LETTER: "job_dead_lettered",
    Transition.ABANDON: "job_canceled",
    Transition.PUBLISH: "job_published",
    Transition.POSTPONE: "job_postponed",
    Transition.UNPUBLISHABLE: "job_unpublishable",
    Transition.REQUEST_CANCEL: "job_cancel_requested",
    Transition.CANCEL: "job_canceled",
    Transition.EXPIRE: "job_expired",
    Transition.NOTIFY_CANVAS: "job_notify_canvas",
    Transition.CANVAS_NOTIFIED: "job_canvas_notified",
    Transition.CANVAS_ABANDONED: "job_canvas_abandoned",
    Transition.RUN_NOW: "job_run_now",
    Transition.REDRIVE: "job_redriven",
    Transition.RELEASE_IDENTITY: "job_identity_released",
    Transition.PROMOTE: "job_promoted",
    Transition.PARK: "job_parked",
    Transition.STRIKE: "job_struck",
}
"""The event of each transition. Heartbeats and progress updates have no event, because there are too many of them."""
OF_WORKERS = (SWEEP, HEARTBEAT_LATE, WORKER_SILENT, LOOP_HELD)
EVENTS = (SUBMITTED, CLAIM_REFUSED, COST_ADDED, *dict.fromkeys(EVENT_NAMES.values()), DELETED, PURGED, *OF_WORKERS)


def submission_event(admission: Admission) -> JobEvent:
    """Return the event of a submission; its job is the one that answers the submission."""
    fields: dict[str, Value] = {"outcome": admission.outcome.value}
    if admission.follower is not None:
        fields["follower"] = one_line(admission.follower.id)
    event = _job_event(SUBMITTED, admission.job, fields)
    if admission.job.costs is None or admission.outcome not in SAVED:
        return event
    saved = JobCosts.of(admission.job.costs).total
    return event._replace(costs=CostOfEvent(admission.job, spent={}, saved=saved, is_stored=False))


def cost_event(job: JobRow, amounts: Amounts, duplicates: int) -> JobEvent:
    """Return the event of amounts that a run has added to its costs, and that some earlier duplicates have saved."""
    fields: dict[str, Value] = {f"cost_{unit}": amount_text(amount) for unit, amount in amounts.items()}
    saved = {unit: times(amount, duplicates) for unit, amount in amounts.items() if duplicates}
    event = _job_event(COST_ADDED, job, _run_fields(job) | fields)
    return event._replace(costs=CostOfEvent(job, spent=amounts, saved=saved, is_stored=True))


def claim_event(job: JobRow) -> JobEvent:
    """Return the event of a claim. Only the first run's event has `wait_seconds`, the time since the job was due."""
    fields = _run_fields(job)
    if job.attempt == 1 and job.started_at is not None:
        fields["wait_seconds"] = job.started_at - job.run_at
    return _job_event(EVENT_NAMES[Transition.CLAIM], job, fields)


def claim_refused_event(job: JobRow, node: str) -> JobEvent:
    """Return the event of a message for a job that is running already, is not due, or has ended."""
    return _job_event(CLAIM_REFUSED, job, {"state": job.state.value, "node": one_line(node)})


def transition_event(transition: Transition, job: JobRow, change: Change | None = None) -> JobEvent:
    """Return the event of a transition; without `change` it lacks the fields that only the change contains."""
    rule = RULES[transition]
    fields: dict[str, Value] = {}
    if rule.fenced and rule.target is not None:
        fields = {**_run_fields(job), "run_seconds": _run_seconds(job, change)}
    if change is not None:
        fields |= _change_fields(change)
    return _job_event(EVENT_NAMES[transition], job, fields)


def one_line(text: str) -> str:
    """Return a text on one line: unprintable characters are escaped, which prevents log injection."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def _job_event(name: str, job: JobRow, fields: dict[str, Value]) -> JobEvent:
    if job.follows_id is not None:
        fields["follows_id"] = one_line(job.follows_id)
    job_id, task = job.id, job.task
    if not (job_id.isprintable() and task.isprintable()):
        job_id, task = one_line(job_id), one_line(task)
    return JobEvent(name, job_id, task, fields)


def _run_fields(job: JobRow) -> dict[str, Value]:
    return {"attempt": job.attempt, "token": job.token, "node": one_line(job.node)}


def _run_seconds(job: JobRow, change: Change | None) -> float:
    """Return the seconds of the run that has just ended."""
    ended_at = job.finished_at
    if ended_at is None and change is not None and job.wake_at is not None:  # the job goes on
        ended_at = job.wake_at - (change.wake_after or 0.0)
    return max(0.0, (ended_at or 0.0) - (job.started_at or 0.0))


def _change_fields(change: Change) -> dict[str, Value]:
    match change.event:
        case Transition.CRASH | Transition.DEAD_LETTER:
            return {"lapsed": change.lapsed}
        case Transition.RETRY:
            return {"delay": change.run_in or 0.0}
        case Transition.PUBLISH | Transition.NOTIFY_CANVAS:
            return {"times": change.published or 0, "sent": not change.publish_error}
        case Transition.REQUEST_CANCEL:
            return {"force": change.cancel is Cancel.FORCED}
        case _:
            return {}
