"""One delivery of one message to a worker's child: claim, run the body, and tell the ledger how it ended."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from celery import signals
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, Reject, Retry, WorkerLostError

from onejob.celery.app_state import app_state_of
from onejob.celery.current_job import RunningJob, claim_of, running
from onejob.celery.failure import decode_failure, describe, encode_failure
from onejob.celery.message import REPLACED, decode, dumps, encode, encode_options, loads
from onejob.celery.options import options_of
from onejob.celery.submit import delay_of, publish, submission_of, submit, wants_message
from onejob.celery.webhooks import create_task_webhook
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


def deliver(task: BoundTask, request: Any, body: Callable[..., Any]) -> Any:
    """Run a message's job if it may run, and return its result.

    Raises what the body raises, or Celery's `Ignore` when this delivery must leave no trace: a copy of a message whose
    job runs elsewhere, a run that was overtaken, a ledger that does not answer (then the lease heals).
    """
    app_state = app_state_of(task.app)
    try:
        job = _claim(task, request, app_state)
        request.onejob = job
        if job.state.final:
            return _tell_again(task, request, app_state, job)
        if job.follows_id is not None:
            return _follow(task, request, app_state, job)
        return _run(task, request, app_state, job, body)
    except StaleTokenError as error:
        logger.warning("%s", error)
        raise Ignore(str(error)) from None
    except StoreError as error:
        logger.critical("job %s: the ledger failed, its lease will heal it: %s", request.id, error)
        raise Ignore(str(error)) from None


# --- before the body ------------------------------------------------------------------------------------------------


def _claim(task: BoundTask, request: Any, app_state: AppState) -> Job:
    """Return the job that this delivery may run, or one that has ended and must be told again. Raises `Ignore`."""
    nonce = claim_of(request.get("onejob_claim") or new_nonce(), os.getpid())
    claimed = app_state.ledger.claim(request.id, nonce=nonce, node=str(request.hostname))
    if claimed.job is None:
        _admit(task, request, app_state)
    elif not claimed.applied and claimed.job.state is State.RUNNING and claimed.job.claim[:8] == nonce[:8]:
        reason = "its worker process died as soon as it had begun"
        app_state.ledger.crash(claimed.job, reason, encode_failure(WorkerLostError(reason)))
    else:
        return _runnable(request, claimed, app_state)
    return _runnable(request, app_state.ledger.claim(request.id, nonce=nonce, node=str(request.hostname)), app_state)


def _runnable(request: Any, claimed: Applied, app_state: AppState) -> Job:
    job = claimed.job
    if job is None:
        msg = f"job {request.id} is gone"
        raise Ignore(msg)
    if not claimed.applied and not (job.state.final and job.canvas_pending):
        if job.state not in RULES[Transition.CLAIM].sources:
            _record_refusal(request, job, app_state)
        msg = f"not claimed: job {job.id} is {job.state} ({job.reason}), attempt {job.attempt}"
        raise Ignore(msg)
    return job


def _record_refusal(request: Any, job: Job, app_state: AppState) -> None:
    """Leave the duplicate of a message that came again for a job which runs already, or has ended."""
    duplicate = Duplicate(
        job_id=job.id, submission_nonce="", outcome=Outcome.REJECTED, answered_by=job.id, source="redelivery",
        submitter="", host=str(request.hostname), fingerprint=job.fingerprint, arguments_differ=False,
    )  # fmt: skip
    with suppress(StoreError):  # nothing depends on it
        app_state.ledger.record(duplicate)


def _admit(task: BoundTask, request: Any, app_state: AppState) -> None:
    """Admit a message whose job the ledger does not know: from `send_task`, another language, another broker."""
    signature = task.signature_from_request(request)
    options = {name: value for name, value in signature.options.items() if name != "expires"}
    submission = submission_of(task, signature.args, signature.kwargs, options, task_id=request.id, source="message")
    admission = submit(app_state.ledger, submission)
    if admission.rescheduled and wants_message(submission, admission):
        publish(task, admission.job)
    if admission.follower is not None and admission.outcome is not Outcome.REPLAYED:
        msg = f"duplicate of job {admission.job.id} ({admission.job.state}), which it follows"
        raise Ignore(msg)


# --- the body -------------------------------------------------------------------------------------------------------


def _run(task: BoundTask, request: Any, app_state: AppState, job: Job, body: Callable[..., Any]) -> Any:
    message = decode(job.payload)
    if message.task != task.name:  # an old message of a job that was replaced since
        app_state.publisher.publish(app_state.ledger.release(job, f"it is a job of {message.task} by now"))
        raise Ignore(f"job {job.id} is a job of {message.task} by now")
    create_task_webhook(task, app_state.ledger, job)
    request.retries = job.retries
    request.args, request.kwargs = message.args, message.kwargs
    options = options_of(task)
    if options.unique_until == "started" and job.holds_identity:
        job = app_state.ledger.release_identity(job)
    with running(RunningJob(job, app_state.ledger, app_state.settings.limits, options.keep(job))) as run:
        try:
            run.stop_if_draining()
            return _complete(run, app_state, body(*message.args, **message.kwargs))
        except BaseException as error:
            run.undo()  # what is still open would hold the job's row; a commit that took place is not harmed
            ended = _ended_in_transaction(run, app_state)
            if ended is not None:  # its own transaction: nothing that came afterwards can undo it
                logger.warning("job %s was completed by its transaction, which then raised %s", job.id, describe(error))
                return loads(ended.result or "null")
            _ended_badly(task, request, app_state, run, error)
            raise


def _complete(run: RunningJob, app_state: AppState, result: Any) -> Any:
    """End a run whose body has returned."""
    if not run.ending:
        run.complete(result)
        return result
    ended = _ended_in_transaction(run, app_state)
    if ended is None:
        msg = "the body called complete_in, but its transaction was not committed"
        raise OneJobError(msg)
    return loads(ended.result or "null")


def _ended_in_transaction(run: RunningJob, app_state: AppState) -> Job | None:
    """Return the job if a transaction of the body has ended it, of which the ledger could not tell before."""
    ended = run.committed()
    if ended is not None:
        app_state.ledger.emit(transition_event(Transition.COMPLETE, ended))
    return ended


def _ended_badly(task: BoundTask, request: Any, app_state: AppState, run: RunningJob, error: BaseException) -> None:
    """Tell the ledger how a run ended that did not complete. Raises `Ignore` where Celery must do nothing more."""
    if isinstance(error, Reject):  # also Celery's word for a retry that could not be written down
        reason = getattr(error, "reason", None)
        error = reason if isinstance(reason, Exception) else error
    if isinstance(error, StoreUnavailableError):
        raise error  # its lease heals it
    if isinstance(error, JobInterrupted):
        _interrupted(task, request, app_state, run.job, error)
        raise Ignore(str(error)) from None
    if isinstance(error, Retry | Ignore | Reject):
        _asked_of_celery(app_state, run, error)
    elif isinstance(error, Exception) and not isinstance(error, StaleTokenError):
        app_state.ledger.fail(run.job, encode_failure(error), describe(error))


def _interrupted(task: BoundTask, request: Any, app_state: AppState, job: Job, signal: JobInterrupted) -> None:
    if isinstance(signal, JobCanceled):
        app_state.ledger.abandon(job, "canceled on request")
        _tell_canceled(task, request, app_state, job)
    elif isinstance(signal, JobReleased):
        # Left to the sweeper of another worker: this one may still be taking messages.
        app_state.ledger.release(job, "its worker is shutting down", wake_in=0)


def _asked_of_celery(app_state: AppState, run: RunningJob, signal: Retry | Ignore | Reject) -> None:
    """Turn what a body asked of Celery into the job's transition."""
    if run.moved_on:
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
        ledger.mark_canvas_notified(ledger.abandon(job, REPLACED))  # the replacement tells the canvas
    else:
        ledger.abandon(job, "the task raised Ignore")


def _run_again(app_state: AppState, job: Job, delay: float) -> None:
    again = app_state.ledger.retry(
        job, delay=delay, payload=job.payload, options=job.options, retries=job.retries + 1, error=None,
        reason=_retry_reason(delay),
    )  # fmt: skip
    if delay <= 0 and not again.state.final:
        app_state.publisher.publish(again)


def retry(task: BoundTask, run: RunningJob, args: Any, kwargs: Any, options: Mapping[str, Any]) -> Job:
    """Turn the publication that `Task.retry` asks for into the transition of the job, and return it."""
    app_state, delay = app_state_of(task.app), delay_of(options)
    try:
        job = app_state.ledger.retry(
            run.job,
            delay=delay,
            payload=encode(str(task.name), args, kwargs, app_state.settings.limits),
            options=encode_options(options, app_state.settings.limits),
            retries=options.get("retries") or 0,
            error=_error_under_way(),
            reason=_retry_reason(delay),
        )
    except StaleTokenError:
        raise LeaseLost(run.id) from None
    run.moved_on = True
    if delay <= 0 and not job.state.final:
        publish(task, job)
    return job


def _retry_reason(delay: float) -> str:
    """Return why a job waits for its next run."""
    cause = sys.exc_info()[1]
    because = f" after {describe(cause)}" if isinstance(cause, Exception) and not isinstance(cause, Retry) else ""
    return f"runs again in {delay:g} s{because}" if delay > 0 else f"runs again at once{because}"


def _error_under_way() -> str | None:
    """Return the JSON of the exception that is being handled."""
    cause = sys.exc_info()[1]
    return encode_failure(cause) if isinstance(cause, Exception) else None


# --- ends that come from elsewhere ----------------------------------------------------------------------------------


def _follow(task: BoundTask, request: Any, app_state: AppState, job: Job) -> Any:
    """End a follower as its leader ended; its body never runs."""
    ledger = app_state.ledger
    followed = ledger.get_or_none(str(job.follows_id))
    if followed is not None and not followed.state.final:
        _wait(app_state, job, f"waits for the end of {followed.id}")
    if followed is not None and followed.reason == REPLACED:
        ended = _as_replacement(task, app_state, job)
    elif followed is not None and followed.state is State.COMPLETED:
        ended = ledger.complete(job, followed.result or "null")
    elif followed is not None and followed.state is State.CANCELED:
        ended = ledger.abandon(job, f"its leader {followed.id} was canceled: {followed.reason}")
    else:
        ended = ledger.fail(
            job, (followed and followed.error) or _leader_gone(job), f"its leader {job.follows_id} failed"
        )
    return _tell_again(task, request, app_state, ended)


def _as_replacement(task: BoundTask, app_state: AppState, job: Job) -> Job:
    """End a follower as the task ended that has its leader's id now, which only Celery's result backend knows."""
    if isinstance(task.backend, DisabledBackend):
        return app_state.ledger.abandon(job, f"its leader {job.follows_id} was replaced by a task without a result")
    result = task.AsyncResult(str(job.follows_id))
    if not result.ready():
        _wait(app_state, job, f"waits for the end of what replaced {job.follows_id}")
    if result.successful():
        return app_state.ledger.complete(job, dumps(result.result, "the result", app_state.settings.limits))
    return app_state.ledger.fail(
        job, encode_failure(result.result), f"what replaced its leader {job.follows_id} failed"
    )


def _wait(app_state: AppState, job: Job, reason: str) -> NoReturn:
    """Look again when the leader's end rings the alarm, or in one lease."""
    app_state.ledger.release(job, reason)
    raise Ignore(reason)


def _leader_gone(job: Job) -> str:
    message = f"job {job.follows_id}, which {job.id} followed, was purged before its end was told"
    return encode_failure(RuntimeError(message))


def _tell_again(task: BoundTask, request: Any, app_state: AppState, job: Job) -> Any:
    """Give Celery the end of a job that has ended, so that it tells the canvas behind it."""
    if job.reason == REPLACED:
        app_state.ledger.mark_canvas_notified(job)
        raise Ignore(job.reason)
    request.onejob = job
    if job.state is State.COMPLETED:
        return loads(job.result or "null")
    if job.state is State.FAILED:
        raise decode_failure(job.id, job.error)
    _tell_canceled(task, request, app_state, job)
    raise Ignore(job.reason)


def _tell_canceled(task: BoundTask, request: Any, app_state: AppState, job: Job) -> None:
    task.backend.mark_as_revoked(job.id, job.reason, request=request, store_result=not request.ignore_result)
    app_state.ledger.mark_canvas_notified(job)


def _on_canvas_dispatched(sender: Any, **_: Any) -> None:
    """Note that Celery has dispatched links, chain and chord part of the job that just ended."""
    job = getattr(getattr(sender, "request", None), "onejob", None)
    if job is not None and job.canvas_pending:
        try:
            app_state = app_state_of(sender.app)
            app_state.ledger.mark_canvas_notified(app_state.ledger.get(job.id))
        except (StoreError, LookupError) as error:
            logger.warning("job %s: its canvas may be told twice: %s", job.id, error)


signals.task_success.connect(_on_canvas_dispatched, weak=False, dispatch_uid="onejob.told")
signals.task_failure.connect(_on_canvas_dispatched, weak=False, dispatch_uid="onejob.told")
