"""Renews the leases of a worker's runs from its parent process, and looks after the children."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from celery.worker import state as worker_state

from onejob.celery.worker.request import Request, log_errors, signaled
from onejob.errors import StoreError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Cancel
from onejob.observability.events import HEARTBEAT_LATE, JobEvent, one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.celery.app_state import AppState
    from onejob.jobs.model import Renewal
    from onejob.observability.events import Value

logger = logging.getLogger("onejob")
LATE = 1.5
"""After how many intervals since the one before a heartbeat is late."""
WATCH_INTERVAL = 0.5
"""Seconds at most between two looks at the children."""


class Loop:
    """A thread that calls `tick` again and again, whatever `tick` raises, until it is stopped.

    `spread`: by which part of the interval it may come early, so that no two workers stay in step.
    """

    def __init__(self, name: str, interval: float, tick: Callable[[], None], *, spread: float = 0.0) -> None:
        self._name = name
        self._spread = spread
        self._interval = interval
        self._tick = tick
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self._stopped.clear()
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for the tick under way (5 seconds at most)."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._stopped.wait(self._interval * random.uniform(1.0 - self._spread, 1.0)):  # noqa: S311 - no secret
            try:
                self._tick()
            except Exception:
                logger.exception("%s failed, and goes on", self._name)


class Heartbeat:
    """Renews the leases of all runs of this node in one call, and acts on what the ledger answers."""

    def __init__(self, app_state: AppState, node: str) -> None:
        self._app_state = app_state
        self._node = node
        self._interval = app_state.settings.heartbeat
        self._next = self._next_sign = 0.0
        self._renewed: float | None = None
        """When the leases were renewed for the last time, on this process's clock."""
        self._seen_revoked: set[str] = set()
        looks = math.ceil(self._interval / WATCH_INTERVAL)
        self.loop = Loop("onejob-heartbeat", self._interval / looks, self.tick)

    def tick(self) -> None:
        """Look after the children; renew when it is time."""
        self.watch_children()
        self.cancel_revoked()
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._interval
            self.renew()
            self._tell_if_late()
            self._give_sign()

    def _give_sign(self) -> None:
        """Say that this node is there, three times in the time that a sign lasts: leases are what is urgent."""
        lasts = self._app_state.settings.lease
        if time.monotonic() >= self._next_sign:
            self._next_sign = time.monotonic() + lasts / 3
            self._app_state.ledger.heartbeat(self._node, lasts=lasts)

    def end(self) -> None:
        """Stop, and say that this node is gone."""
        self.loop.stop()
        with suppress(StoreError):  # the sign runs out by itself
            self._app_state.ledger.heartbeat(self._node, lasts=0.0)

    def _tell_if_late(self) -> None:
        before, self._renewed = self._renewed, time.monotonic()
        seconds = 0.0 if before is None else self._renewed - before
        if seconds > LATE * self._interval:
            fields: dict[str, Value] = {"node": one_line(self._node), "seconds": seconds, "interval": self._interval}
            self._app_state.ledger.emit(JobEvent(HEARTBEAT_LATE, fields=fields))

    def watch_children(self) -> None:
        """Give back the jobs of children that died, long before Celery gives up waiting for their results."""
        for request in active_requests():
            if request.child_is_dead():
                request.lost(f"its worker process {request.worker_pid} died")

    def renew(self) -> None:
        """Extend the leases, and end the runs that the ledger no longer wants."""
        requests = {request.claim: request for request in active_requests()}
        claims = [(request.id, claim) for claim, request in requests.items()]
        for renewal in self._app_state.ledger.renew(claims):
            request = requests[renewal.claim]
            with log_errors(request.id):
                self._act(request, renewal)

    def _act(self, request: Request, renewal: Renewal) -> None:
        seen, request.seen = request.seen, True
        if seen and not renewal.held:
            self._end_overtaken(request)
        elif renewal.cancel is Cancel.FORCED and request.kill_child():
            request.abandon("terminated on request")

    def _end_overtaken(self, request: Request) -> None:
        """End a child whose job went to another run."""
        job = self._app_state.ledger.get_or_none(request.id)
        overtaken = job is not None and job.state is State.RUNNING and job.claim != request.claim
        if overtaken and request.kill_child():
            logger.warning("job %s runs elsewhere by now: its old child here was ended", request.id)

    def cancel_revoked(self) -> None:
        """Cancel in the ledger what was revoked by a broadcast: the jobs may have no message anywhere."""
        submissions = {str(task_id) for task_id in list(worker_state.revoked)} - self._seen_revoked
        for job_id in submissions:
            with log_errors(job_id):
                self._app_state.ledger.cancel(job_id, reason="revoked")
        self._seen_revoked |= submissions


def active_requests() -> list[Request]:
    """Return the runs of this node that a child has accepted, and may still be at."""
    accepted = {*worker_state.active_requests, *signaled}
    return [request for request in accepted if isinstance(request, Request)]
