"""Answers whether a call would be a duplicate, as its submission would be answered now; nothing is stored."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onejob.celery.app_state import app_state_of
from onejob.celery.call import Call, Caller, build, resolve_call
from onejob.celery.options import options_of, tasks_of
from onejob.errors import InvalidArgumentsError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Outcome
from onejob.jobs.records import Query
from onejob.jobs.submitter import submitting_as
from onejob.jobs.timestamps import format_timestamp
from onejob.uniqueness.on_duplicate import resolve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery import Celery

    from onejob.jobs.model import Job, Submission
    from onejob.jobs.submitter import Submitter
    from onejob.ledger.ledger import Ledger

SENTENCES = {
    Outcome.ADMITTED: "No job answers this call: a new job would be written.",
    Outcome.ATTACHED: "Job {id}, which is {state}, would answer this call.",
    Outcome.REPLAYED: "The result of job {id} would answer this call, until {until}.",
    Outcome.REPLACED: "Job {id}, which waits for its first run, would run with these arguments.",
    Outcome.QUEUED_NEXT: "Job {id} has started: a new job would be written, which runs after it.",
    Outcome.REJECTED: "The call would be rejected, because of job {id}, which is {state}.",
}


@dataclass(frozen=True, slots=True)
class DuplicateCheck:
    """How a call would be answered."""

    task: str
    identity: str
    hashed_text: str
    """The canonical text whose hash the identity is."""
    fingerprint: str
    existing: Job | None
    """The job that makes the call a duplicate; None without one."""
    outcome: Outcome
    reason: str
    """The outcome as a sentence."""


def check_duplicate(
    app: Celery, task_name: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, submitter: Submitter | None = None,
    on_duplicate: str | None = None, ledger: Ledger | None = None,
) -> DuplicateCheck:  # fmt: skip
    """Return how a submission of this call would be answered now, without an idempotency key.

    `submitter`: None for that of this context. `on_duplicate` overrides the task's own. `ledger`: None for the app's.
    Raises `InvalidArgumentsError` also for an unknown task, and otherwise as `apply_async` does before anything is
    stored.
    """
    task = tasks_of(app).get(task_name)
    if task is None:
        msg = f"the app has no onejob task named {task_name!r}"
        raise InvalidArgumentsError(msg)
    with nullcontext() if submitter is None else submitting_as(submitter):
        caller = Caller.of(app)
        call = Call(task, caller, tuple(args), dict(kwargs), source="check", on_duplicate=on_duplicate)
        submission, (plain, named, _) = build(call), resolve_call(call)
        text = options_of(task).identifier.describe(plain, named, caller.submitter.scope)
    existing, outcome = _resolve(ledger or app_state_of(app).ledger, submission)
    return DuplicateCheck(
        task_name, submission.identity, text, submission.fingerprint, existing, outcome, _describe(existing, outcome)
    )


def _resolve(ledger: Ledger, submission: Submission) -> tuple[Job | None, Outcome]:
    """Return the job that makes a submission a duplicate, or None, and the outcome."""
    job, now = ledger.store.find_existing(submission.identity, None), ledger.read_clock()
    if job is None or (job.identity_until is not None and job.identity_until <= now):
        return None, Outcome.ADMITTED
    outcome = resolve(job, submission, now=now).outcome
    if outcome is Outcome.QUEUED_NEXT and (queued := _find_queued_next(ledger, job)) is not None:
        return queued, resolve(queued, submission, now=now).outcome
    has_expired = not job.state.final and job.expires_at is not None and job.expires_at <= now
    if has_expired and outcome in {Outcome.ATTACHED, Outcome.REJECTED}:
        return None, Outcome.ADMITTED  # it is canceled, and the call is submitted again
    return job, outcome


def _find_queued_next(ledger: Ledger, holder: Job) -> Job | None:
    """Return the job that is queued behind the holder of its identity; None if there is none."""
    query = Query(identity=holder.identity, task=holder.task, states=frozenset({State.QUEUED}), since=holder.created_at)
    return next((job for job in ledger.find(query) if job.queued_next), None)


def _describe(job: Job | None, outcome: Outcome) -> str:
    if job is None:
        return SENTENCES[outcome]
    until = format_timestamp(job.identity_until) if job.identity_until is not None else "it is purged"
    return SENTENCES[outcome].format(id=job.id, state=job.state, until=until)
