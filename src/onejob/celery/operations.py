"""The operations on jobs, as the HTTP API, the command line and the dashboard carry them out."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from onejob.celery.call import Call, Caller, Prepared, build
from onejob.celery.control import broadcast_cancel, push_message, redrive
from onejob.celery.message import SUBMITTER_HEADER, decode, has_canvas, loads
from onejob.celery.options import tasks_of
from onejob.celery.submit import admit, check_accepted
from onejob.celery.webhooks import create_webhooks
from onejob.errors import (
    InvalidArgumentsError,
    JobEndedError,
    JobNotEndedError,
    JobNotFoundError,
    NoDeadLetterError,
    NotResubmittableError,
    NotWaitingError,
    describe,
)
from onejob.jobs.lifecycle import FINAL, RULES, State, Transition
from onejob.jobs.quota import NO_QUOTAS
from onejob.jobs.submitter import Submitter, submitting_as
from onejob.ledger.reader import edit_key
from onejob.observability import tracing
from onejob.observability.logs import log_warning
from onejob.observability.tracing import trace_of
from onejob.webhooks.job import WEBHOOK, WebhookPayload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery import Celery

    from onejob.jobs.model import Admission, Job, Submission
    from onejob.ledger.ledger import Ledger

    CheckArguments = Callable[[str, Any, Sequence[Any], Mapping[str, Any]], None]

WEBHOOK_LIMIT = 100
"""How many followers of a dead letter are searched for webhooks."""


class Operation(StrEnum):
    """An operation on a job."""

    CANCEL = "cancel"
    FORCE_CANCEL = "force_cancel"
    RUN_NOW = "run_now"
    REDRIVE = "redrive"
    DELETE = "delete"

    @property
    def states(self) -> frozenset[State]:
        """The states of the jobs that it applies to."""
        return _STATES[self]

    @property
    def permission(self) -> str:
        """The action that a caller must be permitted."""
        return str(Operation.CANCEL if self is Operation.FORCE_CANCEL else self)

    @property
    def done(self) -> str:
        """What a job is after it, as a participle."""
        return _DONE[self]

    def check(self, job: Job) -> None:
        """Raise the error of this operation for a job in a state that it does not apply to."""
        if job.state not in self.states:
            raise _ERRORS[self](job.id, job.state)


_STATES = {
    Operation.CANCEL: frozenset(State) - FINAL,
    Operation.FORCE_CANCEL: frozenset(State) - FINAL,
    Operation.RUN_NOW: RULES[Transition.RUN_NOW].sources,
    Operation.REDRIVE: RULES[Transition.REDRIVE].sources,
    Operation.DELETE: FINAL,
}
_DONE = {
    Operation.CANCEL: "canceled",
    Operation.FORCE_CANCEL: "canceled",
    Operation.RUN_NOW: "made due",
    Operation.REDRIVE: "redriven",
    Operation.DELETE: "deleted",
}
_ERRORS: dict[Operation, type[JobEndedError | NotWaitingError | NoDeadLetterError | JobNotEndedError]] = {
    Operation.CANCEL: JobEndedError,
    Operation.FORCE_CANCEL: JobEndedError,
    Operation.RUN_NOW: NotWaitingError,
    Operation.REDRIVE: NoDeadLetterError,
    Operation.DELETE: JobNotEndedError,
}


def operate(
    app: Celery | None, ledger: Ledger, operation: Operation, job: Job, *, origin: str, forget_steps: bool = False
) -> Job | None:
    """Carry out an operation, and return the job afterwards; None after a deletion.

    `app`: the app of the job's workers, which a forced cancellation notifies at once; None if it is not known. `job`:
    may be without its `LARGE_FIELDS`, and may have changed. `origin`: where the operation comes from, and whose it is,
    for the history ("over HTTP by ops"). `forget_steps`: a redriven job runs its completed steps again.

    Raises `JobNotFoundError`; what `Operation.check` raises for a job in another state, `NotWaitingError` also for one
    that waits for another job; `IdentityHeldError` for a redrive; `UniquenessWindowError` for a deletion.
    """
    reason = f"{operation.done} {origin}"
    match operation:
        case Operation.CANCEL | Operation.FORCE_CANCEL:
            return _cancel(app, ledger, operation, job, reason)
        case Operation.RUN_NOW:
            return ledger.run_now(job.id, reason=reason, message_of=partial(push_message, app, ledger))
        case Operation.REDRIVE:
            return redrive(app, ledger, ledger.get(job.id), forget_steps=forget_steps, reason=reason)
        case Operation.DELETE:
            ledger.delete(job.id)
            return None


def _cancel(app: Celery | None, ledger: Ledger, operation: Operation, job: Job, reason: str) -> Job:
    operation.check(job)
    forced = operation is Operation.FORCE_CANCEL
    canceled = ledger.cancel(job.id, force=forced, reason=reason)
    if canceled.state.final and canceled.state is not State.CANCELED:
        raise JobEndedError(canceled.id, canceled.state)
    if forced and app is not None and not canceled.state.final:
        error = broadcast_cancel(app, job.id)
        if error is not None:
            log_warning(
                "job %s is canceled, which its worker will see at its next heartbeat, since the broker failed: %s",
                job.id,
                describe(error),
            )
    return canceled


# --- editing --------------------------------------------------------------------------------------------------------

INVALID_JSON = (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What the JSON of a message raises that is invalid, or has an invalid date, number or UUID."""


def edit(
    app: Celery, ledger: Ledger, job_id: str, *, args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None, check: CheckArguments = lambda *_: None,
) -> Admission:  # fmt: skip
    """Redrive a dead letter with other arguments: submit a new job with them, then delete the dead letter.

    What is None stays as it is; `check` may refuse the arguments of a task. The new job has everything else of the dead
    letter: its options, route, priority, lease, submitter and webhooks; it consumes no quota. Arguments decide which
    jobs are equal, so an equal job that exists may answer. Repeating the call is harmless: an idempotency key names the
    edit, and the new job after it.

    Raises `NoDeadLetterError`, and `NotResubmittableError` for a task that the app does not have, a member of a canvas,
    whose successors have its arguments, a job that would answer with other arguments, or after an edit with others;
    and as `apply_async`. The dead letter stays then.
    """
    job = ledger.get(job_id)
    if job.state is not State.FAILED:
        raise NoDeadLetterError(job.id, job.state)
    message, options = decode(job.payload), loads(job.options)
    task = tasks_of(app).get(message.task)
    if task is None:
        raise NotResubmittableError(job.id, f"this app has no onejob task {message.task}")
    if has_canvas(options):
        raise NotResubmittableError(job.id, "it is a member of a canvas (links, chain, group or chord)")
    own = (options.get("headers") or {}).get(SUBMITTER_HEADER)
    with submitting_as(Submitter(own or "", own_jobs=own is not None, quotas=NO_QUOTAS)):
        given = message.args if args is None else args, message.kwargs if kwargs is None else kwargs
        check(message.task, task, *given)
        call = Call(task, Caller.of(app), tuple(given[0]), dict(given[1]), source=f"edit of job {job.id}")
        with tracing.tracer.submit(message.task, "edit") as span:
            submission = build(call)
            submission = replace(
                submission, options=json.dumps(options | trace_of(submission.options)), route=job.route,
                priority_rank=job.priority_rank, lease=job.lease, submitter=job.submitter, wake_task=job.wake_task,
                expires_in=None, delay=0.0, key=edit_key(job.id),
                key_for=max(ledger.policy.tombstone_retention, submission.key_for),
            )  # fmt: skip
            _check_arguments_run(ledger, job, submission)
            (admission,) = admit(app, [Prepared(call, submission)])
            if isinstance(admission, Exception):
                raise admission
            span.record([admission])
    if admission.key_reused:
        msg = f"it was edited before, and job {admission.job.id} was submitted in its place"
        raise NotResubmittableError(job.id, msg)
    check_accepted(call, admission)
    for webhook in ledger.followers(job.id, limit=WEBHOOK_LIMIT):
        if webhook.task == WEBHOOK:
            create_webhooks(task, ledger, submission, admission, WebhookPayload.from_job(webhook).url)
    with suppress(JobNotFoundError, NoDeadLetterError):  # it was redriven or deleted meanwhile
        ledger.drop(job.id)
    return admission


def _check_arguments_run(ledger: Ledger, job: Job, submission: Submission) -> None:
    """Raise `NotResubmittableError` if a job with other arguments would answer, so that the new ones never ran."""
    existing = ledger.store.find_existing(submission.identity, None)
    if existing is not None and existing.fingerprint != submission.fingerprint and not submission.replaces:
        msg = f"job {existing.id} is equal and {existing.state}, and these arguments would not run: wait for its end"
        raise NotResubmittableError(job.id, msg)


def parse_arguments(text: str, name: str, kind: type) -> Any:
    """Return a JSON text as `args` (a list) or `kwargs` (a dict). Raises `InvalidArgumentsError`."""
    expected = "array, such as [1, 2]" if kind is list else 'object, such as {"order_id": 42}'
    try:
        value = loads(text)
    except INVALID_JSON as error:
        msg = f"{name} is not valid JSON ({error}): write a JSON {expected}"
        raise InvalidArgumentsError(msg) from error
    if not isinstance(value, kind):
        msg = f"{name} must be a JSON {expected}"
        raise InvalidArgumentsError(msg)
    return value
