"""Notices that a worker receives nothing from its broker while jobs wait for it, and renews the connection.

A connection that is dead without a reset, or a consumer that its broker has forgotten, looks like an empty queue: the
worker is alive, its heartbeats arrive, and it receives nothing. The ledger knows better. A worker with free slots that
has received nothing for `Intervals.silence` seconds looks there for jobs that were published as long ago, to a queue
that it consumes, and that no live worker holds. It takes them from the ledger; and when it has run such a job, which
the broker has given to nobody, it renews its connection.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any
from weakref import WeakSet

from onejob.celery.app_state import app_state_of
from onejob.celery.messages.broker import set_timeouts
from onejob.celery.run import draining
from onejob.celery.slots import members_of
from onejob.celery.submission.options import tasks_of
from onejob.celery.worker.heartbeat import LATE_FACTOR, active_requests
from onejob.celery.worker.request import LedgerMessage, log_errors, message_of_job
from onejob.jobs.lifecycle import WAITING
from onejob.jobs.model import JobRow
from onejob.jobs.query import Query
from onejob.observability.events import WORKER_SILENT, JobEvent, one_line

logger = logging.getLogger("onejob")
LOOKS = 3
"""How often a silent worker looks into the ledger in the time after which it counts as silent."""
JOBS_LIMIT = 100
"""How many jobs of a task or a queue a silent worker looks at."""
MAX_PAUSE = 300.0
"""Seconds between two renewals, at most; they double after each renewal that did not help."""
SHORTEST_TIMEOUT = 5.0
"""Seconds for which a worker waits for a reply of its broker, at least."""
STALL = 2.0
"""Seconds after which an event loop that has not taken a job may be waiting for a dead connection."""
SAME_LOOKS = 2
"""After how many looks at the same call an event loop counts as waiting."""
SINGLE_CONSUMER = "x-single-active-consumer"
RESOURCE_LOCKED = 405
"""The code of RabbitMQ's channel error for the exclusive queue of another connection."""
MAILBOX_RETRY = 10.0
"""Seconds after which a worker tries again to declare the queue of its remote control."""


class Silence:
    """The silence of a worker's broker: notices it, takes waiting jobs from the ledger, and renews the connection.

    `consumed` returns the names of the queues that the worker consumes, `reserved` the ids of the jobs that it holds.
    `clock` returns seconds that only grow.
    """

    def __init__(
        self, worker: Any, consumed: Callable[[], Iterable[str]], reserved: Callable[[], tuple[str, ...]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._app_state = app_state_of(worker.app)
        self._worker = worker
        self._consumed = consumed
        self._reserved = reserved
        self._clock = clock
        self._enabled = not self._app_state.publisher.handover.takes_jobs
        # Another worker has registered by then that it holds a message which this one did not get.
        self._patience = max(self._app_state.intervals.silence, LATE_FACTOR * self._app_state.heartbeat)
        self.since = 0.0
        """Since when jobs have waited that the broker has not delivered, on the store's clock; 0.0 without silence."""
        self._heard_at = clock()
        self._connection: Any = None
        self._connections = WeakSet[Any]()
        """All connections of the consumer, also its connections for events."""
        self._handed: dict[str, JobRow] = {}
        """The jobs that were handed to the consumer and are not known to run, as they were before."""
        self._taking_since: float | None = None
        """When the event loop was given jobs that it has not taken yet; None: it has taken all."""
        self._loop_thread = 0
        self._frame: tuple[FrameType, int] | None = None
        """The place in the code where the event loop was at the last look, while it did not take jobs."""
        self._same_looks = 0
        self._next_look = self._next_renewal = 0.0
        self._renewals = 0
        """How many renewals in a row did not help."""

    def listen(self, consumer: Any) -> None:
        """Prepare a worker's consumer before it starts: note its messages, and limit its waits for the broker."""
        if self._enabled:
            consumer.create_task_handler = partial(self._create_task_handler, consumer.create_task_handler)
            timeout = max(self._patience, SHORTEST_TIMEOUT)
            consumer.ensure_connected = partial(_connect, consumer.ensure_connected, self._connections, timeout)
            keep_without_mailbox(consumer)

    def look(self) -> None:
        """Look for a silence, and end it if there is one. Raises `StoreError`."""
        connection, now = getattr(self._worker.consumer, "connection", None), self._clock()
        if connection is not self._connection:  # a new one may hear
            self._connection, self._heard_at = connection, now
            self._note_taken()
        if not self._enabled or connection is None or now - self._heard_at < self._patience or draining.is_set():
            self.since, self._handed = 0.0, {}
            return
        if self._handed:
            self._judge(now)
        free = self._worker.pool.num_processes - len(self._reserved())
        taking_since = self._taking_since  # which the event loop changes meanwhile
        if taking_since is not None:
            if self._is_waiting() and now - taking_since > STALL and now >= self._next_renewal:
                self._renew(now, taken=0)
        elif free > 0 and now >= self._next_look:
            self._next_look = now + self._patience / LOOKS
            self._take(free, now)

    def _is_waiting(self) -> bool:
        """Return whether the event loop is in the same call as at the last looks: it waits, and is not merely busy."""
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - documented
        seen, self._frame = self._frame, frame and (frame, frame.f_lasti)
        self._same_looks = self._same_looks + 1 if seen and seen == self._frame else 0
        return self._same_looks >= SAME_LOOKS

    # --- what a worker hears ----------------------------------------------------------------------------------------

    def _create_task_handler(self, create: Callable[[], Callable[[Any], object]]) -> Callable[[Any], object]:
        handle = create()
        self._loop_thread = threading.get_ident()

        def on_task_received(message: Any) -> object:
            if not isinstance(message, LedgerMessage):
                self._heard_at, self._renewals = self._clock(), 0
            return handle(message)

        return on_task_received

    # --- what it takes from the ledger ------------------------------------------------------------------------------

    def _take(self, free: int, now: float) -> None:
        """Let the consumer receive the messages of as many waiting jobs as there are free slots.

        Such a message is a hint like any other: a copy that the broker delivers later is refused.
        """
        consumer = self._worker.consumer
        for job in [*self._find_waiting()][:free]:
            with log_errors(job.id):
                consumer.call_soon(_receive, consumer, message_of_job(consumer.app, job))
                self._handed[job.id] = job
        if self._handed:
            waiting_since = min(job.published_at or 0.0 for job in self._handed.values())
            self.since = self.since or max(waiting_since, self._app_state.ledger.read_clock() - (now - self._heard_at))
            self._taking_since = now
            consumer.call_soon(self._note_taken)

    def _note_taken(self) -> None:
        self._taking_since = self._frame = None

    def _find_waiting(self) -> Iterator[JobRow]:
        """Yield the jobs that were due and published long ago, and that no live worker is known to hold."""
        ledger, queues = self._app_state.ledger, self._worker.app.amqp.queues.consume_from
        # A queue with a single active consumer may deliver to another one.
        exclusive = {name for name, queue in queues.items() if (queue.queue_arguments or {}).get(SINGLE_CONSUMER)}
        consumed = {*self._consumed()} - exclusive
        until = ledger.read_clock() - self._patience
        backlog = ledger.backlog(tasks=frozenset(tasks_of(self._worker.app)), limit=JOBS_LIMIT)
        late = [each for each in backlog if each.queue in consumed and each.oldest_run_at <= until]
        if not late:
            return
        held = {*self._reserved(), *self._handed}
        others = [worker for worker in ledger.workers() if worker.name != str(self._worker.hostname)]
        for queue in dict.fromkeys(each.queue for each in late):
            tasks = frozenset(each.task for each in late if each.queue == queue)
            for job in ledger.find(Query(states=WAITING, tasks=tasks, queue=queue, until=until, limit=JOBS_LIMIT)):
                is_published = job.published_at is not None and max(job.published_at, job.run_at) <= until
                is_held = job.parked_on or job.id in held or any(other.has_message_of(job) for other in others)
                if is_published and not is_held:
                    yield job

    def _judge(self, now: float) -> None:
        """Renew the connection if this worker has run a handed-over job; if another worker has, there is no silence."""
        node, reserved = str(self._worker.hostname), self._reserved()
        found = self._app_state.ledger.get_many([*self._handed])
        started = [job for job in found.values() if job.token != self._handed[job.id].token]
        waiting = found.keys() - {job.id for job in started}
        if self._taking_since is None:
            waiting &= {*reserved}
        self._handed = {job_id: self._handed[job_id] for job_id in waiting}
        if taken := sum(job.node == node for job in started):
            self._renew(now, taken)
        elif not waiting and self._taking_since is None:
            self.since = 0.0

    # --- the connection ---------------------------------------------------------------------------------------------

    def _renew(self, now: float, taken: int) -> None:
        """Report the silence, and let the consumer connect anew, unless it did so lately, or that would end runs.

        `taken`: how many jobs the worker has taken; 0 if its event loop waits for the broker, and takes none.
        """
        ledger, consumer = self._app_state.ledger, self._worker.consumer
        node, seconds = one_line(str(self._worker.hostname)), ledger.read_clock() - self.since
        ledger.emit(JobEvent(WORKER_SILENT, fields={"node": node, "seconds": seconds, "taken": taken}))
        cancels = consumer.app.conf.worker_cancel_long_running_tasks_on_connection_loss
        if now < self._next_renewal or (
            taken and cancels and any(each.task.acks_late and not each.acknowledged for each in active_requests())
        ):
            return
        self._next_renewal = now + min(self._patience * 2**self._renewals, MAX_PAUSE)
        self._renewals += 1
        logger.warning("the broker has delivered nothing, while jobs waited for this worker: it connects anew")
        if taken:
            consumer.call_soon(_fail, consumer, self._connection, self._connections)
        else:
            _shut_down(self._connections)  # which ends a read of the event loop


def _connect(ensure: Callable[[Any], Any], connections: WeakSet[Any], timeout: float, connection: Any) -> Any:
    """Connect as Celery does, but with timeouts: a read that never ends would stop the event loop."""
    set_timeouts(connection, timeout)
    connections.add(connection)
    return ensure(connection)


def _fail(consumer: Any, connection: Any, connections: Iterable[Any]) -> None:
    """Make the event loop, in which this runs, find a connection lost. Closing it waits for no reply."""
    if consumer.connection is not connection:
        return
    _shut_down(connections)
    if consumer.hub is not None and issubclass(ConnectionResetError, consumer.connection_errors):
        raise ConnectionResetError("the broker was silent, while jobs waited")


def _shut_down(connections: Iterable[Any]) -> None:
    """Shut down the sockets of connections, which ends the waits of all threads: their users find them lost."""
    for sock in [sock for each in [*connections] for sock in _sockets_of(each)]:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _sockets_of(connection: Any) -> Iterator[Any]:
    """Yield the open sockets of a connection of kombu to RabbitMQ or Redis; sockets of other brokers are not known."""
    transport = vars(connection).get("_transport")
    for channel in [*(getattr(transport, "channels", None) or ())]:
        for name in ("_pool", "_async_pool"):
            pool = vars(channel).get(name)
            for kind in ("_in_use_connections", "_available_connections"):
                yield from filter(None, [getattr(each, "_sock", None) for each in members_of(getattr(pool, kind, ()))])
    amqp = getattr(vars(connection).get("_connection"), "_transport", None)
    yield from filter(None, [getattr(amqp, "sock", None)])


def _receive(consumer: Any, message: LedgerMessage) -> None:
    try:
        consumer.create_task_handler()(message)
    except Exception:  # an exception would end the event loop
        logger.exception("job %s: its worker could not take it from the ledger", message.headers.get("id"))


# --- remote control: its queue on RabbitMQ is exclusive ---------------------------------------------------------------


def keep_without_mailbox(consumer: Any) -> None:
    """Let a worker start while RabbitMQ has not noticed yet that its former connection is dead.

    The queue of its remote control is exclusive to the former connection until then. Celery would end the worker.
    """
    from celery.worker.consumer.control import Control  # binds what others patch: imported when Celery has done so

    for step in consumer.steps if consumer.hub is not None else ():
        if isinstance(step, Control):
            box: Any = step  # whose `start` is that of its mailbox
            box.start = partial(_start_mailbox, box.start)


def _start_mailbox(start: Callable[[Any], object], consumer: Any) -> None:
    try:
        start(consumer)
    except consumer.channel_errors as error:
        if getattr(error, "code", None) != RESOURCE_LOCKED:
            raise
        logger.warning("no remote control until the broker has closed the former connection: %s", error)
        consumer.timer.call_after(MAILBOX_RETRY, _start_mailbox, (start, consumer))
