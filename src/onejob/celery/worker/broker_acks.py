"""Which messages a worker acknowledges to a Redis broker (`onejob_broker_acks`): those that the ledger cannot recover.

On Redis, kombu emulates acknowledgements: it copies each message that a worker has received to a hash, and deletes it
there when a process of the pool has accepted it, each in a round trip of the worker's parent. The messages of jobs need
no copy: a sweeper publishes a job again that no worker has claimed.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from kombu.transport import redis, virtual

from onejob.celery.options import tasks_of
from onejob.celery.payload import MARK
from onejob.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery import Celery

logger = logging.getLogger("onejob")
RedisQoS: Any = redis.QoS  # the published types know a part of the class only
VirtualQoS: Any = virtual.QoS
BUILT_IN = "celery."
"""How the names of Celery's own tasks begin, which every app has."""
NAMED_TASKS = 5


def choose_acks(consumer: Any, acks: bool | None) -> None:  # noqa: FBT001 - the value of the setting
    """Have a worker's consumer acknowledge all messages, none, or (None) those of which the ledger has no job.

    Also when it connects again. Connections of publishers, and of remote control, do not change. With False, raises
    `ConfigurationError` for another broker than a Redis, and for an app with tasks whose messages a worker could lose.
    """
    if acks is True:
        return
    app = consumer.app
    driver = str(app.connection_for_read().get_transport_cls().driver_type)
    if acks is False:
        _check_transport(driver)
        _check_tasks(app)
    if driver == "redis":
        needs_none = partial(_is_of_job, app.tasks) if acks is None else _is_any
        consumer.connection_for_read = partial(_connect, consumer, needs_none)


def _connect(consumer: Any, needs_none: Callable[[Any], bool], heartbeat: Any = None) -> Any:
    """Do what the consumer's own method of this name does, and choose how its messages are acknowledged."""
    connection = consumer.ensure_connected(consumer.app.connection_for_read(heartbeat=heartbeat))
    channel = connection.default_channel
    if channel.QoS is redis.QoS:  # not a class of the application's own
        channel.QoS = partial(ReceivedMessages, needs_none)
    return connection


def _is_of_job(tasks: Mapping[str, Any], message: Any) -> bool:
    """Return whether the ledger has published a message, and its workers publish it again."""
    headers = message.headers
    is_marked = headers.get(MARK) is not None and headers.get(MARK) == headers.get("id")
    return is_marked and hasattr(tasks.get(headers.get("task")), "_onejob")


def _is_any(message: Any) -> bool:  # noqa: ARG001 - the signature of `_is_of_job`
    return True


class ReceivedMessages(RedisQoS):  # type: ignore[misc]
    """The messages that a consumer has received and not handed to a process, which it returns when it stops.

    Those that need no acknowledgement are kept in memory only.
    """

    def __init__(self, needs_none: Callable[[Any], bool], channel: Any) -> None:
        super().__init__(channel)
        self._needs_none = needs_none
        self._uncopied: set[str] = set()
        """The tags of the messages of which the broker has no copy."""

    def append(self, message: Any, delivery_tag: str) -> None:
        """Keep a message until it is acknowledged."""
        if self._needs_none(message):
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
        """Return all messages to the broker. For one that it does not accept, a sweeper publishes its job again."""
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
        """Return a message as kombu returns its copy."""
        where = message.delivery_info
        with self.channel.conn_or_acquire() as client:
            restore = self.channel._do_restore_message  # noqa: SLF001 - there is no public one
            restore(message._raw, where["exchange"], where["routing_key"], client, leftmost)  # noqa: SLF001 - kombu's


def _check_transport(driver: str) -> None:
    if driver != "redis":
        msg = (
            f"onejob_broker_acks=False needs a Redis as the broker, and this one is {driver}: remove the setting, "
            "since other brokers keep the acknowledgements themselves"
        )
        raise ConfigurationError(msg)


def _check_tasks(app: Celery) -> None:
    others = sorted(name for name in {*app.tasks} - {*tasks_of(app)} if not name.startswith(BUILT_IN))
    if others:
        more = f" and {len(others) - NAMED_TASKS} more" if len(others) > NAMED_TASKS else ""
        msg = (
            f"onejob_broker_acks=False would lose messages of {', '.join(others[:NAMED_TASKS])}{more} when a worker "
            "dies, because the ledger recovers only tasks of class onejob.Task: give them base=onejob.Task, run them "
            "in another app, or remove the setting, so that only messages of jobs are not acknowledged"
        )
        raise ConfigurationError(msg)
