"""The webhooks of an app: created with the jobs, and delivered by a worker."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from onejob.celery.app_state import app_state_of
from onejob.celery.options import options_of
from onejob.errors import ConfigurationError
from onejob.jobs.model import Outcome
from onejob.webhooks.job import WEBHOOK, webhook_submission
from onejob.webhooks.url import check_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from onejob.celery.app_state import AppState
    from onejob.celery.options import BoundTask
    from onejob.jobs.model import Admission, Job
    from onejob.ledger.ledger import Ledger
    from onejob.webhooks.delivery import Delivery
    from onejob.webhooks.dispatcher import DeliveryQueue

logger = logging.getLogger("onejob")


def check_webhook_url(task: BoundTask, url: str | None) -> None:
    """Raise `InvalidArgumentsError` for an invalid webhook URL, `ConfigurationError` if webhooks are not configured."""
    if url is not None:
        settings = app_state_of(task.app).webhooks
        settings.check_usable()
        check_url(url, settings)


def create_webhooks(task: BoundTask, ledger: Ledger, admission: Admission, url: str | None) -> None:
    """Create the webhooks of a submission: one to its own URL, and for a new job one to the task's URL."""
    if admission.outcome is Outcome.REJECTED:
        return
    if url is not None:
        _create_webhook(ledger, admission.job, url)
    if admission.outcome.makes_job:
        create_task_webhook(task, ledger, admission.job)


def create_task_webhook(task: BoundTask, ledger: Ledger, job: Job) -> None:
    """Create the webhook of a job to the URL of its task. Repeating the call is harmless."""
    url = options_of(task).webhook_url
    if url is not None:
        _create_webhook(ledger, job, url)


def _create_webhook(ledger: Ledger, job: Job, url: str) -> None:
    if ledger.follow(webhook_submission(url, job), follows_id=job.id) is None:
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
            self._app_state.webhooks.check_usable()
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
