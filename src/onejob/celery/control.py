"""Operator actions that need the Celery app: redrive or resubmit a dead letter, broadcast a cancellation."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onejob.celery.app_state import app_state_of
from onejob.celery.broker import timeout_options
from onejob.celery.message import SUBMITTER_HEADER, decode, has_canvas, loads
from onejob.celery.options import tasks_of
from onejob.celery.send import message_of
from onejob.celery.submission import build_submission, dump_models, merge_options
from onejob.celery.submit import check_accepted, submit
from onejob.celery.submitter import Caller
from onejob.errors import JobNotFoundError, NoDeadLetterError, NotResubmittableError
from onejob.jobs.lifecycle import State
from onejob.jobs.quota import NO_QUOTAS
from onejob.jobs.submitter import Submitter, submitting_as
from onejob.observability import tracing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from celery import Celery

    from onejob.jobs.model import Admission, Job, WireMessage
    from onejob.ledger.ledger import Ledger

BROKER_TIMEOUT = 2.0
"""Seconds until a connection attempt to the broker fails."""


def redrive(app: Celery | None, ledger: Ledger, job: Job, *, forget_steps: bool, reason: str) -> Job:
    """Queue a dead letter again; its canvas, if any, is notified again when it ends. Raises as `Ledger.redrive`.

    The store pushes its message if it can, and if `ledger` is that of `app`; otherwise a sweeper publishes it.
    """
    canvas = has_canvas(loads(job.options))
    message = push_message(app, ledger, replace(job, retries=0))
    return ledger.redrive(job.id, forget_steps=forget_steps, canvas=canvas, reason=reason, message=message)


def push_message(app: Celery | None, ledger: Ledger, job: Job) -> WireMessage | None:
    """Return the message of a job if the store of `ledger` can push it; None if a sweeper has to publish the job."""
    if app is None or job.wake_task is not None or not app_state_of(app).owns(ledger):
        return None
    return message_of(app, job)


def resubmit(
    app: Celery, ledger: Ledger, job: Job, *, args: Sequence[Any], kwargs: Mapping[str, Any], actor: str
) -> Admission:
    """Submit a new job of a dead letter's task with other arguments, and delete the dead letter.

    The new job has the queue and the priority of the dead letter. Its submitter is `actor`, or that of a dead letter
    whose submitter has own jobs; it consumes no quota. An equal job may answer instead, as for any submission.

    Raises `NoDeadLetterError`, and `NotResubmittableError` for a task that the app does not have, or a member of a
    canvas, whose successors have its arguments; and as `apply_async`. The dead letter stays then.
    """
    job = ledger.get(job.id)
    if job.state is not State.FAILED:
        raise NoDeadLetterError(job.id, job.state)
    options, name = loads(job.options), decode(job.payload).task
    task = tasks_of(app).get(name)
    if task is None:
        raise NotResubmittableError(job.id, f"this app has no onejob task {name}")
    if has_canvas(options):
        raise NotResubmittableError(job.id, "it is a member of a canvas (links, chain, group or chord)")
    own = (options.get("headers") or {}).get(SUBMITTER_HEADER)
    with submitting_as(Submitter(own or actor, own_jobs=own is not None, quotas=NO_QUOTAS)):
        caller = Caller.of(app)
        args, kwargs = dump_models(task, tuple(args), dict(kwargs), {})
        given = {"queue": job.queue or None, "priority": options.get("priority")}
        merged = merge_options(task, args, kwargs, {}, caller, **given)
        with tracing.tracer.submit(name, "edit") as span:
            submission = build_submission(task, args, kwargs, merged, caller=caller, source="edit", pushes=True)
            admission = submit(task, submission, caller)
            span.record([admission])
    check_accepted(submission, None, admission)
    with suppress(JobNotFoundError, NoDeadLetterError):  # it was redriven or deleted meanwhile
        ledger.drop(job.id)
    return admission


def broadcast_cancel(app: Celery, job_id: str) -> Exception | None:
    """Tell the workers to kill a run that was canceled by force now, instead of at their next heartbeat.

    Returns the error if the broadcast failed. Without force no broadcast is necessary: the run polls the ledger.
    """
    try:
        with connect_to_broker(app) as connection:
            app.control.revoke(job_id, terminate=True, connection=connection)
    except Exception as error:  # noqa: BLE001 - any transport error: the cancellation is in the ledger
        return error
    return None


@contextmanager
def connect_to_broker(app: Celery) -> Iterator[Any]:
    """Yield a connection to the broker. Raises the transport's error if there is none within `BROKER_TIMEOUT`."""
    with app.connection_for_write(connect_timeout=BROKER_TIMEOUT) as connection:
        timeouts = timeout_options(connection, BROKER_TIMEOUT)
        connection.transport_options = timeouts | (connection.transport_options or {})
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=int(BROKER_TIMEOUT))
        yield connection
