"""The context of a submission: the headers that an application adds to its messages, such as a tenant or a trace.

An application adds them in receivers of Celery's signals of publications, or by code in place of Celery's: a subclass
that overrides `send_task`, another `amqp`, instrumentation. The headers are taken once, when a job is submitted, and
kept with it. Every message and every run of the job has them, whichever process sends or runs it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from inspect import unwrap
from types import SimpleNamespace
from typing import Any

from celery import Celery, signals
from celery.utils.saferepr import saferepr
from kombu.messaging import Producer
from kombu.utils.uuid import uuid

from onejob.celery.messages.broker import are_own
from onejob.celery.messages.payload import MARK, OWN_HEADERS, decode, dumps, loads
from onejob.celery.messages.routing import Plan, Routing, noting_unpublishable
from onejob.jobs.model import JobRow, Submission
from onejob.jobs.text_limits import TextLimits

NO_CONTEXT: Mapping[str, Any] = {}
PROBE = "onejob-probe-"
"""The beginning of the ids of test messages, which find out what an application does; workers drop them."""
EXPIRES = 0.001
"""Seconds after which a test message is discarded."""
_NOBODY_WAITS: Mapping[str, Any] = {"ignore_result": True, "retry": False, "add_to_parent": False}
"""The options of a message that is built only for its headers, and not sent."""
_HEADERS = 4
"""The position of the headers among the arguments of kombu's `Producer._publish`."""
_CELERYS = frozenset(
    "lang task id shadow eta expires group group_index retries timelimit root_id parent_id argsrepr kwargsrepr origin "
    "ignore_result replaced_task_nesting stamped_headers stamps".split()
)
"""The headers that Celery gives to every message."""
_OF_TRACES = re.compile(
    r"headers|b3|baggage|(trace(parent|state)|uber-trace-id|newrelic|elastic-apm-traceparent)"
    r"|(sentry|x-b3|x-datadog|x-amzn-trace|x-cloud-trace|onejob|celery_beat)[-_].*"
    r"|.*(request|correlation|trace|span|transaction)[-_]?id|__django_structlog__",
    re.IGNORECASE,
).fullmatch
"""Headers of traces and of single requests: of OpenTelemetry, Zipkin, Jaeger, Sentry, Datadog, New Relic, structlog."""
_MAY_HAVE_HEADERS = re.compile('"(headers|context)"').search


def headers_in(options: str, context: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers of an application: the headers in the publish options (JSON) of a call, and its context."""
    given = loads(options).get("headers") if '"headers"' in options else None
    return {**(given or {}), **context}


def differing_headers(job: JobRow, submission: Submission) -> list[str]:
    """Return the names of headers that differ in a job and a submission, without headers of traces."""
    if not _MAY_HAVE_HEADERS(job.options + job.payload + submission.options + submission.payload):
        return []
    headers, others = (headers_in(each.options, decode(each.payload).context) for each in (job, submission))
    names = sorted(headers.keys() | others.keys())
    return [name for name in names if headers.get(name) != others.get(name) and not _OF_TRACES(name)]


def kept_headers(job: JobRow, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the headers of a retry's options, and its context: both of its job, unless others are `given`.

    Celery copies the headers of a message to its retry, but not all of them if instrumentation has added its own.
    """
    context, kept = decode(job.payload).context, loads(job.options).get("headers") or {}
    changed = {name: value for name, value in given.items() if context.get(name) != value}
    return {**kept, **changed}, {name: value for name, value in context.items() if name not in changed}


class Publishing(Enum):
    """The ways in which the code of an application takes part when a task is published."""

    PLAIN = "Celery's code alone publishes"
    ADDS = "the application may add headers"
    SENDS = "the application sends messages in a way of its own, such as an outbox"


class Contexts:
    """Takes the contexts of the submissions of one app."""

    def __init__(self, app: Celery, routing: Routing, limits: TextLimits) -> None:
        self._app: Any = app
        self._routing = routing
        self._limits = limits
        self._known: dict[tuple[int, object], Publishing] = {}
        """The known ways, by process and class of the task."""

    def is_added(self, task: Any) -> bool:
        """Return whether the application sees the publications of a task, and may add headers."""
        publishing = self._known.get((os.getpid(), type(task))) or self.publishing_of(task)
        if publishing is not Publishing.PLAIN:
            return publishing is Publishing.ADDS
        before, after, sent = signals.before_task_publish, signals.after_task_publish, signals.task_sent
        return bool(before.receivers or after.receivers or sent.receivers)

    def publishing_of(self, task: Any) -> Publishing:
        """Return how the application's code takes part in a task's publications, found out once per process."""
        key = (os.getpid(), type(task))
        if key not in self._known:
            self._known[key] = self._find_out(task)
        return self._known[key]

    def _find_out(self, task: Any) -> Publishing:
        functions = [task._onejob_publish, self._app.send_task]  # noqa: SLF001 - ours
        if _is_wrapped():
            functions.append(Producer.publish)
        if self._routing.is_plain_amqp and are_own(functions):
            return Publishing.PLAIN
        if are_own((unwrap(self._app.send_task),)):  # a wrapper calls what it wraps
            return Publishing.ADDS
        publication = _Publication()
        with noting_unpublishable():
            self._app.send_task(
                task.name, task_id=f"{PROBE}{uuid()}", expires=EXPIRES, producer=publication, **_NOBODY_WAITS
            )
        return Publishing.SENDS if publication.taken is None else Publishing.ADDS

    def take(self, task: Any, job_id: str, args: Any, kwargs: Any, plan: Plan) -> Mapping[str, Any]:
        """Let Celery publish the message of a new job to nobody, and return the headers that the application adds.

        Raises the exceptions of the application's code, and `InvalidPayloadError` for headers that cannot be stored.
        """
        given: dict[str, Any] = loads(plan.options)
        destination = self._routing.destination(plan.route)
        router = SimpleNamespace(route=lambda options, *_: {**options, **destination})
        own = given.pop("headers", None) or {}
        publication = _Publication()
        with noting_unpublishable():
            task._onejob_publish(  # noqa: SLF001 - ours
                list(args), dict(kwargs), task_id=job_id, producer=publication, router=router,
                **{**given, **_NOBODY_WAITS, "headers": {**own, MARK: job_id}},
            )  # fmt: skip
        added = dict(_added(publication.taken or {}, own, given, self._shown(args, kwargs, given)))
        return loads(dumps(added, "the headers that the application adds", self._limits)) if added else NO_CONTEXT

    def _shown(self, args: Any, kwargs: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the headers in which an application may hide arguments, with the values that Celery writes."""
        size = self._app.amqp.argsrepr_maxsize
        shown = {"argsrepr": saferepr(list(args) or (), size), "kwargsrepr": saferepr(kwargs or {}, size)}
        return {**shown, "shadow": None, **{name: given[name] for name in ("shadow", *shown) if name in given}}


def _added(
    headers: Mapping[str, Any], own: Mapping[str, Any], options: Mapping[str, Any], shown: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the headers of a message that are neither Celery's nor onejob's, nor as the call has given them."""
    for name, value in headers.items():
        if name in shown:
            is_added = value != shown[name]
        else:
            is_stamp = name in options and options[name] == value
            is_added = name not in _CELERYS and name not in OWN_HEADERS and own.get(name) != value and not is_stamp
        if is_added:  # instrumentation copies the others into `headers`
            is_copy = name == "headers" and isinstance(value, Mapping)
            yield name, {each: value[each] for each in value if each not in OWN_HEADERS} if is_copy else value


def _is_wrapped() -> bool:
    """Return whether code wraps kombu's `publish`, and says so; other code in its place is called at each sending."""
    return are_own((unwrap(Producer.publish),))


class _Publication(Producer):
    """A producer, and its connection, that keeps the headers of the first message, and sends nothing."""

    def __init__(self) -> None:
        super().__init__(None, auto_declare=False)  # type: ignore[arg-type] # no channel
        self.taken: Mapping[str, Any] | None = None

    @property
    def connection(self) -> Any:
        return self

    @contextmanager
    def _reraise_as_library_errors(self) -> Iterator[None]:
        yield

    def publish(self, body: Any, headers: Any = None, **options: Any) -> Any:  # type: ignore[override]
        """Keep the headers of a message, including headers that code adds which wraps kombu's `publish`."""
        if _is_wrapped():
            return super().publish(body, headers=headers, **options)
        return self._publish(*[None] * _HEADERS, headers or {})

    def _prepare(self, body: Any, *_: Any, **__: Any) -> Any:
        return body, None, None

    def _publish(self, *given: Any, **_: Any) -> None:
        if self.taken is None:
            self.taken = given[_HEADERS]


class Restoring:
    """A producer whose messages of one job have its context, whatever the application adds in this process."""

    def __init__(self, producer: Any, context: Mapping[str, Any]) -> None:
        self._producer = producer
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: object, headers: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Publish by the producer, with the headers of the context."""
        if headers and MARK in headers:  # no event
            headers = {**headers, **self._context}
        return self._producer.publish(body, headers=headers, **options)
