"""The courier: a few threads in a worker's parent that deliver webhooks: no slow receiver delays anything else.

A host gets few of the threads and few of the places in the line. What finds no place is refused, and comes again with a
later sweep, here or elsewhere.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from onejob.errors import InvalidArgumentsError
from onejob.webhooks.ip_policy import literal
from onejob.webhooks.job import WebhookCall
from onejob.webhooks.url import WebhookUrl

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.jobs.model import Job

logger = logging.getLogger("onejob")
THREADS = 8
THREADS_PER_HOST = 2
LINE = 1000
"""How many webhooks may wait for a thread."""
LINE_PER_HOST = 100


class _Item(NamedTuple):
    host: str
    job: Job


class DeliveryQueue:
    """Calls `deliver` for the jobs it takes, each in one of its threads."""

    def __init__(self, deliver: Callable[[Job], None]) -> None:
        self._deliver = deliver
        self._lock = threading.Lock()
        self._line: dict[str, _Item] = {}
        self._under_way: dict[str, _Item] = {}
        self._threads = 0
        self._open = True

    def take(self, job: Job) -> bool:
        """Take a job if there is room; tell whether it is taken care of here."""
        parcel = _Item(_host(job), job)
        with self._lock:
            if job.id in self._line or job.id in self._under_way:
                return True
            in_line = sum(each.host == parcel.host for each in self._line.values())
            if not self._open or len(self._line) >= LINE or in_line >= LINE_PER_HOST:
                return False
            self._line[job.id] = parcel
            if self._threads < THREADS:
                self._threads += 1
                threading.Thread(target=self._work, name="onejob-courier", daemon=True).start()
        return True

    def stop(self, grace: float) -> None:
        """Take no more, forget the line, and wait for what is under way."""
        with self._lock:
            self._open = False
            self._line.clear()
        deadline = time.monotonic() + grace
        while self._under_way and time.monotonic() < deadline:
            time.sleep(0.05)

    def _work(self) -> None:
        """Deliver one after the other; a thread that finds nothing it may deliver ends."""
        while (job := self._next()) is not None:
            try:
                self._deliver(job)
            except Exception:
                logger.exception("webhook %s failed by a fault of ours; its lease will heal it", job.id)
            finally:
                with self._lock:
                    del self._under_way[job.id]

    def _next(self) -> Job | None:
        with self._lock:
            busy = Counter(each.host for each in self._under_way.values())
            parcel = next((each for each in self._line.values() if busy[each.host] < THREADS_PER_HOST), None)
            if parcel is None:
                self._threads -= 1
                return None
            self._under_way[parcel.job.id] = self._line.pop(parcel.job.id)
            return parcel.job


def _host(job: Job) -> str:
    try:
        host = WebhookUrl.of(WebhookCall.of(job).url).host
    except InvalidArgumentsError:
        return ""
    return str(literal(host) or host)
