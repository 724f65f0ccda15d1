"""The webhooks of an app: created with the jobs, and delivered by a worker."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from onejob.celery.app_state import app_state_of
from onejob.celery.options import options_of
from onejob.errors import ConfigurationError, QuotaExceededError, TooManyWebhooksError
from onejob.jobs.model import Outcome
from onejob.jobs.quota import MAX_PERIOD, Charge, Quota
from onejob.webhooks.job import WEBHOOK, webhook_submission

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from onejob.celery.app_state import AppState
    from onejob.celery.options import BoundTask
    from onejob.jobs.model import Admission, Job, Submission
    from onejob.ledger.ledger import Ledger
    from onejob.webhooks.delivery import Delivery
    from onejob.webhooks.dispatcher import DeliveryQueue

logger = logging.getLogger("onejob")
ADDED_QUOTA = Quota(10, MAX_PERIOD)
"""How many webhooks duplicates may add to one job, besides the one of its first submission and the one of its task.

A job that still exists after the period may get as many again.
"""


def create_webhooks(
    task: BoundTask, ledger: Ledger, submission: Submission, admission: Admission, url: str | None
) -> None:
    """Create the webhooks of a submission: one to its own URL, and for a new job one to the task's URL.

    A duplicate that adds a webhook to its job is charged as for a new job. Raises `QuotaExceededError`, and
    `TooManyWebhooksError` if duplicates may add no more; a URL that the job has already is none.
    """
    if admission.outcome is Outcome.REJECTED:
        return
    job, submitter = admission.job, submission.submitter
    if url is not None:
        signer = app_state_of(task.app).webhooks.signer_of(submitter)
        webhook = webhook_submission(url, job, submitter=submitter, signer=signer, host=submission.host)
        if not admission.outcome.makes_job:
            added = Charge("webhooks", ADDED_QUOTA, f"webhooks:{job.id}:{job.submission_nonce}")
            webhook = replace(webhook, charges=(added, *submission.charges))
        _create_webhook(ledger, job, webhook)
    if admission.outcome.makes_job:
        create_task_webhook(task, ledger, job)


def create_task_webhook(task: BoundTask, ledger: Ledger, job: Job) -> None:
    """Create the webhook of a job to the URL of its task. Repeating the call is harmless."""
    url = options_of(task).webhook_url
    if url is not None:
        _create_webhook(ledger, job, webhook_submission(url, job))


def _create_webhook(ledger: Ledger, job: Job, webhook: Submission) -> None:
    try:
        follower = ledger.follow(webhook, follows_id=job.id)
    except QuotaExceededError as error:
        if error.option == "webhooks":
            raise TooManyWebhooksError(job.id, ADDED_QUOTA.limit) from None
        raise
    if follower is None:
        logger.warning("job %s no longer exists: its webhook is not sent", job.id)


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
