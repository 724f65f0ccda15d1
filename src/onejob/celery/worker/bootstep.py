"""What a worker's parent process does for the ledger: it renews leases, sweeps, and hands jobs back when it stops."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from celery import bootsteps, signals
from celery.concurrency.prefork import TaskPool as PreforkPool

from onejob.celery import current_job as running
from onejob.celery.app_state import app_state_of
from onejob.celery.webhooks import WebhookDispatcher
from onejob.celery.worker.heartbeat import Heartbeat, Loop, active_requests
from onejob.celery.worker.request import log_errors
from onejob.errors import ConfigurationError
from onejob.jobs.records import Query
from onejob.ledger.sweep import sweep
from onejob.observability.meter import write_all

if TYPE_CHECKING:
    from onejob.celery.app_state import AppState
    from onejob.celery.worker.request import Request


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
