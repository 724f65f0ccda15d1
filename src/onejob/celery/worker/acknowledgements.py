"""Acknowledges the messages of a worker, and finds out which messages have left their queues.

On Redis, kombu emulates acknowledgements: it copies each message that a worker has received to a hash, and deletes it
there when a process of the pool has accepted it, each in a round trip of the worker's parent. The messages of jobs need
no copy (`onejob_broker_acks`): a sweeper publishes a job again whose message is known to be gone.

A clock is no evidence for that: a message may wait behind others for hours, and a copy of each makes the queue longer.
Brokers deliver the messages of one queue and priority in the order of their publication, so a message has left its
queue when the queue was seen empty, or when one that was published later has been received. After some seconds it must
be with a live worker, which has registered that, or its job must have been claimed. Otherwise it is gone.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from celery import signals
from celery.worker import state as worker_state
from kombu.transport import redis, virtual

from onejob.celery.app_state import app_state_of
from onejob.celery.messages.payload import MARK
from onejob.celery.slots import members_of
from onejob.celery.worker.heartbeat import LATE_FACTOR
from onejob.errors import StoreError
from onejob.jobs.model import JobRow
from onejob.jobs.workers import RESERVED_LIMIT, WorkerInfo

logger = logging.getLogger("onejob")
RedisQoS: Any = redis.QoS  # the published types know a part of the class only
VirtualQoS: Any = virtual.QoS
MAX_ACKS = 16
"""How many messages are acknowledged together, at most."""
DISCARDED_PAUSE = 1.0
"""Seconds until a job is published again whose message came to a worker without its task."""
ACK_DELAY = 0.1
"""Seconds for which an acknowledgement waits for further ones, at most."""


def keep_no_copies(consumer: Any) -> None:
    """Make a worker's consumer acknowledge the messages of jobs as cheaply as its broker allows.

    Only Celery's worker connection changes, each time it connects: no connection of publishers or remote control.
    """
    app = consumer.app
    driver = str(app.connection_for_read().get_transport_cls().driver_type)
    is_of_job = partial(_is_of_job, app.tasks)
    if driver == "redis":
        app_state = app_state_of(app)
        prepare = partial(_keep_in_memory, is_of_job, lambda: app_state.is_fed)
        consumer.connection_for_read = partial(_connect, consumer, prepare)
    elif driver == "amqp" and consumer.hub is not None and consumer.pool.signal_safe:  # all acks are in one thread
        consumer.connection_for_read = partial(_connect, consumer, partial(BatchedAcks, consumer, is_of_job))


def _connect(consumer: Any, prepare: Callable[[Any], object], heartbeat: Any = None) -> Any:
    """Connect in place of the consumer's `connection_for_read`, and prepare the channel of its messages."""
    connection = consumer.ensure_connected(consumer.app.connection_for_read(heartbeat=heartbeat))
    prepare(connection.default_channel)
    return connection


def _keep_in_memory(is_of_job: Callable[[Any], bool], is_fed: Callable[[], bool], channel: Any) -> None:
    if channel.QoS is redis.QoS:  # not a class of the application's own
        channel.QoS = partial(ReceivedMessages, is_of_job, is_fed)


def _is_of_job(tasks: Mapping[str, Any], message: Any) -> bool:
    """Return whether the ledger has published a message, and its workers publish it again."""
    headers = message.headers
    is_marked = headers.get(MARK) is not None and headers.get(MARK) == headers.get("id")
    return is_marked and hasattr(tasks.get(headers.get("task")), "_onejob")


class ReceivedMessages(RedisQoS):  # type: ignore[misc]
    """The messages that a consumer has received and not handed to a process; it returns them when it stops.

    The broker keeps a copy of each, as with kombu's class, except of the messages of jobs, which are in memory only.
    `is_fed`: returns whether the pool takes the messages by itself now, so that the consumer takes none.
    """

    def __init__(self, is_of_job: Callable[[Any], bool], is_fed: Callable[[], bool], channel: Any) -> None:
        super().__init__(channel)
        self._is_of_job = is_of_job
        self._is_fed = is_fed
        self._uncopied: set[str] = set()
        """The tags of the messages of which the broker has no copy."""

    def can_consume(self) -> bool:
        """Return whether the consumer takes a message."""
        return not self._is_fed() and bool(super().can_consume())

    def append(self, message: Any, delivery_tag: str) -> None:
        """Keep a message until it is acknowledged."""
        if self._is_of_job(message):
            self._uncopied.add(delivery_tag)
            VirtualQoS.append(self, message, delivery_tag)
        else:
            super().append(message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message."""
        if delivery_tag in self._uncopied:
            self._uncopied.discard(delivery_tag)
            VirtualQoS.ack(self, delivery_tag)
        else:
            super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:  # noqa: FBT001, FBT002 - kombu's signature
        """Drop a message, or return it to the broker."""
        if delivery_tag not in self._uncopied:
            super().reject(delivery_tag, requeue)
            return
        if requeue:
            self._return(self._delivered[delivery_tag], leftmost=True)
        self.ack(delivery_tag)

    def restore_unacked(self, client: Any = None) -> None:
        """Return all messages to the broker. If it does not accept a message, a sweeper publishes the job again."""
        self._flush()
        left = 0
        for tag in [*self._uncopied]:  # threads may acknowledge meanwhile
            message = self._delivered.pop(tag, None)
            try:
                if message is not None:
                    self._return(message)
            except Exception:  # noqa: BLE001 - the connection may be lost, or taken apart
                left += 1
        self._uncopied.clear()
        if left:
            logger.warning(
                "%d received messages could not be returned to the broker: a sweeper publishes their jobs again", left
            )
        if self._delivered:
            super().restore_unacked(client)

    def _return(self, message: Any, *, leftmost: bool = False) -> None:
        where = message.delivery_info
        with self.channel.conn_or_acquire() as client:
            restore = self.channel._do_restore_message  # noqa: SLF001 - there is no public one
            restore(message._raw, where["exchange"], where["routing_key"], client, leftmost)  # noqa: SLF001 - kombu's


class BatchedAcks:
    """Acknowledges the messages of jobs to an AMQP broker together: one frame for several, which wait `ACK_DELAY`.

    Celery acknowledges a message when a process of the pool has accepted it, with a write to the socket for each. If
    the worker dies before, the broker delivers the messages again, and their jobs are not claimed again.
    """

    def __init__(self, consumer: Any, is_of_job: Callable[[Any], bool], channel: Any) -> None:
        self._consumer = consumer
        self._is_of_job = is_of_job
        self._open: dict[int, bool] = {}
        """The tags of the messages that are not acknowledged, in order, each with whether a job has the message."""
        self._waiting: set[int] = set()
        self._timer: Any = None
        self._channel = channel
        self._receive, channel.message_to_python = channel.message_to_python, self.receive
        self._ack, channel.basic_ack = channel.basic_ack, self.ack
        self._reject, channel.basic_reject = channel.basic_reject, self.reject
        self._cancel, channel.basic_cancel = channel.basic_cancel, self.cancel

    def receive(self, raw: Any) -> Any:
        """Note a received message, and return it."""
        message = self._receive(raw)
        is_of_job = self._is_of_job(message)
        if is_of_job or message.delivery_info.get("consumer_tag") not in self._channel.no_ack_consumers:
            self._open[message.delivery_tag] = is_of_job  # others are replies of other workers
        return message

    def ack(self, delivery_tag: int, *options: Any, **named: Any) -> None:
        """Acknowledge a message: now, or together with later messages."""
        if not self._open.pop(delivery_tag, False):
            self._ack(delivery_tag, *options, **named)
            return
        self._waiting.add(delivery_tag)
        if len(self._waiting) >= self._limit():
            self.flush()
        elif self._timer is None:
            self._timer = self._consumer.hub.call_later(ACK_DELAY, self._flush_late)

    def reject(self, delivery_tag: int, *options: Any, **named: Any) -> None:
        """Reject a message."""
        self._open.pop(delivery_tag, None)
        self._reject(delivery_tag, *options, **named)

    def cancel(self, *options: Any, **named: Any) -> Any:
        """End the consumption of a queue: the worker may stop."""
        self.flush()
        return self._cancel(*options, **named)

    def flush(self) -> None:
        """Write the acknowledgements that wait."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        waiting, self._waiting = self._waiting, set()
        first = next(iter(self._open), math.inf)
        together = {tag for tag in waiting if tag < first}
        if together:
            self._ack(max(together), multiple=True)
        for tag in sorted(waiting - together):  # an earlier message is not acknowledged yet
            self._ack(tag)

    def _flush_late(self) -> None:
        try:
            self.flush()
        except self._consumer.connection_errors as error:  # of this channel, which a new one may have replaced
            logger.info("messages of jobs are not acknowledged, and will be delivered again: %r", error)

    def _limit(self) -> int:
        """Return how many acknowledgements may wait without making a process of the pool wait for a message."""
        stops = worker_state.should_stop, worker_state.should_terminate
        if any(code is not None and code is not False for code in stops):  # 0 is the exit code of a warm shutdown
            return 1
        window = self._consumer.qos.value or MAX_ACKS * 4
        # Celery enlarges the window by each message that it holds for later, which leaves its pool no more of them.
        prefetch: int = min(window, self._consumer.initial_prefetch_count or MAX_ACKS * 4)
        processes: int = self._consumer.pool.num_processes
        return max(1, min(MAX_ACKS, (prefetch - processes) // 2))


# --- which messages have left their queues ----------------------------------------------------------------------------


ANY_RANK = -(10**9)
"""The priority rank that stands for a whole queue. More urgent messages are delivered earlier."""
LOOKS_PER_HEARTBEAT = 3
"""How often a worker looks at its queues per heartbeat, which registers the messages that it has received."""
QUEUE_LIMIT = 100
"""How many queues a worker looks at, at most."""


class QueueProgress:
    """The progress of queues: the time until which published messages have left, known for `margin` seconds at least.

    `clock` returns seconds that only grow; the times of publications are the store's.
    """

    def __init__(self, margin: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._margin = margin
        self._clock = clock
        self._latest: deque[tuple[float, Mapping[tuple[str, int], float]]] = deque()
        self._settled: dict[tuple[str, int], float] = {}

    def observe(self, left: Mapping[tuple[str, int], float]) -> None:
        """Add an observation: by queue and priority rank, the time until which published messages have left."""
        self._latest.append((self._settle(), left))

    def passed_in(self, job: JobRow) -> float | None:
        """Return the seconds until a job's message has left its queue for `margin` seconds; None: it may be there."""
        now = self._settle()
        if _has_passed(self._settled, job):
            return 0.0
        since = next((at for at, left in self._latest if _has_passed(left, job)), None)
        return None if since is None else since + self._margin - now

    def _settle(self) -> float:
        """Merge the observations that are old enough into the settled progress, and return the time."""
        now = self._clock()
        while self._latest and self._latest[0][0] <= now - self._margin:
            for place, until in self._latest.popleft()[1].items():
                self._settled[place] = max(until, self._settled.get(place, until))
        return now


def _has_passed(left: Mapping[tuple[str, int], float], job: JobRow) -> bool:
    published_at = job.published_at or 0.0
    return any(
        until >= published_at and queue == job.queue and rank <= job.priority_rank
        for (queue, rank), until in left.items()
    )


class QueueWatch:
    """Looks at the queues of a worker now and then, and at the workers that have died."""

    def __init__(
        self, worker: Any, consumed: Callable[[], Iterable[str]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app_state = app_state_of(worker.app)
        self._worker = worker
        self._consumed = consumed
        self._clock = clock
        heartbeat = self._app_state.heartbeat
        self._interval = heartbeat / LOOKS_PER_HEARTBEAT
        self._progress = QueueProgress(LATE_FACTOR * heartbeat, clock)
        self._others: dict[str, None] = {}
        """The queues of jobs that this worker has seen, and that it does not consume."""
        self._next_look = 0.0
        self._workers: list[WorkerInfo] | None = None

    def look(self) -> None:
        """Observe the queues, and let the jobs of dead workers be published again, if it is time to."""
        self._workers = None
        if self._clock() < self._next_look:
            return
        self._next_look = self._clock() + self._interval
        ledger, settings = self._app_state.ledger, self._app_state.settings
        for dead in ledger.store.take_dead_workers():
            ledger.mark_lost(dead.reserved)
        if not self._app_state.publisher.handover.needs_evidence and not self._others:
            return
        left = self._find_empty()
        received = self._app_state.received
        ids = [received.pop(place) for place in [*received]]
        for job in ledger.get_many(ids).values() if ids else ():
            place = (job.queue, job.priority_rank)
            # Jobs of one batch have one time, and of two submitters the later one may have published first.
            left[place] = max(max(job.created_at, job.run_at) - settings.publish_timeout, left.get(place, 0.0))
        self._progress.observe(left)

    def take_over(self, node: str) -> None:
        """Let the jobs be published again whose messages an earlier process of this node has held."""
        ledger = self._app_state.ledger
        for worker in ledger.workers():
            if worker.name == node:
                ledger.mark_lost(worker.reserved)

    def gone_in(self, job: JobRow) -> float | None:
        """Return the seconds until the message of a published job is known to be gone; None: it may be delivered.

        A job that a worker has taken from the ledger is gone if no live worker holds it.
        """
        if self._app_state.publisher.handover.workers_take(job):
            return None if self._is_held(job) else 0.0
        if len(self._others) < QUEUE_LIMIT:
            self._others[job.queue] = None
        passed_in = self._progress.passed_in(job)
        return None if passed_in == 0 and self._is_held(job) else passed_in

    def _is_held(self, job: JobRow) -> bool:
        if job.id in self.reserved():
            return True
        if self._workers is None:
            self._workers = self._app_state.ledger.workers()
        return any(worker.has_message_of(job) for worker in self._workers)

    def reserved(self) -> tuple[str, ...]:
        """Return the ids of the jobs whose messages this worker holds, running or not yet."""
        ids = {str(request.id) for request in members_of(worker_state.reserved_requests)} | self.rate_limited()
        return tuple(sorted(ids))[:RESERVED_LIMIT]

    def rate_limited(self) -> set[str]:
        """Return the ids of the jobs that wait here because of the rate limits of their tasks."""
        buckets = getattr(self._worker.consumer, "task_buckets", {})
        return {str(request.id) for each in [*buckets.values()] if each for request, _ in members_of(each.contents)}

    def _find_empty(self) -> dict[tuple[str, int], float]:
        """Return the observation that empty queues give: the time until which all their messages have left."""
        queues = dict.fromkeys([*self._consumed(), *self._others])
        now = self._app_state.ledger.read_clock()
        try:
            lengths = self._app_state.publisher.queue_lengths(queues)
        except Exception as error:  # noqa: BLE001 - any error of the transport: then nothing is known
            logger.info("the broker does not report the lengths of its queues: %r", error)
            return {}
        return {(name, ANY_RANK): now for name, length in lengths.items() if length == 0}


def _on_unknown_task(sender: Any, message: Any, id: str, **_: Any) -> None:  # noqa: A002 - Celery's name
    """Let a job be published again whose message Celery has discarded, since this worker lacks its task."""
    app_state = app_state_of(sender.app)
    if message.headers.get(MARK) != id or app_state.publisher.handover.takes_jobs:
        return
    try:
        app_state.ledger.mark_lost([id], wake_after=DISCARDED_PAUSE)
    except StoreError as error:
        logger.warning("job %s is published again when its message is known to be gone: %s", id, error)


signals.task_unknown.connect(_on_unknown_task, weak=False, dispatch_uid="onejob.unknown_task")
