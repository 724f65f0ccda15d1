"""Sends jobs' messages to the broker, and bounds how long that may take."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kombu.exceptions import BatchPublishError  # type: ignore[attr-defined] # the published types lack it
from kombu.pools import ProducerPool

from onejob.celery.message import decode, loads

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from celery import Celery

    from onejob.jobs.model import Job

logger = logging.getLogger("onejob")
SHORT = 256
"""Below how many characters a payload is shown whole in events and logs of Celery's."""
_FIRST: dict[str, Any] = {"retry": True, "retry_policy": {"max_retries": 1, "interval_start": 0}}
_AGAIN: dict[str, Any] = {"retry": False, "declare": []}
"""How a message is sent whose queue has just been declared for another one."""


class Publisher:
    """Sends the messages of one app, with a bound on how long the broker may take."""

    def __init__(self, app: Celery, timeout: float) -> None:
        self._app = app
        self._timeout = timeout
        self._pools: dict[int, ProducerPool] = {}

    def publish(self, job: Job, producer: Any = None) -> None:
        """Send the message of a job. Raises what the transport raises; a message sent twice does no harm."""
        self.publish_all([job], producer)

    def publish_all(self, jobs: Sequence[Job], producer: Any = None) -> None:
        """Send the messages of jobs, as `publish` does, in one round trip where the transport can.

        What is raised leaves it unknown which were sent.
        """
        with self._producer(producer) as bounded:
            if len(jobs) > 1 and bounded.supports_batch_publish:
                try:
                    with bounded.batch():
                        self._send_all(jobs, bounded)
                except BatchPublishError as error:  # of a connection that was lost since the last time, most likely
                    logger.info("%d messages are sent again: %s", len(jobs), error)
                else:
                    return
            self._send_all(jobs, bounded)

    def _send_all(self, jobs: Sequence[Job], producer: Any) -> None:
        sent: set[tuple[str, str]] = set()
        by_arguments = bool(self._app.conf.task_routes)  # a router may look at them
        for job in jobs:
            alike = (job.task, job.options)
            self._send(job, producer, _AGAIN if alike in sent and not by_arguments else _FIRST)
            sent.add(alike)

    def _send(self, job: Job, producer: Any, how: Mapping[str, Any]) -> None:
        message, options = decode(job.payload), self._with_priority(loads(job.options), job.priority_rank)
        if len(job.payload) < SHORT:  # Celery's own way to write them costs as much as all the rest
            options = {"argsrepr": repr(message.args), "kwargsrepr": repr(message.kwargs)} | options
        self._app.send_task(
            message.task,
            message.args,
            message.kwargs,
            task_id=job.id,
            retries=job.retries,
            producer=producer,
            add_to_parent=False,
            **how,
            **options,
        )

    def priority_rank(self, options: Mapping[str, Any]) -> int:
        """Return how urgent a message with these options is: the larger, the earlier it is taken."""
        priority = options.get("priority")
        return priority * self._sign if isinstance(priority, int) else 0

    def _with_priority(self, options: dict[str, Any], priority_rank: int) -> dict[str, Any]:
        """Return options with the priority of a job that an equal submission may have made more urgent."""
        return (
            options
            if self.priority_rank(options) == priority_rank
            else {**options, "priority": priority_rank * self._sign}
        )

    @cached_property
    def _sign(self) -> int:
        """1, or -1 on Redis, where 0 is the highest priority."""
        transport = self._app.connection_for_write().transport_cls
        return -1 if transport in {"redis", "rediss", "sentinel"} else 1

    @contextmanager
    def _producer(self, given: Any) -> Iterator[Any]:
        if given is not None:
            yield given
            return
        with self._pool().acquire(block=True, timeout=self._timeout) as producer:
            yield producer

    def _pool(self) -> ProducerPool:
        """Return this process's producers: a forked child must not speak on its parent's sockets."""
        pool = self._pools.get(os.getpid())
        if pool is None:
            connection = self._app.connection_for_write(connect_timeout=self._timeout)
            connection.transport_options = bounds_of(connection, self._timeout) | (connection.transport_options or {})
            limit = self._app.conf.broker_pool_limit or 10
            pool = self._pools[os.getpid()] = ProducerPool(connections=connection.Pool(limit), limit=limit)
        return pool


def bounds_of(connection: Any, seconds: float) -> dict[str, float]:
    """Return the transport's own options that end a conversation with a black hole."""
    names = {
        "redis": ("socket_timeout", "socket_connect_timeout"),
        "py-amqp": ("read_timeout", "write_timeout"),
    }
    return dict.fromkeys(names.get(connection.transport.driver_name, ()), seconds)
