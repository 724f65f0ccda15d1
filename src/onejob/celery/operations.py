"""The operations on jobs, as the HTTP API, the command line and the dashboard carry them out."""

from __future__ import annotations

import json
import logging
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, Self

from celery import Celery

from onejob import errors
from onejob.celery.app_state import app_state_of
from onejob.celery.broker import queue_length, set_timeouts
from onejob.celery.call import Call, Caller, Prepared, build, dump_models, unique_on_reported
from onejob.celery.context import NO_CONTEXT, headers_in
from onejob.celery.options import tasks_of
from onejob.celery.payload import SUBMITTER_HEADER, decode, has_canvas, loads
from onejob.celery.submit import admit, check_accepted, create_webhooks
from onejob.jobs.lifecycle import FINAL, RULES, State, Transition
from onejob.jobs.model import Admission, BrokerMessage, Job, Outcome, Submission
from onejob.jobs.on_duplicate import resolve
from onejob.jobs.records import Query
from onejob.jobs.submitter import NO_QUOTAS, Submitter, submitting_as
from onejob.jobs.timestamps import format_timestamp
from onejob.ledger.bulk import BulkResult, Selection, bulk_apply
from onejob.ledger.ledger import Ledger
from onejob.ledger.reader import JobReader, edit_key
from onejob.ledger.search import WINDOW, search
from onejob.ledger.stuck import is_follower
from onejob.observability import tracing
from onejob.observability.logs import log_warning
from onejob.observability.metrics import WEBHOOK_TASK
from onejob.observability.tracing import trace_of
from onejob.webhooks.job import WebhookPayload

CheckArguments = Callable[[str, Any, Sequence[Any], Mapping[str, Any]], None]


NEWER_LIMIT = 100_000
"""Among about how many of the newest jobs a job with newer arguments is searched before a redrive."""
WEBHOOK_LIMIT = 100
"""How many followers of a dead letter are searched for webhooks."""


class Operation(StrEnum):
    """An operation on a job."""

    CANCEL = "cancel", "canceled", frozenset(State) - FINAL, errors.JobEndedError
    FORCE_CANCEL = "force_cancel", "canceled", frozenset(State) - FINAL, errors.JobEndedError
    RUN_NOW = "run_now", "made due", RULES[Transition.RUN_NOW].sources, errors.NotWaitingError
    REDRIVE = "redrive", "redriven", RULES[Transition.REDRIVE].sources, errors.NoDeadLetterError
    DELETE = "delete", "deleted", FINAL, errors.JobNotEndedError

    done: str
    """What a job is after it, as a participle."""
    states: frozenset[State]
    """The states of the jobs that it applies to."""
    error: type[errors.JobStateError]
    """Raised for a job in another state."""

    def __new__(  # noqa: D102 - of an enum: type checkers take it for its look-up, too, which has a name only
        cls,
        name: str,
        done: str = "",
        states: frozenset[State] = FINAL,
        error: type[errors.JobStateError] = errors.JobStateError,
    ) -> Self:
        operation = str.__new__(cls, name)
        operation._value_, operation.done, operation.states, operation.error = name, done, states, error
        return operation

    @property
    def permission(self) -> str:
        """The action that a caller must be permitted."""
        return str(Operation.CANCEL if self is Operation.FORCE_CANCEL else self)

    def check(self, job: Job) -> None:
        """Raise the error of this operation for a job in a state that it does not apply to."""
        if job.state not in self.states:
            raise self.error(job.id, job.state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Who operates on jobs, on which, and from where."""

    app: Celery | None
    """The app of the jobs' workers, which a forced cancellation notifies at once; None if it is not known."""
    ledger: Ledger
    origin: str
    """Where the operations come from, and whose they are, for the history ("over HTTP by ops")."""
    reader: JobReader | None = None
    """Reads the jobs that the operator sees; None: all."""
    check: Callable[[str, Job], object] = lambda _action, _job: None
    """Raises `OneJobError` for an action on one of many jobs that the operator is not permitted."""

    def operate(self, operation: Operation, job: Job, *, forget_steps: bool = False) -> Job | None:
        """Carry out an operation, and return the job afterwards; None after a deletion.

        `job` may be without its `LARGE_FIELDS`, and outdated. `forget_steps`: a redriven job runs its steps again.
        Raises `JobNotFoundError`; what `Operation.check` raises, `NotWaitingError` also for one that waits for a job;
        `IdentityHeldError` and `SupersededError` for a redrive, about an "unknown" job if `reader` does not see it;
        `UniquenessWindowError` for a deletion.
        """
        app, ledger, reason = self.app, self.ledger, f"{operation.done} {self.origin}"
        match operation:
            case Operation.CANCEL | Operation.FORCE_CANCEL:
                return _cancel(app, ledger, operation, job, reason)
            case Operation.RUN_NOW:
                return ledger.run_now(job.id, reason=reason, message_of=partial(push_message, app, ledger))
            case Operation.REDRIVE:
                try:
                    return redrive(app, ledger, ledger.get(job.id), forget_steps=forget_steps, reason=reason)
                except (errors.IdentityHeldError, errors.SupersededError) as error:
                    other = error.holder_id if isinstance(error, errors.IdentityHeldError) else error.newer_id
                    if self.reader is None or self.reader.get_or_none(other) is not None:
                        raise
                    raise type(error)(job.id, "unknown", "not shown") from None
            case Operation.DELETE:
                ledger.delete(job.id)
                return None

    def operate_many(
        self, operation: Operation, selection: Selection, *, forget_steps: bool = False, dry_run: bool = False,
        is_over: Callable[[], bool] | None = None,
    ) -> BulkResult:  # fmt: skip
        """Carry out an operation on each selected job that it applies to. Raises as `operate` and `bulk_apply` do."""

        def check(job: Job) -> None:
            self.check(operation.permission, job)
            operation.check(job)

        act = partial(self.operate, operation, forget_steps=forget_steps)
        return bulk_apply(self.reader or self.ledger, selection, act, check=check, dry_run=dry_run, is_over=is_over)


def deadline(seconds: float) -> Callable[[], bool]:
    """Return a function that tells whether so many seconds are over."""
    ends_at = time.monotonic() + seconds
    return lambda: time.monotonic() >= ends_at


def _cancel(app: Celery | None, ledger: Ledger, operation: Operation, job: Job, reason: str) -> Job:
    operation.check(job)
    forced = operation is Operation.FORCE_CANCEL
    canceled = ledger.cancel(job.id, force=forced, reason=reason)
    if canceled.state.final and canceled.state is not State.CANCELED:
        raise errors.JobEndedError(canceled.id, canceled.state)
    if forced and app is not None and not canceled.state.final:  # otherwise the run polls the ledger
        try:
            with connect_to_broker(app) as connection:
                app.control.revoke(job.id, terminate=True, connection=connection)
        except Exception as error:  # noqa: BLE001 - any transport error: the cancellation is in the ledger
            log_warning(
                "job %s is canceled, which its worker will see at its next heartbeat, since the broker failed: %s",
                job.id,
                errors.describe(error),
            )
    return canceled


# --- editing --------------------------------------------------------------------------------------------------------

INVALID_JSON = (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What the JSON of a message raises that is invalid, or has an invalid date, number or UUID."""


def edit(
    app: Celery, ledger: Ledger, job_id: str, *, args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None, check: CheckArguments = lambda *_: None,
    check_answer: Callable[[Admission], object] | None = None,
) -> Admission:  # fmt: skip
    """Redrive a dead letter with other arguments: submit a new job with them, then delete the dead letter.

    What is None stays as it is; `check` may refuse the arguments of a task, and `check_answer` a job that would answer.
    The new job has everything else of the dead letter: its options, route, priority, lease, submitter and webhooks; it
    consumes no quota. Arguments decide which jobs are equal, so an equal job that exists may answer. Repeating the call
    is harmless: an idempotency key names the edit, and the new job after it.

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
                key=edit_key(job.id), key_for=max(ledger.policy.tombstone_retention, submission.key_for),
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
    for webhook in ledger.followers(job.id, limit=WEBHOOK_LIMIT):
        if webhook.task == WEBHOOK_TASK:
            create_webhooks(app_state, task, ledger, submission, admission, WebhookPayload.from_job(webhook).url)
    with suppress(errors.JobNotFoundError, errors.NoDeadLetterError):  # it was redriven or deleted meanwhile
        ledger.drop(job.id)
    return admission


def _check_answer(ledger: Ledger, job: Job, call: Call, submission: Submission) -> None:
    """Raise what `check_answer` raises for the job that would answer, before the key of the edit names it.

    And `NotResubmittableError` if that has other arguments, so that the new ones never ran.
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


# --- redrive and cancellation ----------------------------------------------------------------------------------------


FOLLOWER_LIMIT = 10_000
"""How many followers wait again for a job that is redriven."""
BROKER_TIMEOUT = 2.0
"""Seconds until a connection attempt to the broker fails."""


def redrive(app: Celery | None, ledger: Ledger, job: Job, *, forget_steps: bool, reason: str) -> Job:
    """Queue a dead letter again; its canvas, if any, is notified again when it ends. Raises as `Ledger.redrive`.

    The followers that have failed with it wait for its new end. So does a follower that is redriven itself, whose job
    has been redriven before; a run of its own would repeat the effects of that job.
    Raises `SupersededError` if the app's task replaces arguments or runs again, and newer ones have run, or will run. A
    sweeper publishes the message unless the store pushes it, as that of `app` can.
    """
    task = None if app is None else tasks_of(app).get(job.task)
    if task is not None and task._onejob.conflict_policy.queue_next and job.state is State.FAILED:
        query = Query(
            task=job.task, identity=job.identity, states=frozenset(State) - {State.FAILED, State.CANCELED},
            since=job.created_at, limit=1, light=True,
        )  # fmt: skip
        windows = iter(range(NEWER_LIMIT // WINDOW - 1))
        for newer in search(ledger, query, is_over=lambda: next(windows, None) is None).jobs:
            if newer.fingerprint != job.fingerprint:
                raise errors.SupersededError(job.id, newer.id, newer.state)
    canvas = has_canvas(loads(job.options))
    if job.state is State.FAILED and is_follower(job) and _is_redriven(ledger, job):
        return ledger.rejoin(job, canvas=canvas, reason=f"{reason}: waits") or ledger.get(job.id)
    message = push_message(app, ledger, replace(job, retries=0))
    redriven = ledger.redrive(job.id, forget_steps=forget_steps, canvas=canvas, reason=reason, message=message)
    for follower in ledger.store.followers(job.id, limit=FOLLOWER_LIMIT):
        if follower.state is State.FAILED and is_follower(follower):
            ledger.rejoin(follower, canvas=has_canvas(loads(follower.options)), reason=f"{reason}: waits")
    return redriven


def _is_redriven(ledger: Ledger, follower: Job) -> bool:
    followed = ledger.get_or_none(str(follower.follows_id))
    return followed is not None and followed.state is not State.FAILED


def push_message(app: Celery | None, ledger: Ledger, job: Job) -> BrokerMessage | None:
    """Return the message of a job if the store of `ledger` can push it; None if a sweeper has to publish the job."""
    if app is None or job.publisher_task is not None or not app_state_of(app).owns(ledger):
        return None
    return app_state_of(app).publisher.message_of(job)


@contextmanager
def connect_to_broker(app: Celery) -> Iterator[Any]:
    """Yield a connection to the broker. Raises the transport's error if there is none within `BROKER_TIMEOUT`."""
    with app.connection_for_write(connect_timeout=BROKER_TIMEOUT) as connection:
        set_timeouts(connection, BROKER_TIMEOUT)
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=int(BROKER_TIMEOUT))
        yield connection


# --- messages in the broker's queues ---------------------------------------------------------------------------------


logger = logging.getLogger("onejob")


def queue_lengths(app: Celery, names: Iterable[str]) -> dict[str, int | None]:
    """Return the number of messages in each queue; None where the broker cannot tell, or has no such queue."""
    lengths: dict[str, int | None] = dict.fromkeys(names)
    try:
        with connect_to_broker(app) as connection:
            for name in lengths:
                lengths[name] = queue_length(connection, name)
    except Exception as error:  # noqa: BLE001 - any transport's error: the figures are optional
        logger.info("the broker does not tell the lengths of its queues: %r", error)
    return lengths


# --- the call of a job as text to copy: Python, and a request of the HTTP API ----------------------------------------


IMPORTS = {
    "datetime.": "import datetime",
    "Decimal(": "from decimal import Decimal",
    "UUID(": "from uuid import UUID",
}
"""The imports that the values of a message need in Python, by what they begin with."""


def python_call(job: Job) -> str:
    """Return Python code, with its imports, that submits a call with the job's arguments to the Celery app `app`."""
    message = decode(job.payload)
    call = f"app.tasks[{message.task!r}].apply_async(args={message.args!r}, kwargs={message.kwargs!r})"
    imports = [line for begin, line in IMPORTS.items() if begin in call]
    return "\n".join([*imports, call])


def curl_call(job: Job, base_url: str, *, parameters: Sequence[str] = ()) -> str | None:
    """Return a shell command that submits a call with the job's arguments over HTTP, with the API key in `$KEY`.

    `parameters` names positional arguments. None if they do not suffice, or if JSON has no such values.
    """
    message = decode(job.payload)
    if len(message.args) > len(parameters):
        return None
    kwargs = dict(zip(parameters, message.args, strict=False)) | message.kwargs
    try:
        body = json.dumps({"task": message.task, "kwargs": kwargs})
    except TypeError:
        return None
    url = shlex.quote(f"{base_url.rstrip('/')}/jobs")
    headers = """-H "authorization: Bearer $KEY" -H 'content-type: application/json'"""
    return f"curl -s {headers} {url} -d {shlex.quote(body)}"


# --- whether a call would be a duplicate: nothing is stored ----------------------------------------------------------


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
            submission = build(app_state, call, caller)
        plain, named = dump_models(task, call.args, call.kwargs, {})
        headers = headers_in(submission.options, decode(submission.payload).context)
        text = task._onejob.identifier.describe(plain, named, caller.submitter.scope, headers)
    existing, outcome = _resolve(ledger or app_state.ledger, submission)
    reason = SENTENCES[outcome]
    if existing is not None:
        until = "it is purged" if existing.identity_until is None else format_timestamp(existing.identity_until)
        reason = reason.format(id=existing.id, state=existing.state, until=until)
    return DuplicateCheck(task_name, submission.identity, text, submission.fingerprint, existing, outcome, reason)


def _resolve(ledger: Ledger, submission: Submission) -> tuple[Job | None, Outcome]:
    job, now = ledger.store.find_existing(submission.identity, None), ledger.read_clock()
    if job is None or (job.identity_until is not None and job.identity_until <= now):
        return None, Outcome.ADMITTED
    outcome = resolve(job, submission, now=now).outcome
    if outcome is Outcome.QUEUED_NEXT:
        query = Query(identity=job.identity, task=job.task, states=frozenset({State.QUEUED}), since=job.created_at)
        for behind in ledger.find(query):
            if behind.queued_next:
                return behind, resolve(behind, submission, now=now).outcome
    has_expired = not job.state.final and job.expires_at is not None and job.expires_at <= now
    if has_expired and outcome in {Outcome.ATTACHED, Outcome.REJECTED}:
        return None, Outcome.ADMITTED  # it is canceled, and the call is submitted again
    return job, outcome
