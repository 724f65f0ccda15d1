"""Waiting for changes of jobs: one poller per event loop, which reads each watched job once per interval."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from threading import Event

    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger

logger = logging.getLogger("onejob")

POLL_INTERVAL = 0.25
"""Seconds between two reads of the watched jobs."""
READ_LIMIT = 100
"""How many jobs are read at once."""


class Watch:
    """The last known version of a watched job; None once it has been deleted."""

    def __init__(self, job: Job) -> None:
        self.job: Job | None = job
        self.waiters = 0
        self._changed = asyncio.Event()

    async def wait_for_change(self, seconds: float) -> bool:
        """Wait until the job changes, for at most so many seconds; return whether it has changed."""
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def update(self, job: Job | None) -> None:
        """Set the job, and notify the waiters if it has changed."""
        if job == self.job:
            return
        self.job = job
        self.notify()

    def notify(self) -> None:
        """Wake all waiters."""
        self._changed.set()
        self._changed = asyncio.Event()


class JobPoller:
    """Polls the watched jobs, in one thread, while there are any.

    Once `closing` is set, all waiters are woken, and should stop waiting.
    """

    def __init__(self, ledger: Ledger, interval: float = POLL_INTERVAL, closing: Event | None = None) -> None:
        self.ledger = ledger
        self._closing = closing
        self._interval = interval
        self.watches: dict[str, Watch] = {}
        self._poller: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def watch(self, job: Job) -> AsyncIterator[Watch]:
        """Watch a job, whose version the caller has read, for the duration of the context."""
        watch = self.watches.setdefault(job.id, Watch(_without_message(job)))
        watch.waiters += 1
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll())
        try:
            yield watch
        finally:
            watch.waiters -= 1
            if not watch.waiters:
                del self.watches[job.id]

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            if not self.watches:
                self._poller = None
                return
            if self._closing is not None and self._closing.is_set():
                for watch in self.watches.values():
                    watch.notify()
            job_ids = list(self.watches)
            for start in range(0, len(job_ids), READ_LIMIT):
                await self._update(job_ids[start : start + READ_LIMIT])

    async def _update(self, job_ids: Sequence[str]) -> None:
        try:
            jobs = await asyncio.to_thread(self._read_jobs, job_ids)
        except Exception as error:  # noqa: BLE001 - the waiters keep waiting, so the poller must keep polling
            logger.warning("the watched jobs could not be read: %r", error)
            return
        for job_id, job in jobs.items():
            if job_id in self.watches:
                self.watches[job_id].update(job)

    def _read_jobs(self, job_ids: Sequence[str]) -> dict[str, Job | None]:
        found = self.ledger.store.get_many(job_ids)
        return {job_id: _without_message(found[job_id]) if job_id in found else None for job_id in job_ids}


def _without_message(job: Job) -> Job:
    """Return a job without its arguments and options, which no view shows: they would be held while it is watched."""
    return replace(job, payload="", options="")
