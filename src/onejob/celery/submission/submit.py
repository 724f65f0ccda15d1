"""Submits calls: `submit` is the whole way of one call; `admit` writes and publishes; `answer` returns the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from onejob import errors
from onejob.celery.app_state import AppState, app_state_of
from onejob.celery.messages.context import differing_headers
from onejob.celery.messages.payload import decode, loads, replacement_depth
from onejob.celery.messages.routing import UNPUBLISHABLE
from onejob.celery.results.result import AsyncResult, result_of_submission
from onejob.celery.submission.call import PROMISED, Call, Prepared, prepare
from onejob.celery.submission.options import BoundTask
from onejob.celery.submission.replacement import resume
from onejob.jobs.handover import BY_CALLER, BY_SWEEP, Handover, by_caller
from onejob.jobs.model import Admission, Duplicate, HandoverOf, JobRow, Outcome, Submission
from onejob.jobs.submitter import MAX_PERIOD, Charge, Quota
from onejob.jobs.transitions import new_id, new_nonce
from onejob.ledger.budgets import charge_budgets
from onejob.ledger.ledger import Ledger
from onejob.ledger.sweep import fail_unpublishable
from onejob.observability import tracing
from onejob.observability.logs import log_warning
from onejob.transactions.sessions import transaction_of
from onejob.webhooks.job import WebhookPayload, webhook_submission

Results = list[Admission | Exception]

_BY_ANOTHER = frozenset({Outcome.ATTACHED, Outcome.REPLAYED})
"""The outcomes of submissions that are answered by a job with arguments of its own."""


def submit(app_state: AppState, call: Call, *, session: object = None, producer: Any = None) -> AsyncResult[Any]:
    """Prepare and admit one call, and return its result. Raises as `prepare` and `answer` do."""
    with tracing.tracer.submit(str(call.task.name), call.source) as span:
        prepared = prepare(app_state, call)
        admission = call.task._onejob_admit(app_state, prepared, session=session, producer=producer)
        if isinstance(admission, Admission):
            span.record([admission])
        return answer(prepared, admission, session)


def admit_one(
    _task: BoundTask, app_state: AppState, prepared: Prepared, *, session: Any, producer: Any
) -> Admission | Exception:
    """Return the admission of a call, or its error."""
    return admit(app_state, [prepared], session=session, producer=producer)[0]


def admit(
    app_state: AppState, prepared: Sequence[Prepared], *, session: object = None, producer: Any = None,
    wait_for_locks: bool = True,
) -> Results:  # fmt: skip
    """Submit calls that were prepared, create their webhooks and publish the messages of new jobs.

    Returns for each call its admission, or the error that says why it has none; a message that cannot be sent
    withdraws its job. A `StoreUnavailableError`, such as the `StoreBusyError` of `wait_for_locks=False`, is the result
    of all of them: the caller may submit all again. If the broker fails, sweepers publish what was not sent.

    With a `session` the jobs are written in its transaction, and published after its commit, by a sweeper if
    necessary; errors of the database are the driver's, and raised.
    """
    if not prepared:
        return []
    if session is not None:
        return _admit_in_session(app_state, prepared, session)
    publisher = app_state.publisher
    handover_of = publisher.handover.of if producer is None or publisher.is_own(producer) else by_caller
    _, submissions, _ = zip(*prepared, strict=True)
    admitted = _write(app_state, submissions, handover_of, wait_for_locks=wait_for_locks)
    results: Results = []
    due: dict[str, tuple[Call, Admission]] = {}
    for (call, submission, _), admission in zip(prepared, admitted, strict=True):
        if isinstance(admission, Admission):
            results.append(_accept(app_state, call, submission, admission))
            if not admission.handed_over and needs_message(submission, admission):
                due[admission.job.id] = call, admission
        else:
            results.append(admission)
    if due and (withdrawn := _publish(app_state, due, producer)):
        return [withdrawn.get(each.job.id, each) if isinstance(each, Admission) else each for each in results]
    return results


def answer(prepared: Prepared, admission: Admission | Exception, session: object = None) -> AsyncResult[Any]:
    """Return the result of a call. Raises the error of a call that was not admitted, and as `check_accepted` does."""
    if isinstance(admission, Exception):
        raise admission
    if admission.key_reused or admission.outcome is Outcome.REJECTED:
        check_accepted(prepared.call, admission)
    return result_of(prepared, admission, session)


def check_accepted(call: Call, admission: Admission) -> None:
    """Raise `KeyReuseMismatchError` or `DuplicateJobError` for a submission that was rejected."""
    if admission.key_reused:
        raise errors.KeyReuseMismatchError(str(call.key), admission.job.id)
    if admission.outcome is Outcome.REJECTED:
        raise errors.DuplicateJobError(admission.job.id, admission.job.state, str(call.task.name))


def result_of(prepared: Prepared, admission: Admission, session: object = None) -> AsyncResult[Any]:
    """Return the result of a submission, in a session's transaction if any; a run that submits gets it as a child."""
    call, parent = prepared.call, prepared.parent
    watch = None if session is None else transaction_of(session).watch()
    result = result_of_submission(admission, call.task.app, watch)
    result.ignored = bool(call.options.get("ignore_result", call.task.ignore_result))
    if parent is not None:
        if admission.outcome is Outcome.ATTACHED and admission.job.id == parent.request.id:
            _warn_of_own_duplicate(call.task, admission.job)
        if call.options.get("add_to_parent", True):
            parent.add_trail(result)
    return result


def _warn_of_own_duplicate(task: BoundTask, job: JobRow) -> None:
    """Log, once per task, that a running job has submitted an equal job: that is itself, so nothing runs after it."""
    warned = app_state_of(task.app).warned_of_themselves
    if task.name not in warned:
        warned.add(task.name)
        log_warning(
            "job %s has submitted a call of %s that is equal to itself, and got itself as the answer: no other run "
            "follows. To run once more after it, set on_duplicate='run_again'; to let an equal job be admitted as soon "
            "as one has begun, unique_until='started'; to wait for something, raise self.retry(countdown=...)",
            job.id,
            task.name,
        )


def results_of(prepared: Sequence[Prepared], answers: Results, session: object = None) -> list[AsyncResult[Any]]:
    """Return the results of submissions, all of which were admitted.

    Raises the first error if none was, else `PartlySubmittedError`, which has the result or the error of each.
    """
    results = [
        result_of(each, answer, session) if isinstance(answer, Admission) else answer
        for each, answer in zip(prepared, answers, strict=True)
    ]
    if results and all(isinstance(each, Exception) for each in results):
        raise cast("Exception", results[0])
    return errors.all_written(results)


# --- the ledger -------------------------------------------------------------------------------------------------------


def submit_to_ledger(ledger: Ledger, submission: Submission) -> Admission:
    """Submit a job. A job that waits for a replacement with this id goes on as this one. Raises `TaskIdReusedError`."""
    return _settle(ledger, submission, ledger.submit(submission))


def check_task(job: JobRow, task: str) -> None:
    """Raise `TaskIdReusedError` unless a job is of a task, or was replaced by it."""
    if task != job.task and task != decode(job.payload).task:
        raise errors.TaskIdReusedError(job.id, task, job.task)


def _write(
    app_state: AppState, submissions: Sequence[Submission], handover_of: HandoverOf, *, wait_for_locks: bool
) -> Results:
    """Submit submissions; an error is the result of only the submissions that it concerns."""
    ledger = app_state.ledger
    try:
        submissions = _within_budgets(app_state, submissions)
        results: Results = [*ledger.submit_many(submissions, wait_for_locks=wait_for_locks, handover_of=handover_of)]
    except errors.StoreUnavailableError as error:
        return [error for _ in submissions]
    except errors.PartlySubmittedError as error:
        results = [*error.results]  # type: ignore[list-item] # admissions and errors
    except (errors.StoreError, errors.QuotaExceededError) as error:
        if len(submissions) > 1 and isinstance(error, errors.StoreRefusedError):
            one_by_one = (_write(app_state, [each], handover_of, wait_for_locks=wait_for_locks) for each in submissions)
            return [result for (result,) in one_by_one]
        return [error for _ in submissions]
    for number, (submission, result) in enumerate(zip(submissions, results, strict=True)):
        if isinstance(result, Admission) and (result.follower or result.job).submission_nonce != submission.nonce:
            try:
                results[number] = _settle(ledger, submission, result)
            except (errors.StoreError, errors.TaskIdReusedError) as error:
                results[number] = error
    return results


def _within_budgets(app_state: AppState, submissions: Sequence[Submission]) -> Sequence[Submission]:
    """Return submissions, each charged with a budget of its submitter that is spent. Raises `StoreError`."""
    if not any(each.budgets for each in submissions):
        return submissions
    spent = app_state.spent()
    return [charge_budgets(spent, each) for each in submissions]


def _settle(ledger: Ledger, submission: Submission, admission: Admission) -> Admission:
    """Return the answer to a submission whose id an earlier job may have. Raises `TaskIdReusedError`.

    A step of a workflow that has other arguments than the job with its id becomes a job with another id.
    """
    own = admission.follower or admission.job
    if own.id != submission.id or own.submission_nonce == submission.nonce:
        return admission
    if replacement_depth(submission.options) > replacement_depth(own.options):
        return resume(ledger, own, submission)
    check_task(own, submission.task)
    if own.fingerprint != submission.fingerprint and PROMISED in loads(submission.options):
        log_warning(
            "job %s exists with other arguments, so the call of %s gets an id of its own: Celery gives the ids of a "
            "workflow again when the same object is applied again. Build a new chain for each call",
            own.id,
            submission.task,
        )
        return ledger.submit(replace(submission, id=new_id(), nonce=new_nonce()))
    return admission


# --- an admission -----------------------------------------------------------------------------------------------------


def _accept(
    app_state: AppState, call: Call, submission: Submission, admission: Admission, inner: Ledger | None = None
) -> Admission | Exception:
    """Create the webhooks of a call in the ledger, or in `inner`; return its admission, or the error of a refusal."""
    if admission.outcome in _BY_ANOTHER and call.on_duplicate is None:
        _warn_of_unused_arguments(app_state, call.task, submission, admission)
    if call.check_answer is not None or call.webhook_url is not None or call.task._onejob.webhook_url is not None:
        ledger = inner or app_state.ledger
        try:
            if call.check_answer is not None:
                call.check_answer(admission)
            create_webhooks(app_state, call.task, ledger, submission, admission, call.webhook_url)
        except Exception as error:  # noqa: BLE001 - the result of this call; the others go on
            return error
    return admission


def _has_webhooks(call: Call) -> bool:
    return call.webhook_url is not None or call.task._onejob.webhook_url is not None


def _warn_of_unused_arguments(
    app_state: AppState, task: BoundTask, submission: Submission, admission: Admission
) -> None:
    """Log, once per task without `on_duplicate`, that a duplicate is answered by a job with other arguments or headers.

    With other headers, one tenant may get another tenant's result; ids of requests and traces always differ.
    """
    job = admission.job
    if job.id == submission.id or submission.task in app_state.warned_tasks or not task._onejob.attaches_by_default:
        return
    if job.fingerprint != submission.fingerprint:
        unused, remedy = "other arguments are", "name them in unique_on"
    elif job.options == submission.options and job.payload == submission.payload:
        return
    elif names := differing_headers(job, submission):
        first = f'headers["{names[0]}"]'
        unused, remedy = f"other {first} is", f"name it in unique_on (unique_on=[..., '{first}'])"
    else:
        return
    app_state.warned_tasks.add(submission.task)
    log_warning(
        "a duplicate of job %s is answered by that job, and its %s not used: if that matters, %s of task %s, or set "
        "on_duplicate='replace' or 'run_again', which runs the newest call; on_duplicate='attach' says that it does "
        "not, and ends this warning",
        job.id,
        unused,
        remedy,
        submission.task,
    )


# --- webhooks ---------------------------------------------------------------------------------------------------------


ADDED_QUOTA = Quota(10, MAX_PERIOD)
"""How many webhooks duplicates may add to one job, besides the webhooks of its first submission and of its task.

A job that still exists after the period may get as many again.
"""


def create_webhooks(
    app_state: AppState, task: BoundTask, ledger: Ledger, submission: Submission, admission: Admission, url: str | None
) -> None:
    """Create the webhooks of a submission: to its own URL, and for a new job also to the task's URL.

    The webhook of a follower reports the end of the follower. A webhook that a duplicate adds is charged as a new job.
    Raises `QuotaExceededError` and `TooManyWebhooksError`.
    """
    if admission.outcome is Outcome.REJECTED:
        return
    job, submitter = admission.job, submission.submitter
    if url is not None:
        own, signer = admission.follower or job, app_state.webhooks.signer_of(submitter)
        webhook = webhook_submission(url, own, submitter=submitter, signer=signer, host=submission.host)
        if not admission.outcome.makes_job:
            added = Charge("webhooks", ADDED_QUOTA, f"webhooks:{job.id}:{job.submission_nonce}")
            webhook = replace(webhook, charges=(added, *submission.charges))
        _create_webhook(ledger, own, webhook)
    if admission.outcome.makes_job:
        create_task_webhook(task, ledger, job)


def move_webhook(ledger: Ledger, webhook: JobRow, admission: Admission) -> None:
    """Create a dead letter's webhook again for the job that was submitted in its place, with the signer of the first.

    Repeating the call is harmless.
    """
    _, url, signer = WebhookPayload.from_job(webhook)
    _create_webhook(
        ledger, admission.job, webhook_submission(url, admission.job, submitter=webhook.submitter, signer=signer)
    )


def create_task_webhook(task: BoundTask, ledger: Ledger, job: JobRow) -> None:
    """Create the webhook of a job to the URL of its task. Repeating the call is harmless."""
    url = task._onejob.webhook_url
    if url is not None:
        _create_webhook(ledger, job, webhook_submission(url, job))


def _create_webhook(ledger: Ledger, job: JobRow, webhook: Submission) -> None:
    try:
        follower = ledger.follow(webhook, follows_id=job.id)
    except errors.QuotaExceededError as error:
        if error.option == "webhooks":
            raise errors.TooManyWebhooksError(job.id, ADDED_QUOTA.limit) from None
        raise
    if follower is None:
        log_warning("job %s no longer exists: its webhook is not sent", job.id)


# --- publication ------------------------------------------------------------------------------------------------------


def needs_message(submission: Submission, admission: Admission) -> bool:
    """Return whether a submission wrote or moved a job that is due now and that the store has not handed over."""
    if admission.handed_over or submission.delay > 0 or admission.job.queued_next or admission.job.parked_on:
        return False
    return admission.outcome is Outcome.ADMITTED or admission.rescheduled


def _publish(app_state: AppState, due: Mapping[str, tuple[Call, Admission]], producer: Any) -> dict[str, Exception]:
    """Publish the jobs that are due because of their submissions; return the errors of withdrawn jobs, by id."""
    found = app_state.publisher.publish_stored([admission.job for _, admission in due.values()], producer) or {}
    withdrawn: dict[str, Exception] = {}
    for job_id, error in found.items():
        call, admission = due[job_id]
        if admission.outcome is not Outcome.ADMITTED:
            continue
        try:
            if _withdraw(app_state.ledger, admission.job, error, has_webhooks=_has_webhooks(call)):
                withdrawn[job_id] = error
        except errors.StoreError as failure:  # whether the job exists is unknown
            withdrawn[job_id] = failure
    return withdrawn


def _withdraw(ledger: Ledger, job: JobRow, error: Exception, *, has_webhooks: bool) -> bool:
    """Fail a job whose message cannot be sent, and delete it if it has no duplicates; False if it was claimed."""
    applied = fail_unpublishable(ledger, job, f"its message could not be sent: {errors.describe(error)}")
    if not applied.applied or applied.job is None:
        return False
    error.add_note(UNPUBLISHABLE)
    if applied.job.duplicate_count == 0 and not has_webhooks:
        ledger.remove(applied.job)
    return True


# --- in a transaction of the caller -----------------------------------------------------------------------------------


def _admit_in_session(app_state: AppState, prepared: Sequence[Prepared], session: object) -> Results:
    transaction = transaction_of(session)
    ledger, has_hook = app_state.ledger, transaction.reports_commit
    emit = (lambda event: transaction.after_commit(partial(ledger.emit, event))) if has_hook else None
    inner = ledger.in_transaction(transaction, emit)
    by_store = app_state.publisher.handover.by_store
    otherwise = BY_CALLER if has_hook else BY_SWEEP
    submissions = _within_budgets(app_state, [each.submission for each in prepared])
    admitted: Results = [_submit_inside(inner, each, by_store(each) or otherwise) for each in submissions]
    results: Results = []
    for (call, submission, _), admission in zip(prepared, admitted, strict=True):
        if not isinstance(admission, Admission):
            results.append(admission)
            continue
        results.append(_accept(app_state, call, submission, admission, inner))
        if has_hook and admission.job.parked_on and admission.outcome is Outcome.ADMITTED:
            transaction.after_commit(partial(ledger.give_back, admission.job), sends=True)
        if has_hook and needs_message(submission, admission):
            transaction.after_commit(partial(app_state.publisher.try_publish, admission.job), sends=True)
        if admission.outcome is not Outcome.ADMITTED and not (submission.replaces or submission.queue_next):
            # SQLite has one writer: outside the transaction, the record would wait for its end.
            _record_duplicate(inner if transaction.dialect == "sqlite" else ledger, submission, admission)
    return results


def _submit_inside(ledger: Ledger, submission: Submission, handover: Handover) -> Admission | Exception:
    try:
        admission = ledger.submit(submission, handover=handover)
        own = admission.follower or admission.job
        if own.id == submission.id:
            check_task(own, submission.task)
    except (errors.QuotaExceededError, errors.TaskIdReusedError) as error:
        return error
    return admission


def _record_duplicate(ledger: Ledger, submission: Submission, admission: Admission) -> None:
    """Record a duplicate outside the user's transaction, which must not lock the row of a live job."""
    try:
        ledger.record(Duplicate.of(submission, admission))
    except errors.StoreError as error:
        log_warning("a duplicate of job %s was not recorded: %s", admission.job.id, error)
