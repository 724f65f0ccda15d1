"""Executes one message in a worker's child: claims the job, runs its body, and records how the run ended.

The claim comes before Celery's tracer: a message whose job cannot be claimed ends there, without a write and without an
exception, whose traceback Celery would build and send to the parent. So a refused message costs less than a run.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from signal import SIG_IGN, SIGINT, default_int_handler, getsignal
from traceback import walk_tb
from types import SimpleNamespace
from typing import Any

from billiard.process import current_process
from celery import signals
from celery.exceptions import (
    Ignore,
    Reject,
    Terminated,
    TimeLimitExceeded,
    WorkerLostError,
    WorkerShutdown,
    WorkerTerminate,
)
from celery.utils.serialization import UnpickleableExceptionWrapper

from onejob import errors
from onejob.celery.app_state import AppState, app_state_of
from onejob.celery.messages.context import PROBE
from onejob.celery.messages.payload import (
    MARK,
    REPLACED,
    Ignored,
    Message,
    decode,
    decode_failure,
    encode_failure,
    loads,
    replacement_depth,
)
from onejob.celery.option_declarations import is_priority
from onejob.celery.results.result_backend import HAS_JOB
from onejob.celery.run import Run, claim_of, draining, set_current_run
from onejob.celery.submission.call import Call, build, is_from_beat
from onejob.celery.submission.options import BoundTask
from onejob.celery.submission.replacement import (
    await_replacement,
    claim_replaced,
    forget_ends_behind,
    replace_and_publish,
)
from onejob.celery.submission.submit import create_task_webhook, needs_message, submit_to_ledger
from onejob.celery.worker.blocks import claim_unless_blocked
from onejob.celery.worker.run_end import apply_end, end_of, end_run, wait_for_store, was_given_back
from onejob.jobs.lifecycle import RULES, State, Transition
from onejob.jobs.model import Applied, Duplicate, JobRow, Outcome, Submission
from onejob.jobs.transitions import new_nonce
from onejob.ledger.sweep import note_canvas_error
from onejob.observability import tracing
from onejob.observability.events import transition_event

logger = logging.getLogger("onejob")
GREENLET_EXIT = "GreenletExit"
"""The name of the exception that a pool of greenlets raises in a body at `revoke(terminate=True)`."""
OF_GREENLETS = frozenset({GREENLET_EXIT, "Timeout"})
"""The names of the exceptions that end a body in a pool of greenlets, whose package need not be installed."""


class Claim(SimpleNamespace):
    """The claim of a message: the ledger's answer, its nonce, and whether the run has `taken` it."""

    answer: Applied
    nonce: str
    taken: bool


OF_PROCESSES = (MemoryError, SystemExit, KeyboardInterrupt, WorkerLostError, TimeLimitExceeded, Terminated)
"""The exceptions that Celery takes for the end of a process: it ends the worker's parent, or recovers the job."""
_claimed: ContextVar[Claim | None] = ContextVar("onejob_claimed", default=None)
"""The claim of the message that is traced."""


class Refusal:
    """The result that the parent gets for a message that starts no run, in place of Celery's `ExceptionInfo`."""

    def __init__(self, reason: str) -> None:
        self.exception = Ignore(reason)
        self.traceback = ""


def trace_message(
    task: BoundTask, trace: Callable[..., Any], task_id: str, args: Any, kwargs: Any, request: dict[str, Any]
) -> tuple[Any, Any, float, str | None]:
    """Claim the job of a message, let Celery's tracer `trace` run it, and return the tracer's answer."""
    app_state = app_state_of(task.app)
    nonce = claim_of(request.get("onejob_claim") or new_nonce(), os.getpid())
    ask = partial(claim_unless_blocked, task, app_state, task_id, nonce=nonce, node=str(request.get("hostname")))
    try:
        claimed = claim_replaced(ask, _depth_of(request))
    except errors.StoreError as error:
        logger.critical("job %s: the ledger failed, the job recovers when its lease expires: %s", task_id, error)
        return Refusal(str(error)), True, 0.0, None
    reason = _find_refusal(task_id, claimed, nonce, is_marked=request.get(MARK) == task_id)
    if reason:
        logger.info("job %s: %s", task_id, reason)
        if claimed.job is None:
            _warn_of_unknown(app_state, task_id)
        elif (request.get("delivery_info") or {}).get("redelivered"):
            _record_redelivery(claimed.job, str(request.get("hostname")), app_state)
        return Refusal(reason), True, 0.0, None
    claim = Claim(answer=claimed, nonce=nonce, taken=False)
    _claimed.set(claim)
    try:
        result, failed, *rest = trace(task_id, args, kwargs, request)
    except (MemoryError, Reject) as error:  # of a hook: Celery would raise the one in the parent
        logger.exception("job %s: a hook of %s failed", task_id, task.name)
        _on_internal_error(task, task_id, error)
        return Refusal(errors.describe(error)), True, 0.0, None
    if failed:
        _disguise(result)
    if not claim.taken:
        _fail_untaken(task, app_state, claim, task_id)
    return result, failed, *rest


def _disguise(failure: Any) -> None:
    """Wrap an exception of a body that the parent would take for the end of a process."""
    error = getattr(failure.exception, "exc", failure.exception)
    if isinstance(error, OF_PROCESSES):
        failure.exception = UnpickleableExceptionWrapper.from_exception(error)  # type: ignore[arg-type] # any one will do


def _fail_untaken(task: BoundTask, app_state: AppState, claim: Claim, job_id: str) -> None:
    """Fail a job whose body did not take the claim: otherwise the job would run again as if its worker had died."""
    error = errors.OneJobError(
        f"{task.name} was not run as a job: Celery called no `__call__` of onejob.Task. Something replaced that of the "
        f"class ({type(task).__module__}.{type(task).__qualname__}) after the task was bound, or Celery's tracer, or "
        "worker_deduplicate_successful_tasks found a result of this id"
    )
    logger.error("job %s: %s", job_id, error)
    if claim.answer.applied and claim.answer.job is not None:
        with suppress(errors.StoreError, errors.StaleTokenError):
            app_state.ledger.fail(claim.answer.job, encode_failure(error), str(error))


def _find_refusal(job_id: str, claimed: Applied, nonce: str, *, is_marked: bool) -> str:
    """Return why a message starts no run; "" if its job is claimed, new, or still to be ended by this message."""
    job = claimed.job
    if job is None:
        if job_id.startswith(PROBE):
            return "its message was a probe of what the application does when a task is published"
        dropped = "its message was dropped: the job was purged, or is in another ledger, which shares the queue"
        return dropped if is_marked else ""
    if claimed.applied or (job.state.final and job.canvas_pending) or _is_of_dead_child(job, nonce):
        return ""
    return f"not claimed: it is {job.state} ({job.reason}), attempt {job.attempt}"


def _warn_of_unknown(app_state: AppState, job_id: str) -> None:
    """Log, once in this process, that a message's job was never in the ledger: another ledger may have it."""
    if app_state.knows_of_unknown or job_id.startswith(PROBE):
        return
    with suppress(errors.StoreError):
        if app_state.ledger.store.tombstone(job_id) is not None:
            return
    app_state.knows_of_unknown = True
    settings = app_state.settings
    logger.warning(
        "job %s: its message was dropped, since it is unknown in this ledger (%s). Unless it was "
        "deleted, workers of another ledger consume the same queue: each drops the messages of the other's jobs, which "
        "run late. Give each ledger a queue of its own (task_default_queue), or a database or virtual host of the "
        "broker. Further ones are logged at INFO",
        job_id,
        settings.store and settings.address,
    )


def _is_of_dead_child(job: JobRow, nonce: str) -> bool:
    """Return whether an earlier process has claimed the job for this message, and died."""
    return job.state is State.RUNNING and job.claim[:8] == nonce[:8]


def execute_message(task: BoundTask, request: Any, body: Callable[..., Any]) -> Any:
    """Run the job of a message if it can be claimed, and return its result.

    Raises the exceptions of the body, or Celery's `Ignore` if Celery must not record this delivery: the job runs
    elsewhere, the run was overtaken, or the ledger does not answer (then the job recovers when its lease expires).
    """
    try:
        result = _execute(task, request, app_state_of(task.app), body)
    except (errors.StaleTokenError, errors.TaskIdReusedError) as error:
        logger.warning("%s", error)
        result = Ignored(str(error))
    except errors.StoreRefusedError:  # the error of a failed job
        raise
    except errors.StoreError as error:
        logger.critical("job %s: the ledger failed, the job recovers when its lease expires: %s", request.id, error)
        result = Ignored(str(error))
    if isinstance(result, Ignored):
        raise Ignore(result.reason)
    return result


def execute_prepared(task: Any, request: Any, body: Callable[..., Any]) -> Any:
    """Run the job of a message like `execute_message`, with the task's `before_start` as the beginning of the body."""

    def prepared(*args: Any, **kwargs: Any) -> Any:
        task.before_start(request.id, args, kwargs)
        return body(*args, **kwargs)

    return execute_message(task, request, prepared)


def _execute(task: BoundTask, request: Any, app_state: AppState, body: Callable[..., Any]) -> Any:
    job = _claim(task, request, app_state)
    if isinstance(job, Ignored):
        return job
    setattr(request, HAS_JOB, job.id)
    with _ending_run(task, job):
        message = _check_message(task, request, app_state, job)
    if isinstance(message, Ignored):
        return message
    if job.canvas_pending:
        watch_canvas(request, job)
    if job.state.final:
        return return_end(task, request, app_state, job, again=True)
    if job.follows_id is not None:
        return end_follower(task, request, app_state, job)
    with tracing.tracer.run(job):
        return _run(task, request, app_state, job, message, body)


# --- before the body ------------------------------------------------------------------------------------------------


@contextmanager
def _ending_run(task: BoundTask, job: JobRow) -> Iterator[None]:
    """End the run in the ledger if the code before the body raises, since Celery reports that as the job's failure."""
    try:
        yield
    except Exception as error:
        if job.state is State.RUNNING and job.follows_id is None:
            apply_end(end_of(error, has_ended=False), task, job)
        raise


def _claim(task: BoundTask, request: Any, app_state: AppState) -> JobRow | Ignored:
    """Return the job, claimed for this run, or ended with its canvas not yet notified."""
    claim = _claimed.get()
    if claim is None:
        raise errors.OneJobError(f"{task.name} runs outside of a worker's trace: job {request.id} was not claimed")
    claimed, nonce, claim.taken = claim.answer, claim.nonce, True
    if claimed.job is None:
        followed = _submit_message(task, request, app_state)
        if followed is not None:
            return Ignored(f"duplicate of job {followed.id} ({followed.state}), which it follows")
    elif not claimed.applied and _is_of_dead_child(claimed.job, nonce):
        reason = "its worker process died right after its start"
        app_state.ledger.crash(claimed.job, reason, encode_failure(WorkerLostError(reason)))
    else:
        return claimed.job
    claimed = claim_unless_blocked(task, app_state, request.id, nonce=nonce, node=str(request.hostname))
    reason = _find_refusal(request.id, claimed, nonce, is_marked=True)
    return Ignored(reason) if reason or claimed.job is None else claimed.job


def _record_redelivery(job: JobRow, node: str, app_state: AppState) -> None:
    """Record a message that the broker has delivered again, whose job is running or has ended, as a duplicate."""
    if job.state in RULES[Transition.CLAIM].sources:
        return
    duplicate = Duplicate(
        job_id=job.id, submission_nonce="", outcome=Outcome.REJECTED, answered_by=job.id, source="redelivery",
        submitter="", host=node, fingerprint=job.fingerprint, arguments_differ=False,
    )  # fmt: skip
    with suppress(errors.StoreError):  # duplicates are statistics only
        app_state.ledger.record(duplicate)


def _submit_message(task: BoundTask, request: Any, app_state: AppState) -> JobRow | None:
    """Submit the job of a message from elsewhere; return the live job that it follows as a duplicate, if any."""
    carrier = {name: str(value) for name in tracing.TRACE_CONTEXT if (value := request.get(name))}
    with tracing.tracer.submit(str(task.name), "message", carrier=carrier) as span:
        submission = _submission_of(task, request, app_state)
        admission = submit_to_ledger(app_state.ledger, submission)
        span.record([admission])
    if admission.rescheduled and needs_message(submission, admission):
        app_state.publisher.try_publish(admission.job)
    return admission.job if admission.follower is not None and admission.outcome is not Outcome.REPLAYED else None


def _submission_of(task: BoundTask, request: Any, app_state: AppState) -> Submission:
    signature = task.signature_from_request(request)
    options = {name: value for name, value in signature.options.items() if name != "expires"}
    if not is_priority(options.get("priority")):  # a message that Celery delivers runs, whatever its priority is
        options.pop("priority", None)
    call = Call(task, signature.args, signature.kwargs, options, source="message", task_id=request.id, is_message=True)
    if is_from_beat(request.headers):
        from onejob.celery.beat.beside_beat import find_tick

        call = find_tick(call)
    return build(app_state, call)


def _check_message(task: BoundTask, request: Any, app_state: AppState, job: JobRow) -> Message | Ignored:
    """Return the message in the job's payload, or `Ignored` if the message that arrived is of another task.

    If that task replaces the job, the job goes on as that task, and is published again.
    """
    message, ledger = decode(job.payload), app_state.ledger
    if message.replaced_by is not None and _depth_of(request) > replacement_depth(job.options):
        replace_and_publish(app_state, job, _submission_of(task, request, app_state))
        return Ignored(f"job {job.id} goes on as {task.name}")
    if message.task != task.name:
        msg = f"this message of {task.name} is ignored: job {job.id} is a job of {message.task}"
        logger.warning("%s", msg)
        is_older = _depth_of(request) < replacement_depth(job.options)  # than the task that the job goes on as
        if job.state is State.RUNNING and (job.attempt == 1 or is_older):
            app_state.publisher.release(job, msg)
        elif job.state is State.RUNNING:  # its own messages may be wrong: a sweep sends them, one per lease
            ledger.release(job, msg, handover=app_state.publisher.handover.hold(job.lease))
        return Ignored(msg)
    return message


def _depth_of(request: Any) -> int:
    return int(request.get("replaced_task_nesting") or 0)


# --- the body -------------------------------------------------------------------------------------------------------


def _run(
    task: BoundTask, request: Any, app_state: AppState, job: JobRow, message: Message, body: Callable[..., Any]
) -> Any:
    if message.replaced_by is not None:
        ended = await_replacement(task, job)
        return ended if isinstance(ended, Ignored) else return_end(task, request, app_state, ended)
    with _ending_run(task, job):
        run = _start(task, request, app_state, job, message)
    with set_current_run(run):
        try:
            run.raise_if_draining()
            return _complete(run, app_state, run.call(partial(_call, body, message)))
        except BaseException as raised:
            run.rollback_sessions()  # an open transaction would lock the job's row
            error = _what_ended(run, raised)
            completed = _find_committed(run, app_state)
            if completed is not None:  # committed by the body: a later error cannot undo it
                logger.warning(
                    "job %s was completed by its transaction, which then raised %s", job.id, errors.describe(error)
                )
                return loads(completed.result or "null")
            end = end_of(error, has_ended=run.ended)
            apply_end(end, task, run.job)
            if isinstance(error, errors.JobCanceled):
                report_canceled(task, request, app_state, job)
            if end.is_silent:
                return Ignored(end.reason)
            raise


def _what_ended(run: Run, raised: BaseException) -> BaseException:
    """Return the exception of a body; for the kill of a greenlet whose job was canceled, the cancellation."""
    is_kill = GREENLET_EXIT in {each.__name__ for each in type(raised).__mro__}
    return errors.JobCanceled(run.id) if is_kill and run.is_canceled else raised


def _start(task: BoundTask, request: Any, app_state: AppState, job: JobRow, message: Message) -> Run:
    """Give the request the arguments and retries of the job, and return the handle of its run."""
    if task._onejob.webhook_url is not None:
        wait_for_store(job.id, partial(create_task_webhook, task, app_state.ledger, job))
    request.retries = job.retries
    if job.attempt > 1 and job.canvas_pending:
        forget_ends_behind(task, job)
    if (job.crashes or job.attempt > job.retries + 1) and was_given_back(app_state.ledger.history(job.id), job.attempt):
        # As the broker says of a message that it delivers again.
        request.delivery_info = {**(request.delivery_info or {}), "redelivered": True}
    request.args, request.kwargs = message.args, message.kwargs
    own: Any = task.app.tasks.get(job.task)  # also when another task has replaced it
    options = (own if hasattr(own, "_onejob") else task)._onejob
    if options.unique_until == "started" and job.holds_identity:
        job = wait_for_store(job.id, partial(app_state.ledger.release_identity, job))
    limits, typed = app_state.settings.limits, task._onejob.typed
    hold, captures = options.hold_of(job, message.window), task._onejob.capture_logging
    return Run(job, app_state.ledger, limits, hold, typed, captures_logging=captures)


def _call(body: Callable[..., Any], message: Message) -> Any:
    """Call the body. Raises RuntimeError for an exception that is no `Exception`, which Celery's pools do not expect.

    In a process of its own, `sys.exit` ends that process, which is a crash; elsewhere it would end the worker, or a
    thread. The exceptions by which a worker itself ends a run reach Celery, and outside of workers all reach the test.
    """
    try:
        return body(*message.args, **message.kwargs)
    except (Exception, errors.JobInterrupted, WorkerShutdown, WorkerTerminate):
        raise
    except BaseException as error:
        handler, is_child = getsignal(SIGINT), current_process().name != "MainProcess"
        # The processes of a pool ignore SIGINT; of others, those that a shell has started in the background.
        is_in_worker = handler is not default_int_handler and (is_child or handler is not SIG_IGN)
        ends_process = isinstance(error, SystemExit | KeyboardInterrupt) and is_child
        is_of_greenlet = not OF_GREENLETS.isdisjoint(each.__name__ for each in type(error).__mro__)
        if not is_in_worker or ends_process or is_of_greenlet or draining.is_set():
            raise
        raise RuntimeError(f"the task raised {errors.describe(error)}, which is no Exception") from error


def _complete(run: Run, app_state: AppState, result: Any) -> Any:
    if not run.completes_in_transaction:
        end_run(run.id, partial(run.complete, result))
        return result
    completed = _find_committed(run, app_state)
    if completed is None:
        raise errors.OneJobError("the body called complete_in, but its transaction was not committed")
    return loads(completed.result or "null")


def _find_committed(run: Run, app_state: AppState) -> JobRow | None:
    """Return the job if a transaction of the body completed it, and emit the event, which only the commit permits."""
    completed = wait_for_store(run.id, run.find_committed)
    if completed is not None:
        app_state.ledger.emit(transition_event(Transition.COMPLETE, completed))
        app_state.ledger.give_back(completed)
    return completed


# --- the canvas (links, chain, chord) of a job that has ended, and jobs that end without a run ------------------------


def end_follower(task: BoundTask, request: Any, app_state: AppState, job: JobRow) -> Any:
    """End a follower as the job that it follows ended; its body never runs."""
    ledger = app_state.ledger
    followed = ledger.get_or_none(str(job.follows_id))
    if followed is None:
        reason = f"it follows job {job.follows_id}, which was deleted before this job could take over its end"
        ended = ledger.fail(job, encode_failure(errors.OneJobError(reason)), reason)
    elif not followed.state.final:
        # It is published again when the followed job ends, or after one lease.
        return Ignored(ledger.release(job, f"waits for the end of {followed.id}").reason)
    elif followed.state is State.COMPLETED:
        ended = ledger.complete(job, followed.result or "null")
    elif followed.state is State.CANCELED:
        ended = ledger.abandon(job, f"it follows job {followed.id}, which was canceled: {followed.reason}")
    else:
        error = followed.error or encode_failure(errors.OneJobError(f"job {followed.id} failed: {followed.reason}"))
        ended = ledger.fail(job, error, f"it follows job {followed.id}, which failed")
    return return_end(task, request, app_state, ended)


def return_end(task: BoundTask, request: Any, app_state: AppState, job: JobRow, *, again: bool = False) -> Any:
    """Return the result, or raise the failure, of a job that has ended, so that Celery notifies its canvas.

    Returns `Ignored` for a job that was canceled, or whose replacement notifies the canvas. `again`: this end may have
    been reported to Celery before.
    """
    if job.reason == REPLACED:
        app_state.ledger.mark_canvas_notified(job)
        return Ignored(job.reason)
    watch_canvas(request, job, again=again)
    if job.state is State.COMPLETED:
        return loads(job.result or "null")
    if job.state is State.FAILED:
        raise decode_failure(job.id, job.error)
    report_canceled(task, request, app_state, job, again=again)
    return Ignored(job.reason)


def report_canceled(task: BoundTask, request: Any, app_state: AppState, job: JobRow, *, again: bool = False) -> None:
    """Report a canceled job to Celery's result backend, which notifies the canvas."""
    task.backend.mark_as_revoked(job.id, job.reason, request=request, store_result=not request.ignore_result)
    _note_dispatch(task.backend, app_state, job, again=again)


def watch_canvas(request: Any, job: JobRow, *, again: bool = False) -> None:
    """Record when Celery dispatches the canvas of a job that ends in this request, or has ended before.

    Celery builds the arguments of a signal only if it has receivers: the receiver is connected with the first canvas.
    """
    request.onejob = job, again
    for signal in (signals.task_success, signals.task_failure):
        signal.connect(_on_canvas_dispatched, weak=False, dispatch_uid="onejob.canvas_dispatched")


def _on_canvas_dispatched(sender: Any, **_: Any) -> None:
    """Record that Celery has dispatched the links, chain and chord part of a job that just ended."""
    # Celery sends the signals of a run's end after it has called links and chain, and counted the chord's part.
    job, again = getattr(getattr(sender, "request", None), "onejob", (None, False))
    if job is not None and job.canvas_pending:
        try:
            app_state = app_state_of(sender.app)
            _note_dispatch(sender.backend, app_state, app_state.ledger.get(job.id), again=again)
        except (errors.StoreError, LookupError) as error:
            logger.warning("job %s: its canvas may be notified twice: %s", job.id, error)


def _note_dispatch(backend: Any, app_state: AppState, job: JobRow, *, again: bool) -> None:
    """Record that Celery has dispatched the canvas of a job.

    If the end was reported `again`, Celery does nothing, silently, while a worker has claimed the call of the chord's
    body. That worker may have died: the job is published once more.
    """
    if again and _is_chord_claimed(backend, job):
        note_canvas_error(app_state.ledger, job, "another worker has claimed the call of the chord's body")
    else:
        app_state.ledger.mark_canvas_notified(job)


def _is_chord_claimed(backend: Any, job: JobRow) -> bool:
    """Return whether a worker has claimed the call of a chord's body: Celery's Redis backend, from 5.7 on."""
    options = loads(job.options)
    if not options.get("chord") or not hasattr(type(backend), "_chord_part_return_script"):
        return False
    return backend.client.get(backend.get_key_for_group(options["group_id"], ".c")) not in {None, b"done"}


def _on_internal_error(sender: Any, task_id: str, exception: BaseException, **_: Any) -> None:
    """Handle an error of Celery before or after a run, most often of the result backend: no hook of the task is called.

    A job whose run the error has kept from beginning is tried again a lease later, which is no crash.
    """
    if not hasattr(sender, "_onejob"):
        return
    try:
        app_state = app_state_of(sender.app)
        ledger = app_state.ledger
        job = ledger.get_or_none(task_id)
        if (claim := _claimed.get()) is not None:
            claim.taken = True
        if job is not None and job.state is State.RUNNING and claim is not None and job.claim == claim.nonce:
            reason = f"Celery could not begin its run: {errors.describe(exception)}"
            job = ledger.release(job, reason, handover=app_state.publisher.handover.hold(job.lease))
        if job is None or not (job.state.final and job.canvas_pending):
            return
        if _has_dispatched(job, exception):
            ledger.mark_canvas_notified(job)
        else:
            note_canvas_error(ledger, job, errors.describe(exception))
    except (errors.StoreError, errors.StaleTokenError) as error:
        logger.warning("job %s recovers after its lease, or its canvas may be notified twice: %s", task_id, error)


def _has_dispatched(job: JobRow, error: BaseException) -> bool:
    """Return whether Celery had dispatched the whole canvas of a completed job before an error.

    Celery dispatches links and chain before it stores the result, and counts a chord's part, or a group's member, by
    the result.
    """
    options = loads(job.options)
    if job.state is not State.COMPLETED or options.get("chord") or options.get("group_id"):
        return False
    return any(frame.f_code.co_name == "mark_as_done" for frame, _ in walk_tb(error.__traceback__))


signals.task_internal_error.connect(_on_internal_error, weak=False, dispatch_uid="onejob.internal_error")
