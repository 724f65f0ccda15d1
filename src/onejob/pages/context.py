"""The context of all pages: the app and its ledger, caches, and the values of jobs as they may be shown."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from celery import Celery

from onejob.api.problems import Problem
from onejob.api.routes.jobs import read_job
from onejob.celery.app_state import app_state_of
from onejob.celery.messages.payload import read_message
from onejob.celery.submission.options import tasks_of
from onejob.client.operator import Operator
from onejob.concurrency.batching import KeyedCache
from onejob.jobs.model import JobRow
from onejob.jobs.public_view import Job, job_to_dict, public_job
from onejob.jobs.workers import WorkerInfo
from onejob.ledger.ledger import Ledger
from onejob.ledger.stats import known_tasks
from onejob.pages.access import Tokens, User

UNREADABLE = "The payload cannot be read: it is no message of this version of onejob."
STATS_COST_FACTOR = 20.0
"""How many times longer than their load, above 100 ms, statistics are cached."""


@dataclass(frozen=True)
class Context:
    """The app whose jobs are shown."""

    app: Celery
    redact: Callable[[Job, str, Any], Any] | None = None
    """The `redact` of `dashboard`."""
    place: str = "on the dashboard"
    """The place where its users act, for the history of a job."""
    stats: KeyedCache[Any] = field(
        default_factory=lambda: KeyedCache(0.0, cost_factor=STATS_COST_FACTOR, free_seconds=0.1)
    )
    """A cache of statistics of the whole ledger; statistics that take longer than 100 ms are cached longer."""

    @cached_property
    def tokens(self) -> Tokens:
        """The tokens that sign the forms. The ledger stays closed until a form is signed."""
        return Tokens(lambda: self.ledger)

    @property
    def ledger(self) -> Ledger:
        """The app's ledger."""
        return app_state_of(self.app).ledger

    def is_late(self, worker: WorkerInfo, now: float) -> bool:
        """Return whether a worker's heartbeat is late."""
        return now - worker.seen_at > app_state_of(self.app).settings.heartbeat_late_after

    def tasks(self, workers: Iterable[WorkerInfo]) -> frozenset[str]:
        """Return the names of the app's tasks, of submitted tasks, and of tasks that live workers have."""
        return known_tasks(self.ledger.store.totals(), workers) | tasks_of(self.app).keys()

    def job(self, job_id: str) -> JobRow:
        """Return a job. Raises `JobNotFoundError`, also for an invalid id, and `JobPurgedError`."""
        return read_job(self.ledger, job_id)

    def redacted(self, job: JobRow | Job, name: str, value: Any) -> Any:
        """Return a value of a job as it may be shown. `job`: its row; or its view, for many values of one job."""
        if self.redact is None or value is None:
            return value
        return self.redact(public_job(job) if isinstance(job, JobRow) else job, name, value)

    def fields(self, job: JobRow) -> dict[str, Any]:
        """Return the public fields of a job; with a `redact`, without its identity, which would reveal arguments."""
        return job_to_dict(job) | ({} if self.redact is None else {"identity": None})

    def reason(self, job: JobRow | Job, text: str) -> str:
        """Return a text that may quote the error of a job as it may be shown."""
        shown = text and self.redacted(job, "reason", text)
        return "" if shown is None else str(shown)

    def arguments(self, job: JobRow) -> Any:
        """Return the arguments of a job as they may be shown, or a note that they cannot be read.

        None for a job that was read without them.
        """
        if not job.payload:
            return None
        message = read_message(job)
        if message is None:
            return UNREADABLE
        return self.redacted(job, "arguments", {"args": message.args, "kwargs": message.kwargs})

    def operator(self, user: User | None = None) -> Operator:
        """Return the operator that changes jobs for a user; None: for a preview."""
        origin = self.place if user is None else f"{self.place} by {user.name}"
        return Operator(app=self.app, ledger=self.ledger, origin=origin)

    def check_values_shown(self, what: str) -> None:
        """Raise `Problem` if the values of jobs are redacted, which `what` would reveal."""
        if self.redact is not None:
            raise Problem("forbidden", f"the values of jobs are redacted on this dashboard, which excludes {what}")
