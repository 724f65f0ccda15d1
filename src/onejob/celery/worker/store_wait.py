"""Repeats an operation of a run while the store is away."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from onejob.celery.current_job import draining
from onejob.errors import StoreError, StoreRefusedError
from onejob.jobs.transitions import new_nonce

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
logger = logging.getLogger("onejob")
PAUSE = 0.5
"""Seconds between two attempts."""


def wait_for_store(job_id: str, operation: Callable[[], T]) -> T:
    """Repeat an operation of a run until the store carries it out, and return its result, so that no run is in vain.

    Whatever keeps the store from it is waited for: an outage, a full disk, a password that was changed. Only a
    `StoreRefusedError` is an answer to this very write. The worker's heartbeat renews the lease as soon as the store is
    back. Raises the latest `StoreError` if the worker shuts down, and what else `operation` raises. A fenced write
    raises `StaleTokenError` if another run has the job then; for the end of a run, see `end_run`.
    """
    waited = False
    while True:
        try:
            return operation()
        except StoreRefusedError:
            raise
        except StoreError as error:
            if not waited:
                logger.warning("job %s: its run waits for the store: %s", job_id, error)
            waited = True
            if draining.wait(PAUSE):
                raise


def end_run(job_id: str, change: Callable[..., T]) -> T:
    """Apply a change that ends a run, as `wait_for_store` does: one request, also if its reply is lost."""
    return wait_for_store(job_id, partial(change, request_id=new_nonce()))
