"""What all pages are built from: the app and its ledger, the parameters of a URL, caches, and jobs as rows."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from functools import cached_property
from typing import Any, Generic, TypeVar

from celery import Celery
from celery.utils.functional import LRUCache
from starlette.datastructures import QueryParams

from onejob.api.job_reads import READ_AT_ONCE
from onejob.api.problems import Problem
from onejob.api.routes.jobs import read_job
from onejob.celery.app_state import app_state_of
from onejob.celery.batching import TTLCache
from onejob.celery.operations import Operator
from onejob.celery.options import tasks_of
from onejob.celery.payload import preview, read_message
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Job
from onejob.jobs.public_view import job_to_dict
from onejob.jobs.records import WorkerInfo
from onejob.jobs.timestamps import parse_time, seconds_of, to_datetime
from onejob.ledger.ledger import Ledger
from onejob.ledger.search import FILTERS
from onejob.ledger.stats import known_tasks, mean_run
from onejob.ledger.stuck import follows_another
from onejob.pages.access import Tokens, User

T = TypeVar("T")
ENTRIES = 32
"""How many values are cached. A page takes up to about a megabyte."""


class KeyedCache(Generic[T]):
    """Values by key, each cached as a `TTLCache` does. What a key names does not depend on who asks for it."""

    def __init__(self, seconds: float, **costs: float) -> None:
        self._make: Callable[[Callable[[], T]], TTLCache[T]] = lambda load: TTLCache(load, seconds, **costs)
        self._by_key: LRUCache[Hashable, TTLCache[T]] = LRUCache(ENTRIES)

    def get(self, key: Hashable, load: Callable[[], T]) -> T:
        """Return the value of a key, loaded by this call or by an earlier one."""
        return self._by_key.setdefault(key, self._make(load))()

    def clear(self) -> None:
        """Forget all values."""
        self._by_key.clear()


SEARCH_SECONDS = 0.1
"""How long one request may search for jobs, beyond its first step."""


@dataclass(frozen=True)
class Context:
    """The app whose jobs are shown."""

    app: Celery
    redact: Callable[[Job, str, Any], Any] | None = None
    """As for `dashboard`."""
    place: str = "on the dashboard"
    """Where its users act, for the history of a job."""
    stats: KeyedCache[Any] = field(default_factory=lambda: KeyedCache(0.0, cost_factor=20.0, free_seconds=0.1))
    """Statistics of the whole ledger: those that take longer than 100 ms take a small part of the time."""

    @cached_property
    def tokens(self) -> Tokens:
        """What signs the forms. The ledger stays closed until something is signed."""
        return Tokens(lambda: self.ledger)

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
        """Return the names of the app's tasks, and of those that were submitted, or that live workers have."""
        return known_tasks(self.ledger.store.totals(), workers) | tasks_of(self.app).keys()

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
        shown = text and self.redacted(job, "reason", text)
        return "" if shown is None else str(shown)

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

    def operator(self, user: User | None = None) -> Operator:
        """Return what operates on jobs for a user; None: for a preview."""
        origin = self.place if user is None else f"{self.place} by {user.name}"
        return Operator(app=self.app, ledger=self.ledger, origin=origin)

    def check_values_shown(self, what: str) -> None:
        """Raise `Problem` if the values of jobs are redacted, which `what` would reveal."""
        if self.redact is not None:
            raise Problem("forbidden", f"the values of jobs are redacted on this dashboard, which excludes {what}")


UNREADABLE = "The payload cannot be read: it is no message of this version of onejob."


PREVIEW_BYTES = 1_000_000
"""How many characters of arguments a list reads for its previews; the rows after that have none."""
OMITTED = ("progress", "result")
WAITING = (State.QUEUED, State.RETRYING)
"""The states of a job that is due at some time."""


def job_rows(context: Context, jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Return jobs that were read without their large fields as rows with the beginning of their arguments.

    Few large fields are read at once, and not too many in all.
    """
    previews, size = dict.fromkeys((job.id for job in jobs), "…"), 0
    for start in range(0, len(jobs), READ_AT_ONCE):
        if size > PREVIEW_BYTES:
            break
        found = context.ledger.get_many([job.id for job in jobs[start : start + READ_AT_ONCE]])
        size += sum(len(job.payload) for job in found.values())
        previews |= {job_id: preview(context.arguments(job)) for job_id, job in found.items()}
    return [job_row(context, job) | {"arguments": previews[job.id]} for job in jobs]


def job_row(context: Context, job: Job) -> dict[str, Any]:
    """Return the public fields of a job without the large ones, as they may be shown."""
    fields = {name: value for name, value in context.fields(job).items() if name not in OMITTED}
    shown = {"reason": context.reason(job, job.reason), "error": context.redacted(job, "error", fields["error"])}
    waits = job.state in WAITING and not follows_another(job)
    due = {"due_at": to_datetime(job.run_at) if waits else None}
    return fields | shown | due | {"worker": job.node, "run_seconds": job.run_seconds}


TEXT_LIMIT = 500
"""Characters of a parameter at most."""
PAGE_SIZES = ("50", "20", "100", "200")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What a page is built from: the parameters of its URL and its path, the store's clock, the viewer's zone.

    Each method returns a parameter, and raises `Problem` for an invalid value.
    """

    parameters: QueryParams
    now: float
    path: Mapping[str, str] = field(default_factory=dict)
    zone: tzinfo = UTC

    def text(self, name: str) -> str | None:
        """Return a text, None without one."""
        value = self.parameters.get(name, "").strip()
        if len(value) > TEXT_LIMIT or "\x00" in value:
            raise _invalid(name, f"a text of at most {TEXT_LIMIT} characters")
        return value or None

    def states(self, name: str) -> list[State]:
        """Return the states in all values of a parameter."""
        try:
            return sorted({State(text) for text in self.parameters.getlist(name)[:100] if text})
        except ValueError:
            raise _invalid(name, f"one of {', '.join(State)}") from None

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of the choices, the first one without a value."""
        value = self.parameters.get(name) or choices[0]
        if value not in choices:
            raise _invalid(name, f"one of {', '.join(choices)}")
        return value

    def number(self, name: str) -> int | None:
        """Return a positive integer, None without one."""
        value = self.parameters.get(name, "")
        if value and not (value.isdecimal() and 0 < len(value) < 19):  # noqa: PLR2004 - fits into 64 bits
            raise _invalid(name, "a positive number")
        return int(value) if value else None

    def at(self, name: str) -> float | None:
        """Return a time: RFC 3339, or a duration before now, such as 1h."""
        value = self.parameters.get(name, "").strip()
        try:
            return seconds_of(parse_time(value), self.now) if value else None
        except ValueError:
            raise _invalid(name, "a time such as 2026-01-31T12:00:00Z, or a duration such as 90m, 1h or 7d") from None


def _invalid(name: str, expected: str) -> Problem:
    return Problem("invalid-request", f"the parameter {name} must be {expected}")


def only_stuck(request: PageRequest) -> bool:
    """Return whether a URL selects the stuck jobs alone. Raises `Problem` for an invalid value."""
    return request.choice("stuck", ("", "1")) == "1"


def read_filters(request: PageRequest, context: Context) -> dict[str, Any]:
    """Return the filters of a URL by name, None or empty for one that it does not have.

    Raises `Problem` for an invalid value, and for one that finds what is redacted.
    """
    readers = {str: request.text, float: request.at, State: request.states}
    found = {each.name: readers[each.kind](each.name) for each in FILTERS}
    if any(found[each.name] for each in FILTERS if each.reveals):
        context.check_values_shown("searching them by argument, error or identity")
    return found
