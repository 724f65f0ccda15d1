"""Texts that attack whoever shows them, and jobs that have them wherever a caller, a worker or an error writes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import onejob
from onejob.celery.submission.options import tasks_of
from onejob.jobs.audit_entries import AuditEntry
from onejob.jobs.model import JobRow, Submission
from onejob.jobs.submitter import Submitter, submitting_as
from onejob.jobs.workers import Registration
from onejob.webhooks.job import webhook_submission
from tests.pages.sample import Sample
from tests.submissions import submission_of

PARTS = {
    "element": "<script>alert(1)</script>",
    "attribute": "\"'><img src=x onerror=alert(1)>",
    "handler": "' onfocus='alert(1)' autofocus onmouseover=alert(1)",
    "end": "</script></textarea></title></pre><svg onload=alert(1)>",
    "URL": "javascript:alert(1)//<a href=javascript:alert(1)>",
    "template": "{{7*7}}${7*7}{%raw%}{{self}}",
    "comment": "<!--]]><b>x</b>&lt;i&gt;&#60;u>",
    "library": "<p hx-get=/jobs hx-trigger=load hx-on:load=alert(1) data-opens=palette></p>",
    "path": "../../..//%2e%2e/?a=b&c#d;e\\f",
}
"""Printable attacks by what they break out of: names are printable."""
WHOLE = " ".join(PARTS[part] for part in ("element", "attribute", "end", "template", "comment"))
INVISIBLE = "\u202egpj.exe\u2066\u200b\x1b[31m\x07\x7f\ufeff"
"""What a value may contain, and a name may not: controls of direction and of terminals, and what has no width."""
FORMULA = '=HYPERLINK("http://example.org";"1")'


@dataclass(frozen=True, slots=True)
class Attack:
    """A text, and the ids of the jobs that have it."""

    name: str
    """The text as a name."""
    value: str
    """The text as a value."""
    jobs: dict[str, str]

    @property
    def quoted(self) -> str:
        """The value as JSON shows it."""
        return json.dumps(self.value, ensure_ascii=False)[1:-1]


def attack(sample: Sample, name: str) -> Attack:
    """Write a text wherever one can be written."""
    value = name + INVISIBLE
    task: Any = sample.app.task
    task(name=name, base=onejob.Task, shared=False, expose=True, unique_on=["text"])(_body)
    worker = Registration(tasks=(name,), queues=(name,), pool=name, concurrency=1)
    sample.ledger.heartbeat(name, lasts=3600.0, registration=worker)
    sample.ledger.append_audit(
        AuditEntry(actor=name, source=name, address=name, action=name, target=name, outcome=name, detail=value)
    )
    runs = {kind: _start(sample, name, value, kind) for kind in ("completed", "failed", "running")}
    webhook = webhook_submission(value, runs["completed"], submitter=name, host=name)
    sample.ledger.follow(webhook, follows_id=runs["completed"].id)
    sample.ledger.complete(runs["completed"], json.dumps({value: value}))
    error = {"type": value, "message": value, "traceback": f"{value}\n{value}"}
    sample.ledger.fail(runs["failed"], json.dumps(error), f"{value}: {value}")
    canceled = sample.ledger.submit(_prepare(sample, name, value, "canceled")).job
    sample.ledger.cancel(canceled.id, reason=value)
    return Attack(name, value, {kind: job.id for kind, job in runs.items()} | {"canceled": canceled.id})


def _body(text: str, number: int = 0) -> None: ...


def _prepare(sample: Sample, name: str, value: str, kind: str) -> Submission:
    with submitting_as(Submitter(name)):
        made = submission_of(tasks_of(sample.app)[name], {"text": value + kind}, source="http", queue=name)
    return replace(made, id=f"{kind} {name}"[:255], identity=f"{kind} {name}", fingerprint=name, host=name, source=name)


def _start(sample: Sample, name: str, value: str, kind: str) -> JobRow:
    job = sample.ledger.submit(_prepare(sample, name, value, kind)).job
    again = replace(_prepare(sample, name, value, kind), id=f"again {job.id}"[:255], fingerprint="other")
    sample.ledger.submit(again)
    run = sample.start(job, name)
    sample.ledger.keep_step(run, name, json.dumps(value))
    sample.ledger.report(run, json.dumps({"done": 1, "total": 2, "stage": value}))
    return run
