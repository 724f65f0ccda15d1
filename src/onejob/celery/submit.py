"""Turns a call into a job: builds the submission, submits it to the ledger, and publishes the message."""

from __future__ import annotations

import math
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.exceptions import SoftTimeLimitExceeded
from celery.utils import uuid
from celery.utils.nodenames import gethostname

from onejob.celery.app_state import app_state_of
from onejob.celery.message import REPLACED, encode, encode_options, has_canvas, replacement_depth
from onejob.celery.option_names import check_call_options
from onejob.celery.options import options_of
from onejob.celery.quotas import reserved_quotas
from onejob.celery.submitter import add_header, submitter_of
from onejob.celery.webhooks import create_webhooks
from onejob.errors import (
    DuplicateJobError,
    InvalidArgumentsError,
    InvalidPayloadError,
    KeyRequiredError,
    KeyReuseMismatchError,
    StaleTokenError,
    StoreError,
    StoreUnavailableError,
)
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Admission, Duplicate, Outcome, Submission
from onejob.jobs.transitions import new_nonce
from onejob.observability.logs import log_warning
from onejob.transactions.sessions import transaction_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery import Celery

    from onejob.celery.options import BoundTask
    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger
    from onejob.observability.events import JobEvent
    from onejob.transactions.sessions import OpenTransaction

MAX_DELAY = 100 * 366 * 86_400.0
"""Seconds from now within which a job must be due, or expire: a hundred years."""


def build_submission(
    task: BoundTask,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    task_id: str | None = None,
    key: str | None = None,
    source: str = "apply_async",
    on_duplicate: str | None = None,
) -> Submission:
    """Return the submission of a call. Raises as `apply_async` does.

    All tasks of the app are bound before, so that a misconfigured one raises its error now, and not after the job was
    stored.
    """
    app: Any = task.app  # the published types know no `finalized`
    if not app.finalized:
        app.finalize(auto=True)
    app_state, task_options = app_state_of(task.app), options_of(task)
    conflict_policy = task_options.conflict_policy_for(on_duplicate)
    canvas, delay = has_canvas(options), delay_of(options)
    submitter = submitter_of(task.app)
    identity, fingerprint = task_options.identifier.both(args, kwargs, submitter.scope)
    follows = canvas or task_id is not None
    return Submission(
        id=task_id or uuid(),
        task=str(task.name),
        identity=identity,
        fingerprint=fingerprint,
        nonce=new_nonce(),
        payload=encode(str(task.name), args, kwargs, app_state.settings.limits),
        options=encode_options(add_header(options, submitter), app_state.settings.limits),
        priority_rank=app_state.publisher.priority_rank(options),
        lease=task_options.lease,
        delay=delay,
        expires_in=seconds_until(options.get("expires")),
        retries=options.get("retries") or 0,
        follows=follows,
        canvas=canvas,
        key=None if key is None else submitter.scoped_key(key),
        key_for=app_state.settings.key_retention,
        source=source,
        submitter=submitter.name,
        host=gethostname(),
        rejects=conflict_policy.rejects and not follows,
        replaces=conflict_policy.replaces,
        queues_next=conflict_policy.queues_next,
        max_wait=conflict_policy.max_wait if delay > 0 else 0.0,
    )


def check_key(task: BoundTask, key: str | None, task_id: str | None = None) -> None:
    """Raise `KeyRequiredError` if the task requires an idempotency key and the call has neither a key nor a task id."""
    if options_of(task).requires_key and key is None and task_id is None:
        raise KeyRequiredError(str(task.name))


def check_common(task: BoundTask, options: Mapping[str, Any]) -> None:
    """Raise `InvalidArgumentsError` for options of `submit_many` that are valid for a single submission only."""
    if options_of(task).requires_key:
        msg = f"task {task.name} requires an idempotency key, which identifies one submission: use apply_async for each"
        raise InvalidArgumentsError(msg)
    for name in ("task_id", "idempotency_key"):
        if name in options:
            msg = f"{name} identifies one submission, not many: use apply_async for each"
            raise InvalidArgumentsError(msg)


def parse_item(number: int, item: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the args and kwargs in one item of `submit_many`. Raises `InvalidArgumentsError`."""
    if isinstance(item, dict):
        return (), item
    if isinstance(item, tuple | list):
        return tuple(item), {}
    msg = f"item {number} is {item!r:.200}; an item is a tuple of positional arguments or a dict of keyword arguments"
    raise InvalidArgumentsError(msg)


def dump_models(task: BoundTask, args: Any, kwargs: Any, options: Mapping[str, Any]) -> tuple[Any, Any]:
    """Serialize the models in the arguments of a `pydantic=True` task, as Celery does."""
    dump = getattr(task, "_dump_pydantic_arguments", None)
    return dump(args, kwargs) if dump is not None and options.get("serializer") != "pickle" else (args, kwargs)


def merge_options(task: BoundTask, args: Any, kwargs: Any, options: Mapping[str, Any], **own: Any) -> dict[str, Any]:
    """Return all options of the message, so that any process can publish it later as this one would."""
    given = {name: value for name, value in own.items() if value is not None}
    merged = {**task._get_exec_options(), **options, **given}  # noqa: SLF001 - Celery's
    merged.setdefault("ignore_result", task.ignore_result)
    merged["shadow"] = merged.get("shadow") or task.shadow_name(args, kwargs, merged)
    parent = task.app.current_worker_task
    if parent is not None and parent.request is not None:
        merged["root_id"] = merged.get("root_id") or parent.request.root_id or parent.request.id
        merged["parent_id"] = merged.get("parent_id") or parent.request.id
    return merged


def prepare_submission(
    task: BoundTask,
    kwargs: Mapping[str, Any],
    *,
    source: str,
    key: str | None = None,
    on_duplicate: str | None = None,
    **options: Any,
) -> Submission:
    """Return the submission of a call through an entry point (`source`) other than the task's methods; store nothing.

    `on_duplicate` overrides the task's own for this call. Raises as `apply_async` does.
    """
    check_key(task, key)
    check_call_options(options)
    merged = merge_options(task, (), dict(kwargs), options)
    return build_submission(task, (), kwargs, merged, key=key, source=source, on_duplicate=on_duplicate)


def build_item_submission(task: BoundTask, number: int, item: object, options: Mapping[str, Any]) -> Submission:
    """Return the submission of one item of `submit_many`. Raises as `apply_async` does, with the item's number."""
    args, kwargs = dump_models(task, *parse_item(number, item), options)
    merged = merge_options(task, args, kwargs, options)
    try:
        return build_submission(task, args, kwargs, merged, source="submit_many")
    except (InvalidArgumentsError, InvalidPayloadError) as error:
        msg = f"item {number}: {error}"
        raise type(error)(msg) from error


# --- admission ------------------------------------------------------------------------------------------------------


def submit_to_ledger(ledger: Ledger, submission: Submission) -> Admission:
    """Submit a job. If `Task.replace` has given it the id of another job, end that job first."""
    admission = ledger.submit(submission)
    own = admission.follower or admission.job
    if (
        own.submission_nonce == submission.nonce
        or own.id != submission.id
        or replacement_depth(own.options) >= replacement_depth(submission.options)
    ):
        return admission
    with suppress(StaleTokenError):
        ended = ledger.abandon(own, REPLACED) if own.state is State.RUNNING else ledger.cancel(own.id, reason=REPLACED)
        ledger.remove(ended)
    return ledger.submit(submission)


def submit(
    task: BoundTask, submission: Submission, producer: Any = None, *, webhook_url: str | None = None
) -> Admission:
    """Submit to the app's ledger, and publish the message. Raises `QuotaExceededError`."""
    ledger = app_state_of(task.app).ledger
    (admission,) = _submit_with_webhooks(
        task, ledger, [submission], lambda: [submit_to_ledger(ledger, submission)],
        lambda admissions: _publish_due(task.app, [submission], admissions, producer), webhook_url,
    )  # fmt: skip
    return admission


def submit_many(
    task: BoundTask, submissions: Sequence[Submission], *, webhook_url: str | None = None
) -> list[Admission]:
    """Submit many to the app's ledger, and publish their messages; if the broker fails, sweepers publish the rest.

    Raises `QuotaExceededError` if the quota does not suffice for all of them.
    """
    ledger = app_state_of(task.app).ledger
    return _submit_with_webhooks(
        task, ledger, submissions, lambda: ledger.submit_many(submissions),
        lambda admissions: _publish_due(task.app, submissions, admissions), webhook_url,
    )  # fmt: skip


def _submit_with_webhooks(
    task: BoundTask,
    ledger: Ledger,
    submissions: Sequence[Submission],
    store: Callable[[], list[Admission]],
    publish_due: Callable[[list[Admission]], None],
    webhook_url: str | None,
) -> list[Admission]:
    """Store submissions and their webhooks within the quotas, and publish their messages even if a webhook is refused.

    Raises `QuotaExceededError`, unless an existing job answers the only submission and it adds no webhook.
    """
    with reserved_quotas(task.app, ledger, submissions) as reservation:
        admissions = store() if reservation.existing is None else [reservation.existing]
        reservation.charge(submissions, admissions)
        try:
            for submission, admission in zip(submissions, admissions, strict=True):
                if create_webhooks(task, ledger, submission, admission, webhook_url, refusal=reservation.refusal):
                    reservation.charged.append(submission.identity)
        finally:
            publish_due(admissions)
    return admissions


def submit_each(
    app: Celery, submissions: Sequence[Submission], *, wait_for_locks: bool
) -> list[Admission | StoreError]:
    """Submit many, of any tasks of an app; return an error in the place of each that failed.

    A `StoreUnavailableError`, such as the `StoreBusyError` of `wait_for_locks=False`, is the result of all of them: the
    caller may submit all again.
    """
    ledger = app_state_of(app).ledger
    results = _submit_isolated(ledger, submissions, wait_for_locks=wait_for_locks)
    _publish_due(app, submissions, results)
    return results


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
    task: BoundTask, session: object, submissions: Sequence[Submission], *, webhook_url: str | None = None
) -> list[Admission]:
    """Submit in the transaction of a session. Messages are published after its commit, by a sweeper if necessary."""
    transaction, ledger = transaction_of(session), app_state_of(task.app).ledger
    has_hook = transaction.reports_commit
    inner = ledger.in_transaction(transaction, partial(_emit_after_commit, transaction, ledger) if has_hook else None)
    wake_in = None if has_hook else 0.0

    def publish_after_commit(admissions: list[Admission]) -> None:
        for submission, admission in zip(submissions, admissions, strict=True):
            if needs_message(submission, admission) and has_hook:
                transaction.after_commit(partial(publish, task, admission.job), sends=True)

    admissions = _submit_with_webhooks(
        task, inner, submissions, lambda: [inner.submit(each, wake_in=wake_in) for each in submissions],
        publish_after_commit, webhook_url,
    )  # fmt: skip
    for submission, admission in zip(submissions, admissions, strict=True):
        if admission.outcome is not Outcome.ADMITTED and not (submission.replaces or submission.queues_next):
            _record_duplicate(ledger, submission, admission)
    return admissions


def _emit_after_commit(transaction: OpenTransaction, ledger: Ledger, event: JobEvent) -> None:
    transaction.after_commit(partial(ledger.emit, event))


def check_accepted(submission: Submission, key: str | None, admission: Admission) -> None:
    """Raise `KeyReuseMismatchError` or `DuplicateJobError` for a submission that was rejected."""
    if admission.key_reused:
        raise KeyReuseMismatchError(str(key), admission.job.id)
    if admission.outcome is Outcome.REJECTED:
        raise DuplicateJobError(admission.job.id, admission.job.state, submission.task)


def publish(task: BoundTask, job: Job, producer: Any = None) -> bool:
    """Send a job's message; tell whether it was sent. If the broker fails, a sweeper publishes it after one lease."""
    return publish_all(task.app, [job], producer)


def publish_all(app: Celery, jobs: Sequence[Job], producer: Any = None) -> bool:
    """Send messages, as `publish` does, until the broker fails; tell whether all were sent."""
    if not jobs:
        return True
    try:
        app_state_of(app).publisher.publish_all(jobs, producer)
    except SoftTimeLimitExceeded:
        raise
    except Exception as error:  # noqa: BLE001 - any transport error: the jobs are in the ledger
        log_warning(
            "%s in the ledger, the sweeper will publish what was not sent: the broker failed: %r",
            f"job {jobs[0].id} is" if len(jobs) == 1 else f"{len(jobs)} jobs are",
            error,
        )
        return False
    return True


def _publish_due(
    app: Celery,
    submissions: Sequence[Submission],
    results: Sequence[Admission | StoreError],
    producer: Any = None,
) -> None:
    """Publish the jobs that are due now because of their submissions."""
    pairs = zip(submissions, results, strict=True)
    due = [each.job for submission, each in pairs if isinstance(each, Admission) and needs_message(submission, each)]
    publish_all(app, due, producer)


def needs_message(submission: Submission, admission: Admission) -> bool:
    """Tell whether a submission made a job due now: a new one, or one that it rescheduled."""
    is_new_or_rescheduled = admission.outcome is Outcome.ADMITTED or admission.rescheduled
    return is_new_or_rescheduled and submission.delay <= 0 and not admission.job.queued_next


def _record_duplicate(ledger: Ledger, submission: Submission, admission: Admission) -> None:
    """Record a duplicate outside the user's transaction, which must not lock the row of a live job."""
    try:
        ledger.record(Duplicate.of(submission, admission))
    except StoreError as error:
        log_warning("a duplicate of job %s was not recorded: %s", admission.job.id, error)


def delay_of(options: Mapping[str, Any]) -> float:
    """Return the seconds until a job with these options is due, at least 0. Raises as `seconds_until` does."""
    return max(0.0, seconds_until(options.get("countdown") or options.get("eta")) or 0.0)


def seconds_until(when: Any) -> float | None:
    """Return the seconds to a Celery `countdown`, `eta` or `expires`: a number, a datetime or ISO 8601 text.

    Raises `InvalidArgumentsError` for a time farther away than `MAX_DELAY`, which not every calendar can represent.
    """
    if when is None:
        return None
    seconds = when if isinstance(when, int | float) else _seconds_until_datetime(when)
    if not abs(seconds) <= MAX_DELAY:  # written so that it is true of NaN, too
        msg = f"{when!r:.100} is not a valid time for a job: at most {MAX_DELAY:.0f} s from now"
        raise InvalidArgumentsError(msg)
    return seconds


def _seconds_until_datetime(when: Any) -> float:
    moment = datetime.fromisoformat(when) if isinstance(when, str) else when
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    try:
        return float((moment - datetime.now(UTC)).total_seconds())
    except OverflowError:  # its year in UTC is out of the range of `datetime`
        return math.inf
