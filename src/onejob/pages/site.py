"""What all pages share: the app, its ledger, the hook that redacts, and the parameters of a request."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onejob.api.problems import Problem
from onejob.api.routes.jobs import ID_LIMIT, is_valid_id
from onejob.celery.app_state import app_state_of
from onejob.celery.message import decode
from onejob.celery.options import tasks_of
from onejob.errors import JobNotFoundError
from onejob.jobs.public_view import job_to_dict
from onejob.jobs.timestamps import parse_duration, parse_timestamp
from onejob.pages.page_cache import KeyedCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import tzinfo

    from celery import Celery
    from starlette.datastructures import QueryParams

    from onejob.jobs.model import Job
    from onejob.jobs.records import WorkerInfo
    from onejob.ledger.ledger import Ledger
    from onejob.pages.access import User

TEXT_LIMIT = 500
"""Characters of a parameter at most."""
SEARCH_SECONDS = 0.1
"""How long one request may search for jobs, beyond its first step."""


def _figures() -> KeyedCache[Any]:
    """Return a cache for figures that take longer than 100 ms, so that they take a small part of the time."""
    return KeyedCache(0.0, cost_factor=20.0, free_seconds=0.1)


@dataclass(frozen=True, slots=True)
class Site:
    """The app whose jobs are shown."""

    app: Celery
    redact: Callable[[Job, str, Any], Any] | None = None
    """As for `dashboard`."""
    place: str = "on the dashboard"
    """Where its users act, for the history of a job."""
    figures: KeyedCache[Any] = field(default_factory=_figures)
    """Figures of the whole ledger. The list of jobs is none of them."""

    @property
    def ledger(self) -> Ledger:
        """The app's ledger."""
        return app_state_of(self.app).ledger

    def is_late(self, worker: WorkerInfo, now: float) -> bool:
        """Return whether a worker's heartbeat is late."""
        return now - worker.seen_at > app_state_of(self.app).settings.heartbeat_late_after

    def tasks(self, workers: Iterable[WorkerInfo]) -> frozenset[str]:
        """Return the names of the app's tasks, and of those that the live workers have registered."""
        registered = {task for worker in workers for task in worker.tasks}
        return frozenset(registered | tasks_of(self.app).keys())

    def job(self, job_id: str) -> Job:
        """Return a job. Raises `JobNotFoundError`, also for an invalid id, and `JobPurgedError`."""
        if not is_valid_id(job_id):
            raise JobNotFoundError(job_id[:ID_LIMIT])
        return self.ledger.get(job_id)

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
        """Return the arguments of a job as they may be shown; None for a job that was read without them."""
        if not job.payload:
            return None
        message = decode(job.payload)
        return self.redacted(job, "arguments", {"args": list(message.args), "kwargs": dict(message.kwargs)})

    def origin_of(self, user: User) -> str:
        """Return where an operation comes from, for the history of a job."""
        return f"{self.place} by {user.name}"

    def check_values_shown(self, what: str) -> None:
        """Raise `Problem` if the values of jobs are redacted, which `what` would reveal."""
        if self.redact is not None:
            raise Problem("forbidden", f"the values of jobs are redacted on this dashboard, which excludes {what}")


class Parameters:
    """The parameters of a URL. Each method raises `Problem` for an invalid value."""

    def __init__(self, values: QueryParams, now: float) -> None:
        self._values = values
        self._now = now

    def text(self, name: str) -> str | None:
        """Return a text, None without one."""
        value = self._values.get(name, "").strip()
        if len(value) > TEXT_LIMIT or "\x00" in value:
            raise _invalid(name, f"a text of at most {TEXT_LIMIT} characters")
        return value or None

    def texts(self, name: str) -> list[str]:
        """Return all values of a parameter."""
        return [value for value in self._values.getlist(name)[:100] if value]

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of the choices, the first one without a value."""
        value = self._values.get(name) or choices[0]
        if value not in choices:
            raise _invalid(name, f"one of {', '.join(choices)}")
        return value

    def number(self, name: str) -> int | None:
        """Return a positive integer, None without one."""
        value = self._values.get(name, "")
        if value and not (value.isdecimal() and 0 < len(value) < 19):  # noqa: PLR2004 - fits into 64 bits
            raise _invalid(name, "a positive number")
        return int(value) if value else None

    def at(self, name: str) -> float | None:
        """Return a time: RFC 3339, or a duration before now, such as 1h."""
        value = self._values.get(name, "").strip()
        if not value:
            return None
        with suppress(ValueError):
            return self._now - parse_duration(value)
        try:
            return parse_timestamp(value)
        except ValueError:
            raise _invalid(name, "a time such as 2026-01-31T12:00:00Z, or a duration such as 90m, 1h or 7d") from None


@dataclass(frozen=True, slots=True)
class Visit:
    """What a page is built from: the parameters of its URL and its path, the store's clock, the viewer's zone."""

    parameters: Parameters
    path: Mapping[str, str]
    now: float
    zone: tzinfo


def _invalid(name: str, expected: str) -> Problem:
    return Problem("invalid-request", f"the parameter {name} must be {expected}")


def parse_json(text: str | None) -> Any:
    """Return a stored JSON text as a value, None without one."""
    return None if text is None else json.loads(text)


def deadline(seconds: float = SEARCH_SECONDS) -> Callable[[], bool]:
    """Return a function that tells whether so many seconds are over."""
    ends_at = time.monotonic() + seconds
    return lambda: time.monotonic() > ends_at
