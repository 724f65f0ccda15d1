"""The page of a job: its attempts as a picture, its values, duplicates, followers, webhooks and history."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from onejob.api.api_keys import Role
from onejob.api.problems import Problem, problem_from
from onejob.celery.messages.payload import decode, loads, read_message
from onejob.celery.submission.options import tasks_of
from onejob.client.operation import Operation
from onejob.errors import OneJobError
from onejob.jobs.history import Entry
from onejob.jobs.lifecycle import State
from onejob.jobs.model import JobRow
from onejob.jobs.public_view import fields_of, public_job
from onejob.jobs.timestamps import to_datetime
from onejob.ledger.explain import explain
from onejob.ledger.timeline import LEASE_EXPIRED, SpanKind, build_timeline
from onejob.observability.metrics import WEBHOOK_TASK
from onejob.pages.activity import uniqueness_rule
from onejob.pages.context import UNREADABLE, Context
from onejob.pages.job_rows import job_row
from onejob.pages.limits import limits_of
from onejob.pages.page_request import PageRequest
from onejob.pages.rendering import Page, Redirect, View, pretty
from onejob.webhooks.job import WebhookPayload

FOLLOWER_LIMIT = 100
CUT = 4000
"""Characters of a value that are shown without the parameter `all`."""
SHOWN = (
    "lease_until", "expires_at", "identity_until", "key_retained_until", "wake_at", "source", "retries", "lease",
    "token", "holds_identity", "run_seconds", "publish_error", "canvas_pending",
)  # fmt: skip
"""The fields of a job that its page has besides the public ones."""
DUPLICATE_FIELDS = (
    "at", "outcome", "answered_by", "submitter", "source", "host", "arguments_differ", "rescheduled",
)  # fmt: skip
WEBHOOK_FIELDS = ("id", "state", "attempt", "reason", "created_at", "finished_at", "run_at", "submitter")
IMPORTS = {
    "datetime.": "import datetime",
    "Decimal(": "from decimal import Decimal",
    "UUID(": "from uuid import UUID",
}
"""The imports that the values of a message need in Python, by what they begin with."""
CANVAS_PARTS = ("link", "link_error", "chain", "chord", "group_id")


def _build_job(context: Context, request: PageRequest) -> Page | Redirect:
    if not request.path["job_id"]:
        return Redirect("/jobs")
    job, now = context.job(request.path["job_id"]), request.now
    shown = public_job(job)
    redact = None if context.redact is None else partial(context.reason, shown)

    def format_time(at: float) -> str:
        return to_datetime(at).astimezone(request.zone).strftime("%Y-%m-%d %H:%M:%S %Z")

    explanation = explain(context.ledger, job.id, format_time=format_time, redact=redact)
    job = explanation.job
    data = {
        "job": _fields(context, job),
        "now": to_datetime(now),
        "lease_left": None if job.lease_until is None else job.lease_until - now,
        "stuck": explanation.stuck,
        "sentences": explanation.sentences,
        "limits": limits_of(context, job),
        **_timeline(job, explanation.history, now),
        "history": [fields_of(entry) for entry in explanation.history],
        "logs": [
            {"attempt": each.attempt, "text": context.redacted(job, "log", each.text)}
            for each in reversed(context.ledger.run_logs(job))
        ],
        "steps": [
            {"name": name, "value": context.redacted(shown, f"step {name}", json.loads(value))}
            for name, value in context.ledger.steps(job).items()
        ],
        "duplicates": [
            fields_of(each, *DUPLICATE_FIELDS) | {"is_redelivery": not each.submission_nonce}
            for each in reversed(explanation.duplicates)
        ],
        **_related(context, job),
        "operations": [operation.value for operation in Operation if job.state in operation.states],
        "can_edit": job.state is State.FAILED
        and job.task in tasks_of(context.app)
        and context.redact is None
        and read_message(job) is not None,
        "show_all": request.text("all") == "1",
        "cut": CUT,
    }
    return Page(template="job.html", title=f"Job {job.id}", data=data, live=f"job:{job.id}")


def _fields(context: Context, job: JobRow) -> dict[str, Any]:
    """Return the fields of a job, its values as they may be shown."""
    fields = context.fields(job) | {"error": json.loads(job.error or "null")}
    fields |= {name: context.redacted(job, name, fields[name]) for name in ("progress", "result", "error")}
    task, as_python, as_curl = tasks_of(context.app).get(job.task), None, None
    if context.redact is None and read_message(job) is not None:
        as_python = python_call(job)
        if task is not None and task._onejob.expose:
            names = [*task._onejob.identifier.signature.parameters]
            as_curl = curl_call(job, "http://127.0.0.1:8000", parameters=names)
    return fields | fields_of(job, *SHOWN) | {
        "arguments": context.arguments(job), "worker": job.node,
        "fingerprint": job.fingerprint if context.redact is None else None,
        "unique_on": None if task is None else uniqueness_rule(task)["unique_on"],
        "as_python": as_python, "as_curl": as_curl,
    }  # fmt: skip


def _timeline(job: JobRow, history: Sequence[Entry], now: float) -> dict[str, Any]:
    """Return the spans of the job's life, coloured by their kinds, and the events between them."""
    spans: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for span in build_timeline(job, history, now):
        if span.kind is SpanKind.EVENT:
            events.append(fields_of(span, "label", "detail") | {"at": to_datetime(span.begin)})
            continue
        kind, label = "waiting", span.label
        if span.kind is not SpanKind.WAITING:
            kind = "lost" if label == LEASE_EXPIRED else label.partition(" ")[0]
            label = f"attempt {span.attempt} on {span.node}: {label}"
        closed = span if span.end is not None else replace(span, end=now)
        own = {"kind": kind, "label": label, "is_open": span.end is None}
        spans.append(own | fields_of(closed, "detail", "begin", "end"))
    return {"spans": spans, "events": events}


def _related(context: Context, job: JobRow) -> dict[str, Any]:
    """Return the followers of a job, its webhooks, and the canvas that waits for it."""
    found = context.ledger.followers(job.id, limit=FOLLOWER_LIMIT)
    followed = None if job.follows_id is None else context.ledger.get_or_none(job.follows_id)
    options, message, canvas = loads(job.options), read_message(job), list[dict[str, Any]]()
    for name, value in ((name, options[name]) for name in CANVAS_PARTS if options.get(name)):
        signatures = value if isinstance(value, list) else [value]
        tasks = [str(each.get("task")) for each in signatures if isinstance(each, dict)]
        canvas.append({"kind": name, "tasks": tasks, "id": value if isinstance(value, str) else None})
    return {
        "followed": None if followed is None else job_row(context, followed),
        "followers": [job_row(context, each) for each in found if each.task != WEBHOOK_TASK],
        "webhooks": [_webhook(context, each) for each in found if each.task == WEBHOOK_TASK],
        "canvas": canvas,
        "replaced_by": (message and message.replaced_by) or [],
    }


def _webhook(context: Context, webhook: JobRow) -> dict[str, Any]:
    """Return the row of a webhook; its values are its own, not those of the job that it follows.

    With a `redact`, only the host of its URL is shown: path and query may have a secret.
    """
    fields = {name: value for name, value in job_row(context, webhook).items() if name in WEBHOOK_FIELDS}
    url, error = WebhookPayload.from_job(webhook).url, json.loads(webhook.error or "null")
    return fields | {
        "url": url if context.redact is None else urlsplit(url).hostname,
        "result": json.loads(webhook.result or "null"),
        "last_error": error and context.reason(webhook, str(error.get("message"))),
    }


def python_call(job: JobRow) -> str:
    """Return Python code, with its imports, that submits a call with the job's arguments to the Celery app `app`."""
    message = decode(job.payload)
    call = f"app.tasks[{message.task!r}].apply_async(args={message.args!r}, kwargs={message.kwargs!r})"
    imports = [line for begin, line in IMPORTS.items() if begin in call]
    return "\n".join([*imports, call])


def curl_call(job: JobRow, base_url: str, *, parameters: Sequence[str] = ()) -> str | None:
    """Return a shell command that submits a call with the job's arguments over HTTP, with the API key in `$KEY`.

    `parameters` names positional arguments. None if they do not suffice, or if JSON has no such values.
    """
    message = decode(job.payload)
    if len(message.args) > len(parameters):
        return None
    kwargs = dict(zip(parameters, message.args, strict=False)) | message.kwargs
    try:
        body = json.dumps({"task": message.task, "kwargs": kwargs})
    except TypeError:
        return None
    url = shlex.quote(f"{base_url.rstrip('/')}/jobs")
    headers = """-H "authorization: Bearer $KEY" -H 'content-type: application/json'"""
    return f"curl -s {headers} {url} -d {shlex.quote(body)}"


def _build_edit(context: Context, request: PageRequest) -> Page:
    context.check_values_shown("editing them")
    job = context.job(request.path["job_id"])
    Operation.REDRIVE.check(job)
    if read_message(job) is None:
        raise Problem("invalid-arguments", UNREADABLE)
    payload = json.loads(job.payload)  # as stored, so that a date among the arguments remains a date
    return edit_page(job, pretty(payload["args"]), pretty(payload["kwargs"]))


def edit_page(job: JobRow, args: str, kwargs: str, *, error: OneJobError | None = None) -> Page:
    """Return the page of the form with these JSON texts, and the reason why they were refused."""
    problem = None if error is None else problem_from(error)
    data = {"job": {"id": job.id, "task": job.task}, "args": args, "kwargs": kwargs, "error": error and str(error)}
    status, outcome = (200, "done") if problem is None else (problem.status_code, problem.slug)
    return Page(template="edit.html", title="Redrive with other arguments", data=data, status=status, outcome=outcome)


JOB = View("job", "/jobs/{job_id:path}", _build_job)
EDIT = View("edit", "/edit/{job_id:path}", _build_edit, Role.EDIT)
