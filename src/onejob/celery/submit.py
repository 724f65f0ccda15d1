"""Submits to the ledger what calls ask for, and publishes the messages of new jobs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from onejob.celery.app_state import app_state_of
from onejob.celery.message import decode, replacement_depth
from onejob.celery.quotas import reserved_quotas
from onejob.celery.replacement import resume
from onejob.celery.send import creates_webhooks, needs_message, publish, publish_due
from onejob.celery.webhooks import create_webhooks
from onejob.errors import (
    DuplicateJobError,
    KeyReuseMismatchError,
    StoreError,
    StoreUnavailableError,
    TaskIdReusedError,
)
from onejob.jobs.model import Admission, Duplicate, Outcome
from onejob.observability.logs import log_warning
from onejob.transactions.sessions import transaction_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery import Celery

    from onejob.celery.options import BoundTask
    from onejob.celery.quotas import Charges
    from onejob.celery.submitter import Caller
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
    task: BoundTask, submission: Submission, caller: Caller, producer: Any = None, *, webhook_url: str | None = None
) -> Admission:
    """Submit to the app's ledger, and publish the message. Raises `QuotaExceededError`.

    Raises what the transport raises for a message that cannot be sent, after the job was withdrawn (see `_withdraw`).
    """
    app_state = app_state_of(task.app)
    ledger, quotas = app_state.ledger, app_state.settings.quotas_of(caller.submitter)
    has_webhooks = creates_webhooks(task, webhook_url)
    send = partial(publish_due, task.app, [submission], producer=producer, has_webhooks=has_webhooks)
    if not quotas and not has_webhooks:
        admission = submit_to_ledger(ledger, submission)
        if needs_message(submission, admission):
            _raise_first(send([admission]))
        return admission
    with reserved_quotas(ledger, quotas, caller.submitter, [submission]) as charges:
        admission = charges.existing or submit_to_ledger(ledger, submission)
        _charge_and_send(task, ledger, [submission], [admission], charges, send, webhook_url)
    return admission


def submit_many(
    task: BoundTask, submissions: Sequence[Submission], caller: Caller, *, webhook_url: str | None = None
) -> list[Admission]:
    """Submit many to the app's ledger, and publish their messages; if the broker fails, sweepers publish the rest.

    Jobs whose messages cannot be sent are withdrawn, as `submit` does, and the first of the errors is raised. Raises
    `QuotaExceededError` if the quota does not suffice for all of them.
    """
    app_state = app_state_of(task.app)
    ledger, quotas = app_state.ledger, app_state.settings.quotas_of(caller.submitter)
    send = partial(publish_due, task.app, submissions, has_webhooks=creates_webhooks(task, webhook_url))
    with reserved_quotas(ledger, quotas, caller.submitter, submissions) as charges:
        admissions = ledger.submit_many(submissions) if charges.existing is None else [charges.existing]
        _charge_and_send(task, ledger, submissions, admissions, charges, send, webhook_url)
    return admissions


def _charge_and_send(  # noqa: PLR0917 - internal
    task: BoundTask,
    ledger: Ledger,
    submissions: Sequence[Submission],
    admissions: Sequence[Admission],
    charges: Charges,
    send: Callable[[Sequence[Admission]], Mapping[str, Exception]],
    webhook_url: str | None,
) -> None:
    """Charge new jobs to the quotas, store their webhooks, and send their messages even if a webhook is refused.

    `send` returns, by job id, the errors of the jobs that it has withdrawn, the first of which is raised.
    """
    charges.add(submissions, admissions)
    try:
        if creates_webhooks(task, webhook_url):
            for submission, admission in zip(submissions, admissions, strict=True):
                if create_webhooks(task, ledger, submission, admission, webhook_url, refusal=charges.refusal):
                    charges.identities.append(submission.identity)
    finally:
        unsent = send(admissions)
        charges.remove([each.job for each in admissions if each.job.id in unsent])
    _raise_first(unsent)


def _raise_first(errors: Mapping[str, Exception]) -> None:
    for error in errors.values():
        raise error


def submit_each(app: Celery, submissions: Sequence[Submission], *, wait_for_locks: bool) -> list[Admission | Exception]:
    """Submit many, of any tasks of an app; return an error in the place of each that failed.

    A `StoreUnavailableError`, such as the `StoreBusyError` of `wait_for_locks=False`, is the result of all of them: the
    caller may submit all again.
    """
    ledger = app_state_of(app).ledger
    results = _submit_isolated(ledger, submissions, wait_for_locks=wait_for_locks)
    unsent = publish_due(app, submissions, results, has_webhooks=False)
    return [unsent.get(each.job.id, each) if isinstance(each, Admission) else each for each in results]


def _submit_isolated(
    ledger: Ledger, submissions: Sequence[Submission], *, wait_for_locks: bool
) -> list[Admission | StoreError]:
    try:
        return [*ledger.submit_many(submissions, wait_for_locks=wait_for_locks)]
    except StoreUnavailableError as error:
        return [error for _ in submissions]
    except StoreError as error:
        if len(submissions) == 1:
            return [error]
        return [_submit_isolated(ledger, [each], wait_for_locks=wait_for_locks)[0] for each in submissions]


def submit_in_session(
    task: BoundTask, session: object, submissions: Sequence[Submission], caller: Caller, *,
    webhook_url: str | None = None,
) -> list[Admission]:  # fmt: skip
    """Submit in the transaction of a session. Messages are published after its commit, by a sweeper if necessary."""
    app_state, transaction = app_state_of(task.app), transaction_of(session)
    ledger, quotas = app_state.ledger, app_state.settings.quotas_of(caller.submitter)
    has_hook = transaction.reports_commit
    inner = ledger.in_transaction(transaction, partial(_emit_after_commit, transaction, ledger) if has_hook else None)
    wake_in = None if has_hook else 0.0

    def send_after_commit(admissions: Sequence[Admission]) -> dict[str, Exception]:
        for submission, admission in zip(submissions, admissions, strict=True):
            if needs_message(submission, admission) and has_hook:
                transaction.after_commit(partial(publish, task.app, admission.job), sends=True)
        return {}

    with reserved_quotas(inner, quotas, caller.submitter, submissions) as charges:
        existing = charges.existing
        admissions = [existing] if existing else [_submit_inside(inner, each, wake_in) for each in submissions]
        _charge_and_send(task, inner, submissions, admissions, charges, send_after_commit, webhook_url)
    for submission, admission in zip(submissions, admissions, strict=True):
        if admission.outcome is not Outcome.ADMITTED and not (submission.replaces or submission.queues_next):
            # SQLite has one writer: outside the transaction, the record would wait for its end.
            _record_duplicate(inner if transaction.dialect == "sqlite" else ledger, submission, admission)
    return admissions


def _submit_inside(ledger: Ledger, submission: Submission, wake_in: float | None) -> Admission:
    admission = ledger.submit(submission, wake_in=wake_in)
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
