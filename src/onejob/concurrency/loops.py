"""Threads that call a function every few seconds, in workers and in processes that consume from the ledger."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable
from functools import cache
from weakref import WeakSet

from onejob.errors import BrokerUnavailableError, OneJobError, StoreError
from onejob.stores.forks import ForkLocks

logger = logging.getLogger("onejob")
PAUSES = (2.0, 60.0)
"""The least and the most seconds between two log records about a store that fails."""
WAKE_PAUSE = 0.25
"""The least seconds between two calls of most loops that are woken."""


class FailureLog:
    """Logs the failures of a store or broker: at once, then after pauses that double, up to `PAUSES`; and their end."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._failed_at: float | None = None
        """The time of the first failure; None while there are none."""
        self._logs_at = 0.0
        self._pause = 0.0

    def record_failure(self, error: OneJobError) -> None:
        """Record a failure, and log it if that is due."""
        now = self._clock()
        if self._failed_at is None:
            self._failed_at, self._logs_at, self._pause = now, now, PAUSES[0]
        if now < self._logs_at:
            return
        logger.error("%s failed, and goes on: %s", self._name, error)
        self._logs_at, self._pause = now + self._pause, min(2 * self._pause, PAUSES[1])

    def record_success(self) -> None:
        """Log the end of the failures, if there were any."""
        if self._failed_at is not None:
            logger.warning("%s works again, after %.0f s", self._name, self._clock() - self._failed_at)
            self._failed_at = None


class Loop:
    """A thread that calls `tick` every `interval` seconds, and when it is woken, until it is stopped.

    It logs the errors of `tick`: an outage of the store or the broker in one line, now and then, any other error with
    its stack.

    `spread`: jitter, the fraction of the interval by which a call may be early. `pause`: seconds at least between two
    calls of a loop that is woken. A fork of this process waits for the end of a tick, `FORK_PATIENCE` seconds at most:
    a lock of a client library that a tick holds would never be released in the child, which Celery would kill some
    seconds later.
    """

    def __init__(
        self, name: str, interval: float, tick: Callable[[], None], *, spread: float = 0.0, pause: float = WAKE_PAUSE
    ) -> None:
        self._name = name
        self._log = FailureLog(name)
        self._spread = spread
        self._pause = pause
        self.interval = interval
        self._tick = tick
        self._stopped = threading.Event()
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None
        self.ticking = threading.RLock()

    def start(self) -> None:
        """Start the thread."""
        _loops.add(self)
        _register_at_fork()
        self._stopped.clear()
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Call `tick` soon: at the earliest one pause after the end of the latest call."""
        self._woken.set()

    def stop(self) -> None:
        """Stop the thread, and wait for the current tick (5 seconds at most)."""
        self._stopped.set()
        self._woken.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def _wait(self) -> bool:
        pause = self.interval * random.uniform(1.0 - self._spread, 1.0)  # noqa: S311 - no secret
        if not self._stopped.wait(min(pause, self._pause)):
            self._woken.wait(max(0.0, pause - self._pause))
        self._woken.clear()
        return not self._stopped.is_set()

    def _run(self) -> None:
        while self._wait():
            try:
                with self.ticking:
                    self._tick()
            except (StoreError, BrokerUnavailableError) as error:
                self._log.record_failure(error)
            except Exception:
                logger.exception("%s failed, and goes on", self._name)
            else:
                self._log.record_success()


_loops: WeakSet[Loop] = WeakSet()
_stopped = ForkLocks()
"""The locks of the loops that a fork of this thread has stopped between two ticks."""


@cache
def _register_at_fork() -> None:
    """Make forks wait for ticks, then for the stores' locks, which ticks use: the handler added last runs first."""
    os.register_at_fork(
        before=lambda: _stopped.acquire(loop.ticking for loop in [*_loops]), after_in_parent=_stopped.release
    )
    os.register_at_fork(after_in_child=_stopped.forget)
    os.register_at_fork(after_in_child=_loops.clear)
