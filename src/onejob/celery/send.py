"""Sends the messages of jobs that are in the ledger, and withdraws new jobs whose messages cannot be sent."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onejob.celery.app_state import app_state_of
from onejob.celery.options import options_of
from onejob.celery.routing import UNPUBLISHABLE
from onejob.errors import BrokerUnavailableError, StoreError, describe
from onejob.jobs.model import Admission, Outcome
from onejob.ledger.publication import fail_unpublishable, note_unsent
from onejob.observability.logs import log_warning

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery import Celery

    from onejob.celery.options import BoundTask
    from onejob.jobs.model import Job, Submission, WireMessage
    from onejob.ledger.ledger import Ledger


def message_of(app: Celery, job: Job, **changes: object) -> WireMessage | None:
    """Return the message of a job after `changes`, if the store can push it; None for `publish`, which sends it."""
    publisher = app_state_of(app).publisher
    return publisher.message_of(replace(job, **changes) if changes else job) if publisher.fuses else None  # type: ignore[arg-type]


def publish(app: Celery, job: Job, *, pushed: WireMessage | None = None) -> bool:
    """Send the message of a job in the ledger; if that fails, for whatever reason, a sweeper publishes it.

    `pushed`: what the store has pushed instead. Returns whether the broker accepts messages.
    """
    if pushed is not None:
        return True
    errors = _send_all(app, [job])
    for error in (errors or {}).values():
        log_warning("job %s is in the ledger, the sweeper will try to publish it: %s", job.id, describe(error))
    return errors is not None


def publish_all(app: Celery, jobs: Sequence[Job], producer: Any = None) -> dict[str, Exception]:
    """Send the messages of jobs in the ledger, until the broker fails: a sweeper publishes what was not sent then.

    Returns, by job id, the exceptions for the messages that cannot be sent, whatever the state of the broker.
    """
    return _send_all(app, jobs, producer) or {}


def _send_all(app: Celery, jobs: Sequence[Job], producer: Any = None) -> dict[str, Exception] | None:
    """Do the same, and return None if the broker fails."""
    try:
        return app_state_of(app).publisher.publish_all(jobs, producer) if jobs else {}
    except BrokerUnavailableError as error:
        log_warning(
            "%s in the ledger, the sweeper will publish what was not sent: %s",
            f"job {jobs[0].id} is" if len(jobs) == 1 else f"{len(jobs)} jobs are",
            error,
        )
        with suppress(StoreError):  # nothing is lost: the messages are seen to be gone later
            for job in jobs:
                note_unsent(app_state_of(app).ledger, job)
        return None


def publish_due(
    app: Celery,
    submissions: Sequence[Submission],
    results: Sequence[Admission | Exception],
    producer: Any = None,
    *,
    has_webhooks: bool,
) -> dict[str, Exception]:
    """Publish the jobs that are due now because of their submissions; return the errors of the withdrawn ones."""
    pairs = zip(submissions, results, strict=True)
    due = [each for submission, each in pairs if isinstance(each, Admission) and needs_message(submission, each)]
    return _withdraw_unsent(app, due, publish_all(app, [each.job for each in due], producer), has_webhooks=has_webhooks)


def creates_webhooks(task: BoundTask, url: str | None) -> bool:
    """Tell whether a submission of a task, to which `url` is given, creates webhooks."""
    return url is not None or options_of(task).webhook_url is not None


def _withdraw_unsent(
    app: Celery, admissions: Sequence[Admission], errors: Mapping[str, Exception], *, has_webhooks: bool
) -> dict[str, Exception]:
    """Withdraw the new jobs whose messages cannot be sent, and return their errors; sweepers try with the others."""
    if not errors:
        return {}
    ledger = app_state_of(app).ledger
    by_id = {each.job.id: each.job for each in admissions if each.outcome is Outcome.ADMITTED}
    unsent = {job_id: error for job_id, error in errors.items() if job_id in by_id}
    return {
        job_id: error
        for job_id, error in unsent.items()
        if _withdraw(ledger, by_id[job_id], error, has_webhooks=has_webhooks)
    }


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


def needs_message(submission: Submission, admission: Admission) -> bool:
    """Tell whether a submission made a job due now, new or rescheduled, whose message the store has not pushed."""
    is_new_or_rescheduled = admission.outcome is Outcome.ADMITTED or admission.rescheduled
    return is_new_or_rescheduled and not admission.sent and submission.delay <= 0 and not admission.job.queued_next
