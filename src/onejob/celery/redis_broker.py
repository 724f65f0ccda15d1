"""A Redis broker: messages as Celery and kombu would push them, for the store's scripts, or many in one round trip.

Celery writes the first message of a kind (a task with its options), with kombu's Redis client replaced by a recorder.
From the second one on, a template made of such a recording is filled in for each job, which takes a twentieth.
"""

from __future__ import annotations

import json
import re
import secrets
from base64 import b64decode, b64encode
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from json.decoder import JSONDecoder
from json.encoder import encode_basestring_ascii as quote
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import uuid4

from celery import Celery, signals
from celery.app.amqp import AMQP
from kombu.messaging import Producer
from kombu.utils.json import object_hook
from redis import exceptions

from onejob.jobs.model import WireMessage
from onejob.jobs.transitions import new_id
from onejob.observability.tracing import TRACE_CONTEXT
from onejob.stores.redis.address import push_place_of
from onejob.stores.redis.connections import Connections

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from onejob.celery.broker import Broker
    from onejob.celery.routing import Routing
    from onejob.jobs.model import Job, Submission

    Record = Callable[[Job | Submission], WireMessage]

KIND_LIMIT = 512
"""How many kinds of messages are remembered."""
_OWN_MODULES = frozenset({
    "celery.app.amqp", "celery.app.base", "celery.backends.base", "celery.backends.redis",
    "kombu.messaging", "kombu.transport.redis", "kombu.transport.virtual.base",
})  # fmt: skip
_scan: Callable[[str, int], tuple[Any, int]] = JSONDecoder(object_hook=object_hook).scan_once  # type: ignore[attr-defined]
_PARENTS = ("root_id", "parent_id")
_OWN = (*_PARENTS, *TRACE_CONTEXT)
"""The options in which the jobs of one kind differ. Their messages have no trace context: it is read in the job."""
_HAS_OWN = re.compile(f'"({"|".join(_OWN)})"').search
_KWARGS = ', "kwargs": '
_REPR_LEVELS = 3
"""How deep Celery shows arguments, unless it is configured."""


class RedisBroker:
    """The Redis broker of one app in one process. Raises the transport's errors if it cannot be reached."""

    def __init__(self, app: Celery, broker: Broker, routing: Routing, send: Callable[..., None]) -> None:
        self._app = app
        self._broker = broker
        self._send = send
        self._routing = routing
        with broker.producer() as producer:
            pool = producer.channel.pool
        self._connections = Connections(pool)
        self.place = push_place_of(pool)
        """The `place` of a `MessagePushingStore` there."""
        (info,) = self._connections.execute([["INFO", "cluster"]])
        self.is_cluster = "cluster_enabled:1" in str(info)  # bytes, unless the options decode them
        """Whether the server is in cluster mode, where a script has the keys of one slot only."""
        self._templates: dict[MessageKind, MessageTemplate | None] = {}
        self._seen: set[MessageKind] = set()
        self._unwritable: set[str] = set()
        """Routes whose messages are more than one element of one list."""

    def write(self, job: Job | Submission) -> WireMessage | None:
        """Return the message of a job as the broker keeps it; None for one that only Celery can send.

        A kind has a template from its second message on: some have one message only, such as those with links.
        Raises what Celery's `send_task` does.
        """
        if job.route in self._unwritable or not job.route or has_receivers():
            return None
        try:
            template = self._template_of(job)
            return (template and template.fill(job)) or self._record(job)
        except _NotOnePushError:
            self._unwritable.add(job.route)
            return None

    def close(self) -> None:
        """Close the connections. The next message opens new ones."""
        self._connections.close()

    def push(self, messages: Iterable[WireMessage]) -> None:
        """Push messages, in their order in each list. Raises redis-py's exceptions."""
        commands: dict[str, list[str]] = {}
        for destination, text in messages:
            commands.setdefault(destination, ["LPUSH", destination]).append(text)
        try:
            self._connections.execute(commands.values())
        except exceptions.ConnectionError:  # the server may have closed an idle connection
            self._connections.execute(commands.values())

    def _template_of(self, job: Job | Submission) -> MessageTemplate | None:
        kind = kind_of(job)
        try:
            return self._templates[kind]
        except KeyError:
            pass
        if kind not in self._seen:
            _make_room(self._seen)
            self._seen.add(kind)
            return None
        template = build_template(self._app, job, self._record)
        _make_room(self._templates)
        self._templates[kind] = template
        return template

    def _record(self, job: Job | Submission) -> WireMessage:
        """Have Celery and kombu send a message, and return it instead of pushing it."""
        send_task = partial(cast("Any", Celery.send_task), _SilentApp(self._app))
        with self._broker.producer() as producer:
            for entity in self._routing.destination(job.route)["declare"]:
                producer.maybe_declare(entity)  # once per connection, as Celery does
            with _recording(producer.channel) as pushed:
                self._send(job, producer, {"retry": False, "declare": []}, send_task)
        if len(pushed) != 1:
            raise _NotOnePushError
        return pushed[0]


def is_writable(app: Celery) -> bool:
    """Tell whether a message for the broker of an app can be written as Celery would push it, and nothing is missed.

    Not if the transport is another one than kombu's for Redis (or is for Sentinel), or fails over to others; if
    Celery would send an event of each message, or the result backend prepares for each (as `rpc` does); and if
    code other than theirs takes part: a subclass, another task protocol, or functions replaced by instrumentation.
    """
    connection: Any = app.connection_for_write()
    transport, amqp = connection.transport, app.amqp
    if type(transport).__module__ != "kombu.transport.redis" or type(transport).__name__ != "Transport":
        return False
    if len(connection.alt) > 1 or app.conf.task_send_sent_event or type(amqp) is not AMQP:
        return False
    try:
        prepare = app.backend.on_task_call
    except Exception:  # noqa: BLE001 - Celery raises it for each message that needs the result backend
        return False
    channel = type(transport).Channel
    takes_part = (
        app.send_task, amqp.as_task_v2, amqp.send_task_message, prepare, Producer.publish,
        Producer._publish, channel.basic_publish, channel.prepare_message, channel._put,  # noqa: SLF001 - theirs
    )  # fmt: skip
    return amqp.create_task_message == amqp.as_task_v2 and all(map(_is_own, takes_part))


def _is_own(function: Any) -> bool:
    """Tell whether a function is one of Celery and kombu; a wrapper may have copied its name and its module."""
    function = getattr(function, "__func__", function)
    return type(function) is FunctionType and function.__globals__["__name__"] in _OWN_MODULES


def has_receivers() -> bool:
    """Tell whether the application has connected functions to Celery's signals of publications."""
    before, after, sent = signals.before_task_publish, signals.after_task_publish, signals.task_sent
    return bool(before.receivers or after.receivers or sent.receivers)


def _make_room(kinds: set[MessageKind] | dict[MessageKind, MessageTemplate | None]) -> None:
    if len(kinds) >= KIND_LIMIT:
        kinds.clear()


# --- templates ------------------------------------------------------------------------------------------------------


class MessageKind(NamedTuple):
    """What equal messages have in common, except for their jobs."""

    task: str
    options: str
    """The publish options as JSON, without those of single jobs."""
    route: str
    priority_rank: int


def kind_of(job: Job | Submission) -> MessageKind:
    """Return the kind of a job's message."""
    options = job.options
    if _HAS_OWN(options):
        options = json.dumps({name: value for name, value in json.loads(options).items() if name not in _OWN})
    return MessageKind(job.task, options, job.route, job.priority_rank)


def _parents_of(options: str) -> dict[str, str]:
    """Return the `root_id` and the `parent_id` in publish options (JSON), if there are any."""
    if not _HAS_OWN(options):
        return {}
    return {name: value for name, value in json.loads(options).items() if name in _PARENTS}


class MessageTemplate:
    """The messages of one kind, without what differs from job to job."""

    def __init__(self, app: Celery, task: str, destination: str, text: str, body: tuple[str, str, str]) -> None:
        self._app: Any = app  # the published types know no `thread_oid`
        self._task = task
        self._start = f'{{"task": {quote(task)}, "args": '
        self._destination = destination
        self._text = text
        self._body = body
        self._shown_size = int(app.amqp.argsrepr_maxsize)
        self._shown_levels = app.conf.get("task_repr_maxlevels", _REPR_LEVELS) or _REPR_LEVELS

    def fill(self, job: Job | Submission) -> WireMessage | None:
        """Return the message of a job; None for a payload that is not that of a call of the task."""
        payload, start = job.payload, len(self._start)
        if not payload.startswith(self._start):
            return None
        args, end = _scan(payload, start)
        middle = end + len(_KWARGS)
        kwargs, last = _scan(payload, middle)
        if type(args) is not list or type(kwargs) is not dict or payload[last:] != "}":
            return None
        before, between, after = self._body
        body = f"{before}{payload[start:end]}{between}{payload[middle:last]}{after}"
        shown_args, shown_kwargs = self._show(args, kwargs)
        parents = _parents_of(job.options)
        root_id, parent_id = parents.get("root_id"), parents.get("parent_id")
        return WireMessage(
            self._destination,
            self._text
            % {
                "id": quote(job.id),
                "root_id": quote(root_id or job.id),
                "parent_id": quote(parent_id) if parent_id else "null",
                "reply_to": quote(self._app.thread_oid),
                "retries": job.retries,
                "args": quote(shown_args),
                "kwargs": quote(shown_kwargs),
                "body": b64encode(body.encode()).decode(),
                "tag": new_id(),
            },
        )

    def _show(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[str, str]:
        """Return the texts that Celery shows of arguments, which takes it as long as all the rest."""
        shown = repr(args or ()), repr(kwargs)  # Celery replaces an empty list
        if all(map(self._is_shown_whole, shown)):
            return shown
        headers = self._app.amqp.create_task_message("", self._task, args, kwargs).headers
        return headers["argsrepr"], headers["kwargsrepr"]

    def _is_shown_whole(self, text: str) -> bool:
        """Tell whether Celery shows a value as `repr` does: not a long or a deep one, or strings with escapes."""
        return (
            len(text) < self._shown_size
            and "\\" not in text
            and '"' not in text
            and text.count("[") + text.count("{") <= self._shown_levels
        )


def build_template(app: Celery, job: Job | Submission, record: Record) -> MessageTemplate | None:
    """Return the template of the messages like that of a job; None if messages filled in are not those of Celery.

    `record` has Celery write a message. First it writes one whose id is a random mark, such as "id-5f2e", and whose
    arguments, reply queue and parents are others: the text is cut where they are found. Then it writes two messages,
    which the template has to repeat, whatever the versions and the serializer.
    """
    marks = {name: f"{name}-{uuid4().hex}" for name in ("id", "root_id", "parent_id", "reply_to", "args", "kwargs")}
    retries = secrets.randbits(62)
    options = json.loads(job.options)
    own = {name: marks[name] for name in _PARENTS}
    marked = replace(
        job, id=marks["id"], payload=_payload(job.task, [marks["args"]], {marks["kwargs"]: 0}), retries=retries,
        options=json.dumps({"reply_to": marks["reply_to"]} | options | own),
    )  # fmt: skip
    destination, text = record(marked)
    try:
        template = MessageTemplate(app, job.task, destination, *_cut(text, marks, retries))
    except (ValueError, KeyError, TypeError, AttributeError):  # it is no JSON, or another format
        return None
    for args, kwargs in ([], {}), (["a", 1], {"b": [None, {"c": "'"}]}):
        sample = replace(job, id="a%s'\"", payload=_payload(job.task, args, kwargs), retries=7)
        if _without_tag(template.fill(sample)) != _without_tag(record(sample)):
            return None
    return template


def _payload(task: str, args: list[Any], kwargs: dict[str, Any]) -> str:
    return json.dumps({"task": task, "args": args, "kwargs": kwargs})


def _cut(text: str, marks: dict[str, str], retries: int) -> tuple[str, tuple[str, str, str]]:
    """Return a recorded text, with `%`-formats in the place of the marks, and its decoded body in three parts."""
    message = json.loads(text)
    args, kwargs = [marks["args"]], {marks["kwargs"]: 0}
    before, _, rest = b64decode(message["body"]).decode().partition(json.dumps(args))
    between, _, after = rest.partition(json.dumps(kwargs))
    formats = {
        **{quote(marks[name]): f"%({name})s" for name in ("id", "root_id", "parent_id", "reply_to")},
        quote(repr(args)): "%(args)s",
        quote(repr(kwargs)): "%(kwargs)s",
        quote(message["body"]): '"%(body)s"',
        quote(message["properties"]["delivery_tag"]): '"%(tag)s"',
        str(retries): "%(retries)d",
    }
    pattern = "|".join(map(re.escape, formats))
    return re.sub(pattern, lambda found: formats[found[0]], text.replace("%", "%%")), (before, between, after)


def _without_tag(message: WireMessage | None) -> tuple[str, str] | None:
    """Return a message without its delivery tag, which is random."""
    if message is None:
        return None
    tag = json.loads(message.text)["properties"]["delivery_tag"]
    return message.destination, message.text.replace(tag, "")


# --- recording ------------------------------------------------------------------------------------------------------


class _NotOnePushError(Exception):
    """A message is more than one element of one list."""


class _Recorder:
    """In the place of the Redis client of a channel: records what is pushed."""

    def __init__(self, prefix: str) -> None:
        self.pushed: list[WireMessage] = []
        self._prefix = prefix

    def lpush(self, key: str, text: str) -> None:
        """Record a message."""
        self.pushed.append(WireMessage(self._prefix + key, text))

    def __getattr__(self, name: str) -> Any:
        raise _NotOnePushError(name)


@contextmanager
def _recording(channel: Any) -> Iterator[list[WireMessage]]:
    """Yield the list of what the channel pushes in this block, which is not pushed."""
    recorder = _Recorder(channel.global_keyprefix)

    @contextmanager
    def conn_or_acquire(client: Any = None) -> Iterator[_Recorder]:  # noqa: ARG001 - kombu's signature
        yield recorder

    channel.conn_or_acquire = conn_or_acquire
    try:
        yield recorder.pushed
    finally:
        del channel.conn_or_acquire


class _SilentApp:
    """An app for `Celery.send_task`, without the task that runs now, and with a result backend that is not told."""

    current_worker_task = None
    backend = SimpleNamespace(on_task_call=lambda _producer, _task_id: None)
    AsyncResult = staticmethod(lambda task_id: SimpleNamespace(id=task_id))

    def __init__(self, app: Celery) -> None:
        self._app = app

    def __getattr__(self, name: str) -> Any:
        return getattr(self._app, name)
