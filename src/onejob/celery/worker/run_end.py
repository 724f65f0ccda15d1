"""The ends of runs: an exception of a body becomes an `End`, and each end is applied to the ledger in one place."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple, TypeVar

from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded

from onejob import errors
from onejob.celery.app_state import app_state_of
from onejob.celery.messages.context import kept_headers
from onejob.celery.messages.payload import encode, encode_failure, encode_options, loads, to_json
from onejob.celery.run import Run, draining
from onejob.celery.submission.call import Call, build, delay_of, dump_models, merge_options, retries_of
from onejob.celery.submission.options import BoundTask
from onejob.celery.submission.replacement import check_has_no_own, replace_and_publish
from onejob.celery.submission.submit import check_task
from onejob.jobs.handover import by_sweep
from onejob.jobs.history import Entry
from onejob.jobs.lifecycle import Transition
from onejob.jobs.model import JobRow
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import NextRun
from onejob.observability import tracing
from onejob.stores.carrier import carried, carrier

T = TypeVar("T")
logger = logging.getLogger("onejob")
PAUSE = 0.5
"""Seconds between two attempts to reach the store."""
REQUEUE_DELAY = 1.0
"""Seconds until a job that rejected its message with `requeue=True` runs again."""


class End(NamedTuple):
    """The end of a run that raised an exception."""

    transition: Transition | None
    """The transition of the job; None: the end is in the ledger already, or the job is no longer this run's."""
    reason: str = ""
    error: str | None = None
    """The failure as JSON."""
    delay: float | None = None
    """Seconds until the next run; None: the store decides."""
    counts: bool = True
    """Whether a retry counts in the job's number of retries."""
    is_silent: bool = False
    """Whether Celery records nothing, instead of the exception."""


def end_of(error: BaseException, *, has_ended: bool) -> End:
    """Return the end of a run that raised an exception; `has_ended`: whether a retry has ended it already."""
    if isinstance(error, Reject):  # Celery also wraps the error of a failed `Task.retry` in it
        reason = error.reason  # type: ignore[attr-defined] # missing in the stubs
        error = reason if isinstance(reason, Exception) else error
    if isinstance(error, errors.StoreError) and not isinstance(error, errors.StoreRefusedError):
        return End(Transition.RELEASE, f"its run could not reach the store: {error}", is_silent=True)
    if isinstance(error, errors.JobInterrupted):
        return _end_of_interrupt(error)
    if isinstance(error, Retry | Ignore | Reject):
        return End(None) if has_ended else _end_of_signal(error)
    if isinstance(error, Exception) and not isinstance(error, errors.StaleTokenError):
        return End(Transition.FAIL, errors.describe(error), encode_failure(error))
    return End(None)


def _end_of_interrupt(error: errors.JobInterrupted) -> End:
    if isinstance(error, errors.JobCanceled):
        return End(Transition.ABANDON, "canceled on request", is_silent=True)
    if isinstance(error, errors.JobReleased):
        # Due at once, for the sweeper of another worker: this one may still consume messages.
        return End(Transition.RELEASE, "its worker is shutting down", delay=0.0, is_silent=True)
    return End(None, str(error), is_silent=True)


def _end_of_signal(signal: Retry | Ignore | Reject) -> End:
    if isinstance(signal, Retry):
        try:
            delay = delay_of({"eta" if isinstance(signal.when, datetime) else "countdown": signal.when})
        except errors.InvalidArgumentsError as error:
            return End(Transition.FAIL, errors.describe(error), encode_failure(error))
        return End(Transition.RETRY, delay=delay)
    if isinstance(signal, Ignore):
        return End(Transition.ABANDON, "the task raised Ignore")
    if signal.requeue:  # type: ignore[attr-defined] # missing in the stubs
        return End(Transition.RETRY, str(signal), delay=REQUEUE_DELAY, counts=False, is_silent=True)
    return End(Transition.FAIL, "the task rejected its message", encode_failure(signal))


def apply_end(end: End, task: BoundTask, job: JobRow) -> None:
    """Record the end of a run once the store can be reached. Raises `StaleTokenError` if another run has the job."""
    ledger = app_state_of(task.app).ledger
    if end.transition is Transition.FAIL:
        end_run(job.id, partial(ledger.fail, job, end.error or "", end.reason))
    elif end.transition is Transition.ABANDON:
        end_run(job.id, partial(ledger.abandon, job, end.reason))
    elif end.transition is Transition.RETRY:
        again = NextRun.again(job, delay=end.delay or 0.0, retries=job.retries + end.counts)
        end_run(job.id, partial(_retry_job, task, job, again, error=None))
    elif end.transition is Transition.RELEASE:
        hold = app_state_of(task.app).publisher.handover.hold
        handover = hold(job.lease) if end.delay is None else by_sweep(end.delay)
        wait_for_store(job.id, partial(ledger.release, job, end.reason, handover=handover))


# --- the store may be away --------------------------------------------------------------------------------------------


def wait_for_store(job_id: str, operation: Callable[[], T]) -> T:
    """Repeat an operation of a run until the store carries it out, so that no run is in vain, and return its result.

    An outage, a full disk or a changed password may end; only a `StoreRefusedError` is about this very write. Raises
    the latest `StoreError` if the worker shuts down, and all other errors of `operation`, such as `StaleTokenError`.
    """
    waited = False
    while True:
        try:
            return carried(operation)
        except errors.StoreRefusedError:
            raise
        except errors.StoreError as error:
            if not waited:
                logger.warning("job %s: its run waits for the store: %s", job_id, error)
            waited = True
            if carried(_pause):
                raise


def _pause() -> bool:
    """Wait for the next attempt, and return whether the worker shuts down, so that there is none."""
    if (by := carrier()) is None:
        return draining.wait(PAUSE)
    by.sleep(PAUSE)
    return draining.is_set()


def end_run(job_id: str, change: Callable[..., T]) -> T:
    """Apply a change that ends a run by `wait_for_store`, as one request, also through a soft time limit."""
    operation = partial(change, request_id=new_nonce())
    try:
        return wait_for_store(job_id, operation)
    except SoftTimeLimitExceeded:
        return wait_for_store(job_id, operation)


# --- one more run -----------------------------------------------------------------------------------------------------


GIVES_BACK = frozenset({Transition.CRASH, Transition.RELEASE})
"""The ends of a run after which another run begins in its place."""
ENDS_RUN = GIVES_BACK | {Transition.RETRY, Transition.REPLACE, Transition.REDRIVE}
REQUEUED = " after Reject"
"""The words in the reason of a retry which say that the body gave its message back."""


def was_given_back(history: Sequence[Entry], attempt: int) -> bool:
    """Return whether the run before this attempt was lost, released, or has rejected its message to be requeued."""
    ends = (each for each in reversed(history) if each.event in ENDS_RUN and each.attempt < attempt)
    last = next(ends, None)
    return last is not None and (last.event in GIVES_BACK or REQUEUED in last.detail)


def _retry_job(task: BoundTask, job: JobRow, next_run: NextRun, *, error: str | None, request_id: str) -> JobRow:
    """Let a job wait for its next run, and publish it if the run is due; the reason names the handled exception."""
    app_state, cause = app_state_of(task.app), sys.exc_info()[1]
    because = (
        f" after {errors.describe(cause)}" if isinstance(cause, Exception) and not isinstance(cause, Retry) else ""
    )
    reason = f"runs again {f'in {next_run.delay:g} s' if next_run.delay > 0 else 'at once'}{because}"
    retry = partial(app_state.ledger.retry, job, error=error, reason=reason, request_id=request_id)
    return app_state.publisher.run_next(job, next_run, retry)


def record_retry(run: Run, call: Call, session: object = None) -> JobRow:
    """Record a retry in place of the publication by `Task.retry`, and return the job. Raises `LeaseLost`.

    Within `Task.replace` the job goes on as the call's task; otherwise another task raises `TaskIdReusedError`. Raises
    `InvalidArgumentsError` for options of a submission: a retry is no submission, and the job keeps its options.
    """
    own = {name: getattr(call, name) for name in ("on_duplicate", "webhook_url")}
    own |= {"session": session, "idempotency_key": call.key}
    check_has_no_own([*call.options.items(), *own.items()])
    if not run.replaced:
        check_task(run.job, str(call.task.name))
    change = partial(_replace if run.replaced else _retry, call, run.job)
    try:
        job = end_run(run.id, change)
    except errors.StaleTokenError:
        raise errors.LeaseLost(run.id) from None
    run.ended = True
    return job


def _replace(call: Call, job: JobRow, *, request_id: str) -> JobRow:
    app_state = app_state_of(call.task.app)
    return replace_and_publish(app_state, job, build(app_state, call), request_id=request_id)


def _retry(call: Call, job: JobRow, *, request_id: str) -> JobRow:
    task, app_state = call.task, app_state_of(call.task.app)
    args, kwargs = dump_models(task, call.args, call.kwargs, call.options)
    options = merge_options(call, args, kwargs, task.app.current_worker_task)
    headers, context = kept_headers(job, options.get("headers") or {})
    payload = encode(str(task.name), args, kwargs, app_state.settings.limits, context)
    options = {**options, "headers": headers or None}
    route, sent_options = app_state.routing.resolve_retry(job.route, task, args, kwargs, options)
    app_state.routing.check_message(payload, sent_options)
    encoded = encode_options(sent_options, app_state.settings.limits)
    if trace := tracing.trace_of(job.options):
        encoded = to_json(loads(encoded) | trace)
    retries, delay = retries_of(options), delay_of(options)
    next_run = NextRun(payload=payload, options=encoded, route=route, retries=retries, delay=delay)
    cause = sys.exc_info()[1]
    error = encode_failure(cause) if isinstance(cause, Exception) else None
    return _retry_job(task, job, next_run, error=error, request_id=request_id)
