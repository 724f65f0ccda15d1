"""A bounded queue and thread pool for webhook deliveries: a slow receiver delays no other host or submitter.

Threads and queued deliveries are limited in total, per submitter and per host (see `FairSlots`), and submitters take
turns. `put` refuses what exceeds a limit; a later sweep, of this worker or another, offers it again.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from onejob.errors import InvalidArgumentsError
from onejob.webhooks.client import FairSlots
from onejob.webhooks.job import WebhookPayload
from onejob.webhooks.settings import WebhookUrl, parse_ip

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.jobs.model import Job

logger = logging.getLogger("onejob")
THREADS = 64
THREADS_PER_HOST = 2
QUEUE_LIMIT = 1000
QUEUE_LIMIT_PER_HOST = 100
THREAD_NAME = "onejob-webhook"


class _Item(NamedTuple):
    submitter: str
    host: str
    job: Job


class DeliveryQueue:
    """Calls `deliver` for each queued job in a pool of daemon threads, which start on demand."""

    def __init__(self, deliver: Callable[[Job], None]) -> None:
        self._deliver = deliver
        self._lock = threading.Lock()
        self._queued: dict[str, _Item] = {}
        self._in_flight: dict[str, _Item] = {}
        self._queue_slots = FairSlots(QUEUE_LIMIT, QUEUE_LIMIT_PER_HOST)
        self._thread_slots = FairSlots(THREADS, THREADS_PER_HOST)
        self._turns: dict[str, int] = {}
        """By submitter with queued jobs, the number of its latest turn."""
        self._turn = 0
        self._threads = 0
        self._open = True

    def put(self, job: Job) -> bool:
        """Queue a job. Returns whether it is queued or in flight; False: a limit is reached, or the queue is closed."""
        item = _Item(job.submitter, _host(job), job)
        with self._lock:
            if job.id in self._queued or job.id in self._in_flight:
                return True
            if not self._open or not self._queue_slots.acquire(item.submitter, item.host):
                return False
            self._queued[job.id] = item
            if self._threads < THREADS:
                self._threads += 1
                threading.Thread(target=self._run, name=THREAD_NAME, daemon=True).start()
        return True

    def close(self, grace: float) -> None:
        """Discard the queue, refuse further jobs, and wait up to `grace` seconds for deliveries in flight."""
        with self._lock:
            self._open = False
            self._queued.clear()
        deadline = time.monotonic() + grace
        while self._in_flight and time.monotonic() < deadline:
            time.sleep(0.05)

    def _run(self) -> None:
        """Deliver until no queued job is within the limits."""
        while (item := self._next_item()) is not None:
            try:
                self._deliver(item.job)
            except Exception:
                logger.exception("webhook %s: internal error; it is retried when its lease expires", item.job.id)
            finally:
                with self._lock:
                    del self._in_flight[item.job.id]
                    self._thread_slots.release(item.submitter, item.host)

    def _next_item(self) -> _Item | None:
        """Take the next item that is within the limits; None ends the thread."""
        with self._lock:
            for item in sorted(self._queued.values(), key=self._rank):
                if self._thread_slots.acquire(item.submitter, item.host):
                    self._start(item)
                    return item
            self._threads -= 1
            return None

    def _rank(self, item: _Item) -> tuple[int, int, bool]:
        """Rank by the submitter's deliveries in flight and its latest turn; then first attempts before retries."""
        turn = self._turns.get(item.submitter, 0)
        return self._thread_slots.used_by(item.submitter), turn, item.job.retries > 0

    def _start(self, item: _Item) -> None:
        self._in_flight[item.job.id] = self._queued.pop(item.job.id)
        self._queue_slots.release(item.submitter, item.host)
        self._turn += 1
        self._turns[item.submitter] = self._turn
        if not self._queued or len(self._turns) > QUEUE_LIMIT:
            self._turns.clear()


def _host(job: Job) -> str:
    try:
        host = WebhookUrl.parse(WebhookPayload.from_job(job).url).host
    except InvalidArgumentsError:
        return ""
    return str(parse_ip(host) or host)
