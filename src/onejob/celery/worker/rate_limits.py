"""The rate limits of a worker's tasks: one timer runs all requests that wait for a limit, however many wait.

Celery adds a timer for each message that waits, and kombu's event loop sleeps for a second after ten timers: a backlog
would slow every limit, and the timers of all other tasks, down to about one run per second.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from celery.utils.time import rate
from celery.worker.state import task_reserved

LONGEST_WAIT = 1.0
"""Seconds until the timer looks again, at the latest: a canceled timer stays in Celery's list until its time."""

LATENESS = 0.02
"""Seconds by which a timer may fire late without making a rate lower: the next request then waits less."""


class Waiting:
    """The requests of one task that wait for its rate limit, in order; Celery's consumer uses it as a token bucket.

    `on_added` is called when Celery has added a request.
    """

    def __init__(self, on_added: Callable[[Waiting], object]) -> None:
        self.contents: deque[tuple[Any, int]] = deque()
        """The requests, each with its number of tokens, which is 1."""
        self.interval = 0.0
        """Seconds between two runs: 0 without a limit."""
        self._on_added = on_added
        self._ran_at = -math.inf
        self._lock = threading.Lock()

    def add(self, item: tuple[Any, int]) -> None:
        """Add a request, which runs at once if it may."""
        self.contents.append(item)
        self._on_added(self)

    def pop(self) -> tuple[Any, int]:
        """Raise IndexError, always: Celery itself finds nothing to run, and adds no timer."""
        raise IndexError

    def clear_pending(self) -> None:
        """Forget all requests: the connection that has received their messages ends."""
        self.contents.clear()

    @property
    def due_at(self) -> float:
        """When the next request may run."""
        return self._ran_at + self.interval if self.contents else math.inf

    def take(self, now: float) -> Any:
        """Return the next request, which runs now; None if it may not, or if there is none."""
        with self._lock:  # where a broker has no event loop, Celery's timer is a thread
            if now < (due_at := self.due_at):
                return None
            self._ran_at = max(due_at, now - min(LATENESS, self.interval / 2))
            return self.contents.popleft()[0]


class RateLimits:
    """The rate limits of all tasks of a worker; after `install` its consumer gets the token buckets from here."""

    def __init__(self, consumer: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._consumer = consumer
        self._clock = clock
        self._of_tasks: dict[str, Waiting] = {}
        self._timer: Any = None
        self._wakes_at = math.inf
        """When the timer fires; `math.inf` if none is set."""
        self._lock = threading.Lock()

    def install(self) -> None:
        """Make the consumer get its buckets here, now and each time remote control changes a limit."""
        self._consumer.bucket_for_task = self.bucket_for_task
        self._consumer.reset_rate_limits()

    def bucket_for_task(self, task: Any) -> Waiting | None:
        """Return the waiting requests of a task with its present `rate_limit`; None if it has no limit.

        Requests that wait already wait for the new limit.
        """
        waiting = self._of_tasks.setdefault(task.name, Waiting(self._run))
        per_second = rate(task.rate_limit)
        waiting.interval = 1.0 / per_second if per_second > 0 else 0.0
        self._wake_at(waiting.due_at)
        return waiting if waiting.interval else None

    def _run(self, waiting: Waiting) -> None:
        """Run the requests of one task that may run now."""
        try:
            while (request := waiting.take(self._clock())) is not None:
                task_reserved(request)
                self._consumer.on_task_request(request)
        finally:
            self._wake_at(waiting.due_at)

    def _wake_at(self, at: float) -> None:
        """Set the timer, unless it fires earlier."""
        now = self._clock()
        with self._lock:
            if at >= self._wakes_at:
                return
            if self._wakes_at < math.inf:
                self._consumer.timer.cancel(self._timer)
            self._wakes_at = min(at, now + LONGEST_WAIT)
            delay = max(0.0, self._wakes_at - now)
            self._timer = self._consumer.timer.call_after(delay, self._wake, (self._wakes_at,))

    def _wake(self, at: float) -> None:
        """Run the requests of all tasks that may run now, unless another timer was set while this timer fired."""
        with self._lock:
            if at != self._wakes_at:
                return
            self._wakes_at = math.inf
        for waiting in [*self._of_tasks.values()]:
            if waiting.contents:
                self._run(waiting)
