"""Publishes the messages of jobs: by the store where that is the broker's Redis, otherwise by Celery from this process.

A message is a hint, the ledger has the job: sending one twice is harmless, and a sweeper publishes what was not sent.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from celery.exceptions import SoftTimeLimitExceeded
from redis.crc import key_slot

from onejob.celery.broker import TRIES, Broker, is_reset, queue_length
from onejob.celery.direct_broker import AmqpBroker, RedisBroker
from onejob.celery.payload import MARK, decode, loads
from onejob.celery.routing import ResolvedRouter
from onejob.errors import BrokerUnavailableError, StoreError, describe
from onejob.ledger.publication import note_unsent
from onejob.observability.logs import log_warning
from onejob.observability.tracing import TRACE_CONTEXT
from onejob.stores.protocol import MessagePushingStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from celery import Celery

    from onejob.celery.payload import Message
    from onejob.celery.routing import Routing
    from onejob.jobs.model import BrokerMessage, Job, Submission
    from onejob.ledger.ledger import Ledger

logger = logging.getLogger("onejob")
DECLARE: dict[str, Any] = {"retry": True, "retry_policy": TRIES}
NO_DECLARE: dict[str, Any] = {"retry": False, "declare": []}
"""Options for a message whose queue was declared for an earlier message."""
PRECONDITION_FAILED = 406
"""The code of RabbitMQ's channel error for a queue that exists with other arguments than this app declares."""
OUTAGE_PAUSE = 5.0
"""Seconds after an outage in which no message is written for the store."""


class Publisher:
    """Publishes the messages of one app. `timeout`: seconds until an operation of the broker fails."""

    def __init__(self, app: Celery, timeout: float, routing: Routing, ledger: Callable[[], Ledger]) -> None:
        self._app = app
        self._routing = routing
        self._ledger = ledger
        self._broker = Broker(app, timeout)
        self._direct_brokers: dict[int, RedisBroker | AmqpBroker | None] = {}
        self._away_until = 0.0

    def is_own(self, producer: Any) -> bool:
        """Return whether a producer that a caller gives sends to this app's broker. None does."""
        return self._broker.is_own(producer)

    def queue_lengths(self, names: Iterable[str]) -> dict[str, int]:
        """Return the number of messages in each queue; 0 for one that does not exist. Raises the transport's errors."""
        with self._broker.producer() as producer:
            connection = producer.channel and producer.connection  # which its channel has opened
            return {name: queue_length(connection, name) or 0 for name in names}

    def close(self) -> None:
        """Close this process's connections. The next message opens new ones."""
        self._broker.close()
        direct = self._direct_brokers.get(os.getpid())
        if direct is not None:
            direct.close()

    # --- messages of jobs in the ledger: a sweeper publishes what is not sent here ----------------------------------

    def try_publish(self, job: Job, *, pushed: BrokerMessage | None = None) -> bool:
        """Send the message of a job, unless the store has `pushed` one. Returns whether the broker accepts messages."""
        if pushed is not None:
            return True
        errors = self.publish_stored([job])
        for error in (errors or {}).values():
            log_warning("job %s is in the ledger, the sweeper will try to publish it: %s", job.id, describe(error))
        return errors is not None

    def publish_stored(self, jobs: Sequence[Job], producer: Any = None) -> dict[str, Exception] | None:
        """Send the messages of jobs, until the broker fails: then None.

        Returns, by job id, the exceptions for the messages that cannot be sent, whatever the state of the broker.
        """
        try:
            return self.publish_all(jobs, producer)
        except BrokerUnavailableError as error:
            log_warning(
                "%s in the ledger, the sweeper will publish what was not sent: %s",
                f"job {jobs[0].id} is" if len(jobs) == 1 else f"{len(jobs)} jobs are",
                error,
            )
            with suppress(StoreError):  # nothing is lost: the messages are seen to be gone later
                for job in jobs:
                    note_unsent(self._ledger(), job)
            return None

    # --- messages that this process sends ---------------------------------------------------------------------------

    def publish(self, job: Job) -> None:
        """Send the message of a job, and wait until the broker has confirmed it, where it does.

        Raises `BrokerUnavailableError` if the broker does not accept messages now, and any other exception if this
        message cannot be sent.
        """
        for error in self.publish_all([job], confirms=True).values():
            raise error

    def publish_all(
        self, jobs: Sequence[Job], producer: Any = None, *, confirms: bool = False
    ) -> dict[str, Exception]:  # fmt: skip
        """Send the messages of jobs, in one round trip where the transport supports it.

        Returns, by job id, the exceptions for the messages that cannot be sent. Raises `BrokerUnavailableError`; it is
        unknown then which were sent. Without `confirms`, RabbitMQ may lose a message later: it is published again.
        """
        try:
            left = self._push(jobs, confirms=confirms) if self.is_own(producer) else jobs
            if producer is not None or not left:
                return self._send_all(left, producer)
            with self._broker.producer(confirms=confirms) as own:
                return self._send_all(left, own)
        except SoftTimeLimitExceeded:
            raise
        except Exception as error:
            if not self._broker.is_outage(error):
                return {job.id: error for job in jobs}
            msg = f"the broker did not accept a message: {describe(error)}"
            raise BrokerUnavailableError(msg) from error

    def _push(self, jobs: Sequence[Job], *, confirms: bool) -> Sequence[Job]:
        """Push messages without Celery, in one write where there is one; return the jobs that Celery has to send."""
        broker = self._direct_broker()
        if broker is None or (confirms and not broker.confirms):
            return jobs
        messages = {job.id: message for job in jobs if (message := self._write(broker, job)) is not None}
        if not messages:
            return jobs
        try:
            broker.push([*messages.values()])
        except Exception as error:  # noqa: BLE001 - Celery raises it again
            self._raise_outage(error)
            logger.info("%d messages are sent again: %s", len(messages), error)
            return jobs
        return [job for job in jobs if job.id not in messages]

    def _write(self, broker: RedisBroker | AmqpBroker, job: Job) -> Any:
        try:
            return broker.write(job)
        except Exception as error:  # noqa: BLE001 - Celery raises it again
            self._raise_outage(error)
            return None

    def _send_all(self, jobs: Sequence[Job], producer: Any) -> dict[str, Exception]:
        """Have Celery send messages, in one batch where the transport supports it."""
        return {} if len(jobs) > 1 and self._send_batch(jobs, producer) else self._send_each(jobs, producer)

    def _send_batch(self, jobs: Sequence[Job], producer: Any) -> bool:
        """Send messages in one batch; False if there are none, or for an error that may concern one message only."""
        try:
            with self._broker.batch(producer) as batch:
                for job, is_first in _mark_first(jobs) if batch else ():
                    self._send(job, batch, DECLARE if is_first else NO_DECLARE)
                return batch is not None
        except Exception as error:  # noqa: BLE001 - each is sent alone, and raises it again
            # A `BatchPublishError` most likely means that the pooled connection was closed since its last use.
            self._raise_outage(error)
            logger.info("%d messages are sent again: %s", len(jobs), error)
            return False

    def _send_each(self, jobs: Sequence[Job], producer: Any) -> dict[str, Exception]:
        errors: dict[str, Exception] = {}
        for job, is_first in _mark_first(jobs):
            try:
                self._send_or_repeat(job, producer, DECLARE if is_first else NO_DECLARE)
            except Exception as error:  # noqa: BLE001 - it is returned
                self._raise_outage(error)
                errors[job.id] = error
        return errors

    def _send_or_repeat(self, job: Job, producer: Any, publish_options: Mapping[str, Any]) -> None:
        """Send a message; once more after a channel error, which may be about an earlier message."""
        try:
            self._send(job, producer, publish_options)
        except self._broker.channel_errors as error:
            if self._broker.is_outage(error):
                raise
            exists = getattr(error, "code", None) == PRECONDITION_FAILED
            self._send(job, producer, DECLARE | ({"declare": []} if exists else {}))

    def _raise_outage(self, error: Exception) -> None:
        """Raise an exception again that is not about one message."""
        if isinstance(error, SoftTimeLimitExceeded) or self._broker.is_outage(error):
            raise error

    def _send(self, job: Job, producer: Any, publish_options: Mapping[str, Any]) -> None:
        """Have Celery send the message of a job, along the job's route.

        Raises what the transport raises, and for a malformed payload any exception.
        """
        message, options = decode(job.payload), self._routing.with_priority(loads(job.options), job.priority_rank)
        for name in TRACE_CONTEXT:  # of the job, whose runs read it there
            options.pop(name, None)
        self._app.send_task(
            message.task,
            message.args,
            message.kwargs,
            task_id=job.id,
            retries=job.retries,
            producer=producer,
            add_to_parent=False,
            router=cast("Any", self._router_of(job, message, options, publish_options)),
            **{**options, "headers": {**(options.get("headers") or {}), MARK: job.id}},
        )

    def _router_of(
        self, job: Job, message: Message, options: Mapping[str, Any], publish_options: Mapping[str, Any]
    ) -> ResolvedRouter:
        """Return the router that sends a message by the route of its job."""
        route = job.route
        if not route:  # its submitter resolved none: another version of onejob
            task = self._app.tasks.get(message.task)
            named = task if task is not None else SimpleNamespace(name=message.task)
            route, _ = self._routing.resolve(named, message.args, message.kwargs, options)
        return ResolvedRouter({**self._routing.destination(route), **publish_options})

    # --- messages that the store pushes -----------------------------------------------------------------------------

    def message_of(self, job: Job | Submission, **changes: Any) -> BrokerMessage | None:
        """Return the message of a job, after `changes`, for the store to push; None if it has to be sent afterwards."""
        broker = self._shared_broker()
        if broker is None:
            return None
        try:
            message: BrokerMessage | None = broker.write(replace(job, **changes) if changes else job)
        except SoftTimeLimitExceeded:
            raise
        except Exception as error:  # noqa: BLE001 - what sends it afterwards raises it
            if not is_reset(error):  # as a server does with an idle connection
                self._note_outage(error)
            return None
        if message is None or (broker.is_cluster and not self._is_in_slot(message)):
            return None
        return message

    def _is_in_slot(self, message: BrokerMessage) -> bool:
        """Return whether a message's list is in the ledger's slot of a cluster: one script can write both."""
        store = self._ledger().store
        return isinstance(store, MessagePushingStore) and key_slot(message.destination.encode()) == store.slot

    def _shared_broker(self) -> RedisBroker | None:
        """Return the broker if it is the store's Redis; None, too, while it cannot be reached."""
        if self.shared_address is None or time.monotonic() < self._away_until:
            return None
        try:
            broker = self._direct_broker()
        except SoftTimeLimitExceeded:
            raise
        except Exception as error:  # noqa: BLE001 - what sends it afterwards raises it
            self._note_outage(error)
            return None
        return broker if isinstance(broker, RedisBroker) and broker.address == self.shared_address else None

    def _note_outage(self, error: Exception) -> None:
        """Let no message be written for a while if the broker is away."""
        if self._broker.is_outage(error):
            self._away_until = time.monotonic() + OUTAGE_PAUSE

    @cached_property
    def shared_address(self) -> str | None:
        """The address at which the store can push messages; None: it cannot, wherever the broker is."""
        store = self._ledger().store
        return store.address if isinstance(store, MessagePushingStore) else None

    def _direct_broker(self) -> RedisBroker | AmqpBroker | None:
        """Return this process's broker if messages can be written for it. Raises if it cannot be reached."""
        pid = os.getpid()
        if pid not in self._direct_brokers:
            kind = next((each for each in (RedisBroker, AmqpBroker) if each.is_of(self._app)), None)
            self._direct_brokers[pid] = kind and kind(self._app, self._broker, self._routing)
        return self._direct_brokers[pid]


def _mark_first(jobs: Sequence[Job]) -> Iterator[tuple[Job, bool]]:
    """Yield the jobs, each with whether it is the first one with its route, whose queue is to be declared."""
    seen: set[str] = set()
    for job in jobs:
        yield job, not job.route or job.route not in seen
        seen.add(job.route)
