"""Records the end of a run although the store is away."""

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


def insist(job_id: str, write: Callable[[], T]) -> T:
    """Repeat a fenced write that ends a run until the store answers, so that the run was not in vain.

    The worker's heartbeat renews the lease as soon as the store is back. Raises `StoreUnavailableError` if the worker
    shuts down, and what else `write` raises: `StaleTokenError` if another run has the job then, or if an earlier
    attempt was recorded whose reply was lost (the sweeper has the canvas notified).
    """
    waited = False
    while True:
        try:
            return write()
        except StoreUnavailableError as error:
            if not waited:
                logger.warning("job %s: its run has ended, which is recorded when the store answers: %s", job_id, error)
            waited = True
            if draining.wait(PAUSE):
                raise
