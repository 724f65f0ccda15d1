"""Submits calls: `submit` is the whole way of one; `admit` writes to the ledger and publishes; `answer` returns."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

from onejob.celery.app_state import app_state_of
from onejob.celery.call import prepare
from onejob.celery.payload import decode, replacement_depth
from onejob.celery.replacement import resume
from onejob.celery.result import AsyncResult
from onejob.celery.routing import UNPUBLISHABLE
from onejob.celery.webhooks import create_webhooks
from onejob.errors import (
    DuplicateJobError,
    KeyReuseMismatchError,
    PartlySubmittedError,
    QuotaExceededError,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
    TaskIdReusedError,
    describe,
)
from onejob.jobs.model import Admission, Duplicate, Outcome
from onejob.ledger.publication import fail_unpublishable
from onejob.observability import tracing
from onejob.observability.logs import log_warning
from onejob.transactions.sessions import transaction_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery import Celery

    from onejob.celery.app_state import AppState
    from onejob.celery.call import Call, Prepared
    from onejob.celery.options import BoundTask
    from onejob.jobs.model import Job, MessageOf, Submission
    from onejob.ledger.ledger import Ledger
    from onejob.observability.events import JobEvent
    from onejob.transactions.sessions import OpenTransaction

    Results = list[Admission | Exception]

_BY_ANOTHER = frozenset({Outcome.ATTACHED, Outcome.REPLAYED})
"""The outcomes of submissions that are answered by a job with arguments of its own."""


def submit(call: Call, *, session: object = None, producer: Any = None) -> AsyncResult[Any]:
    """Prepare and admit one call, and return its result. Raises as `prepare` and `answer` do."""
    if tracing.tracer is tracing.NO_TRACER:
        return answer(call, _admit_one(call, session, producer), session)
    with tracing.tracer.submit(str(call.task.name), call.source) as span:
        admission = _admit_one(call, session, producer)
        if isinstance(admission, Admission):
            span.record([admission])
        return answer(call, admission, session)


def _admit_one(call: Call, session: object, producer: Any) -> Admission | Exception:
    return call.task._onejob_admit(prepare(call), session=session, producer=producer)


def admit(
    app: Celery, prepared: Sequence[Prepared], *, session: object = None, producer: Any = None,
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
        return _admit_in_session(app, prepared, session)
    app_state = app_state_of(app)
    ledger, publisher = app_state.ledger, app_state.publisher
    pushes = publisher.shared_address is not None and (producer is None or publisher.is_own(producer))
    _, submissions = zip(*prepared, strict=True)
    message_of = publisher.message_of if pushes else None
    admitted = _submit(ledger, submissions, message_of, wait_for_locks=wait_for_locks)
    results: Results = []
    due: dict[str, tuple[Call, Admission]] = {}
    for (call, submission), admission in zip(prepared, admitted, strict=True):
        if isinstance(admission, Admission):
            results.append(_accept(ledger, call, submission, admission))
            if needs_message(submission, admission):
                due[admission.job.id] = call, admission
        else:
            results.append(admission)
    if due and (withdrawn := _publish(app_state, due, producer)):
        return [withdrawn.get(each.job.id, each) if isinstance(each, Admission) else each for each in results]
    return results


def answer(call: Call, admission: Admission | Exception, session: object = None) -> AsyncResult[Any]:
    """Return the result of a call, as `result_of` does.

    Raises the error of a submission that was not admitted; `KeyReuseMismatchError` or `DuplicateJobError` for one that
    was rejected.
    """
    if isinstance(admission, Exception):
        raise admission
    check_accepted(call, admission)
    return result_of(call, admission, session)


def check_accepted(call: Call, admission: Admission) -> None:
    """Raise `KeyReuseMismatchError` or `DuplicateJobError` for a submission that was rejected."""
    if admission.key_reused:
        raise KeyReuseMismatchError(str(call.key), admission.job.id)
    if admission.outcome is Outcome.REJECTED:
        raise DuplicateJobError(admission.job.id, admission.job.state, str(call.task.name))


def result_of(call: Call, admission: Admission, session: object = None) -> AsyncResult[Any]:
    """Return the result of a submission, and add it to the children of the run in which it was made, if any.

    `session`: in whose transaction it was submitted, if any.
    """
    result: AsyncResult[Any] = AsyncResult.of(admission, call.task.app)
    if session is not None:
        result.may_be_committed = transaction_of(session).watch()
    result.ignored = bool(call.options.get("ignore_result", call.task.ignore_result))
    if call.caller.parent is not None and call.options.get("add_to_parent", True):
        call.caller.parent.add_trail(result)
    return result


def all_admitted(results: Results) -> list[Admission]:
    """Return results that are all admissions. Raises the first error if none is, else `PartlySubmittedError`."""
    if results and not any(isinstance(each, Admission) for each in results):
        raise cast("Exception", results[0])
    return PartlySubmittedError.checked(results)


# --- the ledger -------------------------------------------------------------------------------------------------------


def submit_to_ledger(ledger: Ledger, submission: Submission) -> Admission:
    """Submit a job. A job that waits for a replacement with this id goes on as it. Raises `TaskIdReusedError`."""
    return _settle(ledger, submission, ledger.submit(submission))


def check_task(job: Job, task: str) -> None:
    """Raise `TaskIdReusedError` unless a job is one of a task, or was replaced by it."""
    if task != job.task and task != decode(job.payload).task:
        raise TaskIdReusedError(job.id, task, job.task)


def _submit(
    ledger: Ledger, submissions: Sequence[Submission], message_of: MessageOf | None, *, wait_for_locks: bool
) -> Results:
    """Submit each, so that an error is the result of those only that it concerns."""
    try:
        admissions = ledger.submit_many(submissions, wait_for_locks=wait_for_locks, message_of=message_of)
    except StoreUnavailableError as error:
        return [error for _ in submissions]
    except PartlySubmittedError as error:
        results: Results = [*error.results]  # type: ignore[list-item] # admissions and errors
    except (StoreError, QuotaExceededError) as error:
        if len(submissions) > 1 and isinstance(error, StoreRefusedError):
            return [
                result
                for each in submissions
                for result in _submit(ledger, [each], message_of, wait_for_locks=wait_for_locks)
            ]
        return [error for _ in submissions]
    else:
        results = [*admissions]
    for number, (submission, result) in enumerate(zip(submissions, results, strict=True)):
        if isinstance(result, Admission) and (result.follower or result.job).submission_nonce != submission.nonce:
            try:
                results[number] = _settle(ledger, submission, result)
            except (StoreError, TaskIdReusedError) as error:
                results[number] = error
    return results


def _settle(ledger: Ledger, submission: Submission, admission: Admission) -> Admission:
    """Return the answer to a submission whose id may be that of an earlier job. Raises `TaskIdReusedError`."""
    own = admission.follower or admission.job
    if own.id != submission.id or own.submission_nonce == submission.nonce:
        return admission
    if replacement_depth(submission.options) > replacement_depth(own.options):
        return resume(ledger, own, submission)
    check_task(own, submission.task)
    return admission


# --- an admission -----------------------------------------------------------------------------------------------------


def _accept(ledger: Ledger, call: Call, submission: Submission, admission: Admission) -> Admission | Exception:
    """Create the webhooks of a call that was admitted, and return the admission, or the error if one was refused."""
    if admission.outcome in _BY_ANOTHER:
        _warn_of_unused_arguments(call.task.app, submission, admission)
    if call.check_answer is not None or _has_webhooks(call):
        try:
            if call.check_answer is not None:
                call.check_answer(admission)
            if _has_webhooks(call):
                create_webhooks(call.task, ledger, submission, admission, call.webhook_url)
        except Exception as error:  # noqa: BLE001 - the result of this call; the others go on
            return error
    return admission


def _has_webhooks(call: Call) -> bool:
    """Return whether a webhook is created for the job that answers."""
    return call.webhook_url is not None or call.task._onejob.webhook_url is not None


def _warn_of_unused_arguments(app: Celery, submission: Submission, admission: Admission) -> None:
    """Log, once per task without `on_duplicate`, that a duplicate is answered by a job with other arguments."""
    if (
        admission.job.fingerprint != submission.fingerprint
        and admission.job.id != submission.id
        and submission.task not in (warned := app_state_of(app).warned_tasks)
        and cast("BoundTask", app.tasks[submission.task])._onejob.attaches_by_default
    ):
        warned.add(submission.task)
        log_warning(
            "a duplicate of job %s is answered by that job, and its other arguments are not used: if they matter, "
            "name them in unique_on of task %s, or set on_duplicate='replace' or 'run_again', which runs the "
            "newest ones; on_duplicate='attach' says that they do not, and ends this warning",
            admission.job.id,
            submission.task,
        )


# --- publication ------------------------------------------------------------------------------------------------------


def needs_message(submission: Submission, admission: Admission) -> bool:
    """Return whether a submission made a job due now, new or rescheduled, whose message the store has not pushed."""
    if admission.sent or submission.delay > 0 or admission.job.queued_next:
        return False
    return admission.outcome is Outcome.ADMITTED or admission.rescheduled


def _publish(app_state: AppState, due: Mapping[str, tuple[Call, Admission]], producer: Any) -> dict[str, Exception]:
    """Publish the jobs that are due now because of their submissions; return the errors of the withdrawn ones, by id.

    A job whose message cannot be sent, whatever the state of the broker, is withdrawn if its submission made it.
    """
    errors = app_state.publisher.publish_stored([admission.job for _, admission in due.values()], producer) or {}
    withdrawn = {}
    for job_id, error in errors.items():
        call, admission = due[job_id]
        is_new = admission.outcome is Outcome.ADMITTED
        if is_new and _withdraw(app_state.ledger, admission.job, error, has_webhooks=_has_webhooks(call)):
            withdrawn[job_id] = error
    return withdrawn


def _withdraw(ledger: Ledger, job: Job, error: Exception, *, has_webhooks: bool) -> bool:
    """Undo the admission of a job whose message cannot be sent; False if a worker has claimed it nevertheless.

    It fails, so that the duplicates and webhooks that are attached to it already have an end, too. Without any, no row
    is left.
    """
    applied = fail_unpublishable(ledger, job, f"its message could not be sent: {describe(error)}")
    if not applied.applied or applied.job is None:
        return False
    error.add_note(UNPUBLISHABLE)
    if applied.job.duplicate_count == 0 and not has_webhooks:
        ledger.remove(applied.job)
    return True


# --- in a transaction of the caller -----------------------------------------------------------------------------------


def _admit_in_session(app: Celery, prepared: Sequence[Prepared], session: object) -> Results:
    app_state, transaction = app_state_of(app), transaction_of(session)
    ledger, has_hook = app_state.ledger, transaction.reports_commit
    inner = ledger.in_transaction(transaction, partial(_emit_after_commit, transaction, ledger) if has_hook else None)
    admitted: Results = [_submit_inside(inner, each.submission, None if has_hook else 0.0) for each in prepared]
    results: Results = []
    for (call, submission), admission in zip(prepared, admitted, strict=True):
        if not isinstance(admission, Admission):
            results.append(admission)
            continue
        results.append(_accept(inner, call, submission, admission))
        if has_hook and needs_message(submission, admission):
            transaction.after_commit(partial(app_state.publisher.try_publish, admission.job), sends=True)
        if admission.outcome is not Outcome.ADMITTED and not (submission.replaces or submission.queue_next):
            # SQLite has one writer: outside the transaction, the record would wait for its end.
            _record_duplicate(inner if transaction.dialect == "sqlite" else ledger, submission, admission)
    return results


def _submit_inside(ledger: Ledger, submission: Submission, wake_after: float | None) -> Admission | Exception:
    try:
        admission = ledger.submit(submission, wake_after=wake_after)
        own = admission.follower or admission.job
        if own.id == submission.id:
            check_task(own, submission.task)
    except (QuotaExceededError, TaskIdReusedError) as error:
        return error
    return admission


def _emit_after_commit(transaction: OpenTransaction, ledger: Ledger, event: JobEvent) -> None:
    transaction.after_commit(partial(ledger.emit, event))


def _record_duplicate(ledger: Ledger, submission: Submission, admission: Admission) -> None:
    """Record a duplicate outside the user's transaction, which must not lock the row of a live job."""
    try:
        ledger.record(Duplicate.of(submission, admission))
    except StoreError as error:
        log_warning("a duplicate of job %s was not recorded: %s", admission.job.id, error)
