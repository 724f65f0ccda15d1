"""Publishes the messages of jobs to the broker, within a timeout."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kombu import exceptions
from kombu.pools import ProducerPool

from onejob.celery.message import decode, loads

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from celery import Celery

    from onejob.jobs.model import Job

logger = logging.getLogger("onejob")
SHORT_PAYLOAD = 256
"""Payloads of fewer characters appear whole in Celery's events and logs."""
BatchPublishError: Any = getattr(exceptions, "BatchPublishError", ())
"""Kombu's error of a batch; no exception before kombu 5.7, which has no batches."""
_DECLARE: dict[str, Any] = {"retry": True, "retry_policy": {"max_retries": 1, "interval_start": 0}}
_NO_DECLARE: dict[str, Any] = {"retry": False, "declare": []}
"""Options for a message whose queue was declared for an earlier message of the same call."""


class Publisher:
    """Publishes the messages of one app. `timeout`: seconds until an operation of the broker fails."""

    def __init__(self, app: Celery, timeout: float) -> None:
        self._app = app
        self._timeout = timeout
        self._pools: dict[int, ProducerPool] = {}

    def publish(self, job: Job, producer: Any = None) -> None:
        """Send the message of a job. Raises the transport's errors; sending a message twice is harmless."""
        self.publish_all([job], producer)

    def publish_all(self, jobs: Sequence[Job], producer: Any = None) -> None:
        """Send the messages of jobs, as `publish` does, in one round trip where the transport supports it.

        After an error it is unknown which were sent.
        """
        with self._producer(producer) as bounded:
            if len(jobs) > 1 and getattr(bounded, "supports_batch_publish", False):
                try:
                    with bounded.batch():
                        self._send_all(jobs, bounded)
                except BatchPublishError as error:  # most likely the pooled connection was closed since its last use
                    logger.info("%d messages are sent again: %s", len(jobs), error)
                else:
                    return
            self._send_all(jobs, bounded)

    def _send_all(self, jobs: Sequence[Job], producer: Any) -> None:
        sent: set[tuple[str, str]] = set()
        routes_by_arguments = bool(self._app.conf.task_routes)  # a router function receives the arguments
        for job in jobs:
            route = (job.task, job.options)
            self._send(job, producer, _NO_DECLARE if route in sent and not routes_by_arguments else _DECLARE)
            sent.add(route)

    def _send(self, job: Job, producer: Any, publish_options: Mapping[str, Any]) -> None:
        message, options = decode(job.payload), self._with_priority(loads(job.options), job.priority_rank)
        if len(job.payload) < SHORT_PAYLOAD:  # Celery's `saferepr` takes as long as the rest of the call
            options = {"argsrepr": repr(message.args), "kwargsrepr": repr(message.kwargs)} | options
        self._app.send_task(
            message.task,
            message.args,
            message.kwargs,
            task_id=job.id,
            retries=job.retries,
            producer=producer,
            add_to_parent=False,
            **publish_options,
            **options,
        )

    def priority_rank(self, options: Mapping[str, Any]) -> int:
        """Return the rank of the `priority` in some options: a larger rank is consumed earlier, on every transport."""
        priority = options.get("priority")
        return priority * self._priority_sign if isinstance(priority, int) else 0

    def _with_priority(self, options: dict[str, Any], priority_rank: int) -> dict[str, Any]:
        """Return options with the priority of a job, which an equal submission may have raised."""
        return (
            options
            if self.priority_rank(options) == priority_rank
            else {**options, "priority": priority_rank * self._priority_sign}
        )

    @cached_property
    def _priority_sign(self) -> int:
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
        """Return this process's producers: a forked child must not use its parent's sockets."""
        pool = self._pools.get(os.getpid())
        if pool is None:
            connection = self._app.connection_for_write(connect_timeout=self._timeout)
            timeouts = timeout_options(connection, self._timeout)
            connection.transport_options = timeouts | (connection.transport_options or {})
            limit = self._app.conf.broker_pool_limit or 10
            pool = self._pools[os.getpid()] = ProducerPool(connections=connection.Pool(limit), limit=limit)
        return pool


def timeout_options(connection: Any, seconds: float) -> dict[str, float]:
    """Return the transport's own socket timeouts, so that a connection without answers fails."""
    names = {
        "redis": ("socket_timeout", "socket_connect_timeout"),
        "py-amqp": ("read_timeout", "write_timeout"),
    }
    return dict.fromkeys(names.get(connection.transport.driver_name, ()), seconds)
