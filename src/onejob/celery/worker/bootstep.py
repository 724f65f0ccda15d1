"""The worker step in a worker's parent process: it renews leases, sweeps, and releases the running jobs at shutdown."""

from __future__ import annotations

import logging
import math
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from celery import Celery, bootsteps, signals
from celery.concurrency.prefork import TaskPool as PreforkPool

from onejob.celery.app_state import AppState, app_state_of
from onejob.celery.beat.zone_rules import registered_zones, rules_by_zone
from onejob.celery.run import draining
from onejob.celery.slots import Slots, capacity_of
from onejob.celery.submission.options import tasks_of
from onejob.celery.submission.plain_tasks import warn_of_plain_tasks
from onejob.celery.worker.acknowledgements import QueueWatch, keep_no_copies
from onejob.celery.worker.heartbeat import CHILD_CHECK_INTERVAL, Heartbeat, active_requests
from onejob.celery.worker.limits import LimitLoop
from onejob.celery.worker.rate_limits import RateLimits
from onejob.celery.worker.request import Request, Revocations
from onejob.celery.worker.silence import Silence
from onejob.concurrency.loops import Loop
from onejob.config import Settings
from onejob.errors import ConfigurationError, JobReleased, OneJobError, StoreError
from onejob.jobs.model import JobRow
from onejob.jobs.query import Query
from onejob.jobs.workers import REGISTERED_TASKS_LIMIT, Registration
from onejob.ledger.ledger import Ledger
from onejob.ledger.sweep import Publishing, sweep
from onejob.observability.meter import write_all
from onejob.observability.metrics import WEBHOOK_TASK
from onejob.stores import kind_of
from onejob.stores.protocol import Channel

if TYPE_CHECKING:
    from onejob.celery.beat.ticks import Beat
    from onejob.prometheus import MetricsServer
    from onejob.webhooks.delivery import Delivery, DeliveryQueue

logger = logging.getLogger("onejob")


class LedgerStep(bootsteps.StartStopStep):
    """The worker step of onejob, installed by binding a task of class `onejob.Task`."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        self.worker = worker
        self.app_state: AppState = app_state_of(worker.app)
        self.heartbeat = Heartbeat(worker.app, str(worker.hostname), self.register)
        # In a thread of its own: thousands of revocations must delay neither the heartbeat nor the sweeper.
        self.revocations = Loop("onejob-revocations", CHILD_CHECK_INTERVAL, Revocations(self.app_state.ledger).tick)
        self.queues = QueueWatch(worker, self._consumed_queues)
        self.silence = Silence(worker, self._consumed_queues, self.queues.reserved)
        self.webhooks = WebhookDispatcher(self.app_state, str(worker.hostname))
        # Without jitter, of two workers that sweep at the same time the same one would always get the due jobs.
        self._sweep_interval = self.app_state.intervals.sweep * self.app_state.publisher.handover.sweep_factor
        self.sweeper = Loop("onejob-sweeper", self._sweep_interval, self.sweep, spread=0.25)
        self.health = Loop("onejob-health", 0.0, self._warn_of_store, pause=0.0)
        self.limits: Loop | None = None
        self._workers_counted_at = -math.inf
        self._started_at = 0.0
        self._beat: Beat | None = None
        self.beat: Loop | None = None
        self.metrics_server: MetricsServer | None = None
        self._unsubscribe: Callable[[], None] = lambda: None

    def start(self, worker: Any) -> None:
        """Start the heartbeat and the sweeper; a ledger or broker that cannot be used ends the worker with one line."""
        try:
            self._start(worker)
        except OneJobError as error:
            logger.critical("the worker cannot start: %s", error)
            raise SystemExit(1) from error  # any other exception would be logged with its traceback

    def _start(self, worker: Any) -> None:
        _check_pool(worker)
        self.app_state.refresh()
        settings = self.app_state.settings
        if settings.beat:
            from onejob.celery.beat.ticks import Beat

            self._beat = Beat(worker.app, str(worker.hostname))
            entries = self._beat.read_entries()  # fails at the start for an entry that cannot work
            self._beat.agreement.rules = rules_by_zone(entry.zone for entry in entries.values())
            self.beat = Loop("onejob-beat", self.app_state.intervals.sweep, self._beat.run, spread=0.25)
        if (place := settings.metrics_place) is not None:
            try:
                from onejob.prometheus import MetricsServer
            except ImportError as error:
                msg = f'onejob_metrics_port needs a package ({error.name} is missing): pip install "onejob[metrics]"'
                raise ConfigurationError(msg) from error
            self.metrics_server = MetricsServer(self.app_state.ledger, *place)
        if not settings.broker_acks:
            keep_no_copies(worker.consumer)
        RateLimits(worker.consumer).install()
        self.silence.listen(worker.consumer)
        self.heartbeat.probe_file.create()
        if self.app_state.publisher.handover.takes_jobs:
            self.app_state.slots = Slots(worker, self.queues.rate_limited)
        self.app_state.can_kill = isinstance(worker.pool, PreforkPool)
        draining.clear()
        if (start_feed := getattr(worker.pool, "start_feed", None)) is not None:
            start_feed(worker, self._consumed_queues)
        self._started_at = self.app_state.ledger.read_clock()
        self.app_state.ledger.find(Query(limit=1))  # fails at the start if the store is unreachable or not migrated
        if getattr(worker, "quiet", True):
            logger.info("%s", describe_ledger(worker.app))
        else:  # below Celery's banner
            print(f"{describe_ledger(worker.app)}\n", file=sys.__stdout__, flush=True)
        warn_of_plain_tasks(worker.app)  # also of those that were defined after the app was finalized
        self.queues.take_over(str(worker.hostname))
        self.heartbeat.start()
        self.revocations.start()
        self._start_loops()
        if kind_of(settings.store) != "sqlite":  # there any write is a signal
            of_store = self.app_state.ledger.store.signals
            self._unsubscribe = of_store.subscribe(Channel.DUE, "", lambda _: self.sweeper.wake())
        if self.metrics_server is not None:
            self.metrics_server.start()
        signals.worker_shutting_down.connect(lambda **_: draining.set(), weak=False, dispatch_uid="onejob.drain")
        signals.worker_shutdown.connect(self._on_shutdown, weak=False, dispatch_uid=f"onejob.end.{id(self)}")

    def _start_loops(self) -> None:
        if self.app_state.limits:
            self.app_state.define_limits()
            self.limits = LimitLoop(self.app_state)
        for loop in (self.sweeper, self.health, self.beat, self.limits):
            if loop is not None:
                loop.start()

    def stop(self, worker: Any) -> None:  # noqa: ARG002 - Celery's signature
        """Release the running jobs. The heartbeat continues for jobs that this pool cannot interrupt."""
        draining.set()
        self.revocations.stop()
        self.health.stop()
        self._unsubscribe()
        self.sweeper.stop()
        for loop in (self.beat, self.limits):
            if loop is not None:
                loop.stop()
        deadline = time.monotonic() + self.app_state.settings.shutdown_grace
        while time.monotonic() < deadline and any(map(_may_run, active_requests())):
            time.sleep(0.05)
        self.webhooks.close(max(0.0, deadline - time.monotonic()))
        if self.app_state.can_kill:
            for request in active_requests():
                release_run(request)
            let_processes_exit(self.worker.pool)
        for request in active_requests():
            request.interrupt(JobReleased(request.id))

    def terminate(self, worker: Any) -> None:
        """Stop the step at a cold shutdown."""
        self.stop(worker)

    def sweep(self) -> None:
        """Publish, expire, recover and purge due jobs; not in a worker that stops, which might get the messages.

        After `ROUNDS` it pauses: a burst of due jobs must not keep the worker from its messages.
        """
        self.queues.look()
        self.silence.look()
        self._share_sweeps()
        publisher, dispatchers = self.app_state.publisher, {WEBHOOK_TASK: self.webhooks.queue_webhook}
        publishing = Publishing(
            publisher.publish,
            publisher.handover.by_store,
            self.queues.gone_in,
            publisher.handover.workers_take,
            dispatchers,
        )
        for _ in range(ROUNDS):
            if draining.is_set():
                return
            swept = sweep(
                self.app_state.ledger, publishing, tasks=frozenset(tasks_of(self.worker.app)), limit=SWEEP_LIMIT,
                may_end_leases=lambda: self.heartbeat.contact.steady,
            )  # fmt: skip
            if swept.seen < SWEEP_LIMIT:
                return

    def _warn_of_store(self) -> None:
        """Log the doctor's findings about the server of the ledger, once, in a thread of its own."""
        self.health.stop()
        warn_of_store(self.app_state.settings, self.app_state.ledger)
        warn_of_zones(self.app_state.ledger, str(self.worker.hostname), self.register())

    def _share_sweeps(self) -> None:
        """Sweep less often if many workers have the same tasks, and jobs are taken from the ledger, not published."""
        now = time.monotonic()
        if self.app_state.publisher.handover.takes_jobs and now >= self._workers_counted_at + COUNT_INTERVAL:
            self._workers_counted_at = now
            tasks, workers = tasks_of(self.worker.app), self.app_state.ledger.workers()
            others = [each for each in workers if each.takes_jobs and all(map(each.knows, tasks))]
            self.sweeper.interval = self._sweep_interval * sweep_share(len(others))

    def register(self) -> Registration:
        """Return the registration of this worker: its tasks, its pool, and the queues that it consumes now."""
        return Registration(
            tasks=tuple([*tasks_of(self.worker.app)][:REGISTERED_TASKS_LIMIT]),
            queues=tuple(sorted(self._consumed_queues())), pool=type(self.worker.pool).__module__.rpartition(".")[2],
            concurrency=capacity_of(self.worker), reserved=self.queues.reserved(), versions=_versions(),
            silent_since=self.silence.since, started_at=self._started_at,
            takes_jobs=self.app_state.publisher.handover.takes_jobs,
            schedules=self._beat.registered if self._beat else (), runs_schedule=self._beat is not None,
            zones=registered_zones(self.worker.app, self._beat.agreement.rules if self._beat else {}),
        )  # fmt: skip

    def _consumed_queues(self) -> Iterable[str]:
        consumer = getattr(self.worker.consumer, "task_consumer", None)  # None without a connection to the broker
        if consumer is None:
            return [*self.worker.app.amqp.queues.consume_from]
        return {queue.name for queue in consumer.queues}

    def _on_shutdown(self, sender: Any, **_: Any) -> None:
        if sender is self.worker:
            self.heartbeat.stop()
            self.app_state.slots = None
            if self.metrics_server is not None:
                self.metrics_server.stop()
            write_all()


def sweep_share(workers: int) -> float:
    """Return how many times longer each of so many workers pauses than one alone: together they sweep like four."""
    return min(MAX_SHARE, max(1.0, workers / SWEEPERS))


@cache
def _versions() -> tuple[str, ...]:
    """Return the versions of Python and of the installed packages that decide how a worker behaves, read once."""
    found = [f"python {platform.python_version()}"]
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return tuple(sorted(found))


PACKAGES = ("onejob", "celery", "kombu", "redis", "psycopg")
SWEEP_LIMIT = 100
SWEEPERS = 4
"""How many workers may each sweep as often as a worker alone."""
MAX_SHARE = 5.0
"""How many times longer the pause is, at most: if all other workers are lost, lost runs are noticed after it."""
COUNT_INTERVAL = 60.0
"""Seconds after which a worker counts the workers again."""
ROUNDS = 10
"""How many portions of `SWEEP_LIMIT` jobs are processed before a pause."""
NAMED_TASKS = 20
RESULTS_LIMIT = 2**31 - 1
"""A number of results that no process ever reaches: the largest C integer."""


def describe_ledger(app: Celery) -> str:
    """Return the line that a worker logs at its start: its ledger without secrets, the lease, and the first tasks."""
    settings, tasks = app_state_of(app).settings, list(tasks_of(app))
    more = f" and {len(tasks) - NAMED_TASKS} more" if len(tasks) > NAMED_TASKS else ""
    return (
        f"onejob: ledger {settings.address}, lease {settings.lease:g} s, tasks: {', '.join(tasks[:NAMED_TASKS])}{more}"
    )


def warn_of_store(settings: Settings, ledger: Ledger) -> None:
    """Log a warning for each fault of a ledger's server, with its remedy; raise nothing."""
    from onejob.health import warnings_of_store
    from onejob.health.finding import Installation

    try:
        for finding in warnings_of_store(Installation(settings=settings, ledger=ledger)):
            logger.warning("the ledger's %s", finding)
    except Exception as error:  # noqa: BLE001 - what can be examined does not decide whether a worker runs
        logger.debug("the server of the ledger was not examined: %r", error)


def warn_of_zones(ledger: Ledger, name: str, own: Registration) -> None:
    """Log a warning for each time zone of a starting worker for which other workers have other rules."""
    from onejob.health.zones import check_zones

    try:
        others = [(each.name, each.zones) for each in ledger.workers() if each.name != name]
        for finding in check_zones([(name, own.zones), *others]):
            logger.warning("the time zone files of %s", finding)
    except StoreError as error:
        logger.debug("the time zone rules of the workers were not compared: %r", error)


def release_run(request: Request) -> None:
    """Kill a run's child, then release its job to the queue: in this order, so that no two runs overlap.

    While the store is away, the child is killed, and its job recovers when its lease expires.
    """
    try:
        is_running = request.get_own_run() is not None
    except StoreError:
        request.kill_child()
        return
    if is_running:
        request.kill_child()
        request.release("its worker was shut down")


def _may_run(request: Request) -> bool:
    """Return whether the job of a request runs, or the store does not say."""
    try:
        return request.get_own_run() is not None
    except StoreError:
        return True


def let_processes_exit(pool: Any) -> None:
    """Stop the processes of a pool from waiting, at their exit, for a parent that no longer reads their results.

    Celery forgets what runs when its consumer stops, and a process waits 30 s, at its exit, until each of its results
    was read. The results that the parent still knows are read before, while this returns.
    """
    inner = getattr(pool, "_pool", None)
    if inner is not None and hasattr(inner, "_on_ready_counters"):
        threading.Thread(target=_release_processes, args=(inner,), name="onejob-exit", daemon=True).start()


def _release_processes(pool: Any) -> None:
    while pool._cache:  # noqa: SLF001 - there is no public one
        time.sleep(0.05)
    for counter in [*pool._on_ready_counters.values()]:  # noqa: SLF001 - as above
        counter.value = RESULTS_LIMIT


def _check_pool(worker: Any) -> None:
    transport = worker.app.connection_for_read().transport_cls
    if transport in {"memory", "in-memory"} and isinstance(worker.pool, PreforkPool) and os.name == "posix":
        msg = "an in-memory broker cannot feed a prefork pool: start the worker with --pool=threads or --pool=solo"
        raise ConfigurationError(msg)
    if worker.pool.is_green and (
        name := next((each for each, task in tasks_of(worker.app).items() if task._onejob.is_coroutine), None)
    ):
        raise ConfigurationError(
            f"the body of task {name} is `async def`, and a pool of greenlets has no event loop: use --pool=onejob"
        )


# --- webhooks that are due --------------------------------------------------------------------------------------------


class WebhookDispatcher:
    """Delivers the webhooks that a worker's sweeper finds due, in threads that start with the first webhook."""

    def __init__(self, app_state: AppState, node: str) -> None:
        self._app_state = app_state
        self._node = node
        self._delivery: Delivery | None = None
        self._queue: DeliveryQueue | None = None
        self._closed = False

    def queue_webhook(self, job: JobRow) -> bool:
        """Queue a webhook for delivery; False if this worker cannot deliver it."""
        if self._queue is None and not self._closed:
            self._open()
        return self._queue is not None and self._queue.put(job)

    def close(self, grace: float) -> None:
        """Accept no more webhooks; after `grace` seconds, release the webhooks that are not delivered yet."""
        self._closed = True
        if self._queue is not None and self._delivery is not None:
            self._queue.close(grace)
            self._delivery.release_all()

    def _open(self) -> None:
        try:
            self._app_state.webhooks.check_usable(next(iter(self._app_state.webhooks.submitter_secrets), ""))
        except ConfigurationError as error:
            self._closed = True
            logger.warning("webhooks are due, but this worker cannot deliver them: %s", error)
            return
        from onejob.webhooks.client import WebhookClient
        from onejob.webhooks.delivery import Delivery, DeliveryQueue

        settings = self._app_state.webhooks
        self._delivery = Delivery(
            self._app_state.ledger, settings, WebhookClient(settings), self._node,
            namespace=self._app_state.settings.namespace, schedule=self._app_state.intervals.webhooks,
        )  # fmt: skip
        self._queue = DeliveryQueue(self._delivery.deliver)
