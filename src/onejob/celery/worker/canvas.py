"""Ends jobs without a run, and has Celery notify the canvas (links, chain, chord) of a job that has ended."""

from __future__ import annotations

import logging
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from celery import signals

from onejob.celery.app_state import app_state_of
from onejob.celery.payload import REPLACED, Ignored, decode_failure, encode_failure, loads
from onejob.errors import OneJobError, StoreError, describe
from onejob.jobs.lifecycle import State
from onejob.ledger.publication import note_canvas_error

if TYPE_CHECKING:
    from onejob.celery.app_state import AppState
    from onejob.celery.options import BoundTask
    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger

logger = logging.getLogger("onejob")


def end_follower(task: BoundTask, request: Any, app_state: AppState, job: Job) -> Any:
    """End a follower as the job that it follows ended; its body never runs."""
    ledger = app_state.ledger
    followed = ledger.get_or_none(str(job.follows_id))
    if followed is not None and not followed.state.final:
        # It is published again when the followed job ends, or after one lease.
        return Ignored(ledger.release(job, f"waits for the end of {followed.id}").reason)
    if followed is not None and followed.state is State.COMPLETED:
        ended = ledger.complete(job, followed.result or "null")
    elif followed is not None and followed.state is State.CANCELED:
        ended = ledger.abandon(job, f"it follows job {followed.id}, which was canceled: {followed.reason}")
    else:
        ended = _fail_follower(ledger, job, followed)
    return return_end(task, request, app_state, ended)


def _fail_follower(ledger: Ledger, job: Job, followed: Job | None) -> Job:
    """End a follower with the error of the job that it follows; an operator may have deleted that job."""
    if followed is not None:
        error = followed.error or encode_failure(OneJobError(f"job {followed.id} failed: {followed.reason}"))
        return ledger.fail(job, error, f"it follows job {followed.id}, which failed")
    reason = f"it follows job {job.follows_id}, which was deleted before this job could take over its end"
    return ledger.fail(job, encode_failure(OneJobError(reason)), reason)


def return_end(task: BoundTask, request: Any, app_state: AppState, job: Job) -> Any:
    """Return the result, or raise the failure, of a job that has ended, so that Celery notifies its canvas.

    Returns `Ignored` for a job that was canceled, or whose replacement notifies the canvas.
    """
    if job.reason == REPLACED:
        app_state.ledger.mark_canvas_notified(job)
        return Ignored(job.reason)
    watch_canvas(request, job)
    if job.state is State.COMPLETED:
        return loads(job.result or "null")
    if job.state is State.FAILED:
        raise decode_failure(job.id, job.error)
    report_canceled(task, request, app_state, job)
    return Ignored(job.reason)


def report_canceled(task: BoundTask, request: Any, app_state: AppState, job: Job) -> None:
    """Report a canceled job to Celery's result backend, which notifies the canvas."""
    task.backend.mark_as_revoked(job.id, job.reason, request=request, store_result=not request.ignore_result)
    app_state.ledger.mark_canvas_notified(job)


def watch_canvas(request: Any, job: Job) -> None:
    """Have it recorded when Celery has dispatched the canvas of a job that ends in this request.

    Celery builds the arguments of a signal only if it has receivers: they are connected with the first canvas.
    """
    request.onejob = job
    signals.task_success.connect(_on_canvas_dispatched, weak=False, dispatch_uid="onejob.canvas_dispatched")
    signals.task_failure.connect(_on_canvas_dispatched, weak=False, dispatch_uid="onejob.canvas_dispatched")


def _on_canvas_dispatched(sender: Any, **_: Any) -> None:
    """Record that Celery has dispatched the links, chain and chord part of a job that just ended."""
    job = getattr(getattr(sender, "request", None), "onejob", None)
    if job is not None and job.canvas_pending:
        try:
            app_state = app_state_of(sender.app)
            app_state.ledger.mark_canvas_notified(app_state.ledger.get(job.id))
        except (StoreError, LookupError) as error:
            logger.warning("job %s: its canvas may be notified twice: %s", job.id, error)


def _on_internal_error(sender: Any, task_id: str, exception: BaseException, **_: Any) -> None:
    """Handle an error of Celery after a run, most often of the result backend."""
    if not hasattr(sender, "_onejob"):
        return
    try:
        ledger = app_state_of(sender.app).ledger
        job = ledger.get_or_none(task_id)
        if job is None or not (job.state.final and job.canvas_pending):
            return
        if _has_dispatched(job, exception):
            ledger.mark_canvas_notified(job)
        else:
            note_canvas_error(ledger, job, describe(exception))
    except StoreError as error:
        logger.warning("job %s: its canvas may be notified twice: %s", task_id, error)


def _has_dispatched(job: Job, error: BaseException) -> bool:
    """Return whether Celery had dispatched the whole canvas of a completed job before an error.

    Celery dispatches links and chain before it stores the result, and counts a chord's part, or a group's member, by
    the result.
    """
    options = loads(job.options)
    if job.state is not State.COMPLETED or options.get("chord") or options.get("group_id"):
        return False
    return any(frame.f_code.co_name == "mark_as_done" for frame, _ in walk_tb(error.__traceback__))


signals.task_internal_error.connect(_on_internal_error, weak=False, dispatch_uid="onejob.internal_error")
