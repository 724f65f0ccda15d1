"""What a worker's parent process does for the ledger: it renews leases, sweeps, and hands jobs back when it stops."""

from __future__ import annotations

import logging
import math
import os
import random
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery import bootsteps, signals
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.worker import state as worker_state

from onejob.celery import current_job as running
from onejob.celery.app_state import app_state_of
from onejob.celery.webhooks import WebhookDispatcher
from onejob.celery.worker.request import Request, log_errors, signaled
from onejob.errors import ConfigurationError, StoreError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Cancel, Query
from onejob.ledger.sweep import sweep
from onejob.observability.events import HEARTBEAT_LATE, JobEvent, one_line
from onejob.observability.meter import write_all

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


class LedgerStep(bootsteps.StartStopStep):
    """The worker step of onejob, installed by binding a task of class `onejob.Task`."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        self.worker = worker
        self.app_state: AppState = app_state_of(worker.app)
        self.heartbeat = Heartbeat(self.app_state, str(worker.hostname))
        self.webhooks = WebhookDispatcher(self.app_state, str(worker.hostname))
        # Two workers in step with each other would always leave the same one of them what is due again.
        self.sweeper = Loop("onejob-sweeper", self.app_state.settings.sweep, self.sweep, spread=0.25)

    def start(self, worker: Any) -> None:
        """Begin to renew and to sweep. Raises `ConfigurationError` when this worker cannot keep the promise."""
        _refuse_unsafe(worker)
        self.app_state.can_kill = isinstance(worker.pool, PreforkPool)
        running.draining.clear()
        self.app_state.ledger.find(Query(limit=1))  # an unreachable or unknown store is told at the start
        self.heartbeat.loop.start()
        self.sweeper.start()
        signals.worker_shutting_down.connect(_drain, weak=False, dispatch_uid="onejob.drain")
        signals.worker_shutdown.connect(self._end, weak=False, dispatch_uid=f"onejob.end.{id(self)}")

    def stop(self, worker: Any) -> None:  # noqa: ARG002 - Celery's signature
        """Hand the running jobs back; the heartbeat goes on for those that this pool cannot interrupt."""
        running.draining.set()
        self.sweeper.stop()
        deadline = time.monotonic() + self.app_state.settings.shutdown_grace
        while time.monotonic() < deadline and any(request.my_run() for request in active_requests()):
            time.sleep(0.05)
        self.webhooks.close(max(0.0, deadline - time.monotonic()))
        if self.app_state.can_kill:
            for request in active_requests():
                hand_back(request)

    def terminate(self, worker: Any) -> None:
        """Do the same when the worker stops in a hurry."""
        self.stop(worker)

    def sweep(self) -> None:
        """Publish, expire, recover and purge what is due; a worker that stops would publish to itself."""
        more = True
        while more and not running.draining.is_set():
            publish, dispatchers = self.app_state.publisher.publish, self.webhooks.dispatchers
            swept = sweep(self.app_state.ledger, publish, limit=SWEEP_LIMIT, dispatchers=dispatchers)
            more = swept.seen == SWEEP_LIMIT

    def _end(self, sender: Any, **_: Any) -> None:
        if sender is self.worker:
            self.heartbeat.end()
            write_all()


SWEEP_LIMIT = 100


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


def hand_back(request: Request) -> None:
    """End a run's child, then give its job back to the queue: no attempt is lost, no two runs overlap."""
    with log_errors(request.id):
        if request.my_run() is None:
            return
        request.kill_child()
        request.hand_back("its worker was shut down")


def _child_ends(**_: Any) -> None:
    """Write what a pool's child has counted: its end runs no handler of `atexit`."""
    write_all()


signals.worker_process_shutdown.connect(_child_ends, weak=False, dispatch_uid="onejob.child_ends")


def _drain(**_: Any) -> None:
    running.draining.set()


def _refuse_unsafe(worker: Any) -> None:
    transport = worker.app.connection_for_read().transport_cls
    if transport in {"memory", "in-memory"} and isinstance(worker.pool, PreforkPool) and os.name == "posix":
        msg = "an in-memory broker cannot feed a prefork pool: start the worker with --pool=threads or --pool=solo"
        raise ConfigurationError(msg)
