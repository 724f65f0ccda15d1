"""Executes one message in a worker's child: claims the job, runs its body, and records how the run ended.

The claim comes before Celery's tracer: a message whose job cannot be claimed ends there, without an exception, whose
tracebacks Celery would build and send to the parent, and without a write. It costs less than a run.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Reject, Retry, WorkerLostError

from onejob.celery.app_state import app_state_of
from onejob.celery.call import Call, Caller, build, delay_of, resolve_call
from onejob.celery.current_job import RunningJob, claim_of, set_current_job
from onejob.celery.failure import encode_failure
from onejob.celery.message import MARK, decode, encode, encode_options, loads, replacement_depth, with_parents
from onejob.celery.options import options_of
from onejob.celery.replacement import await_replacement, claim_replaced, replace_and_publish
from onejob.celery.submit import check_task, needs_message, submit_to_ledger
from onejob.celery.webhooks import create_task_webhook
from onejob.celery.worker.canvas import end_follower, report_canceled, return_end, watch_canvas
from onejob.celery.worker.store_wait import end_run, wait_for_store
from onejob.errors import (
    JobCanceled,
    JobInterrupted,
    JobReleased,
    LeaseLost,
    OneJobError,
    StaleTokenError,
    StoreError,
    StoreRefusedError,
    TaskIdReusedError,
    describe,
)
from onejob.jobs.lifecycle import RULES, State, Transition
from onejob.jobs.model import Duplicate, Outcome
from onejob.jobs.transitions import new_nonce
from onejob.observability import tracing
from onejob.observability.events import transition_event

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from onejob.celery.app_state import AppState
    from onejob.celery.message import Message
    from onejob.celery.options import BoundTask, TaskOptions
    from onejob.jobs.model import Applied, Job, Submission

logger = logging.getLogger("onejob")
REQUEUE_DELAY = 1.0
"""Seconds until a job that rejected its message with `requeue=True` runs again."""


_claimed: ContextVar[tuple[Applied, str]] = ContextVar("onejob_claimed")
"""The answer to the claim of the message that is traced, and the nonce of the claim."""


class Refusal:
    """What the parent gets for a message that starts no run, in place of Celery's `ExceptionInfo`."""

    def __init__(self, reason: str) -> None:
        self.exception = Ignore(reason)
        self.traceback = ""


def trace_message(
    task: BoundTask, trace: Callable[..., Any], task_id: str, args: Any, kwargs: Any, request: dict[str, Any]
) -> tuple[Any, Any, float, str | None]:
    """Claim the job of a message, and have Celery trace its run; `trace` is the tracer, whose answer is returned."""
    app_state = app_state_of(task.app)
    nonce = claim_of(request.get("onejob_claim") or new_nonce(), os.getpid())
    claim = partial(app_state.ledger.claim, task_id, nonce=nonce, node=str(request.get("hostname")))
    try:
        claimed = claim_replaced(claim, _depth_of(request))
    except StoreError as error:
        logger.critical("job %s: the ledger failed, the job recovers when its lease expires: %s", task_id, error)
        return Refusal(str(error)), True, 0.0, None
    reason = _find_refusal(claimed, nonce, is_marked=request.get(MARK) == task_id)
    if reason:
        logger.info("job %s: %s", task_id, reason)
        if claimed.job is not None and (request.get("delivery_info") or {}).get("redelivered"):
            _record_redelivery(claimed.job, str(request.get("hostname")), app_state)
        return Refusal(reason), True, 0.0, None
    _claimed.set((claimed, nonce))
    return trace(task_id, args, kwargs, request)  # type: ignore[no-any-return]


def _find_refusal(claimed: Applied, nonce: str, *, is_marked: bool) -> str:
    """Return why a message starts no run; "" if its job is claimed, new, or still to be ended by this message."""
    job = claimed.job
    if job is None:
        return "a late copy of its message was dropped, because the job was purged" if is_marked else ""
    if claimed.applied or (job.state.final and job.canvas_pending) or _is_of_dead_child(job, nonce):
        return ""
    return f"not claimed: it is {job.state} ({job.reason}), attempt {job.attempt}"


def _is_of_dead_child(job: Job, nonce: str) -> bool:
    """Return whether an earlier process has claimed the job for this message, and died."""
    return job.state is State.RUNNING and job.claim[:8] == nonce[:8]


def execute_message(task: BoundTask, request: Any, body: Callable[..., Any]) -> Any:
    """Run the job of a message if it can be claimed, and return its result.

    Raises what the body raises, or Celery's `Ignore` if Celery must not record this delivery: the job runs elsewhere,
    the run was overtaken, or the ledger does not answer (then the job recovers when its lease expires).
    """
    app_state = app_state_of(task.app)
    try:
        job = _claim(task, request, app_state)
        message = _check_message(task, request, app_state, job)
        if job.canvas_pending:
            watch_canvas(request, job)
        if job.state.final:
            return return_end(task, request, app_state, job)
        if job.follows_id is not None:
            return end_follower(task, request, app_state, job)
        with tracing.tracer.run(job):
            return _run(task, request, app_state, job, message, body)
    except (StaleTokenError, TaskIdReusedError) as error:
        logger.warning("%s", error)
        raise Ignore(str(error)) from None
    except StoreRefusedError:  # the error of a failed job
        raise
    except StoreError as error:
        logger.critical("job %s: the ledger failed, the job recovers when its lease expires: %s", request.id, error)
        raise Ignore(str(error)) from None


# --- before the body ------------------------------------------------------------------------------------------------


def _claim(task: BoundTask, request: Any, app_state: AppState) -> Job:
    """Return the job, claimed for this run, or ended with its canvas not yet notified. Raises `Ignore` otherwise."""
    claimed, nonce = _claimed.get()
    if claimed.job is None:
        _submit_message(task, request, app_state)
    elif not claimed.applied and _is_of_dead_child(claimed.job, nonce):
        reason = "its worker process died right after its start"
        app_state.ledger.crash(claimed.job, reason, encode_failure(WorkerLostError(reason)))
    else:
        return claimed.job
    claimed = app_state.ledger.claim(request.id, nonce=nonce, node=str(request.hostname))
    reason = _find_refusal(claimed, nonce, is_marked=True)
    if reason or claimed.job is None:
        raise Ignore(reason)
    return claimed.job


def _record_redelivery(job: Job, node: str, app_state: AppState) -> None:
    """Record a message that the broker has delivered again, whose job is running or has ended, as a duplicate."""
    if job.state in RULES[Transition.CLAIM].sources:
        return
    duplicate = Duplicate(
        job_id=job.id, submission_nonce="", outcome=Outcome.REJECTED, answered_by=job.id, source="redelivery",
        submitter="", host=node, fingerprint=job.fingerprint, arguments_differ=False,
    )  # fmt: skip
    with suppress(StoreError):  # duplicates are statistics only
        app_state.ledger.record(duplicate)


def _submit_message(task: BoundTask, request: Any, app_state: AppState) -> None:
    """Submit the job of a message that is not in the ledger: from `send_task`, another language, another broker."""
    carrier = {name: str(value) for name in tracing.TRACE_CONTEXT if (value := request.get(name))}
    with tracing.tracer.submit(str(task.name), "message", carrier=carrier) as span:
        submission = _submission_of(task, request)
        admission = submit_to_ledger(app_state.ledger, submission)
        span.record([admission])
    if admission.rescheduled and needs_message(submission, admission):
        app_state.publisher.try_publish(admission.job)
    if admission.follower is not None and admission.outcome is not Outcome.REPLAYED:
        msg = f"duplicate of job {admission.job.id} ({admission.job.state}), which it follows"
        raise Ignore(msg)


def _submission_of(task: BoundTask, request: Any) -> Submission:
    signature = task.signature_from_request(request)
    options = {name: value for name, value in signature.options.items() if name != "expires"}
    return build(
        Call(
            task, Caller.of(task.app), signature.args, signature.kwargs, options, source="message", task_id=request.id,
            is_message=True,
        )
    )  # fmt: skip


def _check_message(task: BoundTask, request: Any, app_state: AppState, job: Job) -> Message:
    """Return the message in the job's payload.

    Raises `Ignore` for a message that the job has not: of another task, or of the task that replaces the job. The
    latter's job goes on as that task, and is published again.
    """
    message, ledger = decode(job.payload), app_state.ledger
    if message.replaced_by is not None and _depth_of(request) > replacement_depth(job.options):
        replace_and_publish(task.app, job, _submission_of(task, request))
        msg = f"job {job.id} goes on as {task.name}"
        raise Ignore(msg)
    if message.task != task.name:
        msg = f"this message of {task.name} is ignored: job {job.id} is a job of {message.task}"
        logger.warning("%s", msg)
        if job.state is State.RUNNING:
            waiting = app_state.publisher.message_of(job)
            app_state.publisher.try_publish(ledger.release(job, msg, message=waiting), pushed=waiting)
        raise Ignore(msg)
    return message


def _depth_of(request: Any) -> int:
    return int(request.get("replaced_task_nesting") or 0)


# --- the body -------------------------------------------------------------------------------------------------------


def _run(
    task: BoundTask, request: Any, app_state: AppState, job: Job, message: Message, body: Callable[..., Any]
) -> Any:
    if message.replaced_by is not None:
        return return_end(task, request, app_state, await_replacement(task, job))
    if options_of(task).webhook_url is not None:
        wait_for_store(job.id, partial(create_task_webhook, task, app_state.ledger, job))
    request.retries = job.retries
    if job.attempt > job.retries + 1:  # as the broker says of a message that it delivers again
        request.delivery_info = {**(request.delivery_info or {}), "redelivered": True}
    request.args, request.kwargs = message.args, message.kwargs
    options = _identity_options(task, job)
    if options.unique_until == "started" and job.holds_identity:
        job = wait_for_store(job.id, partial(app_state.ledger.release_identity, job))
    limits, typed = app_state.settings.limits, options_of(task).typed
    run = RunningJob(job, app_state.ledger, limits, options.retention_of(job), typed)
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


def _identity_options(task: BoundTask, job: Job) -> TaskOptions:
    """Return the options that decide on the job's identity: those of its own task, also when another replaced it."""
    own: Any = task.app.tasks.get(job.task)
    return options_of(own if hasattr(own, "_onejob") else task)


def _complete(run: RunningJob, app_state: AppState, result: Any) -> Any:
    """Complete a run whose body has returned, and return its result."""
    if not run.completes_in_transaction:
        end_run(run.id, partial(run.complete, result))
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
        reason = error.reason  # type: ignore[attr-defined] # missing in the stubs
        error = reason if isinstance(reason, Exception) else error
    if isinstance(error, StoreError) and not isinstance(error, StoreRefusedError):
        unreached = f"its run could not reach the store: {error}"
        wait_for_store(run.id, lambda: app_state.ledger.release(run.job, unreached))
        raise Ignore(unreached)
    if isinstance(error, JobInterrupted):
        _handle_interrupt(task, request, app_state, run.job, error)
        raise Ignore(str(error)) from None
    if isinstance(error, Retry | Ignore | Reject):
        _handle_celery_signal(task, app_state, run, error)
    elif isinstance(error, Exception) and not isinstance(error, StaleTokenError):
        end_run(run.id, partial(app_state.ledger.fail, run.job, encode_failure(error), describe(error)))


def _handle_interrupt(task: BoundTask, request: Any, app_state: AppState, job: Job, signal: JobInterrupted) -> None:
    if isinstance(signal, JobCanceled):
        end_run(job.id, partial(app_state.ledger.abandon, job, "canceled on request"))
        report_canceled(task, request, app_state, job)
    elif isinstance(signal, JobReleased):
        # Due at once, for the sweeper of another worker: this one may still consume messages.
        app_state.ledger.release(job, "its worker is shutting down", wake_in=0)


def _handle_celery_signal(
    task: BoundTask, app_state: AppState, run: RunningJob, signal: Retry | Ignore | Reject
) -> None:
    """Apply the transition for a `Retry`, `Ignore` or `Reject` that a body has raised."""
    if run.ended:
        return
    job, ledger = run.job, app_state.ledger
    if isinstance(signal, Retry):
        delay = signal.when if isinstance(signal.when, int | float) else 0.0
        end_run(job.id, partial(_run_again, task, app_state, job, delay, retries=job.retries + 1))
    elif isinstance(signal, Reject) and signal.requeue:  # type: ignore[attr-defined] # missing in the stubs
        end_run(job.id, partial(_run_again, task, app_state, job, REQUEUE_DELAY, retries=job.retries))
        raise Ignore(str(signal))
    elif isinstance(signal, Reject):
        end_run(job.id, partial(ledger.fail, job, encode_failure(signal), "the task rejected its message"))
    else:
        end_run(job.id, partial(ledger.abandon, job, "the task raised Ignore"))


def _run_again(task: BoundTask, app_state: AppState, job: Job, delay: float, *, retries: int, request_id: str) -> None:
    changes: dict[str, Any] = {"payload": job.payload, "options": job.options, "retries": retries}
    retry = partial(app_state.ledger.retry, error=None, reason=_retry_reason(delay), request_id=request_id)
    _publish_again(task, retry, job, delay, changes)


def _publish_again(
    task: BoundTask, change: Callable[..., Job], job: Job, delay: float, values: Mapping[str, Any]
) -> Job:
    """Apply a change after which a job waits for its next run, and publish it if that is due."""
    publisher = app_state_of(task.app).publisher
    message = publisher.message_of(job, **values) if delay <= 0 else None
    again = change(job, delay=delay, message=message, **values)
    if delay <= 0 and not again.state.final:
        publisher.try_publish(again, pushed=message)
    return again


def record_retry(run: RunningJob, call: Call) -> Job:
    """Record a retry in place of the publication by `Task.retry`, and return the job. Raises `LeaseLost`.

    Within `Task.replace`, the job goes on as the task of the call. Otherwise another task raises `TaskIdReusedError`,
    and another route than the job's own what a submission raises.
    """
    if not run.replaced:
        check_task(run.job, str(call.task.name))
    change = partial(_replace if run.replaced else _retry, call, run.job)
    try:
        job = end_run(run.id, change)
    except StaleTokenError:
        raise LeaseLost(run.id) from None
    run.ended = True
    return job


def _replace(call: Call, job: Job, *, request_id: str) -> Job:
    return replace_and_publish(call.task.app, job, build(call), request_id=request_id)


def _retry(call: Call, job: Job, *, request_id: str) -> Job:
    task, (args, kwargs, options) = call.task, resolve_call(call)
    app_state, delay = app_state_of(task.app), delay_of(options)
    payload = encode(str(task.name), args, kwargs, app_state.settings.limits)
    route, sent_options = app_state.routing.resolve_retry(job.route, task, args, kwargs, options)
    app_state.routing.check_message(payload, sent_options)
    encoded = encode_options(sent_options, app_state.settings.limits)
    if trace := tracing.trace_of(job.options):
        encoded = with_parents(encoded, trace)
    changes = {"payload": payload, "options": encoded, "route": route, "retries": options.get("retries") or 0}
    reason = _retry_reason(delay)
    retry = partial(app_state.ledger.retry, error=_encode_current_error(), reason=reason, request_id=request_id)
    return _publish_again(task, retry, job, delay, changes)


def _retry_reason(delay: float) -> str:
    """Return the reason of a retry, with the exception that is being handled."""
    cause = sys.exc_info()[1]
    because = f" after {describe(cause)}" if isinstance(cause, Exception) and not isinstance(cause, Retry) else ""
    return f"runs again in {delay:g} s{because}" if delay > 0 else f"runs again at once{because}"


def _encode_current_error() -> str | None:
    """Return the JSON of the exception that is being handled."""
    cause = sys.exc_info()[1]
    return encode_failure(cause) if isinstance(cause, Exception) else None
