"""Webhooks of an app: who is told the end of a job, and who in a worker tells it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from onejob.celery.app_state import app_state_of
from onejob.celery.options import options_of
from onejob.errors import ConfigurationError
from onejob.jobs.model import Outcome
from onejob.webhooks.job import WEBHOOK, webhook_to
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
    """Raise `InvalidArgumentsError` for a URL that cannot be a webhook, `ConfigurationError` where there are none."""
    if url is not None:
        settings = app_state_of(task.app).webhooks
        settings.check_usable()
        check_url(url, settings)


def create_webhooks(task: BoundTask, ledger: Ledger, admission: Admission, url: str | None) -> None:
    """Have the end of the job that answers a submission told to its URL, and to the task's."""
    if admission.outcome is Outcome.REJECTED:
        return
    if url is not None:
        _tell(ledger, admission.job, url)
    if admission.outcome.makes_job:
        create_task_webhook(task, ledger, admission.job)


def create_task_webhook(task: BoundTask, ledger: Ledger, job: Job) -> None:
    """Have the end of a job told to the URL of its task; it may be so already."""
    url = options_of(task).webhook_url
    if url is not None:
        _tell(ledger, job, url)


def _tell(ledger: Ledger, job: Job, url: str) -> None:
    if ledger.follow(webhook_to(url, job), follows_id=job.id) is None:
        logger.warning("job %s is gone: nobody is told its end", job.id)


class WebhookDispatcher:
    """Where a worker's sweeper leaves webhooks. The threads that deliver them begin with the first."""

    def __init__(self, app_state: AppState, node: str) -> None:
        self._app_state = app_state
        self._node = node
        self._delivery: Delivery | None = None
        self._queue: DeliveryQueue | None = None
        self._closed = False

    @property
    def dispatchers(self) -> Mapping[str, Callable[[Job], object]]:
        """Who takes the jobs of which task instead of the broker."""
        return {WEBHOOK: self.take}

    def take(self, job: Job) -> bool:
        """Take a webhook, if this worker can deliver any; tell whether it is taken care of here."""
        if self._queue is None and not self._closed:
            self._open()
        return self._queue is not None and self._queue.take(job)

    def close(self, grace: float) -> None:
        """Take no more, and hand back what has not ended in time."""
        self._closed = True
        if self._queue is not None and self._delivery is not None:
            self._queue.stop(grace)
            self._delivery.hand_back()

    def _open(self) -> None:
        try:
            self._app_state.webhooks.check_usable()
        except ConfigurationError as error:
            self._closed = True
            logger.warning("webhooks are due, and this worker leaves them to others: %s", error)
            return
        from onejob.webhooks.client import WebhookClient
        from onejob.webhooks.delivery import Delivery
        from onejob.webhooks.dispatcher import DeliveryQueue

        settings = self._app_state.webhooks
        self._delivery = Delivery(self._app_state.ledger, settings, WebhookClient(settings), self._node)
        self._queue = DeliveryQueue(self._delivery.deliver)
