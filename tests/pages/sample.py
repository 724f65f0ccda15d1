"""A ledger with a day of work in it, made by the real operations on a clock that jumps: for tests and screenshots."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import celery

import onejob
from onejob.celery.app_state import app_state_of
from onejob.celery.submission.options import tasks_of
from onejob.jobs.model import Admission, JobRow
from onejob.jobs.query import Query
from onejob.jobs.submitter import Submitter, submitting_as
from onejob.jobs.workers import Registration
from onejob.ledger.ledger import Ledger, NextRun
from onejob.observability.meter import Meter
from onejob.webhooks.job import webhook_submission
from tests.intervals import set_intervals
from tests.stores.support import StoreAddress
from tests.submissions import submission_of

DAY = 86_400.0
MINUTE = 60.0
NODES = ("north@web-1", "south@web-2")
GONE = "west@web-3"
"""The worker that has died during a run."""
QUEUES = ("default", "reports")
SUBMITTERS = ("ann@example.org", "web:checkout", "cron", "ben@example.org")
ERRORS = (
    ("ConnectionError", "HTTPSConnectionPool(host='mail.example.org', port=443): read timed out after 30 s"),
    ("ValueError", "order {order} has no billing address"),
)
TRACEBACK = """Traceback (most recent call last):
  File "/app/shop/tasks.py", line 88, in send_invoice
    deliver(order)
  File "/app/shop/mail.py", line 41, in deliver
    raise error
{error}
"""


class JumpingClock:
    """The clock of the store: it stands at a time until it is released, and is the real one then."""

    def __init__(self) -> None:
        self.at: float | None = None

    def __call__(self) -> float:
        return round(time.time() if self.at is None else self.at, 6)


def study_plan(project: str, style: str = "short") -> None: ...


def send_invoice(order_id: int, copy: bool = False) -> None: ...  # noqa: FBT002 - the argument of a task


def daily_report(region: str) -> None: ...


def index_document(document: int, text: str) -> None: ...


TASKS: tuple[tuple[Any, dict[str, Any]], ...] = (
    (study_plan, {"expose": True, "unique_on": ["project"]}),
    (send_invoice, {"expose": True, "unique_on": ["order_id"], "tags": ["billing", "a & b"]}),
    (daily_report, {"unique_on": ["region"], "unique_for": "day@Europe/Berlin"}),
    (index_document, {"unique_on": ["document"], "on_duplicate": "replace"}),
)


def build_app(store: str, namespace: str, **settings: Any) -> celery.Celery:
    """Return the app of the sample, whose broker is in memory."""
    app = celery.Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(
        onejob_store=store, onejob_namespace=namespace,
        task_routes={"shop.daily_report": {"queue": "reports"}},
        onejob_retention={"completed": 2 * DAY}, task_default_queue="default", **settings,
    )  # fmt: skip
    set_intervals(app, metrics=0.1)
    task: Any = app.task  # the published types know no task that a base class gives options
    for body, options in TASKS:
        task(name=f"shop.{body.__name__}", base=onejob.Task, shared=False, **options)(body)
    return app


@dataclass
class Sample:
    """The app and its ledger."""

    app: celery.Celery
    clock: JumpingClock
    ledger: Ledger
    meter: Meter
    named: dict[str, str] = field(default_factory=dict)
    """The ids of the jobs that the tests look at, by what they show."""
    random: random.Random = field(default_factory=lambda: random.Random(7))

    def submit(self, task: str, submitter: str = "", **kwargs: Any) -> Admission:
        with submitting_as(Submitter(submitter)):
            submission = submission_of(tasks_of(self.app)[task], kwargs, source="http")
        return self.ledger.submit(submission)

    def start(self, job: JobRow, node: str = NODES[0]) -> JobRow:
        claimed = self.ledger.claim(job.id, nonce=f"{self.random.random()}", node=node).job
        assert claimed is not None
        return claimed

    def complete(self, job: JobRow, seconds: float, result: Any = None, node: str = NODES[0]) -> JobRow:
        run = self.start(job, node)
        self.advance(seconds)
        return self.ledger.complete(run, json.dumps(result))

    def fail(self, job: JobRow, error: tuple[str, str], seconds: float = 2.0, node: str = NODES[1]) -> JobRow:
        run = self.start(job, node)
        self.advance(seconds)
        kind, message = error
        text = {"type": kind, "message": message, "traceback": TRACEBACK.format(error=f"{kind}: {message}")}
        return self.ledger.fail(run, json.dumps(text), f"{kind}: {message}")

    def dead_letter(self, **kwargs: Any) -> JobRow:
        """Return a job of `shop.study_plan` that has failed."""
        run = self.start(self.submit("shop.study_plan", "ann@example.org", **kwargs).job)
        return self.ledger.fail(run, json.dumps({"type": "E", "message": "", "traceback": ""}), "E")

    def jobs(self) -> dict[str, JobRow]:
        return {job.id: job for job in self.ledger.find(Query(limit=10_000))}

    def audited(self, *fields: str, limit: int = 1) -> list[tuple[Any, ...]]:
        """Return some fields of the newest entries of the audit log, the newest first."""
        return [tuple(getattr(entry, each) for each in fields) for entry in self.ledger.audit(limit=limit)]

    def advance(self, seconds: float) -> None:
        assert self.clock.at is not None
        self.clock.at += seconds

    def heartbeats(self) -> None:
        for node in NODES:
            registration = Registration(
                tasks=tuple(sorted(name for name in self.app.tasks if name.startswith("shop."))),
                queues=QUEUES if node == NODES[0] else QUEUES[:1], pool="prefork", concurrency=4,
            )  # fmt: skip
            self.ledger.heartbeat(node, lasts=3600.0, registration=registration)

    def close(self) -> None:
        self.meter.close()
        self.ledger.close()


def open_sample(address: StoreAddress, **settings: Any) -> Sample:
    """Return the sample without jobs, on a store whose schema exists."""
    app, clock = build_app(address.url, address.namespace, **settings), JumpingClock()
    ledger = Ledger(address.open(clock))
    meter = Meter(ledger.store, 3600.0, lambda _task: True)
    ledger.emit = meter.count
    app_state_of(app)._ledger = ledger
    return Sample(app, clock, ledger, meter)


@contextmanager
def copied_sample(filled: Path, named: Mapping[str, str], path: Path) -> Iterator[Sample]:
    """Open a copy of a filled SQLite file, whose named jobs are these, for the length of a block."""
    shutil.copy(filled, path)
    sample = open_sample(StoreAddress(f"sqlite:///{path}", "unused"))
    yield replace(sample, named=dict(named))
    sample.close()


def fill(sample: Sample, *, jobs_per_hour: int = 20) -> Sample:
    """Let a day pass, up to now, and leave jobs in every state."""
    end = time.time()
    for hour in range(24, 0, -1):
        for number in range(jobs_per_hour):
            sample.clock.at = end - hour * 3600.0 + number * 3600.0 / jobs_per_hour
            _work(sample, hour * jobs_per_hour + number)
            sample.meter.write()
    sample.clock.at = end - 8 * MINUTE
    _present(sample)
    sample.meter.write()
    sample.clock.at = None
    sample.heartbeats()
    return sample


def _work(sample: Sample, number: int) -> None:
    """Do one piece of work of the past: most complete, some are submitted twice, some fail."""
    chance, submitter = sample.random.random(), SUBMITTERS[number % len(SUBMITTERS)]
    if number % 3 == 0:
        job = sample.submit("shop.study_plan", submitter, project=f"course-{number}").job
        for _ in range(sample.random.choice((0, 1, 1, 3)) if submitter != "cron" else 0):
            sample.advance(0.3)
            style = "long" if chance < 0.2 else "short"
            sample.submit("shop.study_plan", submitter, project=f"course-{number}", style=style)
        sample.complete(job, 4.0 + 6.0 * chance, {"cards": number % 30}, NODES[number % 2])
    elif chance < 0.08:
        job = sample.submit("shop.send_invoice", submitter, order_id=10_000 + number).job
        kind, message = ERRORS[number % 2]
        sample.fail(job, (kind, message.format(order=10_000 + number)))
    else:
        job = sample.submit("shop.send_invoice", submitter, order_id=10_000 + number).job
        sample.advance(sample.random.random())
        sample.complete(job, 0.2 + chance, {"sent": True}, NODES[number % 2])


def _present(sample: Sample) -> None:
    """Leave the jobs that the tests look at."""
    _crashed_and_completed(sample)
    _double_clicked(sample)
    sample.clock.at = time.time() - 20.0
    waiting = sample.submit("shop.index_document", "web:checkout", document=7, text="first").job
    sample.named["queued"] = waiting.id
    run = sample.start(sample.submit("shop.study_plan", "ann@example.org", project="running").job)
    sample.ledger.keep_step(run, "embed 1", json.dumps([0.1, 0.2]))
    sample.ledger.report(run, json.dumps({"done": 7, "total": 12, "stage": "write cards"}))
    sample.named["running"] = run.id
    retrying = sample.start(sample.submit("shop.send_invoice", "cron", order_id=77).job)
    sample.ledger.retry(
        retrying, NextRun.again(retrying, delay=900.0, retries=1),
        error=json.dumps({"type": "ConnectionError", "message": "refused", "traceback": ""}),
        reason="ConnectionError: refused; next attempt in 900 s",
    )  # fmt: skip
    sample.named["retrying"] = retrying.id
    canceled = sample.submit("shop.study_plan", "ben@example.org", project="canceled").job
    sample.named["canceled"] = sample.ledger.cancel(canceled.id).id


def _crashed_and_completed(sample: Sample) -> None:
    """A job whose first worker died: it ran twice, and kept its steps."""
    job = sample.submit("shop.study_plan", "ann@example.org", project="crashed").job
    run = sample.start(job, GONE)
    sample.ledger.keep_step(run, "load", json.dumps({"documents": 3}))
    sample.advance(35.0)
    error = json.dumps({"type": "WorkerLost", "message": "", "traceback": ""})
    sample.ledger.crash(run, "its lease expired", error, lapsed=True)
    sample.advance(1.0)
    done = sample.complete(sample.ledger.get(job.id), 9.0, {"cards": 24}, NODES[1])
    sample.named["crashed"] = done.id


def _double_clicked(sample: Sample) -> None:
    """A job that was submitted five times, with a webhook."""
    first = sample.submit("shop.send_invoice", "web:checkout", order_id=4711)
    webhook = webhook_submission("https://example.org/hooks/invoices", first.job)
    sample.ledger.follow(webhook, follows_id=first.job.id)
    for number in range(4):
        sample.advance(0.2)
        sample.submit("shop.send_invoice", "web:checkout", order_id=4711, copy=number == 3)
    sample.named["double"] = sample.complete(first.job, 1.5, {"sent": True}).id
    kind, message = ERRORS[1]
    failed = sample.submit("shop.send_invoice", "cron", order_id=66).job
    sample.named["failed"] = sample.fail(failed, (kind, message.format(order=66))).id
