"""`Task.replace`: a job goes on as the task that replaces it, under its id, identity and idempotency key.

A single `onejob.Task` is what the job runs next. Otherwise the id passes to the end of a chain, to the body of a chord,
or to a task that the ledger does not run: then the job waits for that task's message, or for its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

from celery import states
from celery.backends.base import DisabledBackend
from celery.canvas import _chain, chord
from celery.exceptions import Ignore
from celery.utils.nodenames import gethostname

from onejob.celery.app_state import AppState, app_state_of
from onejob.celery.current_job import RunningJob
from onejob.celery.options import BoundTask
from onejob.celery.payload import REPLACED, Ignored, decode, dumps, encode_failure, loads, replacement_depth, to_json
from onejob.celery.result import meta_elsewhere
from onejob.celery.result_backend import confirm_end
from onejob.errors import InvalidArgumentsError, StoreBusyError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Admission, Applied, Job, Outcome, Submission
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger, NextRun

PAUSE = 0.05
"""Seconds between two tries to pass a job on whose run has not ended yet."""
FIRST_POLL = 1.0
"""Seconds until the first look for the end of what replaced a job; each later one waits as long as all before it."""
POLL_LEASES = 8
"""At most this many leases pass between two looks."""
OF_SUBMISSION = frozenset({"session", "idempotency_key", "webhook_url", "tags", "on_duplicate"})
"""The options that a job keeps from its submission."""
NEVER = 366 * 86_400.0
"""Seconds after which an end is no longer awaited, with a result backend that keeps results for ever."""


# --- in the run that replaces itself --------------------------------------------------------------------------------


def replace_run(task: BoundTask, run: RunningJob, signature: Any, send: Callable[[Any], object]) -> NoReturn:
    """End a run with the signature that replaces it, which `send` publishes.

    Raises Celery's `Ignore`; `LeaseLost`, `JobCanceled` or what `check_has_no_own` does, before a publication; and
    what the publication raises.
    """
    run.raise_if_interrupted()
    _, last = _path_to(run.id, signature)
    check_has_no_own(() if last is None else last.options.items())
    if run.attempt > 1:
        with suppress(NotImplementedError):
            task.backend.forget(run.id)  # the end of an earlier attempt is not that of the replacement
    run.replaced = True
    try:
        send(signature)
    except Ignore:
        if not run.ended:
            _pass_on(task, run, signature)
        raise
    finally:
        run.replaced = False
    raise Ignore(REPLACED)  # pragma: no cover - Celery raises it


def check_has_no_own(options: Iterable[tuple[str, Any]]) -> None:
    """Raise `InvalidArgumentsError` for an option of a submission: a retry or a replacement keeps those of its job."""
    for name, given in options:
        if name in OF_SUBMISSION and given is not None:
            msg = f"{name}={given!r:.100} is not used by Task.retry and Task.replace: the job goes on with its own"
            raise InvalidArgumentsError(msg)


def _pass_on(task: BoundTask, run: RunningJob, signature: Any) -> None:
    """Let the job wait for the task that has its id now; or end it, if nobody will know the end of that task."""
    app_state, job = app_state_of(task.app), run.job
    ledger = app_state.ledger
    earlier, last = _path_to(run.id, signature)
    if _keeps_end(task, last):
        waiting = NextRun(
            payload=to_json(loads(job.payload) | {"replaced_by": earlier}), options=job.options, retries=0,
            wake_after=FIRST_POLL, withheld=app_state.publisher.delivers,  # so that no worker takes it meanwhile
        )  # fmt: skip
        ledger.replace(job, waiting, canvas=job.canvas_pending, reason=REPLACED)
    else:
        ledger.mark_canvas_notified(ledger.abandon(job, REPLACED))  # the replacement notifies the canvas
    run.ended = True


def _path_to(job_id: str, signature: Any) -> tuple[list[str], Any]:
    """Return the ids of the tasks before the one that has this id, and that one; None if it is not found."""
    earlier: list[str] = []
    for element in signature.tasks if isinstance(signature, _chain) else [signature]:
        if isinstance(element, chord):
            inner, last = _path_to(job_id, element.body)
            if last is not None:
                return earlier + inner, last
        elif element.options.get("task_id") == job_id:
            return earlier, element
        elif "task_id" in element.options:
            earlier.append(element.options["task_id"])
    return earlier, None


def _keeps_end(task: BoundTask, last: Any) -> bool:
    """Return whether the ledger or the result backend will have the end of a task."""
    registered = None if last is None else task.app.tasks.get(last.task)
    if registered is None or hasattr(registered, "_onejob"):
        return True
    ignores = last.options.get("ignore_result", registered.ignore_result)
    return not (ignores or isinstance(task.backend, DisabledBackend))


# --- when the message of the replacement arrives --------------------------------------------------------------------


def _replacing(
    ledger: Ledger, job: Job, submission: Submission, request_id: str | None = None
) -> Callable[[NextRun], Job]:
    """Return what lets a running job go on as a submission with its id. Raises `StaleTokenError`."""
    reason = f"replaced by {decode(submission.payload).task}"
    return partial(ledger.replace, job, canvas=submission.canvas, reason=reason, request_id=request_id)


def replace_and_publish(
    app_state: AppState, job: Job, submission: Submission, *, request_id: str | None = None
) -> Job:  # fmt: skip
    """Let a running job go on as a submission with its id, and publish it if it is due. Raises `StaleTokenError`."""
    replace = _replacing(app_state.ledger, job, submission, request_id)
    return app_state.publisher.run_next(job, NextRun.of(submission), replace)


def claim_replaced(claim: Callable[[], Applied], depth: int) -> Applied:
    """Claim a job for a message with its id; `depth`: how often `Task.replace` had passed on the id when it was sent.

    Such a message may arrive before the run that sent it has ended: waits for that end, for one lease at most.
    """
    claimed, began = claim(), time.monotonic()
    while (
        not claimed.applied
        and (job := claimed.job) is not None
        and job.state is State.RUNNING
        and replacement_depth(job.options) < depth
        and time.monotonic() < began + job.lease
    ):
        time.sleep(PAUSE)
        claimed = claim()
    return claimed


def resume(ledger: Ledger, job: Job, submission: Submission) -> Admission:
    """Let a job that waits for what replaced it go on as a submission with its id; any other job stays as it is.

    Waits for the end of its run for one lease, and then raises `StoreBusyError`.
    """
    for _ in range(int(job.lease / PAUSE) + 1):
        if job.state.final or replacement_depth(job.options) >= replacement_depth(submission.options):
            return Admission(job, Outcome.REPLAYED if job.state.final else Outcome.ATTACHED)
        if job.state is not State.RUNNING:
            if decode(job.payload).replaced_by is None:
                return Admission(job, Outcome.ATTACHED)
            claimed = ledger.claim(job.id, nonce=new_nonce(), node=gethostname())
            if claimed.applied and claimed.job is not None:
                return Admission(_replacing(ledger, claimed.job, submission)(NextRun.of(submission)), Outcome.ADMITTED)
        time.sleep(PAUSE)
        job = ledger.get(job.id)
    raise StoreBusyError(f"job {job.id} is running, and cannot go on as {submission.task} yet")


# --- while the job waits --------------------------------------------------------------------------------------------


def await_replacement(task: BoundTask, job: Job) -> Job | Ignored:
    """Return a job as canceled if a task before its replacement was; `Ignored` if it has ended with it, or waits on."""
    app_state = app_state_of(task.app)
    ledger, limits = app_state.ledger, app_state.settings.limits
    meta = meta_elsewhere(task.backend, job.id)
    if meta["status"] == states.SUCCESS:
        keep = task._onejob.retention_of(job)
        ended = ledger.complete(job, dumps(meta["result"], "the result", limits), keep=keep)
    elif meta["status"] in states.EXCEPTION_STATES:
        ended = ledger.fail(job, encode_failure(meta["result"]), "the task that replaced it failed")
    elif (broken := _find_broken(ledger, job)) is None:
        ended = _wait_on(task, job)
    elif broken.state is State.FAILED:
        ended = ledger.fail(job, broken.error or "", f"job {broken.id} failed, which was to replace it")
    else:
        return ledger.abandon(job, f"job {broken.id} was canceled, which was to replace it")
    if ended.state.final:
        confirm_end(task.backend, task.request, ended)
        ledger.mark_canvas_notified(ended)  # by Celery: the replacement has inherited the canvas
    return Ignored(ended.reason)


def _find_broken(ledger: Ledger, job: Job) -> Job | None:
    ids = decode(job.payload).replaced_by
    earlier = ledger.get_many(ids).values() if ids else ()
    return next((each for each in earlier if each.state in {State.FAILED, State.CANCELED}), None)


def _wait_on(task: BoundTask, job: Job) -> Job:
    """Release a job to the queue; fail it when its replacement cannot end any more."""
    app_state, waited = app_state_of(task.app), (job.started_at or 0.0) - job.run_at
    expires = task.app.conf.result_expires
    limit = expires.total_seconds() if isinstance(expires, timedelta) else float(expires or NEVER)
    if waited > max(limit, job.lease):
        error = TimeoutError(f"nothing is known of the task that replaced job {job.id} {waited:.0f} s ago")
        return app_state.ledger.fail(job, encode_failure(error), str(error))
    wake_after = min(max(waited, FIRST_POLL), POLL_LEASES * job.lease)
    return app_state.ledger.release(job, REPLACED, wake_after=wake_after, withheld=app_state.publisher.delivers)
