"""Turns a call into a job: builds the submission, submits it to the ledger, and publishes the message."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.utils import uuid
from celery.utils.nodenames import gethostname

from onejob.celery.app_state import app_state_of
from onejob.celery.message import decode, encode, encode_options, has_canvas, replacement_depth
from onejob.celery.option_names import check_call_options
from onejob.celery.options import options_of
from onejob.celery.quotas import reserved_quotas
from onejob.celery.replacement import resume
from onejob.celery.send import creates_webhooks, needs_message, publish, publish_due
from onejob.celery.submitter import add_header, submitter_of
from onejob.celery.webhooks import create_webhooks
from onejob.errors import (
    DuplicateJobError,
    InvalidArgumentsError,
    InvalidPayloadError,
    KeyRequiredError,
    KeyReuseMismatchError,
    StoreError,
    StoreUnavailableError,
    TaskIdReusedError,
)
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
    payload = encode(str(task.name), args, kwargs, app_state.settings.limits)
    route, sent_options = app_state.routing.resolve(task, args, kwargs, add_header(options, submitter))
    app_state.routing.check_message(payload, sent_options)
    follows = canvas or task_id is not None
    return Submission(
        id=task_id or uuid(),
        task=str(task.name),
        identity=identity,
        fingerprint=fingerprint,
        nonce=new_nonce(),
        payload=payload,
        options=encode_options(sent_options, app_state.settings.limits),
        route=route,
        priority_rank=app_state.publisher.priority_rank(sent_options),
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
    ledger, has_webhooks = app_state_of(task.app).ledger, creates_webhooks(task, webhook_url)
    (admission,) = _submit_within_quotas(
        task, ledger, [submission], lambda: [submit_to_ledger(ledger, submission)],
        partial(publish_due, task.app, [submission], producer=producer, has_webhooks=has_webhooks), webhook_url,
    )  # fmt: skip
    return admission


def submit_many(
    task: BoundTask, submissions: Sequence[Submission], *, webhook_url: str | None = None
) -> list[Admission]:
    """Submit many to the app's ledger, and publish their messages; if the broker fails, sweepers publish the rest.

    Jobs whose messages cannot be sent are withdrawn, as `submit` does, and the first of the errors is raised. Raises
    `QuotaExceededError` if the quota does not suffice for all of them.
    """
    ledger, has_webhooks = app_state_of(task.app).ledger, creates_webhooks(task, webhook_url)
    return _submit_within_quotas(
        task, ledger, submissions, lambda: ledger.submit_many(submissions),
        partial(publish_due, task.app, submissions, has_webhooks=has_webhooks), webhook_url,
    )  # fmt: skip


def _submit_within_quotas(
    task: BoundTask,
    ledger: Ledger,
    submissions: Sequence[Submission],
    store: Callable[[], list[Admission]],
    send: Callable[[list[Admission]], Mapping[str, Exception]],
    webhook_url: str | None,
) -> list[Admission]:
    """Store submissions and their webhooks within the quotas, and send their messages even if a webhook is refused.

    `send` returns, by job id, the errors of the jobs that it has withdrawn. Raises `QuotaExceededError`, unless an
    existing job answers the only submission and gets no new webhook.
    """
    with reserved_quotas(task.app, ledger, submissions) as charges:
        admissions = store() if charges.existing is None else [charges.existing]
        charges.add(submissions, admissions)
        try:
            for submission, admission in zip(submissions, admissions, strict=True):
                if create_webhooks(task, ledger, submission, admission, webhook_url, refusal=charges.refusal):
                    charges.identities.append(submission.identity)
        finally:
            unsent = send(admissions)
            charges.remove([each.job for each in admissions if each.job.id in unsent])
        for error in unsent.values():
            raise error
    return admissions


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
    task: BoundTask, session: object, submissions: Sequence[Submission], *, webhook_url: str | None = None
) -> list[Admission]:
    """Submit in the transaction of a session. Messages are published after its commit, by a sweeper if necessary."""
    transaction, ledger = transaction_of(session), app_state_of(task.app).ledger
    has_hook = transaction.reports_commit
    inner = ledger.in_transaction(transaction, partial(_emit_after_commit, transaction, ledger) if has_hook else None)
    wake_in = None if has_hook else 0.0

    def send_after_commit(admissions: list[Admission]) -> dict[str, Exception]:
        for submission, admission in zip(submissions, admissions, strict=True):
            if needs_message(submission, admission) and has_hook:
                transaction.after_commit(partial(publish, task.app, admission.job), sends=True)
        return {}

    admissions = _submit_within_quotas(
        task, inner, submissions, lambda: [_submit_inside(inner, each, wake_in) for each in submissions],
        send_after_commit, webhook_url,
    )  # fmt: skip
    for submission, admission in zip(submissions, admissions, strict=True):
        if admission.outcome is not Outcome.ADMITTED and not (submission.replaces or submission.queues_next):
            _record_duplicate(ledger, submission, admission)
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
