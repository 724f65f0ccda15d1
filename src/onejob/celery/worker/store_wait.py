"""Repeats an operation of a run while the store is away."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from onejob.celery.current_job import draining
from onejob.errors import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
logger = logging.getLogger("onejob")
PAUSE = 0.5
"""Seconds between two attempts."""


def wait_for_store(job_id: str, operation: Callable[[], T]) -> T:
    """Repeat an operation of a run until the store answers, and return its result, so that no run is in vain.

    The worker's heartbeat renews the lease as soon as the store is back. Raises `StoreUnavailableError` if the worker
    shuts down, and what else `operation` raises. A fenced write raises `StaleTokenError` if another run has the job
    then, or if an earlier attempt was recorded whose reply was lost: then the sweeper has the canvas notified.
    """
    waited = False
    while True:
        try:
            return operation()
        except StoreUnavailableError as error:
            if not waited:
                logger.warning("job %s: its run waits for the store: %s", job_id, error)
            waited = True
            if draining.wait(PAUSE):
                raise
