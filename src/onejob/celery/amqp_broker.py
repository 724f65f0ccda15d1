"""RabbitMQ: messages as Celery and kombu would publish them, without Celery's work and without waiting for confirms.

The ledger has each job: a message that the broker loses is published again on evidence that it is gone. So a
submission writes its messages to the socket, and waits for nothing.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import amqp

from onejob.celery.broker import TRIES
from onejob.celery.message_templates import NotOneMessageError, Templates, is_writable, send_silently
from onejob.jobs.model import BrokerMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from celery import Celery

    from onejob.celery.broker import Broker
    from onejob.celery.routing import Routing
    from onejob.jobs.model import Job, Submission


class AmqpBroker:
    """The RabbitMQ broker of one app in one process."""

    confirms = False

    def __init__(self, app: Celery, broker: Broker, routing: Routing, send: Callable[..., None]) -> None:
        self._app = app
        self._broker = broker
        self._send = send
        self._routing = routing
        self._declared: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
        """The routes whose queues were declared, by channel."""
        self.write = Templates(app, self._record).write

    @staticmethod
    def is_of(app: Celery) -> bool:
        """Return whether an app's messages are published by the functions of Celery, kombu and py-amqp alone."""
        return is_writable(app, "kombu.transport.pyamqp", ("basic_publish", "prepare_message"))

    def close(self) -> None:
        """Do nothing: the connections are those of the broker's pool."""

    def push(self, messages: Sequence[BrokerMessage]) -> None:
        """Write messages to the broker's socket, in their order; repeat all of them once on a new connection.

        Raises the transport's errors.
        """
        with self._broker.producer() as producer:
            producer.connection.ensure(producer, self._publish, **TRIES)(producer, messages)

    def _publish(self, producer: Any, messages: Sequence[BrokerMessage]) -> None:
        channel = producer.channel
        declared = self._declared.setdefault(channel, set())
        for route, text in messages:
            if route not in declared:
                self._routing.declare(route, producer)
                declared.add(route)
            message = json.loads(text)
            channel.basic_publish(
                amqp.Message(message["body"], **message["properties"]), message["exchange"], message["routing_key"]
            )

    def _record(self, job: Job | Submission) -> BrokerMessage:
        """Have Celery and kombu publish a message, and return it instead of publishing it."""
        with self._broker.producer() as producer, _recording(producer.channel) as published:
            send_silently(self._app, self._send, job, producer)
        if len(published) != 1:
            raise NotOneMessageError
        return BrokerMessage(job.route, published[0])


@contextmanager
def _recording(channel: Any) -> Iterator[list[str]]:
    """Yield the list of what the channel publishes in this block, as JSON; nothing is published."""
    published: list[str] = []

    def basic_publish(message: amqp.Message, exchange: str = "", routing_key: str = "", **options: Any) -> None:
        if any(options.values()) or not isinstance(message.body, str):  # bytes: of another serializer than JSON
            raise NotOneMessageError
        values = {"body": message.body, "properties": message.properties, "exchange": exchange}
        try:
            published.append(json.dumps({**values, "routing_key": routing_key}))
        except TypeError as error:  # headers that JSON has not, such as a time
            raise NotOneMessageError from error

    original = vars(channel).get("basic_publish")  # with confirms, it is set on the channel
    channel.basic_publish = basic_publish
    try:
        yield published
    finally:
        if original is None:
            del channel.basic_publish
        else:
            channel.basic_publish = original
