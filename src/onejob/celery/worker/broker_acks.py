"""Consumes without the acknowledgements of the broker (`onejob_broker_acks=False`), because the ledger recovers jobs.

On Redis, kombu emulates acknowledgements: it copies each message that a worker has received to a hash, and deletes it
there when a process of the pool has accepted it. A worker that shuts down returns its received messages in both modes.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from kombu.transport import virtual

from onejob.celery.options import tasks_of
from onejob.errors import ConfigurationError

if TYPE_CHECKING:
    from celery import Celery

logger = logging.getLogger("onejob")
VirtualQoS: Any = virtual.QoS  # the published types know a part of the class only
BUILT_IN = "celery."
"""How the names of Celery's own tasks begin, which every app has."""
NAMED_TASKS = 5


def disable_acks(consumer: Any) -> None:
    """Have a worker's consumer receive messages without acknowledgements, also when it connects again.

    Connections of publishers, and of remote control, do not change. Raises `ConfigurationError` for a transport
    without that mode, and for an app with tasks whose messages would be lost with a worker.
    """
    app = consumer.app
    _check_transport(app)
    _check_tasks(app)
    consumer.connection_for_read = partial(_connect, consumer)


def _connect(consumer: Any, heartbeat: Any = None) -> Any:
    """Do what the consumer's own method of this name does, with an option of kombu's transport."""
    options = {"ack_emulation": False}
    connection = consumer.app.connection_for_read(heartbeat=heartbeat, transport_options=options)
    connection = consumer.ensure_connected(connection)
    connection.default_channel.QoS = ReceivedMessages
    return connection


class ReceivedMessages(VirtualQoS):  # type: ignore[misc]
    """The messages that a consumer has received and not handed to a process, which it returns when it stops."""

    def restore_unacked(self) -> list[Any]:
        """Return the messages to the broker. What it does not accept kombu would write to a file, for an operator."""
        unreturned = super().restore_unacked()
        if unreturned:
            text = "%d received messages could not be returned to the broker: a sweeper publishes their jobs again"
            logger.warning(text, len(unreturned))
        return []


def _check_transport(app: Celery) -> None:
    driver = app.connection_for_read().get_transport_cls().driver_type
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
            "in another app, or remove the setting"
        )
        raise ConfigurationError(msg)
