"""Messages as Celery writes them, from templates: for a Redis store's scripts, or published without Celery's work.

Celery writes the first message of a kind (a task with its options), and a recorder of the broker's module keeps it.
From the second one on, a template made of such a recording is filled in for each job, which takes a twentieth.
"""

from __future__ import annotations

import json
import re
import secrets
from base64 import b64decode, b64encode
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

from onejob.jobs.model import BrokerMessage
from onejob.jobs.transitions import new_id
from onejob.observability.tracing import TRACE_CONTEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from onejob.jobs.model import Job, Submission

    Record = Callable[[Job | Submission], BrokerMessage]
    Write = Callable[[Job | Submission], BrokerMessage | None]

KIND_LIMIT = 512
"""How many kinds of messages are remembered."""
_OWN_MODULES = frozenset({
    "celery.app.amqp", "celery.app.base", "celery.backends.base", "celery.backends.redis", "amqp.channel",
    "kombu.messaging", "kombu.transport.pyamqp", "kombu.transport.redis", "kombu.transport.virtual.base",
})  # fmt: skip
_scan: Callable[[str, int], tuple[Any, int]] = JSONDecoder(object_hook=object_hook).scan_once  # type: ignore[attr-defined]
_PARENTS = ("root_id", "parent_id")
_OWN = (*_PARENTS, *TRACE_CONTEXT)
"""The options in which the jobs of one kind differ. Their messages have no trace context: it is read in the job."""
_HAS_OWN = re.compile(f'"({"|".join(_OWN)})"').search
_KWARGS = ', "kwargs": '
_REPR_LEVELS = 3
"""How deep Celery shows arguments, unless it is configured."""


class NotOneMessageError(Exception):
    """What Celery sends for a job is more than one message of the recorded form."""


class Templates:
    """Writes the messages of one app. `record` has Celery write one, or raises `NotOneMessageError`."""

    def __init__(self, app: Celery, record: Record) -> None:
        self._app = app
        self._record = record
        self._writers: dict[MessageKind, Write] = {}
        self._seen: set[MessageKind] = set()

    def write(self, job: Job | Submission) -> BrokerMessage | None:
        """Return the message of a job as Celery writes it; None for one that only Celery can send.

        A kind has a template from its second message on: some have one message only, such as those with links.
        Raises what Celery's `send_task` does.
        """
        if not job.route or has_receivers():
            return None
        kind = kind_of(job)
        try:
            return (self._writers.get(kind) or self._new_writer(kind, job))(job)
        except NotOneMessageError:
            self._writers[kind] = _leave_to_celery
            return None

    def _new_writer(self, kind: MessageKind, job: Job | Submission) -> Write:
        if kind not in self._seen:
            if len(self._seen) >= KIND_LIMIT:
                self._seen.clear()
                self._writers.clear()
            self._seen.add(kind)
            return self._record
        template = build_template(self._app, job, self._record)
        writer = self._writers[kind] = self._record if template is None else template.fill
        return writer


def _leave_to_celery(_job: Job | Submission) -> None:
    return None


# --- recording ------------------------------------------------------------------------------------------------------


def is_writable(app: Celery, transport: str, functions: Iterable[str]) -> bool:
    """Return whether messages can be written as Celery would send them by a transport of kombu, and nothing is missed.

    `transport`: its module; `functions`: those of its channel that send. Not if Celery would send an event of each
    message, or the result backend prepares for each (as `rpc` does); and if code other than theirs takes part: a
    subclass, another task protocol, or functions replaced by instrumentation.
    """
    own: Any = app.connection_for_write().transport
    amqp = app.amqp
    if (type(own).__module__, type(own).__name__) != (transport, "Transport"):
        return False
    if app.conf.task_send_sent_event or type(amqp) is not AMQP:
        return False
    try:
        prepare = app.backend.on_task_call
    except Exception:  # noqa: BLE001 - Celery raises it for each message that needs the result backend
        return False
    takes_part = (
        app.send_task, amqp.as_task_v2, amqp.send_task_message, prepare, Producer.publish,
        Producer._publish,  # noqa: SLF001 - kombu's
        *(getattr(_channel_of(own), name) for name in functions),
    )  # fmt: skip
    return amqp.create_task_message == amqp.as_task_v2 and all(map(_is_own, takes_part))


def _channel_of(transport: Any) -> Any:
    """Return the class of a transport's channels."""
    return getattr(transport, "Channel", None) or transport.Connection.Channel


def _is_own(function: Any) -> bool:
    """Return whether a function is one of Celery and kombu; a wrapper may have copied its name and its module."""
    function = getattr(function, "__func__", function)
    return type(function) is FunctionType and function.__globals__["__name__"] in _OWN_MODULES


def has_receivers() -> bool:
    """Return whether the application has connected functions to Celery's signals of publications."""
    before, after, sent = signals.before_task_publish, signals.after_task_publish, signals.task_sent
    return bool(before.receivers or after.receivers or sent.receivers)


def send_silently(app: Celery, send: Callable[..., None], job: Job | Submission, producer: Any) -> None:
    """Have Celery send the message of a job on a producer whose channel is recorded."""
    send_task = partial(cast("Any", Celery.send_task), _SilentApp(app))
    send(job, producer, {"retry": False, "declare": []}, send_task)


class _SilentApp:
    """An app for `Celery.send_task`, without the task that runs now, and with a result backend that is not told."""

    current_worker_task = None
    backend = SimpleNamespace(on_task_call=lambda _producer, _task_id: None)
    AsyncResult = staticmethod(lambda task_id: SimpleNamespace(id=task_id))

    def __init__(self, app: Celery) -> None:
        self._app = app

    def __getattr__(self, name: str) -> Any:
        return getattr(self._app, name)


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

    def __init__(self, app: Celery, task: str, destination: str, text: str, body: _Body) -> None:
        self._app: Any = app  # the published types know no `thread_oid`
        self._task = task
        self._start = f'{{"task": {quote(task)}, "args": '
        self._destination = destination
        self._text = text
        self._body = body
        self._shown_size = int(app.amqp.argsrepr_maxsize)
        self._shown_levels = app.conf.get("task_repr_maxlevels", _REPR_LEVELS) or _REPR_LEVELS

    def fill(self, job: Job | Submission) -> BrokerMessage | None:
        """Return the message of a job; None for a payload that is not that of a call of the task."""
        payload, start = job.payload, len(self._start)
        if not payload.startswith(self._start):
            return None
        args, end = _scan(payload, start)
        middle = end + len(_KWARGS)
        kwargs, last = _scan(payload, middle)
        if type(args) is not list or type(kwargs) is not dict or payload[last:] != "}":
            return None
        shown_args, shown_kwargs = self._show(args, kwargs)
        parents = _parents_of(job.options)
        root_id, parent_id = parents.get("root_id"), parents.get("parent_id")
        return BrokerMessage(
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
                "body": self._body.fill(payload[start:end], payload[middle:last]),
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
        """Return whether Celery shows a value as `repr` does: not a long or a deep one, or strings with escapes."""
        return (
            len(text) < self._shown_size
            and "\\" not in text
            and '"' not in text
            and text.count("[") + text.count("{") <= self._shown_levels
        )


class _Body(NamedTuple):
    """The parts of a message's body around its arguments, and whether it is sent as base64."""

    before: str
    between: str
    after: str
    is_base64: bool

    def fill(self, args: str, kwargs: str) -> str:
        """Return a body with arguments (JSON) as JSON text."""
        body = f"{self.before}{args}{self.between}{kwargs}{self.after}"
        return f'"{b64encode(body.encode()).decode()}"' if self.is_base64 else quote(body)


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


def _cut(text: str, marks: dict[str, str], retries: int) -> tuple[str, _Body]:
    """Return a recorded text, with `%`-formats in place of the marks, and its body in parts."""
    message = json.loads(text)
    properties, body = message["properties"], message["body"]
    is_base64 = properties.get("body_encoding") == "base64"
    args, kwargs = [marks["args"]], {marks["kwargs"]: 0}
    before, _, rest = (b64decode(body).decode() if is_base64 else body).partition(json.dumps(args))
    between, _, after = rest.partition(json.dumps(kwargs))
    formats = {
        **{quote(marks[name]): f"%({name})s" for name in ("id", "root_id", "parent_id", "reply_to")},
        quote(repr(args)): "%(args)s",
        quote(repr(kwargs)): "%(kwargs)s",
        quote(body): "%(body)s",
        str(retries): "%(retries)d",
    }
    if "delivery_tag" in properties:
        formats[quote(properties["delivery_tag"])] = '"%(tag)s"'
    pattern = "|".join(map(re.escape, formats))
    return re.sub(pattern, lambda found: formats[found[0]], text.replace("%", "%%")), _Body(
        before, between, after, is_base64
    )


def _without_tag(message: BrokerMessage | None) -> tuple[str, str] | None:
    """Return a message without its delivery tag, which is random."""
    if message is None:
        return None
    tag = json.loads(message.text)["properties"].get("delivery_tag")
    return message.destination, message.text.replace(tag, "") if tag else message.text
