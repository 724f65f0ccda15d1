"""What all pages share: the app and its ledger, the hook that redacts, caches, and jobs as rows."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from onejob.api.job_reads import READ_AT_ONCE
from onejob.api.problems import Problem
from onejob.api.routes.jobs import read_job
from onejob.celery.app_state import app_state_of
from onejob.celery.batching import TTLCache
from onejob.celery.options import tasks_of
from onejob.celery.payload import preview, read_message
from onejob.jobs.model import values_of
from onejob.jobs.public_view import job_to_dict
from onejob.jobs.timestamps import to_datetime
from onejob.ledger.stats import mean_run

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from celery import Celery

    from onejob.jobs.model import Job
    from onejob.jobs.records import WorkerInfo
    from onejob.ledger.ledger import Ledger
    from onejob.pages.access import User

T = TypeVar("T")
ENTRIES = 32
"""How many values are cached. A page takes up to about a megabyte."""


class KeyedCache(Generic[T]):
    """Values by key, each cached as a `TTLCache` does. What a key names does not depend on who asks for it."""

    def __init__(self, seconds: float, **costs: float) -> None:
        self._find = lru_cache(ENTRIES)(lambda _key: _Entry[T](seconds, costs))

    def get(self, key: Hashable, load: Callable[[], T]) -> T:
        """Return the value of a key, loaded by this call or by an earlier one."""
        entry = self._find(key)
        entry.load = load
        return entry.cached()

    def clear(self) -> None:
        """Forget all values."""
        self._find.cache_clear()


class _Entry(Generic[T]):
    """One cached value, loaded as the latest caller says."""

    load: Callable[[], T]

    def __init__(self, seconds: float, costs: Mapping[str, float]) -> None:
        self.cached = TTLCache(self._call, seconds, **costs)

    def _call(self) -> T:
        return self.load()


SEARCH_SECONDS = 0.1
"""How long one request may search for jobs, beyond its first step."""


def _stats_cache() -> KeyedCache[Any]:
    """Return a cache for statistics that take longer than 100 ms, so that they take a small part of the time."""
    return KeyedCache(0.0, cost_factor=20.0, free_seconds=0.1)


@dataclass(frozen=True, slots=True)
class Context:
    """The app whose jobs are shown."""

    app: Celery
    redact: Callable[[Job, str, Any], Any] | None = None
    """As for `dashboard`."""
    place: str = "on the dashboard"
    """Where its users act, for the history of a job."""
    stats: KeyedCache[Any] = field(default_factory=_stats_cache)
    """Statistics of the whole ledger. The list of jobs is none of them."""

    @property
    def ledger(self) -> Ledger:
        """The app's ledger."""
        return app_state_of(self.app).ledger

    def is_late(self, worker: WorkerInfo, now: float) -> bool:
        """Return whether a worker's heartbeat is late."""
        return now - worker.seen_at > app_state_of(self.app).settings.heartbeat_late_after

    def mean_of(self, task: str) -> float | None:
        """Return the mean run time of a task, the same for all figures of a page."""
        mean: float | None = self.stats.get(("mean run", task), lambda: mean_run(self.ledger, task))
        return mean

    def tasks(self, workers: Iterable[WorkerInfo]) -> frozenset[str]:
        """Return the names of the app's tasks, and of those that the live workers have registered."""
        registered = {task for worker in workers for task in worker.tasks}
        return frozenset(registered | tasks_of(self.app).keys())

    def job(self, job_id: str) -> Job:
        """Return a job. Raises `JobNotFoundError`, also for an invalid id, and `JobPurgedError`."""
        return read_job(self.ledger, job_id)

    def redacted(self, job: Job, name: str, value: Any) -> Any:
        """Return a value of a job as it may be shown."""
        return value if self.redact is None or value is None else self.redact(job, name, value)

    def fields(self, job: Job) -> dict[str, Any]:
        """Return the public fields of a job; with a hook without its identity, with which arguments can be guessed."""
        return job_to_dict(job) | ({} if self.redact is None else {"identity": None})

    def reason(self, job: Job, text: str) -> str:
        """Return a text that may quote the error of a job as it may be shown."""
        return text and str(self.redacted(job, "reason", text))

    def arguments(self, job: Job) -> Any:
        """Return the arguments of a job as they may be shown, or that they cannot be read.

        None for a job that was read without them.
        """
        if not job.payload:
            return None
        message = read_message(job)
        if message is None:
            return UNREADABLE
        return self.redacted(job, "arguments", {"args": message.args, "kwargs": message.kwargs})

    def origin_of(self, user: User) -> str:
        """Return where an operation comes from, for the history of a job."""
        return f"{self.place} by {user.name}"

    def check_values_shown(self, what: str) -> None:
        """Raise `Problem` if the values of jobs are redacted, which `what` would reveal."""
        if self.redact is not None:
            raise Problem("forbidden", f"the values of jobs are redacted on this dashboard, which excludes {what}")


_IS_TIME = re.compile(r"(?:^|_)(?:at|until|since|begin|end)$")


def fields_of(value: Any, *names: str) -> dict[str, Any]:
    """Return fields of a value of the ledger, all without names; times, which it has in seconds, as `datetime`."""
    found = {name: getattr(value, name) for name in names} if names else values_of(value)
    return {
        name: to_datetime(each) if isinstance(each, float | int) and _IS_TIME.search(name) else each
        for name, each in found.items()
    }


UNREADABLE = "The payload cannot be read: it is no message of this version of onejob."


def parse_json(text: str | None) -> Any:
    """Return a stored JSON text as a value, None without one."""
    return None if text is None else json.loads(text)


def deadline(seconds: float = SEARCH_SECONDS) -> Callable[[], bool]:
    """Return a function that tells whether so many seconds are over."""
    ends_at = time.monotonic() + seconds
    return lambda: time.monotonic() > ends_at


PREVIEW_BYTES = 1_000_000
"""How many characters of arguments a list reads for its previews; the rows after that have none."""
OMITTED = ("progress", "result")


def job_rows(context: Context, jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Return jobs that were read without their large fields as rows."""
    previews = _previews(context, jobs)
    return [job_row(context, job) | {"arguments": previews[job.id]} for job in jobs]


def job_row(context: Context, job: Job) -> dict[str, Any]:
    """Return the public fields of a job without the large ones, as they may be shown."""
    fields = {name: value for name, value in context.fields(job).items() if name not in OMITTED}
    shown = {"reason": context.reason(job, job.reason), "error": context.redacted(job, "error", fields["error"])}
    return fields | shown | {"worker": job.node, "run_seconds": job.run_seconds}


def _previews(context: Context, jobs: Sequence[Job]) -> dict[str, str]:
    """Return the beginning of the arguments of each job, reading few large fields at once, and not too many in all."""
    previews, size = dict.fromkeys((job.id for job in jobs), "…"), 0
    for start in range(0, len(jobs), READ_AT_ONCE):
        if size > PREVIEW_BYTES:
            break
        found = context.ledger.get_many([job.id for job in jobs[start : start + READ_AT_ONCE]])
        size += sum(len(job.payload) for job in found.values())
        previews |= {job_id: preview(context.arguments(job)) for job_id, job in found.items()}
    return previews
