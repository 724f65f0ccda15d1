"""From a call to a job: the submission that a call comes to, its admission, and the message that follows."""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.exceptions import SoftTimeLimitExceeded
from celery.utils import uuid
from celery.utils.nodenames import gethostname

from onejob.caller import current_submitter, scoped_key
from onejob.celery.callbacks import tell_end
from onejob.celery.message import REPLACED, encode, encode_options, has_canvas, nesting
from onejob.celery.runtime import runtime_of
from onejob.changes import new_nonce
from onejob.errors import (
    DuplicateJobError,
    InvalidArgumentsError,
    KeyRequiredError,
    KeyReuseMismatchError,
    StaleTokenError,
    StoreError,
    StoreUnavailableError,
)
from onejob.job import Admission, Outcome, Receipt, Submission
from onejob.lifecycle import State
from onejob.sessions import transaction_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery import Celery

    from onejob.celery.task import Task
    from onejob.facts import Fact
    from onejob.job import Job
    from onejob.ledger import Ledger
    from onejob.reaction import Reaction
    from onejob.sessions import OpenTransaction

logger = logging.getLogger("onejob")
FARTHEST = 100 * 366 * 86_400.0
"""How many seconds from now a job can be due, or expire: a hundred years."""


def submission_of(
    task: Task,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    task_id: str | None = None,
    key: str | None = None,
    door: str = "apply_async",
) -> Submission:
    """Return the submission that a call comes to. Raises as `apply_async` does."""
    runtime, reaction = runtime_of(task.app), task.reaction
    canvas, delay = has_canvas(options), delay_of(options)
    identity, fingerprint = task.identifier.both(args, kwargs)
    follows = canvas or task_id is not None
    new = Submission(
        id=task_id or uuid(),
        task=str(task.name),
        identity=identity,
        fingerprint=fingerprint,
        nonce=new_nonce(),
        payload=encode(str(task.name), args, kwargs, runtime.settings.limits),
        options=encode_options(options, runtime.settings.limits),
        urgency=runtime.publisher.urgency(options),
        lease=task.lease or runtime.settings.lease,
        delay=delay,
        expires_in=seconds_until(options.get("expires")),
        retries=options.get("retries") or 0,
        follows=follows,
        canvas=canvas,
        key=None if key is None else scoped_key(key),
        key_for=runtime.settings.key_retention,
        door=door,
        submitter=current_submitter(),
        host=gethostname(),
    )
    return reacting(new, reaction)


def reacting(new: Submission, reaction: Reaction) -> Submission:
    """Return a submission that wants this of a job in its way."""
    return replace(
        new,
        rejects=reaction.rejects and not new.follows,
        replaces=reaction.replaces,
        queues_next=reaction.queues_next,
        max_wait=reaction.max_wait if new.delay > 0 else 0.0,
    )


def check_key(task: Task, key: str | None, task_id: str | None = None) -> None:
    """Raise `KeyRequiredError` for a submission without a name, if the task demands one. An id of its own is one."""
    if task.requires_key and key is None and task_id is None:
        raise KeyRequiredError(str(task.name))


def check_common(task: Task, options: Mapping[str, Any]) -> None:
    """Raise `InvalidArgumentsError` for options of `submit_many` that cannot be those of many submissions."""
    if task.requires_key:
        msg = f"task {task.name} requires an idempotency key, which names one submission: use apply_async for each"
        raise InvalidArgumentsError(msg)
    for name in ("task_id", "idempotency_key"):
        if name in options:
            msg = f"{name} names one submission, not many: use apply_async for each"
            raise InvalidArgumentsError(msg)


def arguments_of(number: int, item: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that one item of `submit_many` stands for. Raises `InvalidArgumentsError`."""
    if isinstance(item, dict):
        return (), item
    if isinstance(item, tuple | list):
        return tuple(item), {}
    msg = f"item {number} is {item!r:.200}; an item is a tuple of positional arguments or a dict of keyword arguments"
    raise InvalidArgumentsError(msg)


# --- admission ------------------------------------------------------------------------------------------------------


def submit(ledger: Ledger, new: Submission) -> Admission:
    """Submit, also under the id of a job that the new one replaces."""
    admission = ledger.submit(new)
    own = admission.follower or admission.job
    if own.submission == new.nonce or own.id != new.id or nesting(own.options) >= nesting(new.options):
        return admission
    with suppress(StaleTokenError):
        ended = ledger.abandon(own, REPLACED) if own.state is State.RUNNING else ledger.cancel(own.id, reason=REPLACED)
        ledger.store.delete([own.id], sources=frozenset({ended.state}))
    return ledger.submit(new)


def admit(task: Task, new: Submission, producer: Any = None, *, callback_url: str | None = None) -> Admission:
    """Submit to the app's ledger, and send the message."""
    ledger = runtime_of(task.app).ledger
    admission = submit(ledger, new)
    tell_end(task, ledger, admission, callback_url)
    if wants_message(new, admission):
        publish(task, admission.job, producer)
    return admission


def admit_many(task: Task, news: Sequence[Submission], *, callback_url: str | None = None) -> list[Admission]:
    """Submit many to the app's ledger, and send their messages; once the broker fails, the sweepers send the rest."""
    ledger = runtime_of(task.app).ledger
    admissions = ledger.submit_many(news)
    for admission in admissions:
        tell_end(task, ledger, admission, callback_url)
    _publish_wanted(task.app, news, admissions)
    return admissions


def admit_each(app: Celery, news: Sequence[Submission], *, patient: bool) -> list[Admission | StoreError]:
    """Submit many, of any tasks of an app, of which none suffers from another; an error stands where one failed.

    If they are not patient, a `StoreBusyError` of one stands for all of them: each is to be tried again as it is.
    """
    ledger = runtime_of(app).ledger
    came = _tried_together(ledger, news, patient=patient)
    _publish_wanted(app, news, came)
    return came


def _tried_together(ledger: Ledger, news: Sequence[Submission], *, patient: bool) -> list[Admission | StoreError]:
    try:
        return [*ledger.submit_many(news, patient=patient)]
    except StoreUnavailableError as error:
        return [error for _ in news]
    except StoreError as error:
        if len(news) == 1:
            return [error]
        return [each for new in news for each in _tried_together(ledger, [new], patient=patient)]


def admit_in(
    task: Task, session: object, news: Sequence[Submission], *, callback_url: str | None = None
) -> list[Admission]:
    """Submit in the transaction of a session; messages are sent after its commit, if need be by a sweeper."""
    transaction, ledger = transaction_of(session), runtime_of(task.app).ledger
    told = transaction.tells_commit
    wake_in = None if told else 0.0
    joined = ledger.joined(transaction, partial(_tell_after_commit, transaction, ledger) if told else None)
    admissions = []
    for new in news:
        admission = joined.submit(new, wake_in=wake_in)
        tell_end(task, joined, admission, callback_url)
        if wants_message(new, admission) and told:
            transaction.after_commit(partial(publish, task, admission.job), sends=True)
        if admission.outcome is not Outcome.ADMITTED and not (new.replaces or new.queues_next):
            _record(ledger, new, admission)
        admissions.append(admission)
    return admissions


def _tell_after_commit(transaction: OpenTransaction, ledger: Ledger, fact: Fact) -> None:
    transaction.after_commit(partial(ledger.tell, fact))


def check_accepted(new: Submission, key: str | None, admission: Admission) -> None:
    """Raise `KeyReuseMismatchError` or `DuplicateJobError` for a submission that was rejected."""
    if admission.key_reused:
        raise KeyReuseMismatchError(str(key), admission.job.id)
    if admission.outcome is Outcome.REJECTED:
        raise DuplicateJobError(admission.job.id, admission.job.state, new.task)


def publish(task: Task, job: Job, producer: Any = None) -> bool:
    """Send a job's message; a broker that fails delays the job by one lease, and the caller has its id."""
    return publish_all(task.app, [job], producer)


def publish_all(app: Celery, jobs: Sequence[Job], producer: Any = None) -> bool:
    """Send messages as `publish` does, until the broker fails; tell whether all were sent."""
    if not jobs:
        return True
    try:
        runtime_of(app).publisher.publish_all(jobs, producer)
    except SoftTimeLimitExceeded:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the transport raises, the jobs are in the ledger
        logger.warning(
            "%s in the ledger, the sweeper will publish what was not sent: the broker failed: %r",
            f"job {jobs[0].id} is" if len(jobs) == 1 else f"{len(jobs)} jobs are",
            error,
        )
        return False
    return True


def _publish_wanted(app: Celery, news: Sequence[Submission], came: Sequence[Admission | StoreError]) -> None:
    """Send the messages of the jobs that are due because of their submissions."""
    pairs = zip(news, came, strict=True)
    publish_all(app, [each.job for new, each in pairs if isinstance(each, Admission) and wants_message(new, each)])


def wants_message(new: Submission, admission: Admission) -> bool:
    """Tell whether a job is due because of a submission: new, or pulled forward."""
    new_or_moved = admission.outcome is Outcome.ADMITTED or admission.moved
    return new_or_moved and new.delay <= 0 and not admission.job.queued_next


def _record(ledger: Ledger, new: Submission, admission: Admission) -> None:
    """Leave the receipt of a duplicate in a transaction, which must not touch the row of a live job."""
    try:
        ledger.record(Receipt.of(new, admission))
    except StoreError as error:
        logger.warning("the receipt of a duplicate of job %s was lost: %s", admission.job.id, error)


def delay_of(options: Mapping[str, Any]) -> float:
    """Return the seconds until a job with these options is due. Raises `InvalidArgumentsError`."""
    return max(0.0, seconds_until(options.get("countdown") or options.get("eta")) or 0.0)


def seconds_until(when: Any) -> float | None:
    """Return the seconds to a Celery `countdown`, `eta` or `expires`: a number, a datetime or ISO 8601 text.

    Raises `InvalidArgumentsError` for what lies farther away than any calendar that has to show it.
    """
    if when is None:
        return None
    seconds = when if isinstance(when, int | float) else _seconds_to(when)
    if not abs(seconds) <= FARTHEST:  # also what is no number
        msg = f"{when!r:.100} is no time that a job can be due at, or expire: at most {FARTHEST:.0f} s from now"
        raise InvalidArgumentsError(msg)
    return seconds


def _seconds_to(when: Any) -> float:
    moment = datetime.fromisoformat(when) if isinstance(when, str) else when
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    try:
        return float((moment - datetime.now(UTC)).total_seconds())
    except OverflowError:  # in UTC it is in no year of four digits
        return math.inf
