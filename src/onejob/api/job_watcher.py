"""Waiting for changes of jobs over HTTP: a poller, and a limit on the waits of each caller."""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from onejob.api.problems import Problem
from onejob.celery.job_poller import POLL_INTERVAL, JobPoller, Watch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from threading import Event

    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger

WAITS_PER_CALLER = 250
"""How many event streams and long polls of one caller may be open in a process."""


class JobWatcher(JobPoller):
    """Polls the watched jobs of callers, each of which has a limit of waits."""

    def __init__(
        self,
        ledger: Ledger,
        interval: float = POLL_INTERVAL,
        closing: Event | None = None,
        waits_per_caller: int = WAITS_PER_CALLER,
    ) -> None:
        super().__init__(ledger, interval, closing)
        self._waits_per_caller = waits_per_caller
        self._waits: Counter[str] = Counter()

    def check_waits(self, caller: str) -> None:
        """Raise `Problem` if a caller has no wait left, before a response begins that will need one."""
        if self._waits[caller] >= self._waits_per_caller:
            detail = f"{self._waits_per_caller} event streams and long polls of this caller are open"
            raise Problem("too-many-waits", detail, headers={"retry-after": "5"})

    @asynccontextmanager
    async def watch(self, job: Job, caller: str = "") -> AsyncIterator[Watch]:
        """Watch a job, whose version the caller has read, for the duration of the context."""
        with self.counted(caller):
            async with super().watch(job) as watch:
                yield watch

    @contextmanager
    def counted(self, caller: str) -> Iterator[None]:
        """Count a wait of a caller for the duration of the context."""
        self._waits[caller] += 1
        try:
            yield
        finally:
            self._waits[caller] -= 1
            if not self._waits[caller]:
                del self._waits[caller]
