"""Publishes the messages of jobs: by the store if its Redis is the broker, otherwise from this process.

A message is a hint, the ledger has the job: sending a message twice is harmless, and a sweeper publishes a job whose
message was not sent.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any, TypeVar

from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

from onejob.celery.messages.broker import TRIES, Broker, queue_length
from onejob.celery.messages.context import Contexts, Publishing, Restoring
from onejob.celery.messages.handover import AppHandover, choose
from onejob.celery.messages.message_builder import AmqpBroker, AmqpMessage, RedisBroker
from onejob.celery.messages.payload import MARK, decode, loads
from onejob.celery.messages.routing import Routing
from onejob.errors import BrokerUnavailableError, StoreError, describe
from onejob.jobs.handover import Handover, Way
from onejob.jobs.model import JobRow
from onejob.ledger.ledger import Ledger, NextRun
from onejob.ledger.sweep import note_unsent
from onejob.observability.logs import log_warning
from onejob.observability.tracing import TRACE_CONTEXT

T = TypeVar("T")
logger = logging.getLogger("onejob")
DECLARE: dict[str, Any] = {"retry": True, "retry_policy": TRIES}
NO_DECLARE: dict[str, Any] = {"retry": False, "declare": []}
"""Options for a message whose queue was declared for an earlier message."""
PRECONDITION_FAILED = 406
"""The code of RabbitMQ's channel error for a queue that exists with other arguments than this app declares."""


class Publisher:
    """Writes and publishes the messages of one app; `timeout`: seconds until an operation of the broker fails."""

    def __init__(
        self, app: Celery, timeout: float, routing: Routing, contexts: Contexts, ledger: Callable[[], Ledger]
    ) -> None:  # fmt: skip
        self._app = app
        self._routing = routing
        self._contexts = contexts
        self._ledger = ledger
        self._broker = Broker(app, timeout)
        self._direct_brokers: dict[int, RedisBroker | AmqpBroker | None] = {}

    @cached_property
    def handover(self) -> AppHandover:
        """The hand-over of the app's jobs to its workers."""
        return choose(self._app, self._ledger, self._broker, self._direct_broker)

    def _direct_broker(self) -> RedisBroker | AmqpBroker | None:
        """Return this process's broker if messages can be written for it. Raises if it cannot be reached."""
        pid = os.getpid()
        if pid not in self._direct_brokers:
            kind = next((each for each in (RedisBroker, AmqpBroker) if each.is_of(self._app)), None)
            self._direct_brokers[pid] = kind and kind(self._app, self._broker, self._routing)
        return self._direct_brokers[pid]

    def is_own(self, producer: Any) -> bool:
        """Return whether a producer that a caller gives sends to this app's broker. None does."""
        return self._broker.is_own(producer)

    def queue_lengths(self, names: Iterable[str]) -> dict[str, int]:
        """Return the number of messages in each queue; 0 if it does not exist. Raises the transport's errors."""
        with self._broker.producer() as producer:
            connection = producer.channel and producer.connection  # which its channel has opened
            return {name: queue_length(connection, name) or 0 for name in names}

    def close(self) -> None:
        """Close this process's connections. The next message opens new connections."""
        self._broker.close()
        direct = self._direct_brokers.get(os.getpid())
        if direct is not None:
            direct.close()

    # --- messages of jobs in the ledger: a sweeper publishes what is not sent here ----------------------------------

    def try_publish(self, job: JobRow) -> bool:
        """Send the message of a job. Returns whether the broker accepts messages."""
        errors = self.publish_stored([job])
        for error in (errors or {}).values():
            log_warning("job %s is in the ledger, the sweeper will try to publish it: %s", job.id, describe(error))
        return errors is not None

    def run_next(self, job: JobRow, next_run: NextRun, queue: Callable[[NextRun], JobRow]) -> JobRow:
        """Have `queue` write a job's next run, and publish it if it is due. Raises as `queue` does."""
        if next_run.delay > 0:
            return queue(next_run)
        next_run = replace(next_run, handover=self.handover.of(next_run.applied_to(job)))
        return self._send_queued(queue(next_run), next_run.handover)

    def release(self, job: JobRow, reason: str) -> None:
        """Release the job of a run to the queue, and publish it. Raises `StaleTokenError`."""
        handover = self.handover.of(job)
        self._send_queued(self._ledger().release(job, reason, handover=handover), handover)

    def _send_queued(self, job: JobRow, handover: Handover) -> JobRow:
        if handover.way is Way.CALLER and not job.state.final:
            self.try_publish(job)
        return job

    def publish_stored(self, jobs: Sequence[JobRow], producer: Any = None) -> dict[str, Exception] | None:
        """Publish jobs by `publish_all`; return None if the broker fails: a sweeper publishes the rest."""
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

    def publish(self, job: JobRow) -> None:
        """Send the message of a job, and wait until the broker has confirmed it, where it does.

        Raises `BrokerUnavailableError` if the broker accepts no messages now, and any other exception for this message.
        """
        for error in self.publish_all([job], confirms=True).values():
            raise error

    def publish_all(
        self, jobs: Sequence[JobRow], producer: Any = None, *, confirms: bool = False
    ) -> dict[str, Exception]:  # fmt: skip
        """Send the messages of jobs, in one round trip where the transport supports it.

        Returns, by job id, the exceptions for the messages that cannot be sent. Raises `BrokerUnavailableError`: which
        messages were sent is unknown then. Without `confirms`, RabbitMQ may lose a message, which is published again.
        """
        try:
            left = self._push(self.handover.offer(jobs), confirms=confirms) if self.is_own(producer) else jobs
            if producer is not None or not left:
                return self._send_all(left, producer)
            with self._broker.producer(confirms=confirms) as own:
                return self._send_all(left, own)
        except SoftTimeLimitExceeded:
            raise
        except Exception as error:
            if not self._broker.is_outage(error):
                return {job.id: error for job in jobs}
            raise BrokerUnavailableError(f"the broker did not accept a message: {describe(error)}") from error

    def _push(self, jobs: Sequence[JobRow], *, confirms: bool) -> Sequence[JobRow]:
        """Push messages without Celery, in one write if the transport can; return the jobs that Celery has to send."""
        broker = self._unless_failing(self._direct_broker)
        if broker is None or (confirms and not broker.confirms):
            return jobs
        written = {job.id: self._unless_failing(partial(broker.write, job)) for job in jobs}
        messages = {job_id: message for job_id, message in written.items() if message is not None}
        if not messages:
            return jobs
        try:
            broker.push([*messages.values()])
        except Exception as error:  # noqa: BLE001 - Celery raises it again
            self._raise_outage(error)
            logger.info("%d messages are sent again: %s", len(messages), error)
            return jobs
        return [job for job in jobs if job.id not in messages]

    def _unless_failing(self, write: Callable[[], T]) -> T | None:
        try:
            return write()
        except Exception as error:  # noqa: BLE001 - Celery may be able to send what cannot be written here
            self._raise_outage(error)
            return None

    def _send_all(self, jobs: Sequence[JobRow], producer: Any) -> dict[str, Exception]:
        """Have Celery send messages, in one batch where the transport supports it."""
        if len(jobs) > 1 and getattr(producer, "supports_batch_publish", False):
            try:
                with producer.batch():
                    for job, publish_options in _with_declarations(jobs):
                        self._send(job, producer, publish_options)
            except Exception as error:  # noqa: BLE001 - each is sent alone, and raises it again
                # A `BatchPublishError` most likely means that the pooled connection was closed since its last use.
                self._raise_outage(error)
                logger.info("%d messages are sent again: %s", len(jobs), error)
            else:
                return {}
        errors: dict[str, Exception] = {}
        for job, publish_options in _with_declarations(jobs):
            try:
                self._send_or_repeat(job, producer, publish_options)
            except Exception as error:  # noqa: BLE001 - it is returned
                self._raise_outage(error)
                errors[job.id] = error
        return errors

    def _send_or_repeat(self, job: JobRow, producer: Any, publish_options: Mapping[str, Any]) -> None:
        """Send a message, and once more after a channel error, which may be about an earlier message."""
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

    def _send(self, job: JobRow, producer: Any, publish_options: Mapping[str, Any]) -> None:
        """Send the message of a job. Raises any exception."""
        job = self._with_route(job)
        if not self._routing.is_plain_amqp or self._is_sent_by_app(job):
            self._send_by_celery(job, producer, publish_options)
        else:
            self._composer.send(job, producer, publish_options)

    def _is_sent_by_app(self, job: JobRow) -> bool:
        """Return whether the application's own code sends the messages of a job's task, e.g. through an outbox."""
        task = self._app.tasks.get(decode(job.payload).task)
        return hasattr(task, "_onejob") and self._contexts.publishing_of(task) is Publishing.SENDS

    def _send_by_celery(self, job: JobRow, producer: Any, publish_options: Mapping[str, Any]) -> None:
        """Send a message by the application's own code, with the context of its job."""
        message, options = decode(job.payload), self._routing.with_priority(loads(job.options), job.priority_rank)
        for name in TRACE_CONTEXT:  # of the job, whose runs read it there
            options.pop(name, None)
        if message.context:
            producer = Restoring(producer, message.context)
        destination = {**self._routing.destination(job.route), **publish_options}
        router: Any = SimpleNamespace(route=lambda given, *_: {**given, **destination})
        self._app.send_task(
            message.task, message.args, message.kwargs, task_id=job.id, retries=job.retries, producer=producer,
            add_to_parent=False, router=router,
            **{**options, "headers": {**(options.get("headers") or {}), **message.context, MARK: job.id}},
        )  # fmt: skip

    # --- messages that no broker gets -------------------------------------------------------------------------------

    def payload_of(self, job: JobRow, tag: str) -> dict[str, Any]:
        """Return a job's message as Celery would publish it by kombu's virtual transports. Raises any exception."""
        composed: AmqpMessage = self._composer.compose(self._with_route(job))
        properties = dict(composed.message.properties)
        where = {"exchange": composed.exchange, "routing_key": composed.routing_key}
        return {
            "body": composed.message.body,
            "content-type": properties.pop("content_type", None),
            "content-encoding": properties.pop("content_encoding", None),
            "headers": properties.pop("application_headers"),
            "properties": {
                **properties, "delivery_tag": tag, "delivery_info": {**where, "priority": properties.get("priority")},
            },
        }  # fmt: skip

    @cached_property
    def _composer(self) -> AmqpBroker:
        return AmqpBroker(self._app, self._broker, self._routing)

    def _with_route(self, job: JobRow) -> JobRow:
        """Return a job with a route, which is resolved here if its submitter, another version of onejob, did not."""
        if job.route:
            return job
        message = decode(job.payload)
        task = self._app.tasks.get(message.task)
        named = task if task is not None else SimpleNamespace(name=message.task)
        return replace(job, route=self._routing.resolve(named, message.args, message.kwargs, loads(job.options))[0])


def _with_declarations(jobs: Sequence[JobRow]) -> Iterator[tuple[JobRow, dict[str, Any]]]:
    """Yield the jobs, the first of each route with the options that declare its queue."""
    seen: set[str] = set()
    for job in jobs:
        yield job, NO_DECLARE if job.route and job.route in seen else DECLARE
        seen.add(job.route)
