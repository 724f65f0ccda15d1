"""Renews the leases of a worker's runs from its parent process, and recovers the jobs of dead children."""

from __future__ import annotations

import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from weakref import WeakSet

from celery import Celery
from celery.worker import state as worker_state

from onejob.celery.app_state import app_state_of
from onejob.celery.options import tasks_of
from onejob.celery.slots import members_of
from onejob.celery.worker.request import Request, log_errors, signaled_requests
from onejob.errors import BrokerUnavailableError, ConfigurationError, OneJobError, StoreError
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Cancel
from onejob.jobs.records import Registration
from onejob.observability.events import HEARTBEAT_LATE, JobEvent, Value, one_line
from onejob.stores.forks import ForkLocks

logger = logging.getLogger("onejob")
PAUSES = (2.0, 60.0)
"""Seconds between two logs of a store that fails: at first, and at most."""
CHILD_CHECK_INTERVAL = 0.5
"""Seconds at most between two checks for dead children."""
WAKE_PAUSE = 0.25
"""Seconds at least between two calls of most loops that are woken."""
RETRIES = frozenset({Transition.RETRY, Transition.REPLACE})
"""The ends of a run after which its child process goes on for a moment while the job may have another run."""


class FailureLog:
    """Logs that the store or the broker fails: at once, then after pauses that double, up to `PAUSES`; and its end."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._failed_at: float | None = None
        """When the first of the failures was; None while there are none."""
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

    It logs what `tick` raises: an outage of the store or the broker in one line, now and then, all else with its stack.

    `spread`: jitter, the fraction of the interval by which a call may be early. `pause`: seconds at least between two
    calls of a loop that is woken. A fork of this process waits for the
    end of a tick, `FORK_PATIENCE` seconds at most: a lock of a client library that a tick holds would never be released
    in the child, which Celery would kill some seconds later.
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
        """Have `tick` called soon: the pause after the end of the latest call at the earliest."""
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
"""The loops that a fork of this thread has stopped between two ticks."""


@cache
def _register_at_fork() -> None:
    """Have forks wait for ticks. What is registered last runs first: before the stores, whose locks ticks wait for."""
    os.register_at_fork(
        before=lambda: _stopped.acquire(loop.ticking for loop in [*_loops]), after_in_parent=_stopped.release
    )
    os.register_at_fork(after_in_child=_stopped.forget)
    os.register_at_fork(after_in_child=_loops.clear)


class Heartbeat:
    """Renews the leases of all runs of this node in one call, and kills the runs that were canceled or overtaken."""

    def __init__(self, app: Celery, node: str, register: Callable[[], Registration]) -> None:
        app_state = app_state_of(app)
        self._app_state = app_state
        self._node = node
        self._register = register
        self._interval = app_state.settings.heartbeat
        self._next_renewal = self._next_heartbeat = 0.0
        self._registered: Registration | None = None
        self.probe_file = ProbeFile(app_state.settings.probe_file)
        leases = [task._onejob.lease for task in tasks_of(app).values()]
        lease = app_state.settings.lease
        self.contact = StoreContact(settling=lease / 2, shortest=min([lease, *leases]), interval=self._interval)
        ticks = math.ceil(self._interval / CHILD_CHECK_INTERVAL)
        self.loop = Loop("onejob-heartbeat", self._interval / ticks, self.tick)
        # In a thread of its own: a dead letter is reported to the result backend, which may not answer for long.
        self.children = Loop("onejob-children", self._interval / ticks, recover_lost)

    def tick(self) -> None:
        """Renew the leases if that is due, again at the next tick after an error."""
        now = time.monotonic()
        self.probe_file.touch()
        if now >= self._next_renewal:
            renewed = self.renew()
            self._send_heartbeat(now, due=not renewed)
            if LATE_FACTOR * self._interval < (gap := self.contact.reached()) < math.inf:
                fields: dict[str, Value] = {"node": one_line(self._node), "seconds": gap, "interval": self._interval}
                self._app_state.ledger.emit(JobEvent(HEARTBEAT_LATE, fields=fields))
            self._next_renewal = now + self._interval

    def _send_heartbeat(self, now: float, *, due: bool) -> None:
        """Send the heartbeat of this node if it is `due` or has changed, or else three times per its lifetime."""
        lasts, registration = self._app_state.settings.lease, self._register()
        if due or now >= self._next_heartbeat or registration != self._registered:
            self._app_state.ledger.heartbeat(self._node, lasts=lasts, registration=registration)
            self._next_heartbeat, self._registered = now + lasts / 3, registration
            self.probe_file.write_contact(silent=registration.silent_since > 0)

    def start(self) -> None:
        """Start, and look for dead children if the pool has any."""
        self.loop.start()
        if self._app_state.can_kill:
            self.children.start()

    def stop(self) -> None:
        """Stop, and remove this node from the list of workers."""
        self.children.stop()
        self.loop.stop()
        self.probe_file.remove()
        with suppress(StoreError):  # the node's heartbeat expires anyway
            self._app_state.ledger.heartbeat(self._node, lasts=0.0)

    def renew(self) -> bool:
        """Extend the leases, and kill the runs that were canceled by force or overtaken; False without a run."""
        requests = {request.claim: request for request in active_requests()}
        claims = [(request.id, claim) for claim, request in requests.items()]
        for renewal in self._app_state.ledger.renew(claims):
            request = requests[renewal.claim]
            with log_errors(request.id):
                seen_before, request.seen_by_heartbeat = request.seen_by_heartbeat, True
                if seen_before and not renewal.held:
                    self._kill_overtaken(request)
                elif renewal.cancel is Cancel.FORCED and request.kill_child():
                    request.abandon("terminated on request")
        return bool(claims)

    def _kill_overtaken(self, request: Request) -> None:
        """Kill a child whose job has another run now, unless its own run has ended in a retry."""
        ledger = self._app_state.ledger
        job = ledger.get_or_none(request.id)
        if job is None or job.state is not State.RUNNING or job.claim == request.claim:
            return
        earlier = {entry.event for entry in ledger.history(request.id) if entry.attempt == job.attempt - 1}
        if not earlier & RETRIES and request.kill_child():
            logger.warning("job %s has another run now: its old child process here was killed", request.id)


def recover_lost() -> None:
    """Recover the jobs of children that died, long before Celery's own timeout for lost workers."""
    for request in active_requests():
        if request.is_child_dead():
            request.handle_lost_child(f"its worker process {request.worker_pid} died")


def active_requests() -> list[Request]:
    """Return the runs that this node's pool has accepted and that have not surely ended."""
    accepted = {*members_of(worker_state.active_requests), *members_of(signaled_requests)}
    return [request for request in accepted if isinstance(request, Request)]


# --- contact: only after it may a sweeper end expired leases ---------------------------------------------------------


LATE_FACTOR = 1.5
"""A renewal is late after this many intervals since the previous one."""


class StoreContact:
    """The times at which a worker renewed its leases.

    While the store is away, the leases of all workers expire, and each worker renews its own as soon as the store is
    back. So a worker ends no lease before `settling` seconds have passed since its contact was last broken.

    `shortest`: the shortest lease of the app. A break is a gap in which a lease can expire that is renewed every
    `interval` seconds: a shorter outage ends no lease. All in seconds.
    `clock` returns seconds that only grow.
    """

    def __init__(
        self, *, settling: float, shortest: float, interval: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._settling = settling
        self._longest_gap = max(shortest - interval, LATE_FACTOR * interval)
        self._since = self._latest = -math.inf

    def reached(self) -> float:
        """Record that the leases were renewed now; return the seconds since the previous time (infinite at first)."""
        previous, self._latest = self._latest, self._clock()
        gap = self._latest - previous
        if gap > self._longest_gap:
            self._since = self._latest
        return gap

    @property
    def steady(self) -> bool:
        """Whether every worker that is alive has had the time to renew its leases."""
        now = self._clock()
        return now - self._latest <= self._longest_gap and now - self._since >= self._settling


# --- the file of a probe on the same machine -------------------------------------------------------------------------


MAX_AGE = 60.0
"""For how many seconds a file is fresh, by default."""
WIDTH = 20
"""Characters of the time in a file."""
SILENT = "silent"
"""What follows the time if the worker hears nothing from its broker."""


class ProbeFile:
    """The file at `path`; without a path nothing is written."""

    def __init__(self, path: str) -> None:
        self._path = path

    def create(self) -> None:
        """Create the file, empty. Raises `ConfigurationError` if it cannot be written."""
        if not self._path:
            return
        try:
            Path(self._path).write_text("", encoding="ascii")
        except OSError as error:
            msg = f"onejob_probe_file={self._path!r} cannot be written: {error}. Name a file in a writable folder"
            raise ConfigurationError(msg) from error

    def touch(self) -> None:
        """Tell that the worker is alive."""
        if self._path:
            with suppress(OSError):  # the probe will tell
                os.utime(self._path)

    def write_contact(self, *, silent: bool = False) -> None:
        """Tell that the store has accepted a heartbeat. A reader sees the former time, or this one.

        `silent`: whether the worker hears nothing from its broker while jobs wait.
        """
        if self._path:
            with suppress(OSError):
                file = os.open(self._path, os.O_WRONLY)
                try:
                    word = SILENT if silent else " " * len(SILENT)
                    os.pwrite(file, f"{time.time():0{WIDTH}.6f} {word}".encode("ascii"), 0)
                finally:
                    os.close(file)

    def remove(self) -> None:
        """Remove the file: the worker ends."""
        if self._path:
            Path(self._path).unlink(missing_ok=True)


def find_fault(path: Path, now: float, *, max_age: float = MAX_AGE, ready: bool = False) -> str | None:
    """Return why the worker of a file is not alive, or not `ready`; None if it is. `now`: seconds since the epoch."""
    try:
        alive_at, text = path.stat().st_mtime, path.read_text(encoding="ascii")
        reached_at = float(text[:WIDTH] or 0)
    except (OSError, ValueError) as error:
        return f"no worker writes {path}: {getattr(error, 'strerror', 'it has other content')}"
    if now - alive_at > max_age:
        return f"the worker of {path} has not moved for {now - alive_at:.0f} s"
    if ready and not text:
        return f"the worker of {path} has not reached the store yet"
    if ready and now - reached_at > max_age:
        return f"the worker of {path} has not reached the store for {now - reached_at:.0f} s"
    if ready and text.endswith(SILENT):
        return f"the worker of {path} hears nothing from its broker, and jobs wait for it"
    return None
