"""Handles `Task.replace`: a job goes on as the task that replaces it, under its id, identity and idempotency key.

A single `onejob.Task` is what the job runs next. Otherwise the id passes to the end of a chain, to the body of a chord,
or to a task that the ledger does not run: then the job waits for that task's message, or for its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
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
from onejob.celery.messages.payload import (
    REPLACED,
    Ignored,
    decode,
    dumps,
    encode_failure,
    loads,
    read_message,
    replacement_depth,
    to_json,
)
from onejob.celery.results.result import meta_elsewhere
from onejob.celery.results.result_backend import confirm_end
from onejob.celery.run import Run
from onejob.celery.submission.canvas import jobs_replaced_by
from onejob.celery.submission.options import BoundTask
from onejob.errors import IdentityHeldError, InvalidArgumentsError, NoDeadLetterError, OneJobError, StoreBusyError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Admission, Applied, JobRow, Outcome, Submission
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger, NextRun
from onejob.ledger.reader import JobReader

PAUSE = 0.05
"""Seconds between two tries to pass on a job whose run has not ended yet."""
FIRST_POLL = 1.0
"""Seconds until the first look for the end of a replacement; each later look waits as long as all before it."""
POLL_LEASES = 8
"""How many leases pass at most between two looks."""
OF_SUBMISSION = frozenset({"session", "idempotency_key", "webhook_url", "tags", "on_duplicate"})
"""The options that a job keeps from its submission."""
BROKEN = frozenset({State.FAILED, State.CANCELED})
"""The ends of a task after which a canvas does not go on."""
NEVER = 366 * 86_400.0
"""Seconds after which an end is no longer awaited, with a result backend that keeps results for ever."""


# --- in the run that replaces itself --------------------------------------------------------------------------------


def replace_run(task: BoundTask, run: Run, signature: Any, send: Callable[[Any], object]) -> NoReturn:
    """End a run with the signature that replaces it, which `send` publishes.

    Raises Celery's `Ignore`; before a publication `LeaseLost`, `JobCanceled` or as `check_has_no_own`; and the errors
    of the publication.
    """
    run.raise_if_interrupted()
    _, last = _path_to(run.id, signature)
    check_has_no_own(() if last is None else last.options.items())
    if run.job.attempt > 1:
        with suppress(NotImplementedError):
            task.backend.forget(run.id)  # the end of an earlier attempt is not that of the replacement
    if last is not None:  # Celery gives it to the signature, which hands it to no task inside of a chord's body
        last.set(replaced_task_nesting=1 + (task.request.get("replaced_task_nesting") or 0))
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
    """Raise `InvalidArgumentsError` for an option of a submission: a retry or a replacement keeps its job's options."""
    for name, given in options:
        if name in OF_SUBMISSION and given is not None:
            msg = f"{name}={given!r:.100} is not used by Task.retry and Task.replace: the job goes on with its own"
            raise InvalidArgumentsError(msg)


def _pass_on(task: BoundTask, run: Run, signature: Any) -> None:
    """Let the job wait for the task that has its id now; or end the job, if nobody will know the end of that task."""
    app_state, job = app_state_of(task.app), run.job
    ledger = app_state.ledger
    earlier, last = _path_to(run.id, signature)
    if _keeps_end(task, last):
        waiting = NextRun(
            payload=to_json(loads(job.payload) | {"replaced_by": earlier}), options=job.options, retries=0,
            handover=app_state.publisher.handover.hold(FIRST_POLL),
        )  # fmt: skip
        ledger.replace(job, waiting, canvas=job.canvas_pending, reason=REPLACED)
    else:
        ledger.mark_canvas_notified(ledger.abandon(job, REPLACED))  # the replacement notifies the canvas
    run.ended = True


def _path_to(job_id: str, signature: Any) -> tuple[list[str], Any]:
    """Return the ids of the tasks before the task with an id, and that task; None if it is not found."""
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
    ledger: Ledger, job: JobRow, submission: Submission, request_id: str | None = None
) -> Callable[[NextRun], JobRow]:
    """Return the function that lets a running job go on as a submission with its id, and raises `StaleTokenError`."""
    reason = f"replaced by {decode(submission.payload).task}"
    return partial(ledger.replace, job, canvas=submission.canvas, reason=reason, request_id=request_id)


def replace_and_publish(
    app_state: AppState, job: JobRow, submission: Submission, *, request_id: str | None = None
) -> JobRow:  # fmt: skip
    """Let a running job go on as a submission with its id, and publish it if it is due. Raises `StaleTokenError`."""
    replace = _replacing(app_state.ledger, job, submission, request_id)
    return app_state.publisher.run_next(job, NextRun.of(submission), replace)


def claim_replaced(claim: Callable[[], Applied], depth: int) -> Applied:
    """Claim a job for a message with its id; `depth`: how often `Task.replace` had passed on the id when it was sent.

    The message of a replacement may arrive before the run that sent it has ended: wait for that end, for one lease at
    most.
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


def resume(ledger: Ledger, job: JobRow, submission: Submission) -> Admission:
    """Let a job that waits for its replacement go on as a submission with its id; any other job stays as it is.

    A job that has failed since an earlier task had failed goes on, too: that task has been redriven. Waits for the end
    of the job's run for one lease, and then raises `StoreBusyError`.
    """
    if job.state is State.FAILED and waits_for_replacement(job):
        with suppress(NoDeadLetterError, IdentityHeldError):  # an equal job answers in its place
            job = ledger.redrive(job.id, reason=f"goes on as {submission.task}: the task before that was redriven")
    for _ in range(int(job.lease / PAUSE) + 1):
        if job.state.final or replacement_depth(job.options) >= replacement_depth(submission.options):
            return Admission(job, Outcome.REPLAYED if job.state.final else Outcome.ATTACHED)
        if job.state is not State.RUNNING:
            if not waits_for_replacement(job):
                return Admission(job, Outcome.ATTACHED)
            claimed = ledger.claim(job.id, nonce=new_nonce(), node=gethostname())
            if claimed.applied and claimed.job is not None:
                return Admission(_replacing(ledger, claimed.job, submission)(NextRun.of(submission)), Outcome.ADMITTED)
        time.sleep(PAUSE)
        job = ledger.get(job.id)
    raise StoreBusyError(f"job {job.id} is running, and cannot go on as {submission.task} yet")


# --- while the job waits --------------------------------------------------------------------------------------------


def await_replacement(task: BoundTask, job: JobRow) -> JobRow | Ignored:
    """Return a job as canceled if a task before its replacement was canceled; `Ignored` if it ended or waits on."""
    ledger = app_state_of(task.app).ledger
    earlier = parts_before(ledger, job)
    broken = next((part for part in earlier if part.state in BROKEN), None)
    if any(not part.state.final for part in earlier):  # what the backend has for its id is of an earlier run of theirs
        ended = _fail_in_circle(ledger, job, earlier) or _wait_on(task, job, forever=True)
    elif broken is None:
        ended = _end_as_elsewhere(task, job) or _wait_on(task, job)
    elif broken.state is State.FAILED:
        ended = ledger.fail(job, broken.error or "", f"job {broken.id} failed, which was to replace it")
    else:
        return ledger.abandon(job, f"job {broken.id} was canceled, which was to replace it")
    if ended.state.final:
        confirm_end(task.backend, task.request, ended)
        ledger.mark_canvas_notified(ended)  # by Celery: the replacement has inherited the canvas
    return Ignored(ended.reason)


def _fail_in_circle(ledger: Ledger, job: JobRow, earlier: Sequence[JobRow]) -> JobRow | None:
    """Fail a job that waits for itself, through followers or replacements; return None for any other job."""
    paths, seen = [[part] for part in earlier], set()
    while paths:
        path = paths.pop()
        last = path[-1]
        if last.id == job.id:
            through = ", then ".join(f"{each.id} ({each.task})" for each in path[:-1])
            error = OneJobError(f"it waits for itself, through the jobs {through}: let one of them not be replaced")
            return ledger.fail(job, encode_failure(error), str(error))
        if last.id not in seen and not last.state.final:
            seen.add(last.id)
            followed = ledger.get_or_none(last.follows_id) if last.follows_id is not None else None
            paths += [[*path, each] for each in ([followed] if followed else parts_before(ledger, last))]
    return None


def _end_as_elsewhere(task: BoundTask, job: JobRow) -> JobRow | None:
    """End a job as the task with its id, whose end the result backend has; return None if it has no end."""
    app_state, meta = app_state_of(task.app), meta_elsewhere(task.backend, job.id)
    if meta["status"] == states.SUCCESS:
        result = dumps(meta["result"], "the result", app_state.settings.limits)
        return app_state.ledger.complete(job, result, hold=task._onejob.hold_of(job, decode(job.payload).window))
    if meta["status"] in states.EXCEPTION_STATES:
        return app_state.ledger.fail(job, encode_failure(meta["result"]), "the task that replaced it failed")
    return None


def parts_before(ledger: JobReader, job: JobRow) -> list[JobRow]:
    """Return the jobs that come before the task that has the id of a replaced job, as far as the ledger has them."""
    message = read_message(job)
    return ledger.get_each((message.replaced_by if message is not None else None) or ())


def forget_ends_behind(task: BoundTask, part: JobRow) -> None:
    """Delete Celery's results of the replaced jobs behind a part that runs again: they were its earlier failure.

    These jobs wait for the end that follows this run.
    """
    for job_id in jobs_replaced_by(loads(part.options)):
        with suppress(NotImplementedError):
            task.backend.forget(job_id)


def waits_for_replacement(job: JobRow) -> bool:
    """Return whether a job waits for its replacement, or has failed because of its replacement."""
    message = read_message(job)
    return message is not None and message.replaced_by is not None


def _wait_on(task: BoundTask, job: JobRow, *, forever: bool = False) -> JobRow:
    """Release a job to the queue; unless it may wait `forever`, fail it when nothing is known of its replacement."""
    app_state, waited = app_state_of(task.app), (job.started_at or 0.0) - job.run_at
    expires = task.app.conf.result_expires
    limit = expires.total_seconds() if isinstance(expires, timedelta) else float(expires or NEVER)
    if waited > max(limit, job.lease) and not forever:
        error = TimeoutError(f"nothing is known of the task that replaced job {job.id} {waited:.0f} s ago")
        return app_state.ledger.fail(job, encode_failure(error), str(error))
    wake_after = min(max(waited, FIRST_POLL), POLL_LEASES * job.lease)
    return app_state.ledger.release(job, REPLACED, handover=app_state.publisher.handover.hold(wake_after))
