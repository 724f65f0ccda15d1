"""Waiting for jobs to change: one reader for all who wait in a process, which reads each job once per interval."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from threading import Event
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger

logger = logging.getLogger("onejob.api")

INTERVAL = 0.25
"""Seconds between two looks at the jobs that somebody waits for."""


class Watch:
    """What is known of one job that somebody waits for."""

    def __init__(self, job: Job) -> None:
        self.job: Job | None = job
        self.waiters = 0
        self._news = asyncio.Event()

    async def change(self, longest: float) -> bool:
        """Wait until something is written to the job, or for so many seconds; tell whether it was."""
        try:
            await asyncio.wait_for(self._news.wait(), longest)
        except TimeoutError:
            return False
        return True

    def learn(self, job: Job | None) -> None:
        """Take what was read, and tell those who wait if it is new."""
        if job == self.job:
            return
        self.job = job
        self.wake()

    def wake(self) -> None:
        """Have those who wait look again."""
        self._news.set()
        self._news = asyncio.Event()


class Watcher:
    """Reads the jobs that somebody waits for, as long as somebody does, in one thread.

    Once `closing` is set, those who wait are woken, and should wait no more.
    """

    def __init__(self, ledger: Ledger, interval: float = INTERVAL, closing: Event | None = None) -> None:
        self._ledger = ledger
        self._closing = closing or Event()
        self._interval = interval
        self.watches: dict[str, Watch] = {}
        self._reader: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def watching(self, job: Job) -> AsyncIterator[Watch]:
        """Keep watch over a job, of which the caller knows this much, for the length of a block."""
        watch = self.watches.setdefault(job.id, Watch(job))
        watch.waiters += 1
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read_on())
        try:
            yield watch
        finally:
            watch.waiters -= 1
            if not watch.waiters:
                del self.watches[job.id]

    async def _read_on(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            if not self.watches:
                self._reader = None
                return
            if self._closing.is_set():
                for watch in self.watches.values():
                    watch.wake()
            try:
                found = await asyncio.to_thread(self._read, list(self.watches))
            except Exception as error:  # noqa: BLE001 - whatever it is, those who wait go on waiting, and so must this
                logger.warning("the jobs that are waited for could not be read: %r", error)
                continue
            for job_id, job in found.items():
                if job_id in self.watches:
                    self.watches[job_id].learn(job)

    def _read(self, job_ids: Sequence[str]) -> dict[str, Job | None]:
        return dict.fromkeys(job_ids) | self._ledger.store.get_many(job_ids)
