"""Publishes the messages of jobs to the broker, within a timeout."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from celery.exceptions import SoftTimeLimitExceeded
from kombu.exceptions import LimitExceeded, OperationalError
from kombu.pools import ProducerPool

from onejob.celery.message import MARK, decode, loads
from onejob.celery.routing import ResolvedRouter
from onejob.errors import BrokerUnavailableError, describe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from celery import Celery

    from onejob.celery.message import Message
    from onejob.celery.routing import Routing
    from onejob.jobs.model import Job

logger = logging.getLogger("onejob")
SHORT_PAYLOAD = 256
"""Payloads of fewer characters appear whole in Celery's events and logs."""
PRECONDITION_FAILED = 406
"""The code of RabbitMQ's channel error for a queue that exists with other arguments than this app declares."""
_OUTAGES = frozenset({
    "ConnectionError", "TimeoutError",
    "ReadOnlyError", "OutOfMemoryError", "ClusterDownError", "MasterDownError", "TryAgainError",
})  # fmt: skip
"""Names of exception classes: of the broker or the result backend, and of the states in which Redis refuses writes."""
_DECLARE: dict[str, Any] = {"retry": True, "retry_policy": {"max_retries": 1, "interval_start": 0}}
_NO_DECLARE: dict[str, Any] = {"retry": False, "declare": []}
"""Options for a message whose queue was declared for an earlier message of the same call."""


class Publisher:
    """Publishes the messages of one app. `timeout`: seconds until an operation of the broker fails."""

    def __init__(self, app: Celery, timeout: float, routing: Routing) -> None:
        self._app = app
        self._routing = routing
        self._timeout = timeout
        self._pools: dict[int, ProducerPool] = {}

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
            with self._producer(producer) as bounded:
                if (
                    len(jobs) > 1
                    and getattr(bounded, "supports_batch_publish", False)
                    and self._send_batch(jobs, bounded)
                ):
                    return {}
                return self._send_each(jobs, bounded)
        except SoftTimeLimitExceeded:
            raise
        except Exception as error:
            if not self._is_outage(error):
                return {job.id: error for job in jobs}
            msg = f"the broker did not accept a message: {describe(error)}"
            raise BrokerUnavailableError(msg) from error

    def _send_batch(self, jobs: Sequence[Job], producer: Any) -> bool:
        """Send messages in one batch; False if that fails for a reason that may concern one message only."""
        try:
            with producer.batch():
                for job, is_first in _mark_first(jobs):
                    self._send(job, producer, _DECLARE if is_first else _NO_DECLARE)
        except Exception as error:
            # A `BatchPublishError` most likely means that the pooled connection was closed since its last use.
            if isinstance(error, SoftTimeLimitExceeded) or self._is_outage(error):
                raise
            logger.info("%d messages are sent again: %s", len(jobs), error)
            return False
        return True

    def _send_each(self, jobs: Sequence[Job], producer: Any) -> dict[str, Exception]:
        errors: dict[str, Exception] = {}
        for job, is_first in _mark_first(jobs):
            try:
                self._send_or_repeat(job, producer, _DECLARE if is_first else _NO_DECLARE)
            except Exception as error:
                if isinstance(error, SoftTimeLimitExceeded) or self._is_outage(error):
                    raise
                errors[job.id] = error
        return errors

    def _send_or_repeat(self, job: Job, producer: Any, publish_options: Mapping[str, Any]) -> None:
        """Send a message; once more after a channel error, which may be about an earlier message."""
        try:
            self._send(job, producer, publish_options)
        except self._channel_errors as error:
            if self._is_outage(error):
                raise
            exists = getattr(error, "code", None) == PRECONDITION_FAILED
            self._send(job, producer, _DECLARE | ({"declare": []} if exists else {}))

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

    def _is_outage(self, error: BaseException) -> bool:
        """Tell whether an exception means that the broker accepts no messages now, whatever the message."""
        if isinstance(error, OperationalError) and error.__cause__ is not None:  # as kombu wraps the transport's errors
            error = error.__cause__
        names = {base.__name__ for base in type(error).__mro__}
        if isinstance(error, KeyError):  # which kombu regards as a connection error of Redis
            return False
        if not names.isdisjoint(_OUTAGES) or str(error).startswith("MISCONF"):
            return True
        return isinstance(error, self._connection_errors) and not isinstance(error, self._channel_errors)

    @cached_property
    def _connection_errors(self) -> tuple[type[BaseException], ...]:
        return (OperationalError, LimitExceeded, OSError, *self._app.connection_for_write().connection_errors)

    @cached_property
    def _channel_errors(self) -> tuple[type[BaseException], ...]:
        return tuple(self._app.connection_for_write().channel_errors)

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


def _mark_first(jobs: Sequence[Job]) -> Iterator[tuple[Job, bool]]:
    """Yield the jobs, each with whether it is the first one with its route, whose queue is to be declared."""
    seen: set[str] = set()
    for job in jobs:
        yield job, not job.route or job.route not in seen
        seen.add(job.route)


def timeout_options(connection: Any, seconds: float) -> dict[str, float]:
    """Return the transport's own socket timeouts, so that a connection without answers fails."""
    names = {
        "redis": ("socket_timeout", "socket_connect_timeout"),
        "py-amqp": ("read_timeout", "write_timeout"),
    }
    return dict.fromkeys(names.get(connection.transport.driver_name, ()), seconds)
