"""One job: its attempts as a picture, its values, its duplicates, its followers and webhooks, and what happened."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from onejob.api.api_keys import Role
from onejob.api.problems import Problem, problem_from
from onejob.celery.operations import Operation, curl_call, python_call
from onejob.celery.options import tasks_of
from onejob.celery.payload import loads, read_message
from onejob.errors import OneJobError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Job
from onejob.jobs.public_view import fields_of
from onejob.jobs.records import Entry
from onejob.jobs.timestamps import to_datetime
from onejob.ledger.explain import explain
from onejob.ledger.timeline import LEASE_EXPIRED, SpanKind, build_timeline
from onejob.observability.metrics import WEBHOOK_TASK
from onejob.pages.activity import uniqueness_rule
from onejob.pages.context import UNREADABLE, Context, PageRequest, job_row
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
CANVAS_PARTS = ("link", "link_error", "chain", "chord", "group_id")


def _build_job(context: Context, request: PageRequest) -> Page | Redirect:
    if not request.path["job_id"]:
        return Redirect("/jobs")
    job, now = context.job(request.path["job_id"]), request.now
    redact = None if context.redact is None else context.reason

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
        **_timeline(job, explanation.history, now),
        "history": [fields_of(entry) for entry in explanation.history],
        "steps": [
            {"name": name, "value": context.redacted(job, f"step {name}", json.loads(value))}
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


def _fields(context: Context, job: Job) -> dict[str, Any]:
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


def _timeline(job: Job, history: Sequence[Entry], now: float) -> dict[str, Any]:
    """Return the spans of the job's life, whose kinds colour them, and the events that lie between them."""
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


def _related(context: Context, job: Job) -> dict[str, Any]:
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


def _webhook(context: Context, webhook: Job) -> dict[str, Any]:
    """Return a delivery, whose values are its own and not those of the job that it follows.

    With a hook, of its URL, which may have a secret in its path or query, only the host.
    """
    fields = {name: value for name, value in job_row(context, webhook).items() if name in WEBHOOK_FIELDS}
    url, error = WebhookPayload.from_job(webhook).url, json.loads(webhook.error or "null")
    return fields | {
        "url": url if context.redact is None else urlsplit(url).hostname,
        "result": json.loads(webhook.result or "null"),
        "last_error": error and context.reason(webhook, str(error.get("message"))),
    }


def _build_edit(context: Context, request: PageRequest) -> Page:
    context.check_values_shown("editing them")
    job = context.job(request.path["job_id"])
    Operation.REDRIVE.check(job)
    if read_message(job) is None:
        raise Problem("invalid-arguments", UNREADABLE)
    payload = json.loads(job.payload)  # as stored, so that a date among the arguments remains one
    return edit_page(job, pretty(payload["args"]), pretty(payload["kwargs"]))


def edit_page(job: Job, args: str, kwargs: str, *, error: OneJobError | None = None) -> Page:
    """Return the form with these JSON texts, and why they were refused."""
    problem = None if error is None else problem_from(error)
    data = {"job": {"id": job.id, "task": job.task}, "args": args, "kwargs": kwargs, "error": error and str(error)}
    status, outcome = (200, "done") if problem is None else (problem.status_code, problem.slug)
    return Page(template="edit.html", title="Redrive with other arguments", data=data, status=status, outcome=outcome)


JOB = View("job", "/jobs/{job_id:path}", _build_job)
EDIT = View("edit", "/edit/{job_id:path}", _build_edit, Role.EDIT)
