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

from onejob.celery.callbacks import tell_task
from onejob.celery.failure import decode_failure, describe, encode_failure
from onejob.celery.message import REPLACED, decode, dumps, loads
from onejob.celery.running import RunningJob, claim_of, running
from onejob.celery.runtime import runtime_of
from onejob.celery.submitting import publish, submission_of, submit, wants_message
from onejob.changes import new_nonce
from onejob.errors import (
    JobCanceled,
    JobInterrupted,
    JobReleased,
    OneJobError,
    StaleTokenError,
    StoreError,
    StoreUnavailableError,
)
from onejob.facts import happened
from onejob.job import Outcome, Receipt
from onejob.lifecycle import RULES, Event, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.celery.runtime import Runtime
    from onejob.celery.task import Task
    from onejob.job import Applied, Job

logger = logging.getLogger("onejob")
REQUEUE_DELAY = 1.0
"""Seconds until a job that rejected its message with `requeue=True` runs again."""


def deliver(task: Task, request: Any, body: Callable[..., Any]) -> Any:
    """Run a message's job if it may run, and return its result.

    Raises what the body raises, or Celery's `Ignore` when this delivery must leave no trace: a copy of a message whose
    job runs elsewhere, a run that was overtaken, a ledger that does not answer (then the lease heals).
    """
    runtime = runtime_of(task.app)
    try:
        job = _claim(task, request, runtime)
        request.onejob = job
        if job.state.final:
            return _tell_again(task, request, runtime, job)
        if job.leader is not None:
            return _follow(task, request, runtime, job)
        return _run(task, request, runtime, job, body)
    except StaleTokenError as error:
        logger.warning("%s", error)
        raise Ignore(str(error)) from None
    except StoreError as error:
        logger.critical("job %s: the ledger failed, its lease will heal it: %s", request.id, error)
        raise Ignore(str(error)) from None


# --- before the body ------------------------------------------------------------------------------------------------


def _claim(task: Task, request: Any, runtime: Runtime) -> Job:
    """Return the job that this delivery may run, or one that has ended and must be told again. Raises `Ignore`."""
    nonce = claim_of(request.get("onejob_claim") or new_nonce(), os.getpid())
    claimed = runtime.ledger.claim(request.id, nonce=nonce, node=str(request.hostname))
    if claimed.job is None:
        _admit(task, request, runtime)
    elif not claimed.done and claimed.job.state is State.RUNNING and claimed.job.claim[:8] == nonce[:8]:
        reason = "its worker process died as soon as it had begun"
        runtime.ledger.crash(claimed.job, reason, encode_failure(WorkerLostError(reason)))
    else:
        return _runnable(request, claimed, runtime)
    return _runnable(request, runtime.ledger.claim(request.id, nonce=nonce, node=str(request.hostname)), runtime)


def _runnable(request: Any, claimed: Applied, runtime: Runtime) -> Job:
    job = claimed.job
    if job is None:
        msg = f"job {request.id} is gone"
        raise Ignore(msg)
    if not claimed.done and not (job.state.final and job.undelivered):
        if job.state not in RULES[Event.CLAIM].sources:
            _record_refusal(request, job, runtime)
        msg = f"not claimed: job {job.id} is {job.state} ({job.reason}), attempt {job.attempt}"
        raise Ignore(msg)
    return job


def _record_refusal(request: Any, job: Job, runtime: Runtime) -> None:
    """Leave the receipt of a message that came again for a job which runs already, or has ended."""
    receipt = Receipt(
        job_id=job.id, submission="", outcome=Outcome.REJECTED, answer=job.id, door="redelivery",
        submitter="", host=str(request.hostname), fingerprint=job.fingerprint, differs=False,
    )  # fmt: skip
    with suppress(StoreError):  # nothing depends on it
        runtime.ledger.record(receipt)


def _admit(task: Task, request: Any, runtime: Runtime) -> None:
    """Admit a message whose job the ledger does not know: from `send_task`, another language, another broker."""
    signature = task.signature_from_request(request)
    options = {name: value for name, value in signature.options.items() if name != "expires"}
    new = submission_of(task, signature.args, signature.kwargs, options, task_id=request.id, door="message")
    admission = submit(runtime.ledger, new)
    if admission.moved and wants_message(new, admission):
        publish(task, admission.job)
    if admission.follower is not None and admission.outcome is not Outcome.REPLAYED:
        msg = f"duplicate of job {admission.job.id} ({admission.job.state}), which it follows"
        raise Ignore(msg)


# --- the body -------------------------------------------------------------------------------------------------------


def _run(task: Task, request: Any, runtime: Runtime, job: Job, body: Callable[..., Any]) -> Any:
    message = decode(job.payload)
    if message.task != task.name:  # an old message of a job that was replaced since
        runtime.publisher.publish(runtime.ledger.release(job, f"it is a job of {message.task} by now"))
        raise Ignore(f"job {job.id} is a job of {message.task} by now")
    tell_task(task, runtime.ledger, job)
    request.retries = job.retries
    request.args, request.kwargs = message.args, message.kwargs
    if task.unique_until == "started" and job.holds:
        job = runtime.ledger.free(job)
    with running(RunningJob(job, runtime.ledger, runtime.settings.limits, task.keep(job))) as run:
        try:
            run.stop_if_draining()
            return _complete(run, runtime, body(*message.args, **message.kwargs))
        except BaseException as error:
            run.undo()  # what is still open would hold the job's row; a commit that took place is not harmed
            ended = _ended_in_transaction(run, runtime)
            if ended is not None:  # its own transaction: nothing that came afterwards can undo it
                logger.warning("job %s was completed by its transaction, which then raised %s", job.id, describe(error))
                return loads(ended.result or "null")
            _ended_badly(task, request, runtime, run, error)
            raise


def _complete(run: RunningJob, runtime: Runtime, result: Any) -> Any:
    """End a run whose body has returned."""
    if not run.ending:
        run.complete(result)
        return result
    ended = _ended_in_transaction(run, runtime)
    if ended is None:
        msg = "the body called complete_in, but its transaction was not committed"
        raise OneJobError(msg)
    return loads(ended.result or "null")


def _ended_in_transaction(run: RunningJob, runtime: Runtime) -> Job | None:
    """Return the job if a transaction of the body has ended it, of which the ledger could not tell before."""
    ended = run.committed()
    if ended is not None:
        runtime.ledger.tell(happened(Event.COMPLETE, ended))
    return ended


def _ended_badly(task: Task, request: Any, runtime: Runtime, run: RunningJob, error: BaseException) -> None:
    """Tell the ledger how a run ended that did not complete. Raises `Ignore` where Celery must do nothing more."""
    if isinstance(error, Reject):  # also Celery's word for a retry that could not be written down
        reason = getattr(error, "reason", None)
        error = reason if isinstance(reason, Exception) else error
    if isinstance(error, StoreUnavailableError):
        raise error  # its lease heals it
    if isinstance(error, JobInterrupted):
        _interrupted(task, request, runtime, run.job, error)
        raise Ignore(str(error)) from None
    if isinstance(error, Retry | Ignore | Reject):
        _asked_of_celery(runtime, run, error)
    elif isinstance(error, Exception) and not isinstance(error, StaleTokenError):
        runtime.ledger.fail(run.job, encode_failure(error), describe(error))


def _interrupted(task: Task, request: Any, runtime: Runtime, job: Job, signal: JobInterrupted) -> None:
    if isinstance(signal, JobCanceled):
        runtime.ledger.abandon(job, "canceled on request")
        _tell_canceled(task, request, runtime, job)
    elif isinstance(signal, JobReleased):
        # Left to the sweeper of another worker: this one may still be taking messages.
        runtime.ledger.release(job, "its worker is shutting down", wake_in=0)


def _asked_of_celery(runtime: Runtime, run: RunningJob, signal: Retry | Ignore | Reject) -> None:
    """Turn what a body asked of Celery into the job's transition."""
    if run.moved_on:
        return
    job, ledger = run.job, runtime.ledger
    if isinstance(signal, Retry):
        delay = signal.when if isinstance(signal.when, int | float) else 0.0
        _run_again(runtime, job, delay)
    elif isinstance(signal, Reject) and getattr(signal, "requeue", False):
        _run_again(runtime, job, REQUEUE_DELAY)
        raise Ignore(str(signal))
    elif isinstance(signal, Reject):
        ledger.fail(job, encode_failure(signal), "the task rejected its message")
    elif run.replaced:
        ledger.delivered(ledger.abandon(job, REPLACED))  # the replacement tells the canvas
    else:
        ledger.abandon(job, "the task raised Ignore")


def _run_again(runtime: Runtime, job: Job, delay: float) -> None:
    again = runtime.ledger.retry(
        job, delay=delay, payload=job.payload, options=job.options, retries=job.retries + 1, error=None,
        reason=retry_reason(delay),
    )  # fmt: skip
    if delay <= 0 and not again.state.final:
        runtime.publisher.publish(again)


def retry_reason(delay: float) -> str:
    """Return why a job waits for its next run."""
    cause = sys.exc_info()[1]
    because = f" after {describe(cause)}" if isinstance(cause, Exception) and not isinstance(cause, Retry) else ""
    return f"runs again in {delay:g} s{because}" if delay > 0 else f"runs again at once{because}"


def error_under_way() -> str | None:
    """Return the JSON of the exception that is being handled."""
    cause = sys.exc_info()[1]
    return encode_failure(cause) if isinstance(cause, Exception) else None


# --- ends that come from elsewhere ----------------------------------------------------------------------------------


def _follow(task: Task, request: Any, runtime: Runtime, job: Job) -> Any:
    """End a follower as its leader ended; its body never runs."""
    ledger = runtime.ledger
    leader = ledger.store.get(str(job.leader))
    if leader is not None and not leader.state.final:
        _wait(runtime, job, f"waits for the end of {leader.id}")
    if leader is not None and leader.reason == REPLACED:
        ended = _as_replacement(task, runtime, job)
    elif leader is not None and leader.state is State.COMPLETED:
        ended = ledger.complete(job, leader.result or "null")
    elif leader is not None and leader.state is State.CANCELED:
        ended = ledger.abandon(job, f"its leader {leader.id} was canceled: {leader.reason}")
    else:
        ended = ledger.fail(job, (leader and leader.error) or _leader_gone(job), f"its leader {job.leader} failed")
    return _tell_again(task, request, runtime, ended)


def _as_replacement(task: Task, runtime: Runtime, job: Job) -> Job:
    """End a follower as the task ended that has its leader's id now, which only Celery's result backend knows."""
    if isinstance(task.backend, DisabledBackend):
        return runtime.ledger.abandon(job, f"its leader {job.leader} was replaced by a task without a result")
    result = task.AsyncResult(str(job.leader))
    if not result.ready():
        _wait(runtime, job, f"waits for the end of what replaced {job.leader}")
    if result.successful():
        return runtime.ledger.complete(job, dumps(result.result, "the result", runtime.settings.limits))
    return runtime.ledger.fail(job, encode_failure(result.result), f"what replaced its leader {job.leader} failed")


def _wait(runtime: Runtime, job: Job, reason: str) -> NoReturn:
    """Look again when the leader's end rings the alarm, or in one lease."""
    runtime.ledger.release(job, reason)
    raise Ignore(reason)


def _leader_gone(job: Job) -> str:
    message = f"job {job.leader}, which {job.id} followed, was purged before its end was told"
    return encode_failure(RuntimeError(message))


def _tell_again(task: Task, request: Any, runtime: Runtime, job: Job) -> Any:
    """Give Celery the end of a job that has ended, so that it tells the canvas behind it."""
    if job.reason == REPLACED:
        runtime.ledger.delivered(job)
        raise Ignore(job.reason)
    request.onejob = job
    if job.state is State.COMPLETED:
        return loads(job.result or "null")
    if job.state is State.FAILED:
        raise decode_failure(job.id, job.error)
    _tell_canceled(task, request, runtime, job)
    raise Ignore(job.reason)


def _tell_canceled(task: Task, request: Any, runtime: Runtime, job: Job) -> None:
    task.backend.mark_as_revoked(job.id, job.reason, request=request, store_result=not request.ignore_result)
    runtime.ledger.delivered(job)


def _told(sender: Any, **_: Any) -> None:
    """Note that Celery has dispatched links, chain and chord part of the job that just ended."""
    job = getattr(getattr(sender, "request", None), "onejob", None)
    if job is not None and job.undelivered:
        try:
            runtime = runtime_of(sender.app)
            runtime.ledger.delivered(runtime.ledger.get(job.id))
        except (StoreError, LookupError) as error:
            logger.warning("job %s: its canvas may be told twice: %s", job.id, error)


signals.task_success.connect(_told, weak=False, dispatch_uid="onejob.told")
signals.task_failure.connect(_told, weak=False, dispatch_uid="onejob.told")
