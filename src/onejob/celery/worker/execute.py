"""Executes one message in a worker's child: claims the job, runs its body, and records how the run ended."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from celery import signals
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, Reject, Retry, WorkerLostError

from onejob.celery.app_state import app_state_of
from onejob.celery.current_job import RunningJob, claim_of, set_current_job
from onejob.celery.failure import decode_failure, describe, encode_failure
from onejob.celery.message import REPLACED, decode, dumps, encode, encode_options, loads
from onejob.celery.options import options_of
from onejob.celery.submit import build_submission, delay_of, needs_message, publish, submit_to_ledger
from onejob.celery.webhooks import create_task_webhook
from onejob.celery.worker.store_wait import wait_for_store
from onejob.errors import (
    JobCanceled,
    JobInterrupted,
    JobReleased,
    LeaseLost,
    OneJobError,
    StaleTokenError,
    StoreError,
    StoreUnavailableError,
)
from onejob.jobs.lifecycle import RULES, State, Transition
from onejob.jobs.model import Duplicate, Outcome
from onejob.jobs.transitions import new_nonce
from onejob.observability.events import transition_event

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from onejob.celery.app_state import AppState
    from onejob.celery.options import BoundTask
    from onejob.jobs.model import Applied, Job

logger = logging.getLogger("onejob")
REQUEUE_DELAY = 1.0
"""Seconds until a job that rejected its message with `requeue=True` runs again."""


def execute_message(task: BoundTask, request: Any, body: Callable[..., Any]) -> Any:
    """Run the job of a message if it can be claimed, and return its result.

    Raises what the body raises, or Celery's `Ignore` if Celery must not record this delivery: the job runs elsewhere,
    the run was overtaken, or the ledger does not answer (then the job recovers when its lease expires).
    """
    app_state = app_state_of(task.app)
    try:
        job = _claim(task, request, app_state)
        request.onejob = job
        if job.state.final:
            return _return_end(task, request, app_state, job)
        if job.follows_id is not None:
            return _end_follower(task, request, app_state, job)
        return _run(task, request, app_state, job, body)
    except StaleTokenError as error:
        logger.warning("%s", error)
        raise Ignore(str(error)) from None
    except StoreError as error:
        logger.critical("job %s: the ledger failed, the job recovers when its lease expires: %s", request.id, error)
        raise Ignore(str(error)) from None


# --- before the body ------------------------------------------------------------------------------------------------


def _claim(task: BoundTask, request: Any, app_state: AppState) -> Job:
    """Return the job, claimed for this run, or ended with its canvas not yet notified. Raises `Ignore` otherwise."""
    nonce = claim_of(request.get("onejob_claim") or new_nonce(), os.getpid())
    claimed = app_state.ledger.claim(request.id, nonce=nonce, node=str(request.hostname))
    if claimed.job is None:
        _submit_message(task, request, app_state)
    elif not claimed.applied and claimed.job.state is State.RUNNING and claimed.job.claim[:8] == nonce[:8]:
        reason = "its worker process died right after its start"
        app_state.ledger.crash(claimed.job, reason, encode_failure(WorkerLostError(reason)))
    else:
        return _check_claim(request, claimed, app_state)
    return _check_claim(request, app_state.ledger.claim(request.id, nonce=nonce, node=str(request.hostname)), app_state)


def _check_claim(request: Any, claimed: Applied, app_state: AppState) -> Job:
    job = claimed.job
    if job is None:
        msg = f"job {request.id} no longer exists"
        raise Ignore(msg)
    if not claimed.applied and not (job.state.final and job.canvas_pending):
        if job.state not in RULES[Transition.CLAIM].sources:
            _record_refusal(request, job, app_state)
        msg = f"not claimed: job {job.id} is {job.state} ({job.reason}), attempt {job.attempt}"
        raise Ignore(msg)
    return job


def _record_refusal(request: Any, job: Job, app_state: AppState) -> None:
    """Record a redelivered message of a job that is running, or has ended, as a duplicate."""
    duplicate = Duplicate(
        job_id=job.id, submission_nonce="", outcome=Outcome.REJECTED, answered_by=job.id, source="redelivery",
        submitter="", host=str(request.hostname), fingerprint=job.fingerprint, arguments_differ=False,
    )  # fmt: skip
    with suppress(StoreError):  # duplicates are statistics only
        app_state.ledger.record(duplicate)


def _submit_message(task: BoundTask, request: Any, app_state: AppState) -> None:
    """Submit the job of a message that is not in the ledger: from `send_task`, another language, another broker."""
    signature = task.signature_from_request(request)
    options = {name: value for name, value in signature.options.items() if name != "expires"}
    submission = build_submission(task, signature.args, signature.kwargs, options, task_id=request.id, source="message")
    admission = submit_to_ledger(app_state.ledger, submission)
    if admission.rescheduled and needs_message(submission, admission):
        publish(task, admission.job)
    if admission.follower is not None and admission.outcome is not Outcome.REPLAYED:
        msg = f"duplicate of job {admission.job.id} ({admission.job.state}), which it follows"
        raise Ignore(msg)


# --- the body -------------------------------------------------------------------------------------------------------


def _run(task: BoundTask, request: Any, app_state: AppState, job: Job, body: Callable[..., Any]) -> Any:
    message = decode(job.payload)
    if message.task != task.name:  # an old message of a job that was replaced since
        app_state.publisher.publish(app_state.ledger.release(job, f"it is a job of {message.task} now"))
        raise Ignore(f"job {job.id} is a job of {message.task} now")
    wait_for_store(job.id, partial(create_task_webhook, task, app_state.ledger, job))
    request.retries = job.retries
    request.args, request.kwargs = message.args, message.kwargs
    options = options_of(task)
    if options.unique_until == "started" and job.holds_identity:
        job = wait_for_store(job.id, partial(app_state.ledger.release_identity, job))
    run = RunningJob(job, app_state.ledger, app_state.settings.limits, options.retention_of(job))
    with set_current_job(run):
        try:
            run.raise_if_draining()
            return _complete(run, app_state, body(*message.args, **message.kwargs))
        except BaseException as error:
            run.rollback_sessions()  # an open transaction would lock the job's row
            completed = _find_committed(run, app_state)
            if completed is not None:  # committed by the body: a later error cannot undo it
                logger.warning("job %s was completed by its transaction, which then raised %s", job.id, describe(error))
                return loads(completed.result or "null")
            _handle_error(task, request, app_state, run, error)
            raise


def _complete(run: RunningJob, app_state: AppState, result: Any) -> Any:
    """Complete a run whose body has returned, and return its result."""
    if not run.completes_in_transaction:
        wait_for_store(run.id, lambda: run.complete(result))
        return result
    completed = _find_committed(run, app_state)
    if completed is None:
        msg = "the body called complete_in, but its transaction was not committed"
        raise OneJobError(msg)
    return loads(completed.result or "null")


def _find_committed(run: RunningJob, app_state: AppState) -> Job | None:
    """Return the job if a transaction of the body completed it, and emit the event, which only the commit permits."""
    completed = wait_for_store(run.id, run.find_committed)
    if completed is not None:
        app_state.ledger.emit(transition_event(Transition.COMPLETE, completed))
    return completed


def _handle_error(task: BoundTask, request: Any, app_state: AppState, run: RunningJob, error: BaseException) -> None:
    """Record how a run ended that raised an exception. Raises `Ignore` if Celery must do nothing more."""
    if isinstance(error, Reject):  # Celery also wraps the error of a failed `Task.retry` in it
        reason = getattr(error, "reason", None)
        error = reason if isinstance(reason, Exception) else error
    if isinstance(error, StoreUnavailableError):
        unreached = f"its run could not reach the store: {error}"
        wait_for_store(run.id, lambda: app_state.ledger.release(run.job, unreached))
        raise Ignore(unreached)
    if isinstance(error, JobInterrupted):
        _handle_interrupt(task, request, app_state, run.job, error)
        raise Ignore(str(error)) from None
    if isinstance(error, Retry | Ignore | Reject):
        _handle_celery_signal(app_state, run, error)
    elif isinstance(error, Exception) and not isinstance(error, StaleTokenError):
        wait_for_store(run.id, partial(app_state.ledger.fail, run.job, encode_failure(error), describe(error)))


def _handle_interrupt(task: BoundTask, request: Any, app_state: AppState, job: Job, signal: JobInterrupted) -> None:
    if isinstance(signal, JobCanceled):
        wait_for_store(job.id, lambda: app_state.ledger.abandon(job, "canceled on request"))
        _report_canceled(task, request, app_state, job)
    elif isinstance(signal, JobReleased):
        # Due at once, for the sweeper of another worker: this one may still consume messages.
        app_state.ledger.release(job, "its worker is shutting down", wake_in=0)


def _handle_celery_signal(app_state: AppState, run: RunningJob, signal: Retry | Ignore | Reject) -> None:
    """Apply the transition for a `Retry`, `Ignore` or `Reject` that a body has raised."""
    if run.retried:
        return
    job, ledger = run.job, app_state.ledger
    if isinstance(signal, Retry):
        delay = signal.when if isinstance(signal.when, int | float) else 0.0
        _run_again(app_state, job, delay)
    elif isinstance(signal, Reject) and getattr(signal, "requeue", False):
        _run_again(app_state, job, REQUEUE_DELAY)
        raise Ignore(str(signal))
    elif isinstance(signal, Reject):
        ledger.fail(job, encode_failure(signal), "the task rejected its message")
    elif run.replaced:
        ledger.mark_canvas_notified(ledger.abandon(job, REPLACED))  # the replacement notifies the canvas
    else:
        ledger.abandon(job, "the task raised Ignore")


def _run_again(app_state: AppState, job: Job, delay: float) -> None:
    again = app_state.ledger.retry(
        job, delay=delay, payload=job.payload, options=job.options, retries=job.retries + 1, error=None,
        reason=_retry_reason(delay),
    )  # fmt: skip
    if delay <= 0 and not again.state.final:
        app_state.publisher.publish(again)


def record_retry(task: BoundTask, run: RunningJob, args: Any, kwargs: Any, options: Mapping[str, Any]) -> Job:
    """Record a retry in place of the publication by `Task.retry`, and return the job. Raises `LeaseLost`."""
    app_state, delay = app_state_of(task.app), delay_of(options)
    try:
        job = wait_for_store(
            run.id,
            partial(
                app_state.ledger.retry,
                run.job,
                delay=delay,
                payload=encode(str(task.name), args, kwargs, app_state.settings.limits),
                options=encode_options(options, app_state.settings.limits),
                retries=options.get("retries") or 0,
                error=_encode_current_error(),
                reason=_retry_reason(delay),
            ),
        )
    except StaleTokenError:
        raise LeaseLost(run.id) from None
    run.retried = True
    if delay <= 0 and not job.state.final:
        publish(task, job)
    return job


def _retry_reason(delay: float) -> str:
    """Return the reason of a retry, with the exception that is being handled."""
    cause = sys.exc_info()[1]
    because = f" after {describe(cause)}" if isinstance(cause, Exception) and not isinstance(cause, Retry) else ""
    return f"runs again in {delay:g} s{because}" if delay > 0 else f"runs again at once{because}"


def _encode_current_error() -> str | None:
    """Return the JSON of the exception that is being handled."""
    cause = sys.exc_info()[1]
    return encode_failure(cause) if isinstance(cause, Exception) else None


# --- jobs that end without a run ------------------------------------------------------------------------------------


def _end_follower(task: BoundTask, request: Any, app_state: AppState, job: Job) -> Any:
    """End a follower as the job that it follows ended; its body never runs."""
    ledger = app_state.ledger
    followed = ledger.get_or_none(str(job.follows_id))
    if followed is not None and not followed.state.final:
        _release_and_ignore(app_state, job, f"waits for the end of {followed.id}")
    if followed is not None and followed.reason == REPLACED:
        ended = _end_as_replacement(task, app_state, job)
    elif followed is not None and followed.state is State.COMPLETED:
        ended = ledger.complete(job, followed.result or "null")
    elif followed is not None and followed.state is State.CANCELED:
        ended = ledger.abandon(job, f"it follows job {followed.id}, which was canceled: {followed.reason}")
    else:
        error = (followed and followed.error) or _encode_purged(job)
        ended = ledger.fail(job, error, f"it follows job {job.follows_id}, which failed")
    return _return_end(task, request, app_state, ended)


def _end_as_replacement(task: BoundTask, app_state: AppState, job: Job) -> Job:
    """End a follower as the task ended that replaced the followed job. Only Celery's result backend has that end."""
    if isinstance(task.backend, DisabledBackend):
        reason = f"it follows job {job.follows_id}, which was replaced by a task without a result"
        return app_state.ledger.abandon(job, reason)
    result = task.AsyncResult(str(job.follows_id))
    if not result.ready():
        _release_and_ignore(app_state, job, f"waits for the end of the task that replaced {job.follows_id}")
    if result.successful():
        return app_state.ledger.complete(job, dumps(result.result, "the result", app_state.settings.limits))
    reason = f"it follows job {job.follows_id}, whose replacement failed"
    return app_state.ledger.fail(job, encode_failure(result.result), reason)


def _release_and_ignore(app_state: AppState, job: Job, reason: str) -> NoReturn:
    """Release a follower: it is published again when the followed job ends, or after one lease."""
    app_state.ledger.release(job, reason)
    raise Ignore(reason)


def _encode_purged(job: Job) -> str:
    message = f"job {job.follows_id}, which {job.id} followed, was purged before its end was known"
    return encode_failure(RuntimeError(message))


def _return_end(task: BoundTask, request: Any, app_state: AppState, job: Job) -> Any:
    """Return the result, or raise the failure, of a job that has ended, so that Celery notifies its canvas."""
    if job.reason == REPLACED:
        app_state.ledger.mark_canvas_notified(job)
        raise Ignore(job.reason)
    request.onejob = job
    if job.state is State.COMPLETED:
        return loads(job.result or "null")
    if job.state is State.FAILED:
        raise decode_failure(job.id, job.error)
    _report_canceled(task, request, app_state, job)
    raise Ignore(job.reason)


def _report_canceled(task: BoundTask, request: Any, app_state: AppState, job: Job) -> None:
    task.backend.mark_as_revoked(job.id, job.reason, request=request, store_result=not request.ignore_result)
    app_state.ledger.mark_canvas_notified(job)


def _on_canvas_dispatched(sender: Any, **_: Any) -> None:
    """Record that Celery has dispatched the links, chain and chord part of a job that just ended."""
    job = getattr(getattr(sender, "request", None), "onejob", None)
    if job is not None and job.canvas_pending:
        try:
            app_state = app_state_of(sender.app)
            app_state.ledger.mark_canvas_notified(app_state.ledger.get(job.id))
        except (StoreError, LookupError) as error:
            logger.warning("job %s: its canvas may be notified twice: %s", job.id, error)


signals.task_success.connect(_on_canvas_dispatched, weak=False, dispatch_uid="onejob.canvas_dispatched")
signals.task_failure.connect(_on_canvas_dispatched, weak=False, dispatch_uid="onejob.canvas_dispatched")
