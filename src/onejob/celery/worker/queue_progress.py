"""What a worker knows about the messages that have left its queues: the evidence that a message is gone.

A clock is no evidence: a message may wait behind others for hours, and a copy of each makes the queue longer. Brokers
deliver the messages of one queue and priority in the order of their publication, so a message has left its queue when
the queue was seen empty, or when one that was published later has been received. After some seconds it must be with a
live worker, which has registered that, or its job must have been claimed. Otherwise it is gone.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from celery.worker import state as worker_state

from onejob.celery.app_state import app_state_of
from onejob.celery.worker.heartbeat import LATE_FACTOR
from onejob.celery.worker.request import members_of
from onejob.jobs.records import RESERVED_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from onejob.jobs.model import Job
    from onejob.jobs.records import WorkerInfo

logger = logging.getLogger("onejob")
ANY_RANK = -(10**9)
"""The priority rank of what is known about a whole queue. More urgent messages are delivered earlier."""
LOOKS_PER_HEARTBEAT = 3
"""How often a worker looks at its queues. It registers the messages that it has received with its next heartbeat."""
QUEUE_LIMIT = 100
"""How many queues a worker looks at, at most."""


class QueueProgress:
    """Until when the published messages of each queue have left it, as known since at least `margin` seconds.

    `clock` returns seconds that only grow; the times of publications are the store's.
    """

    def __init__(self, margin: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._margin = margin
        self._clock = clock
        self._latest: deque[tuple[float, Mapping[tuple[str, int], float]]] = deque()
        self._settled: dict[tuple[str, int], float] = {}

    def observe(self, left: Mapping[tuple[str, int], float]) -> None:
        """Add an observation: by queue and priority rank, until when its published messages have left it."""
        self._latest.append((self._clock(), left))

    def passed_in(self, job: Job) -> float | None:
        """Return in how many seconds a job's message has left its queue for `margin` seconds; None: it may be there."""
        now = self._clock()
        while self._latest and self._latest[0][0] <= now - self._margin:
            for place, until in self._latest.popleft()[1].items():
                self._settled[place] = max(until, self._settled.get(place, until))
        if _has_passed(self._settled, job):
            return 0.0
        since = next((at for at, left in self._latest if _has_passed(left, job)), None)
        return None if since is None else since + self._margin - now


def _has_passed(left: Mapping[tuple[str, int], float], job: Job) -> bool:
    published_at = job.published_at or 0.0
    return any(
        until >= published_at and queue == job.queue and rank <= job.priority_rank
        for (queue, rank), until in left.items()
    )


class QueueWatch:
    """Looks at the queues of a worker now and then, and at the workers that have died."""

    def __init__(
        self, worker: Any, consumed: Callable[[], Iterable[str]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app_state = app_state_of(worker.app)
        self._worker = worker
        self._consumed = consumed
        self._clock = clock
        heartbeat = self._app_state.settings.heartbeat
        self._interval = heartbeat / LOOKS_PER_HEARTBEAT
        self._progress = QueueProgress(LATE_FACTOR * heartbeat, clock)
        self._others: dict[str, None] = {}
        """Queues that this worker does not consume, of jobs that it has seen."""
        self._next_look = 0.0
        self._workers: list[WorkerInfo] | None = None

    def look(self) -> None:
        """Observe the queues, and have the jobs of dead workers published again, if it is time to."""
        self._workers = None
        if self._clock() < self._next_look:
            return
        self._next_look = self._clock() + self._interval
        ledger, settings = self._app_state.ledger, self._app_state.settings
        for dead in ledger.take_dead_workers():
            ledger.mark_lost(dead.reserved)
        left = self._find_empty()
        for job in self._take_received():
            place = (job.queue, job.priority_rank)
            # Jobs of one batch have one time, and of two submitters the later one may have published first.
            left[place] = max(max(job.created_at, job.run_at) - settings.publish_timeout, left.get(place, 0.0))
        self._progress.observe(left)

    def take_over(self, node: str) -> None:
        """Have the jobs published again whose messages an earlier process of this node has held."""
        ledger = self._app_state.ledger
        for worker in ledger.workers():
            if worker.name == node:
                ledger.mark_lost(worker.reserved)

    def gone_in(self, job: Job) -> float | None:
        """Return in how many seconds the message of a published job is known to be gone; None: it may be delivered."""
        if len(self._others) < QUEUE_LIMIT:
            self._others[job.queue] = None
        passed_in = self._progress.passed_in(job)
        return None if passed_in == 0 and self._is_held(job) else passed_in

    def _is_held(self, job: Job) -> bool:
        if job.id in self.reserved():
            return True
        if self._workers is None:
            self._workers = self._app_state.ledger.workers()
        return any(worker.has_message_of(job) for worker in self._workers)

    def reserved(self) -> tuple[str, ...]:
        """Return the ids of the jobs whose messages this worker holds, running or not yet."""
        buckets = getattr(self._worker.consumer, "task_buckets", {})  # of the tasks with a rate limit
        limited = [request for bucket in [*buckets.values()] if bucket for request, _ in members_of(bucket.contents)]
        ids = {str(request.id) for request in (*members_of(worker_state.reserved_requests), *limited)}
        return tuple(sorted(ids))[:RESERVED_LIMIT]

    def _find_empty(self) -> dict[tuple[str, int], float]:
        """Return until when the messages have left the queues that are empty."""
        queues = dict.fromkeys([*self._consumed(), *self._others])
        now = self._app_state.ledger.read_clock()
        try:
            lengths = self._app_state.publisher.queue_lengths(queues)
        except Exception as error:  # noqa: BLE001 - any error of the transport: then nothing is known
            logger.info("the broker does not report the lengths of its queues: %r", error)
            return {}
        return {(name, ANY_RANK): now for name, length in lengths.items() if length == 0}

    def _take_received(self) -> Iterable[Job]:
        """Return the jobs whose messages this worker has received last, by queue and priority, since the last look."""
        received = self._app_state.received
        ids = [received.pop(place) for place in [*received]]
        return self._app_state.ledger.get_many(ids).values() if ids else ()
