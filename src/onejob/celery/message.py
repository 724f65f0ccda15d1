"""What travels through the broker: a job's arguments and options as JSON, kept in the ledger, published from there."""

from __future__ import annotations

import logging
import os
import re
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from kombu.exceptions import BatchPublishError, EncodeError  # type: ignore[attr-defined] # the published types lack it
from kombu.pools import ProducerPool
from kombu.utils import json

from onejob.errors import InvalidPayloadError
from onejob.uniqueness.canonical_json import deeper_than

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from celery import Celery

    from onejob.jobs.model import Job
    from onejob.uniqueness.canonical_json import Limits

logger = logging.getLogger("onejob")
TRANSIENT = frozenset(
    "producer publisher connection router retry retry_policy result_cls add_to_parent countdown eta expires task_id "
    "task_type retries".split()
)
"""Options of one publication, or facts that the ledger keeps in columns of their own."""
CANVAS = ("link", "link_error", "chain", "chord", "group_id")
"""Options by which something else waits for the end of the job."""
WRAPPING = 3
"""By how many levels a message is deeper than the arguments in it."""
SHORT = 256
"""Below how many characters a payload is shown whole in events and logs of Celery's."""
_FIRST: dict[str, Any] = {"retry": True, "retry_policy": {"max_retries": 1, "interval_start": 0}}
_AGAIN: dict[str, Any] = {"retry": False, "declare": []}
"""How a message is sent whose queue has just been declared for another one."""
_ESCAPE = re.compile(r"\\(?:ud[89ab]..\\ud[c-f]..|(?P<bad>u0000|ud[89a-f]..)|.)")
"""An escape in JSON as Python writes it: a pair of surrogates is one character, one alone is none."""
REPLACED = "replaced"
"""Why a job was canceled whose id belongs to another task's message now (`Task.replace`)."""


class Message(NamedTuple):
    """The content of a payload. `task` is the job's own task, unless the job was replaced by a run of another."""

    task: str
    args: list[Any]
    kwargs: dict[str, Any]


def encode(task: str, args: Sequence[Any], kwargs: Mapping[str, Any], limits: Limits) -> str:
    """Return the payload of a job. Raises `InvalidPayloadError` for what JSON cannot carry or the ledger will not."""
    return dumps({"task": task, "args": list(args), "kwargs": dict(kwargs)}, "the arguments", limits)


def decode(payload: str) -> Message:
    """Return what `encode` was given."""
    return Message(**json.loads(payload))


def encode_options(options: Mapping[str, Any], limits: Limits) -> str:
    """Return how a job's message is sent, without what the ledger knows by itself. Raises as `encode` does."""
    kept = {name: _plain(value) for name, value in options.items() if name not in TRANSIENT and value is not None}
    return dumps(kept, "the options", limits)


def dumps(value: object, what: str, limits: Limits) -> str:
    """Return JSON that every store can hold, also as PostgreSQL's `jsonb`.

    Raises `InvalidPayloadError`, naming `what`, when the value has no such JSON or is too large.
    """
    try:
        text = json.dumps(value, allow_nan=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError, EncodeError) as error:
        msg = f"{what} cannot be stored as JSON: {error}"
        raise InvalidPayloadError(msg) from error
    if _has_unstorable(text):
        msg = (
            f"{what} have a NUL character or a lone surrogate, which stores cannot keep: remove it, or encode the bytes"
        )
        raise InvalidPayloadError(msg)
    if text.count("[") + text.count("{") > limits.depth and deeper_than(loads(text), limits.depth + WRAPPING):
        msg = f"{what} are nested deeper than {limits.depth} levels, which not every reader of JSON can follow"
        raise InvalidPayloadError(msg)
    if size > limits.size:
        msg = f"{what} take {size} bytes as JSON, the limit is {limits.size}: store them elsewhere and pass a reference"
        raise InvalidPayloadError(msg)
    return str(text)


def _has_unstorable(text: str) -> bool:
    """Tell whether JSON has a NUL character or a lone surrogate; most texts have nothing that looks like one."""
    suspicious = "\\u0000" in text or "\\ud" in text
    return suspicious and any(escape["bad"] for escape in _ESCAPE.finditer(text))


def loads(text: str) -> Any:
    """Return the value of a JSON text of `dumps`."""
    return json.loads(text)


def nesting(options: str) -> int:
    """Return how many replacements lie before a job under its id."""
    return int(loads(options).get("replaced_task_nesting") or 0)


def waits_for_end(options: str) -> bool:
    """Tell whether something waits for the end of the job with these options."""
    return has_canvas(loads(options))


def has_canvas(options: Mapping[str, Any]) -> bool:
    """Tell whether something waits for the end of the job."""
    return any(options.get(name) for name in CANVAS)


def _plain(value: Any) -> Any:
    """A queue or an exchange travels by its name."""
    name = getattr(value, "name", None)
    return name if isinstance(name, str) and hasattr(value, "declare") else value


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
