"""Cancels in the ledger what a broadcast of Celery's `revoke` names: these jobs may have no message to be dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery.worker import state as worker_state

from onejob.celery.current_job import draining
from onejob.celery.worker.request import cancel_revoked, log_errors

if TYPE_CHECKING:
    from onejob.ledger.ledger import Ledger

BATCH = 100
"""How many jobs are read at once."""


class Revocations:
    """Handles each id that a worker of Celery remembers as revoked once, for as long as Celery remembers it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._handled: set[str] = set()

    def tick(self) -> None:
        """Cancel the jobs whose ids are new, in batches, until the worker shuts down. Raises `StoreError`."""
        revoked = [str(task_id) for task_id in list(worker_state.revoked)]
        self._handled.intersection_update(revoked)
        new = [task_id for task_id in revoked if task_id not in self._handled]
        for start in range(0, len(new), BATCH):
            if draining.is_set():
                return
            self._cancel(new[start : start + BATCH])

    def _cancel(self, batch: list[str]) -> None:
        """Cancel the live jobs of a batch; one that fails is tried again at the next tick."""
        jobs = self._ledger.store.get_many(batch)
        self._handled.update(task_id for task_id in batch if task_id not in jobs)
        for job in jobs.values():
            with log_errors(job.id):
                cancel_revoked(self._ledger, job)
                self._handled.add(job.id)
