"""Counts how many jobs a worker takes from the ledger: as many as it has free processes, and more of short jobs.

So no process waits for the next job, and a job that was taken waits `AHEAD_SECONDS` at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

T = TypeVar("T")
AHEAD_SECONDS = 0.1
"""For how many seconds of work a worker takes jobs that its processes cannot run yet."""
MAX_AHEAD = 32
"""How many jobs that cannot run yet a worker takes at most, for each process."""
MAX_LIMITED = 4
"""How many jobs with a rate limit may wait beside others, for each process."""
SMOOTHING = 0.5
"""The weight of the latest runs in the average time of a run."""


def capacity_of(worker: Any) -> int:
    """Return how many jobs a worker can run at once; with an autoscaler, in all processes that it may start."""
    scaler = getattr(worker, "autoscaler", None)  # it starts a process for each job that waits in this worker
    return max(_processes_of(worker), getattr(scaler, "max_concurrency", 0))


def _processes_of(worker: Any) -> int:
    return int(getattr(worker.pool, "num_processes", 0) or worker.concurrency or 1)


class Slots:
    """The slots of a worker for jobs. `rate_limited` returns the ids of jobs that wait for their rate limits."""

    def __init__(
        self, worker: Any, rate_limited: Callable[[], set[str]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._worker = worker
        self._rate_limited = rate_limited
        self._clock = clock
        self._average = 1.0
        """The average seconds of a run, with the idle time of its process; the first value is that of a long run."""
        self._seen = clock(), _count_runs()

    @property
    def is_busy(self) -> bool:
        """Whether a process runs a job."""
        return bool(_worker_state().active_requests)

    def count_wanted(self, held: Collection[str]) -> int:
        """Return how many jobs to take; `held`: the ids of jobs that were taken and may wait for a process.

        The number is 0 until half of the window is free, so that several short jobs are taken at once.
        """
        self._observe(_processes_of(self._worker))
        processes = capacity_of(self._worker)
        ahead = min(MAX_AHEAD, int(AHEAD_SECONDS / max(self._average, 0.001))) * processes
        limited = self._rate_limited()
        waiting = {*held} if len(limited) > MAX_LIMITED * processes else {*held} - limited
        used = len(waiting | {str(request.id) for request in members_of(_worker_state().active_requests)})
        free = processes + ahead - used
        return free if used < processes or 2 * free >= processes + ahead else 0

    def _observe(self, processes: int) -> None:
        """Update the average by the latest runs, once each process has had two runs, or after a second."""
        (since, before), now, count = self._seen, self._clock(), _count_runs()
        if count - before >= 2 * processes or now - since >= 1.0:
            seconds = (now - since) * processes / max(1, count - before)
            self._average += SMOOTHING * (seconds - self._average)
            self._seen = now, count


def _count_runs() -> int:
    return int(_worker_state().all_total_count[0])


def _worker_state() -> Any:
    from celery.worker import state  # with Celery's worker, of which an import of onejob imports nothing

    return state


def members_of(changing: Iterable[T]) -> list[T]:
    """Return the members of a set or a queue to which Celery's main thread adds meanwhile."""
    while True:
        try:
            return [*changing]
        except RuntimeError:  # its size changed during the iteration
            continue
