"""Publishes the messages of jobs to the broker, within a timeout."""

from __future__ import annotations

import logging
import os
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery.exceptions import SoftTimeLimitExceeded
from redis.crc import key_slot

from onejob.celery.broker import Broker, is_reset, queue_length
from onejob.celery.redis_broker import RedisBroker, is_writable
from onejob.celery.sender import DECLARE, NO_DECLARE, Sender
from onejob.celery.wire import kind_of
from onejob.errors import BrokerUnavailableError, describe
from onejob.stores.protocol import MessagePushingStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from celery import Celery

    from onejob.celery.routing import Routing
    from onejob.celery.wire import MessageKind
    from onejob.jobs.model import Job, Submission, WireMessage
    from onejob.stores.protocol import Store

logger = logging.getLogger("onejob")
PRECONDITION_FAILED = 406
"""The code of RabbitMQ's channel error for a queue that exists with other arguments than this app declares."""
OUTAGE_PAUSE = 5.0
"""Seconds after an outage in which no message is written for the store."""


class Publisher:
    """Publishes the messages of one app. `timeout`: seconds until an operation of the broker fails."""

    def __init__(self, app: Celery, timeout: float, routing: Routing, store: Callable[[], Store]) -> None:
        self._app = app
        self._routing = routing
        self._store = store
        self._broker = Broker(app, timeout)
        self._sender = Sender(app, routing)
        self._redis_brokers: dict[int, RedisBroker | None] = {}
        self._away_until = 0.0

    def priority_rank(self, options: Mapping[str, Any]) -> int:
        """Return the rank of the `priority` in some options: a larger rank is consumed earlier, on every transport."""
        return self._sender.priority_rank(options)

    def is_own(self, producer: Any) -> bool:
        """Tell whether a producer that a caller gives sends to this app's broker. None does."""
        return self._broker.is_own(producer)

    def close(self) -> None:
        """Close this process's connections. The next message opens new ones."""
        self._broker.close()
        redis_broker = self._redis_brokers.get(os.getpid())
        if redis_broker is not None:
            redis_broker.close()

    # --- messages that the store pushes -----------------------------------------------------------------------------

    @cached_property
    def store_pushes(self) -> bool:
        """Whether the store can push messages at all: whether to this broker, `message_for` knows."""
        return self._place is not None

    @property
    def fuses(self) -> bool:
        """Whether the store can push messages, as it is the broker's Redis; False while that cannot be reached."""
        return self._fused_broker() is not None

    def message_for(
        self, kind: MessageKind, job_id: str, payload: str, *, retries: int = 0, root_id: str | None = None,
        parent_id: str | None = None,
    ) -> WireMessage | None:  # fmt: skip
        """Return a message that the store can push; None if it has to be published in a second step."""
        broker = self._fused_broker()
        if broker is None:
            return None
        for is_last in (False, True):  # the server may have closed an idle connection
            try:
                message = broker.write(kind, job_id, payload, retries=retries, root_id=root_id, parent_id=parent_id)
            except SoftTimeLimitExceeded:
                raise
            except Exception as error:  # noqa: BLE001 - the second step raises it
                if is_last or not is_reset(error):
                    self._note(error)
                    return None
            else:
                return message if message is None or self._can_push(broker, message) else None
        return None

    def _can_push(self, broker: RedisBroker, message: WireMessage) -> bool:
        """Return whether one script can write the ledger and a message's list: in a cluster, only in one slot."""
        if not broker.is_cluster:
            return True
        store = self._store()
        return isinstance(store, MessagePushingStore) and key_slot(message.destination.encode()) == store.slot

    def message_of(self, job: Job | Submission) -> WireMessage | None:
        """Return the same for a job, or for a submission."""
        kind, parents = kind_of(job)
        return self.message_for(kind, job.id, job.payload, retries=job.retries, **parents)

    def _fused_broker(self) -> RedisBroker | None:
        if self._place is None or time.monotonic() < self._away_until:
            return None
        try:
            broker = self._redis_broker()
        except SoftTimeLimitExceeded:
            raise
        except Exception as error:  # noqa: BLE001 - the second step raises it
            self._note(error)
            return None
        return broker if broker is not None and broker.place == self._place else None

    def _note(self, error: Exception) -> None:
        if self._broker.is_outage(error):
            self._away_until = time.monotonic() + OUTAGE_PAUSE

    @cached_property
    def _place(self) -> str | None:
        """Where the store can push messages."""
        store = self._store()
        return store.place if isinstance(store, MessagePushingStore) else None

    def _redis_broker(self) -> RedisBroker | None:
        """Return this process's broker if messages can be written for it. Raises if it cannot be reached."""
        pid = os.getpid()
        if pid not in self._redis_brokers:
            writable = is_writable(self._app)
            self._redis_brokers[pid] = (
                RedisBroker(self._app, self._broker, self._sender, self._routing) if writable else None
            )
        return self._redis_brokers[pid]

    # --- messages that this process sends ---------------------------------------------------------------------------

    def publish(self, job: Job, producer: Any = None) -> None:
        """Send the message of a job. Sending a message twice is harmless.

        Raises `BrokerUnavailableError` if the broker does not accept messages now, and any other exception if this
        message cannot be sent.
        """
        for error in self.publish_all([job], producer).values():
            raise error

    def publish_all(self, jobs: Sequence[Job], producer: Any = None) -> dict[str, Exception]:
        """Send the messages of jobs, in one round trip where the transport supports it.

        Returns, by job id, the exceptions for the messages that cannot be sent. Raises `BrokerUnavailableError`; it is
        unknown then which were sent.
        """
        try:
            left = self._push(jobs) if self.is_own(producer) else jobs
            if producer is not None or not left:
                return self._send_all(left, producer)
            with self._broker.producer() as own:
                return self._send_all(left, own)
        except SoftTimeLimitExceeded:
            raise
        except Exception as error:
            if not self._broker.is_outage(error):
                return {job.id: error for job in jobs}
            msg = f"the broker did not accept a message: {describe(error)}"
            raise BrokerUnavailableError(msg) from error

    def queue_lengths(self, names: Iterable[str]) -> dict[str, int]:
        """Return the number of messages in each queue; 0 for one that does not exist. Raises the transport's errors."""
        with self._broker.producer() as producer:
            connection = producer.channel and producer.connection  # which its channel has opened
            return {name: queue_length(connection, name) or 0 for name in names}

    def _push(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Push messages to a Redis broker in one round trip; return the jobs whose messages Celery has to send."""
        broker = self._redis_broker()
        if broker is None:
            return jobs
        messages = {job.id: message for job in jobs if (message := self._write(broker, job)) is not None}
        try:
            broker.push(messages.values())
        except Exception as error:
            if isinstance(error, SoftTimeLimitExceeded) or self._broker.is_outage(error):
                raise
            logger.info("%d messages are sent again: %s", len(messages), error)
            return jobs
        return [job for job in jobs if job.id not in messages]

    def _write(self, broker: RedisBroker, job: Job) -> WireMessage | None:
        kind, parents = kind_of(job)
        try:
            return broker.write(kind, job.id, job.payload, retries=job.retries, **parents)
        except Exception as error:
            if isinstance(error, SoftTimeLimitExceeded) or self._broker.is_outage(error):
                raise
            return None  # Celery raises it again

    def _send_all(self, jobs: Sequence[Job], producer: Any) -> dict[str, Exception]:
        """Have Celery send messages, in one batch where the transport supports it."""
        return {} if len(jobs) > 1 and self._send_batch(jobs, producer) else self._send_each(jobs, producer)

    def _send_batch(self, jobs: Sequence[Job], producer: Any) -> bool:
        """Send messages in one batch; False if there are none, or for an error that may concern one message only."""
        try:
            with self._broker.batch(producer) as batch:
                for job, is_first in _mark_first(jobs) if batch else ():
                    self._sender.send(job, batch, DECLARE if is_first else NO_DECLARE)
                return batch is not None
        except Exception as error:
            # A `BatchPublishError` most likely means that the pooled connection was closed since its last use.
            if isinstance(error, SoftTimeLimitExceeded) or self._broker.is_outage(error):
                raise
            logger.info("%d messages are sent again: %s", len(jobs), error)
            return False

    def _send_each(self, jobs: Sequence[Job], producer: Any) -> dict[str, Exception]:
        errors: dict[str, Exception] = {}
        for job, is_first in _mark_first(jobs):
            try:
                self._send_or_repeat(job, producer, DECLARE if is_first else NO_DECLARE)
            except Exception as error:
                if isinstance(error, SoftTimeLimitExceeded) or self._broker.is_outage(error):
                    raise
                errors[job.id] = error
        return errors

    def _send_or_repeat(self, job: Job, producer: Any, publish_options: Mapping[str, Any]) -> None:
        """Send a message; once more after a channel error, which may be about an earlier message."""
        try:
            self._sender.send(job, producer, publish_options)
        except self._broker.channel_errors as error:
            if self._broker.is_outage(error):
                raise
            exists = getattr(error, "code", None) == PRECONDITION_FAILED
            self._sender.send(job, producer, DECLARE | ({"declare": []} if exists else {}))


def _mark_first(jobs: Sequence[Job]) -> Iterator[tuple[Job, bool]]:
    """Yield the jobs, each with whether it is the first one with its route, whose queue is to be declared."""
    seen: set[str] = set()
    for job in jobs:
        yield job, not job.route or job.route not in seen
        seen.add(job.route)
