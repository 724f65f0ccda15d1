"""A bounded queue and thread pool for webhook deliveries: a slow receiver does not delay other hosts or the worker.

Threads and queued deliveries are limited in total and per host. `put` refuses what exceeds a limit; a later sweep, of
this worker or another, offers it again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from onejob.errors import InvalidArgumentsError
from onejob.webhooks.ip_policy import parse_ip
from onejob.webhooks.job import WebhookPayload
from onejob.webhooks.url import WebhookUrl

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.jobs.model import Job

logger = logging.getLogger("onejob")
THREADS = 8
THREADS_PER_HOST = 2
QUEUE_LIMIT = 1000
QUEUE_LIMIT_PER_HOST = 100
THREAD_NAME = "onejob-webhook"


class _Item(NamedTuple):
    host: str
    job: Job


class DeliveryQueue:
    """Calls `deliver` for each queued job in a pool of daemon threads, which start on demand."""

    def __init__(self, deliver: Callable[[Job], None]) -> None:
        self._deliver = deliver
        self._lock = threading.Lock()
        self._queued: dict[str, _Item] = {}
        self._in_flight: dict[str, _Item] = {}
        self._threads = 0
        self._open = True

    def put(self, job: Job) -> bool:
        """Queue a job. Returns whether it is queued or in flight; False: a limit is reached, or the queue is closed."""
        item = _Item(_host(job), job)
        with self._lock:
            if job.id in self._queued or job.id in self._in_flight:
                return True
            queued_for_host = sum(queued.host == item.host for queued in self._queued.values())
            if not self._open or len(self._queued) >= QUEUE_LIMIT or queued_for_host >= QUEUE_LIMIT_PER_HOST:
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
        """Deliver until no queued job is within its host's limit."""
        while (job := self._next_job()) is not None:
            try:
                self._deliver(job)
            except Exception:
                logger.exception("webhook %s: internal error; it is retried when its lease expires", job.id)
            finally:
                with self._lock:
                    del self._in_flight[job.id]

    def _next_job(self) -> Job | None:
        with self._lock:
            in_flight = Counter(item.host for item in self._in_flight.values())
            item = next((item for item in self._queued.values() if in_flight[item.host] < THREADS_PER_HOST), None)
            if item is None:
                self._threads -= 1
                return None
            self._in_flight[item.job.id] = self._queued.pop(item.job.id)
            return item.job


def _host(job: Job) -> str:
    try:
        host = WebhookUrl.parse(WebhookPayload.from_job(job).url).host
    except InvalidArgumentsError:
        return ""
    return str(parse_ip(host) or host)
