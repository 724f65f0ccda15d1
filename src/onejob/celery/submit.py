"""Submits to the ledger what calls ask for, and publishes the messages of new jobs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

from onejob.celery.app_state import app_state_of
from onejob.celery.message import decode, replacement_depth
from onejob.celery.options import options_of
from onejob.celery.replacement import resume
from onejob.celery.send import creates_webhooks, needs_message, publish, publish_due
from onejob.celery.webhooks import create_webhooks
from onejob.errors import (
    DuplicateJobError,
    KeyReuseMismatchError,
    PartlySubmittedError,
    QuotaExceededError,
    StoreError,
    StoreUnavailableError,
    TaskIdReusedError,
)
from onejob.jobs.model import Admission, Duplicate, Outcome
from onejob.observability.logs import log_warning
from onejob.transactions.sessions import transaction_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from celery import Celery

    from onejob.celery.options import BoundTask
    from onejob.jobs.model import Job, Submission
    from onejob.ledger.ledger import Ledger
    from onejob.observability.events import JobEvent
    from onejob.transactions.sessions import OpenTransaction


def submit_to_ledger(ledger: Ledger, submission: Submission) -> Admission:
    """Submit a job. A job that waits for a replacement with this id goes on as it. Raises `TaskIdReusedError`."""
    admission = ledger.submit(submission)
    own = admission.follower or admission.job
    if own.id != submission.id or own.submission_nonce == submission.nonce:
        return admission
    if replacement_depth(submission.options) > replacement_depth(own.options):
        return resume(ledger, own, submission)
    check_task(own, submission.task)
    return admission


def check_task(job: Job, task: str) -> None:
    """Raise `TaskIdReusedError` unless a job is one of a task, or was replaced by it."""
    if task != job.task and task != decode(job.payload).task:
        raise TaskIdReusedError(job.id, task, job.task)


def submit(
    task: BoundTask, submission: Submission, producer: Any = None, *, webhook_url: str | None = None
) -> Admission:
    """Submit to the app's ledger, and publish the message. Raises `QuotaExceededError`.

    Raises what the transport raises for a message that cannot be sent, after the job was withdrawn (see `_withdraw`).
    """
    ledger = app_state_of(task.app).ledger
    admission = submit_to_ledger(ledger, submission)
    if creates_webhooks(task, webhook_url):
        send = partial(publish_due, task.app, [submission], producer=producer)
        _send(task, ledger, [submission], [admission], send, webhook_url)
        return admission
    if needs_message(submission, admission):
        unsent = publish_due(task.app, [submission], [admission], producer=producer, has_webhooks=False)
        _raise_first(unsent.values())
    _warn_of_unused_arguments(task.app, [submission], [admission])
    return admission


def submit_many(
    task: BoundTask, submissions: Sequence[Submission], *, webhook_url: str | None = None
) -> list[Admission]:
    """Submit many to the app's ledger, and publish their messages; if the broker fails, sweepers publish the rest.

    Jobs whose messages cannot be sent are withdrawn, as `submit` does, and the first of the errors is raised. Raises
    `PartlySubmittedError` if the store or a quota refused some: the others are published; and the first of the errors
    if none was admitted.
    """
    ledger = app_state_of(task.app).ledger
    try:
        results: Sequence[Any] = ledger.submit_many(submissions)
    except PartlySubmittedError as error:
        results = error.results
    _send_admitted(task, ledger, submissions, results, partial(publish_due, task.app), webhook_url)
    return _all_admitted(results)


def _send_admitted(
    task: BoundTask,
    ledger: Ledger,
    submissions: Sequence[Submission],
    results: Sequence[Any],
    send: Callable[..., Mapping[str, Exception]],
    webhook_url: str | None,
) -> None:
    pairs = [pair for pair in zip(submissions, results, strict=True) if isinstance(pair[1], Admission)]
    submissions, admissions = [each for each, _ in pairs], [each for _, each in pairs]
    _send(task, ledger, submissions, admissions, partial(send, submissions), webhook_url)


def _all_admitted(results: Sequence[Any]) -> list[Admission]:
    """Return results that are all admissions. Raises the first error if none is, else `PartlySubmittedError`."""
    if not any(isinstance(each, Admission) for each in results):
        _raise_first(results)
    return PartlySubmittedError.checked([*results])


def _send(
    task: BoundTask,
    ledger: Ledger,
    submissions: Sequence[Submission],
    admissions: Sequence[Admission],
    send: Callable[..., Mapping[str, Exception]],
    webhook_url: str | None,
) -> None:
    """Store the webhooks of jobs, and send the messages of new ones even if a webhook is refused.

    `send` returns, by job id, the errors of the jobs that it has withdrawn, the first of which is raised.
    """
    _warn_of_unused_arguments(task.app, submissions, admissions)
    has_webhooks = creates_webhooks(task, webhook_url)
    try:
        if has_webhooks:
            for submission, admission in zip(submissions, admissions, strict=True):
                create_webhooks(task, ledger, submission, admission, webhook_url)
    finally:
        unsent = send(admissions, has_webhooks=has_webhooks)
    _raise_first(unsent.values())


def _warn_of_unused_arguments(
    app: Celery, submissions: Sequence[Submission], results: Sequence[Admission | Exception]
) -> None:
    """Log, once per task without `on_duplicate`, that a duplicate is answered by a job with other arguments."""
    for submission, result in zip(submissions, results, strict=True):
        if (
            isinstance(result, Admission)
            and result.outcome in {Outcome.ATTACHED, Outcome.REPLAYED}
            and result.job.fingerprint != submission.fingerprint
            and result.job.id != submission.id
            and submission.task not in app_state_of(app).warned_tasks
            and options_of(cast("BoundTask", app.tasks[submission.task])).attaches_by_default
        ):
            app_state_of(app).warned_tasks.add(submission.task)
            log_warning(
                "a duplicate of job %s is answered by that job, and its other arguments are not used: if they matter, "
                "name them in unique_on of task %s, or set on_duplicate='replace' or 'run_again', which runs the "
                "newest ones; on_duplicate='attach' says that they do not, and ends this warning",
                result.job.id,
                submission.task,
            )


def _raise_first(errors: Iterable[Any]) -> None:
    for error in errors:
        raise error


def submit_each(app: Celery, submissions: Sequence[Submission], *, wait_for_locks: bool) -> list[Admission | Exception]:
    """Submit many, of any tasks of an app; return an error in the place of each that failed.

    A `StoreUnavailableError`, such as the `StoreBusyError` of `wait_for_locks=False`, is the result of all of them: the
    caller may submit all again.
    """
    ledger = app_state_of(app).ledger
    results = _submit_isolated(ledger, submissions, wait_for_locks=wait_for_locks)
    unsent = publish_due(app, submissions, results, has_webhooks=False)
    _warn_of_unused_arguments(app, submissions, results)
    return [unsent.get(each.job.id, each) if isinstance(each, Admission) else each for each in results]


def _submit_isolated(
    ledger: Ledger, submissions: Sequence[Submission], *, wait_for_locks: bool
) -> list[Admission | Exception]:
    try:
        return [*ledger.submit_many(submissions, wait_for_locks=wait_for_locks)]
    except StoreUnavailableError as error:
        return [error for _ in submissions]
    except PartlySubmittedError as error:
        return [*error.results]  # type: ignore[list-item] # admissions and errors
    except (StoreError, QuotaExceededError) as error:
        if len(submissions) == 1:
            return [error]
        return [_submit_isolated(ledger, [each], wait_for_locks=wait_for_locks)[0] for each in submissions]


def submit_in_session(
    task: BoundTask, session: object, submissions: Sequence[Submission], *, webhook_url: str | None = None
) -> list[Admission]:
    """Submit in the transaction of a session. Messages are published after its commit, by a sweeper if necessary."""
    ledger, transaction = app_state_of(task.app).ledger, transaction_of(session)
    has_hook = transaction.reports_commit
    inner = ledger.in_transaction(transaction, partial(_emit_after_commit, transaction, ledger) if has_hook else None)
    wake_in = None if has_hook else 0.0

    def send_after_commit(
        submissions: Sequence[Submission], admissions: Sequence[Admission], **_: bool
    ) -> dict[str, Exception]:
        for submission, admission in zip(submissions, admissions, strict=True):
            if needs_message(submission, admission) and has_hook:
                transaction.after_commit(partial(publish, task.app, admission.job), sends=True)
        return {}

    results = [_submit_inside(inner, each, wake_in) for each in submissions]
    _send_admitted(task, inner, submissions, results, send_after_commit, webhook_url)
    admissions = _all_admitted(results)
    for submission, admission in zip(submissions, admissions, strict=True):
        if admission.outcome is not Outcome.ADMITTED and not (submission.replaces or submission.queues_next):
            # SQLite has one writer: outside the transaction, the record would wait for its end.
            _record_duplicate(inner if transaction.dialect == "sqlite" else ledger, submission, admission)
    return admissions


def _submit_inside(ledger: Ledger, submission: Submission, wake_in: float | None) -> Admission | QuotaExceededError:
    try:
        admission = ledger.submit(submission, wake_in=wake_in)
    except QuotaExceededError as error:
        return error
    own = admission.follower or admission.job
    if own.id == submission.id:
        check_task(own, submission.task)
    return admission


def _emit_after_commit(transaction: OpenTransaction, ledger: Ledger, event: JobEvent) -> None:
    transaction.after_commit(partial(ledger.emit, event))


def check_accepted(submission: Submission, key: str | None, admission: Admission) -> None:
    """Raise `KeyReuseMismatchError` or `DuplicateJobError` for a submission that was rejected."""
    if admission.key_reused:
        raise KeyReuseMismatchError(str(key), admission.job.id)
    if admission.outcome is Outcome.REJECTED:
        raise DuplicateJobError(admission.job.id, admission.job.state, submission.task)


def _record_duplicate(ledger: Ledger, submission: Submission, admission: Admission) -> None:
    """Record a duplicate outside the user's transaction, which must not lock the row of a live job."""
    try:
        ledger.record(Duplicate.of(submission, admission))
    except StoreError as error:
        log_warning("a duplicate of job %s was not recorded: %s", admission.job.id, error)
