"""Edits dead letters, checks for duplicates, looks at the broker, and writes calls as text to copy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from celery import Celery

from onejob import errors
from onejob.celery.app_state import app_state_of
from onejob.celery.messages.context import NO_CONTEXT
from onejob.celery.messages.payload import SUBMITTER_HEADER, decode, has_canvas, loads
from onejob.celery.submission.call import Call, Caller, Prepared, build, build_described, unique_on_reported
from onejob.celery.submission.options import tasks_of
from onejob.celery.submission.submit import admit, check_accepted, move_webhook
from onejob.client.operation import Operation
from onejob.client.redrive import FOLLOWER_LIMIT
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Admission, JobRow, Outcome, Submission
from onejob.jobs.on_duplicate import resolve
from onejob.jobs.query import Query
from onejob.jobs.submitter import NO_QUOTAS, Submitter, submitting_as
from onejob.jobs.timestamps import format_timestamp
from onejob.ledger.ledger import Ledger
from onejob.ledger.reader import edit_key
from onejob.observability import tracing
from onejob.observability.metrics import WEBHOOK_TASK
from onejob.observability.tracing import trace_of

CheckArguments = Callable[[str, Any, Sequence[Any], Mapping[str, Any]], None]
INVALID_JSON = (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""The exceptions of the JSON of a message that is invalid, or has an invalid date, number or UUID."""
SENTENCES = {
    Outcome.ADMITTED: "No job answers this call: a new job would be written.",
    Outcome.ATTACHED: "Job {id}, which is {state}, would answer this call.",
    Outcome.REPLAYED: "The result of job {id} would answer this call, until {until}.",
    Outcome.REPLACED: "Job {id}, which waits for its first run, would run with these arguments.",
    Outcome.QUEUED_NEXT: "Job {id} has started: a new job would be written, which runs after it.",
    Outcome.REJECTED: "The call would be rejected, because of job {id}, which is {state}.",
}
"""The outcome of a checked call, as a sentence."""


# --- editing --------------------------------------------------------------------------------------------------------


def edit(
    app: Celery, ledger: Ledger, job_id: str, *, args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None, check: CheckArguments = lambda *_: None,
    check_answer: Callable[[Admission], object] | None = None,
) -> Admission:  # fmt: skip
    """Redrive a dead letter with other arguments: submit a new job with them, then delete the dead letter.

    What is None stays as it is; `check` may refuse the arguments of a task, and `check_answer` a job that would answer.
    The new job has everything else of the dead letter: its options, route, priority, lease, submitter, its webhooks,
    each with its own submitter, and its idempotency keys; it consumes no quota. Arguments decide which jobs are equal,
    so an equal job that exists may answer. Repeating the call is harmless: an idempotency key names the edit, and the
    new job after it.

    Raises `NoDeadLetterError`, and `NotResubmittableError` for a task that the app does not have, a member of a canvas,
    whose successors have its arguments, a job that would answer with other arguments, or after an edit with others;
    and as `apply_async`. The dead letter stays then.
    """
    job = ledger.get(job_id)
    Operation.REDRIVE.check(job)
    app_state, message, options = app_state_of(app), decode(job.payload), loads(job.options)
    task = tasks_of(app).get(message.task)
    if task is None:
        raise errors.NotResubmittableError(job.id, f"this app has no onejob task {message.task}")
    if has_canvas(options):
        raise errors.NotResubmittableError(job.id, "it is a member of a canvas (links, chain, group or chord)")
    own = (options.get("headers") or {}).get(SUBMITTER_HEADER)
    with submitting_as(Submitter(own or "", own_jobs=own is not None, quotas=NO_QUOTAS)):
        given = message.args if args is None else args, message.kwargs if kwargs is None else kwargs
        check(message.task, task, *given)
        source = f"edit of job {job.id}"
        call = Call(
            task, tuple(given[0]), dict(given[1]), source=source, check_answer=check_answer, context=message.context
        )
        with tracing.tracer.submit(message.task, "edit") as span:
            with unique_on_reported():
                submission = build(app_state, call)
            submission = replace(
                submission, options=json.dumps(options | trace_of(submission.options)), route=job.route,
                priority_rank=job.priority_rank, lease=job.lease, submitter=job.submitter,
                publisher_task=job.publisher_task, tag_lines=job.tag_lines, expires_in=None, delay=0.0,
                key=edit_key(job.id), key_for=max(ledger.settings.tombstone_retention, submission.key_for),
            )  # fmt: skip
            _check_answer(ledger, job, call, submission)
            (admission,) = admit(app_state, [Prepared(call, submission)])
            if isinstance(admission, Exception):
                raise admission
            span.record([admission])
    if admission.key_reused:
        msg = f"it was edited before, and job {admission.job.id} was submitted in its place"
        raise errors.NotResubmittableError(job.id, msg)
    check_accepted(call, admission)
    for webhook in ledger.followers(job.id, limit=FOLLOWER_LIMIT):
        if webhook.task == WEBHOOK_TASK:
            move_webhook(ledger, webhook, admission)
    ledger.supersede(job.id, admission.job.id)
    return admission


def _check_answer(ledger: Ledger, job: JobRow, call: Call, submission: Submission) -> None:
    """Check the job that would answer an edit by the call's `check_answer`, before the key of the edit names the job.

    Raises as `check_answer`, and `NotResubmittableError` if the job has other arguments: the new ones would never run.
    """
    existing, outcome = _resolve(ledger, submission)
    if existing is None:
        return
    if call.check_answer is not None:
        call.check_answer(Admission(existing, outcome))
    if existing.fingerprint != submission.fingerprint and not submission.replaces:
        msg = f"job {existing.id} is equal and {existing.state}, and these arguments would not run: wait for its end"
        raise errors.NotResubmittableError(job.id, msg)


def parse_arguments(text: str, name: str, kind: type) -> Any:
    """Return a JSON text as `args` (a list) or `kwargs` (a dict). Raises `InvalidArgumentsError`."""
    expected = "array, such as [1, 2]" if kind is list else 'object, such as {"order_id": 42}'
    try:
        value = loads(text)
    except INVALID_JSON as error:
        raise errors.InvalidArgumentsError(f"{name} is not valid JSON ({error}): write a JSON {expected}") from error
    if not isinstance(value, kind):
        raise errors.InvalidArgumentsError(f"{name} must be a JSON {expected}")
    return value


# --- whether a call would be a duplicate: nothing is stored ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DuplicateCheck:
    """How a call would be answered."""

    task: str
    identity: str
    hashed_text: str
    """The canonical text whose hash the identity is."""
    fingerprint: str
    existing: JobRow | None
    """The job that makes the call a duplicate; None without one."""
    outcome: Outcome
    reason: str
    """The outcome as a sentence."""


def check_duplicate(
    app: Celery, task_name: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, submitter: Submitter | None = None,
    on_duplicate: str | None = None, ledger: Ledger | None = None,
) -> DuplicateCheck:  # fmt: skip
    """Return how a submission of this call would be answered now, without an idempotency key.

    By default as of this context's submitter, by the task's `on_duplicate`, in the app's ledger. Raises
    `InvalidArgumentsError` also for an unknown task, and otherwise as `apply_async` before anything is stored.
    """
    task = tasks_of(app).get(task_name)
    if task is None:
        raise errors.InvalidArgumentsError(f"the app has no onejob task named {task_name!r}")
    with nullcontext() if submitter is None else submitting_as(submitter):
        app_state, caller = app_state_of(app), Caller.of(app)
        context = None if task._onejob.identifier.has_headers else NO_CONTEXT
        call = Call(task, tuple(args), dict(kwargs), source="check", on_duplicate=on_duplicate, context=context)
        with unique_on_reported():
            submission, text = build_described(app_state, call, caller)
    existing, outcome = _resolve(ledger or app_state.ledger, submission)
    reason = SENTENCES[outcome]
    if existing is not None:
        until = "it is purged" if existing.identity_until is None else format_timestamp(existing.identity_until)
        reason = reason.format(id=existing.id, state=existing.state, until=until)
    return DuplicateCheck(task_name, submission.identity, text, submission.fingerprint, existing, outcome, reason)


def _resolve(ledger: Ledger, submission: Submission) -> tuple[JobRow | None, Outcome]:
    job, now = ledger.store.find_existing(submission.identity, None), ledger.read_clock()
    if job is None:
        return None, Outcome.ADMITTED
    outcome = resolve(job, submission, now=now).outcome
    if outcome is Outcome.QUEUED_NEXT:
        query = Query(identity=job.identity, task=job.task, states=frozenset({State.QUEUED}), since=job.created_at)
        for behind in ledger.find(query):
            if behind.queued_next and not behind.has_lost_identity(now):
                return behind, resolve(behind, submission, now=now).outcome
    return job, outcome
