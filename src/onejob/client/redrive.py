"""Redrives dead letters, with what hangs on them: followers, replaced jobs, and the tasks that were to replace them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from celery import Celery

from onejob import errors
from onejob.celery.app_state import app_state_of
from onejob.celery.messages.payload import decode, has_canvas, loads, to_json
from onejob.celery.submission.canvas import jobs_replaced_by
from onejob.celery.submission.options import tasks_of
from onejob.celery.submission.replacement import parts_before, waits_for_replacement
from onejob.jobs.handover import BY_SWEEP, Handover
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import JobRow
from onejob.jobs.query import Query
from onejob.ledger.ledger import Ledger
from onejob.ledger.search import WINDOW, search
from onejob.ledger.stuck import is_follower

NEWER_LIMIT = 100_000
"""Among about how many of the newest jobs a job with newer arguments is searched before a redrive."""
FOLLOWER_LIMIT = 10_000
"""How many followers of a dead letter wait again for its end when it is redriven, or are searched for webhooks."""


def redrive(app: Celery | None, ledger: Ledger, job: JobRow, *, forget_steps: bool, reason: str) -> JobRow:
    """Queue a dead letter again; its canvas, if any, is notified again when it ends. Raises as `Ledger.redrive`.

    The followers that have failed with it wait for its new end. So does a follower that is redriven itself, whose job
    has been redriven before; a run of its own would repeat the effects of that job. A job that was replaced, and has
    failed with a task that was to replace it, waits again: that task is redriven, unless it was before.
    Raises `SupersededError` if the app's task replaces arguments or runs again, and newer ones have run, or will run. A
    sweep hands the job over unless the store does, as that of `app` can.
    """
    _check_is_newest(app, ledger, job)
    if job.state is State.FAILED and is_follower(job) and _is_redriven(ledger, job):
        return _rejoin(app, ledger, job, reason) or ledger.get(job.id)
    payload = None
    if job.state is State.FAILED and waits_for_replacement(job):
        _check_is_free(ledger, job)
        parts = parts_before(ledger, job)
        broken = next((part for part in parts if part.state is State.FAILED), None)
        if broken is not None:
            cause = _cause_of(ledger, broken)
            if cause.state is State.FAILED:
                redrive(app, ledger, cause, forget_steps=forget_steps, reason=reason)
            if (job := ledger.get(job.id)).state is not State.FAILED:  # it waits with that task
                return job
        elif all(part.state.final for part in parts) and not _goes_on(app, ledger, job, parts):
            payload = to_json({name: value for name, value in loads(job.payload).items() if name != "replaced_by"})
    return _queue_again(app, ledger, job, forget_steps=forget_steps, reason=reason, payload=payload)


def handover_of(app: Celery | None, ledger: Ledger, job: JobRow) -> Handover:
    """Return how a job gets to a worker: by the store of `ledger` if it can for `app`, and else by a sweep."""
    if app is None or job.publisher_task is not None or not app_state_of(app).owns(ledger):
        return BY_SWEEP
    return app_state_of(app).publisher.handover.by_store(job) or BY_SWEEP


def _check_is_newest(app: Celery | None, ledger: Ledger, job: JobRow) -> None:
    task = None if app is None else tasks_of(app).get(job.task)
    if task is None or not task._onejob.conflict_policy.queue_next or job.state is not State.FAILED:
        return
    query = Query(
        task=job.task, identity=job.identity, states=frozenset(State) - {State.FAILED, State.CANCELED},
        since=job.created_at, limit=1, light=True,
    )  # fmt: skip
    windows = iter(range(NEWER_LIMIT // WINDOW - 1))
    for newer in search(ledger, query, is_over=lambda: next(windows, None) is None).jobs:
        if newer.fingerprint != job.fingerprint:
            raise errors.SupersededError(job.id, newer.id, newer.state)


def _queue_again(
    app: Celery | None, ledger: Ledger, job: JobRow, *, forget_steps: bool, reason: str, payload: str | None = None
) -> JobRow:
    """Redrive a job, and have what has failed with it wait for its new end."""
    handover = handover_of(app, ledger, replace(job, retries=0, payload=payload or job.payload))
    canvas = has_canvas(loads(job.options))
    redriven = ledger.redrive(
        job.id, forget_steps=forget_steps, canvas=canvas, reason=reason, handover=handover, payload=payload
    )
    _wait_behind(app, ledger, job, reason)
    for follower in ledger.store.followers(job.id, limit=FOLLOWER_LIMIT):
        if follower.state is State.FAILED and is_follower(follower):
            _rejoin(app, ledger, follower, reason)
    return redriven


# --- followers --------------------------------------------------------------------------------------------------------


def _is_redriven(ledger: Ledger, follower: JobRow) -> bool:
    followed = ledger.get_or_none(str(follower.follows_id))
    return followed is not None and followed.state is not State.FAILED


def _rejoin(app: Celery | None, ledger: Ledger, follower: JobRow, reason: str) -> JobRow | None:
    rejoined = ledger.rejoin(follower, canvas=has_canvas(loads(follower.options)), reason=f"{reason}: waits")
    if rejoined is not None:
        _wait_behind(app, ledger, follower, reason)
    return rejoined


def _cause_of(ledger: Ledger, job: JobRow) -> JobRow:
    """Return the job with which a failed one has failed: the one that it follows, or itself."""
    followed = ledger.get_or_none(str(job.follows_id)) if is_follower(job) else None
    return job if followed is None or followed.state is not State.FAILED else followed


# --- jobs that wait for what replaced them ----------------------------------------------------------------------------


def _check_is_free(ledger: Ledger, job: JobRow) -> None:
    """Raise `IdentityHeldError` if another job holds the identity of one, before a part of that is redriven."""
    holder = ledger.store.find_existing(job.identity, None)
    if holder is not None and holder.id != job.id:
        raise errors.IdentityHeldError(job.id, holder.id, holder.state)


def _wait_behind(app: Celery | None, ledger: Ledger, part: JobRow, reason: str) -> None:
    """Have the jobs that have failed with a part of what replaced them wait again."""
    for job_id in jobs_replaced_by(loads(part.options)):
        job = ledger.get_or_none(job_id)
        if job is None or job.state is not State.FAILED or part.id not in (decode(job.payload).replaced_by or ()):
            continue
        with suppress(errors.NoDeadLetterError, errors.IdentityHeldError):  # an equal job does its work
            _queue_again(app, ledger, job, forget_steps=False, reason=f"{reason}: waits for job {part.id}")


def _goes_on(app: Celery | None, ledger: Ledger, job: JobRow, parts: list[JobRow]) -> bool:
    """Have the last part before the task with a job's id call that again; False if it is not known, or in a chord.

    Then the job runs its own body again.
    """
    last = next((part for part in parts if part.id == (decode(job.payload).replaced_by or [""])[-1]), None)
    if app is None or last is None or last.state is not State.COMPLETED:
        return False
    options = loads(last.options)
    if options.get("chord") or options.get("group_id") or not options.get("chain"):
        return False
    with suppress(NotImplementedError):
        app.tasks.get(job.task, app).backend.forget(job.id)  # the end of the earlier call
    detail = f"its canvas is notified again, for job {job.id}"
    ledger.change(
        last, Transition.NOTIFY_CANVAS, None, token=last.token, canvas_pending=True, handover=BY_SWEEP,
        detail=detail,
    )  # fmt: skip
    return True
