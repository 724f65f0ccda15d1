"""Callbacks of an app: who is told the end of a job, and who in a worker tells it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from onejob.callbacks.submission import CALLBACK, callback_to
from onejob.callbacks.target import check_url
from onejob.celery.runtime import runtime_of
from onejob.errors import ConfigurationError
from onejob.job import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from onejob.callbacks.courier import Courier
    from onejob.callbacks.delivery import Delivery
    from onejob.celery.runtime import Runtime
    from onejob.celery.task import Task
    from onejob.job import Admission, Job
    from onejob.ledger import Ledger

logger = logging.getLogger("onejob")


def check_callback_url(task: Task, url: str | None) -> None:
    """Raise `InvalidArgumentsError` for a URL that cannot be a callback, `ConfigurationError` where there are none."""
    if url is not None:
        settings = runtime_of(task.app).callbacks
        settings.check_usable()
        check_url(url, settings)


def tell_end(task: Task, ledger: Ledger, admission: Admission, url: str | None) -> None:
    """Have the end of the job that answers a submission told to its URL, and to the task's."""
    if admission.outcome is Outcome.REJECTED:
        return
    if url is not None:
        _tell(ledger, admission.job, url)
    if admission.outcome.makes_job:
        tell_task(task, ledger, admission.job)


def tell_task(task: Task, ledger: Ledger, job: Job) -> None:
    """Have the end of a job told to the URL of its task; it may be so already."""
    if task.callback_url is not None:
        _tell(ledger, job, task.callback_url)


def _tell(ledger: Ledger, job: Job, url: str) -> None:
    if ledger.follow(callback_to(url, job), leader=job.id) is None:
        logger.warning("job %s is gone: nobody is told its end", job.id)


class Desk:
    """Where a worker's sweeper leaves callbacks. The threads that deliver them begin with the first."""

    def __init__(self, runtime: Runtime, node: str) -> None:
        self._runtime = runtime
        self._node = node
        self._delivery: Delivery | None = None
        self._courier: Courier | None = None
        self._closed = False

    @property
    def couriers(self) -> Mapping[str, Callable[[Job], object]]:
        """Who takes the jobs of which task instead of the broker."""
        return {CALLBACK: self.take}

    def take(self, job: Job) -> bool:
        """Take a callback, if this worker can deliver any; tell whether it is taken care of here."""
        if self._courier is None and not self._closed:
            self._open()
        return self._courier is not None and self._courier.take(job)

    def close(self, grace: float) -> None:
        """Take no more, and hand back what has not ended in time."""
        self._closed = True
        if self._courier is not None and self._delivery is not None:
            self._courier.stop(grace)
            self._delivery.hand_back()

    def _open(self) -> None:
        try:
            self._runtime.callbacks.check_usable()
        except ConfigurationError as error:
            self._closed = True
            logger.warning("callbacks are due, and this worker leaves them to others: %s", error)
            return
        from onejob.callbacks.courier import Courier
        from onejob.callbacks.delivery import Delivery
        from onejob.callbacks.sending import Sender

        settings = self._runtime.callbacks
        self._delivery = Delivery(self._runtime.ledger, settings, Sender(settings), self._node)
        self._courier = Courier(self._delivery.deliver)
