"""The message of a job as a Redis broker of kombu keeps it: recorded from Celery once, then filled in for each job."""

from __future__ import annotations

import json
import re
import secrets
from base64 import b64decode, b64encode
from json.decoder import JSONDecoder
from json.encoder import encode_basestring_ascii as quote
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from kombu.utils.json import object_hook

from onejob.celery.message import with_parents
from onejob.jobs.model import Submission, WireMessage
from onejob.jobs.transitions import new_id
from onejob.observability.tracing import TRACE_CONTEXT

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from onejob.jobs.model import Job

    Record = Callable[[Submission], WireMessage]

_scan: Callable[[str, int], tuple[Any, int]] = JSONDecoder(object_hook=object_hook).scan_once  # type: ignore[attr-defined]
_PARENTS = ("root_id", "parent_id")
_OWN = (*_PARENTS, *TRACE_CONTEXT)
"""The options in which the jobs of one kind differ. Their messages have no trace context: it is read in the job."""
_KWARGS = ', "kwargs": '
_REPR_LEVELS = 3
"""How deep Celery shows arguments, unless it is configured."""


class MessageKind(NamedTuple):
    """What equal messages have in common, except for their jobs."""

    task: str
    options: str
    """The publish options as JSON, without `root_id` and `parent_id`."""
    route: str
    priority_rank: int

    def submission(
        self, job_id: str, payload: str, *, retries: int = 0, root_id: str | None = None, parent_id: str | None = None
    ) -> Submission:
        """Return a message of this kind as a submission, as far as it is published."""
        parents = {name: value for name, value in (("root_id", root_id), ("parent_id", parent_id)) if value}
        options = with_parents(self.options, parents) if parents else self.options
        return Submission(
            id=job_id, task=self.task, identity="", fingerprint="", nonce="", payload=payload, lease=0.0,
            options=options, route=self.route, priority_rank=self.priority_rank, retries=retries,
        )  # fmt: skip


def kind_of(job: Job | Submission) -> tuple[MessageKind, dict[str, str]]:
    """Return the kind of a job's message, and its `root_id` and `parent_id`."""
    options, parents = job.options, {}
    if any(f'"{name}"' in options for name in _OWN):
        values = json.loads(options)
        found = {name: values.pop(name) for name in _OWN if name in values}
        parents = {name: found[name] for name in _PARENTS if name in found}
        options = json.dumps(values)
    return MessageKind(job.task, options, job.route, job.priority_rank), parents


class MessageTemplate:
    """The messages of one kind, without what differs from job to job."""

    def __init__(self, app: Celery, kind: MessageKind, destination: str, text: str, body: tuple[str, str, str]) -> None:
        self._app: Any = app  # the published types know no `thread_oid`
        self._task = kind.task
        self._start = f'{{"task": {quote(kind.task)}, "args": '
        self._destination = destination
        self._text = text
        self._body = body
        self._shown_size = int(app.amqp.argsrepr_maxsize)
        self._shown_levels = app.conf.get("task_repr_maxlevels", _REPR_LEVELS) or _REPR_LEVELS

    def fill(
        self, job_id: str, payload: str, *, retries: int = 0, root_id: str | None = None, parent_id: str | None = None
    ) -> WireMessage | None:
        """Return the message of a job; None for a payload that is not that of a call of the task."""
        start = len(self._start)
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
        return WireMessage(
            self._destination,
            self._text
            % {
                "id": quote(job_id),
                "root_id": quote(root_id or job_id),
                "parent_id": quote(parent_id) if parent_id else "null",
                "reply_to": quote(self._app.thread_oid),
                "retries": retries,
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


def build_template(app: Celery, kind: MessageKind, record: Record) -> MessageTemplate | None:
    """Return the template of a kind of messages; None if messages that are filled in are not those of Celery.

    `record` has Celery write a message. What it writes for marks in the place of a job is cut at these marks; then it
    writes other messages, which the template has to repeat, whatever the versions and the serializer.
    """
    marks = {name: f"{name}-{uuid4().hex}" for name in ("id", "root_id", "parent_id", "reply_to", "args", "kwargs")}
    retries = secrets.randbits(62)
    reply_to = {"reply_to": marks["reply_to"]} | json.loads(kind.options)
    marked = kind._replace(options=json.dumps(reply_to)).submission(
        marks["id"], _payload(kind.task, [marks["args"]], {marks["kwargs"]: 0}), retries=retries,
        root_id=marks["root_id"], parent_id=marks["parent_id"],
    )  # fmt: skip
    destination, text = record(marked)
    try:
        template = MessageTemplate(app, kind, destination, *_cut(text, marks, retries))
    except (ValueError, KeyError, TypeError, AttributeError):  # it is no JSON, or another format
        return None
    for args, kwargs in ([], {}), (["a", 1], {"b": [None, {"c": "'"}]}):
        job_id, payload = "a%s'\"", _payload(kind.task, args, kwargs)
        expected = record(kind.submission(job_id, payload, retries=7))
        if _without_tag(template.fill(job_id, payload, retries=7)) != _without_tag(expected):
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
