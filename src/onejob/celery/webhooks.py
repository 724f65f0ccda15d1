"""The webhooks of an app: created with the jobs, and delivered by a worker."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from onejob.celery.app_state import app_state_of
from onejob.celery.options import options_of
from onejob.celery.submitter import Caller
from onejob.errors import ConfigurationError, TooManyWebhooksError
from onejob.jobs.model import Outcome
from onejob.jobs.policy import DAY
from onejob.webhooks.job import WEBHOOK, webhook_submission
from onejob.webhooks.url import check_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from onejob.celery.app_state import AppState
    from onejob.celery.options import BoundTask
    from onejob.jobs.model import Admission, Job, Submission
    from onejob.ledger.ledger import Ledger
    from onejob.webhooks.delivery import Delivery
    from onejob.webhooks.dispatcher import DeliveryQueue

logger = logging.getLogger("onejob")
ADDED_LIMIT = 10
"""How many webhooks duplicates may add to one job, besides the one of its first submission and the one of its task."""
ADDED_PERIOD = 366 * DAY
"""Seconds after which a job that still exists may get as many again."""


def check_webhook_url(task: BoundTask, url: str | None) -> None:
    """Raise `InvalidArgumentsError` for an invalid webhook URL, `ConfigurationError` if webhooks are not configured."""
    if url is not None:
        settings = app_state_of(task.app).webhooks
        settings.check_usable(Caller.of(task.app).submitter.name)
        check_url(url, settings)


def create_webhooks(
    task: BoundTask, ledger: Ledger, submission: Submission, admission: Admission, url: str | None,
    *, refusal: Exception | None = None,
) -> bool:  # fmt: skip
    """Create the webhooks of a submission: one to its own URL, and for a new job one to the task's URL.

    Returns whether a duplicate has added a webhook to its job. Raises `TooManyWebhooksError` if it may not, or
    `refusal` if the caller may add none; a URL that the job has already is none.
    """
    if admission.outcome is Outcome.REJECTED:
        return False
    job, submitter = admission.job, submission.submitter
    webhook = None
    if url is not None:
        signer = app_state_of(task.app).webhooks.signer_of(submitter)
        webhook = webhook_submission(url, job, submitter=submitter, signer=signer, host=submission.host)
    if not admission.outcome.makes_job:
        return webhook is not None and _add_webhook(ledger, job, webhook, refusal)
    if webhook is not None:
        _create_webhook(ledger, job, webhook)
    create_task_webhook(task, ledger, job)
    return False


def create_task_webhook(task: BoundTask, ledger: Ledger, job: Job) -> None:
    """Create the webhook of a job to the URL of its task. Repeating the call is harmless."""
    url = options_of(task).webhook_url
    if url is not None:
        _create_webhook(ledger, job, webhook_submission(url, job))


def _add_webhook(ledger: Ledger, job: Job, webhook: Submission, refusal: Exception | None) -> bool:
    """Create the webhook of a duplicate unless it exists; return whether it is new."""
    if ledger.get_or_none(webhook.id) is not None:
        return False
    if refusal is not None:
        raise refusal
    use = ledger.consume(f"webhooks:{job.id}:{job.submission_nonce}", limit=ADDED_LIMIT, period=ADDED_PERIOD)
    if not use.counted:
        raise TooManyWebhooksError(job.id, ADDED_LIMIT)
    return _create_webhook(ledger, job, webhook)


def _create_webhook(ledger: Ledger, job: Job, webhook: Submission) -> bool:
    """Write the webhook of a job; return whether the job still exists."""
    exists = ledger.follow(webhook, follows_id=job.id) is not None
    if not exists:
        logger.warning("job %s no longer exists: its webhook is not sent", job.id)
    return exists


class WebhookDispatcher:
    """Delivers the webhooks that a worker's sweeper finds due, in threads that start with the first webhook."""

    def __init__(self, app_state: AppState, node: str) -> None:
        self._app_state = app_state
        self._node = node
        self._delivery: Delivery | None = None
        self._queue: DeliveryQueue | None = None
        self._closed = False

    @property
    def dispatchers(self) -> Mapping[str, Callable[[Job], object]]:
        """By task name, the function that gets the due jobs of that task instead of the broker."""
        return {WEBHOOK: self.dispatch_webhook}

    def dispatch_webhook(self, job: Job) -> bool:
        """Queue a webhook for delivery; False if this worker cannot deliver it."""
        if self._queue is None and not self._closed:
            self._open()
        return self._queue is not None and self._queue.put(job)

    def close(self, grace: float) -> None:
        """Accept no more webhooks; after `grace` seconds, release those that are not delivered yet."""
        self._closed = True
        if self._queue is not None and self._delivery is not None:
            self._queue.close(grace)
            self._delivery.release_all()

    def _open(self) -> None:
        try:
            self._app_state.webhooks.check_usable(next(iter(self._app_state.webhooks.submitter_secrets), ""))
        except ConfigurationError as error:
            self._closed = True
            logger.warning("webhooks are due, but this worker cannot deliver them: %s", error)
            return
        from onejob.webhooks.client import WebhookClient
        from onejob.webhooks.delivery import Delivery
        from onejob.webhooks.dispatcher import DeliveryQueue

        settings = self._app_state.webhooks
        self._delivery = Delivery(self._app_state.ledger, settings, WebhookClient(settings), self._node)
        self._queue = DeliveryQueue(self._delivery.deliver)
