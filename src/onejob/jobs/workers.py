"""The live workers of a ledger, and the registration that each sends with its heartbeats."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from onejob.jobs.model import JobRow
from onejob.jobs.schedule_state import schedule_digest

REGISTERED_TASKS_LIMIT = 1000
"""How many tasks a worker registers at most."""
RESERVED_LIMIT = 1000
"""How many reserved jobs a worker registers at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The facts about itself that a worker registers with each heartbeat."""

    tasks: tuple[str, ...] = ()
    """The names of the tasks whose jobs the worker publishes and runs, sorted; at most `REGISTERED_TASKS_LIMIT`."""
    queues: tuple[str, ...] = ()
    """The names of the queues that the worker consumes at the time of the heartbeat, sorted."""
    pool: str = ""
    """The name of the worker's pool: `prefork`, `threads`, `solo`, ...; "" if unknown."""
    concurrency: int = 0
    """How many jobs the worker runs at a time; 0 if unknown."""
    reserved: tuple[str, ...] = ()
    """The ids of the jobs whose messages the worker holds, running or not yet; at most `RESERVED_LIMIT`."""
    versions: tuple[str, ...] = ()
    """The versions of Python, onejob, Celery, kombu and the drivers, as `celery 5.6.0`, sorted."""
    silent_since: float = 0.0
    """Since when jobs have waited that the worker's broker has not delivered; 0.0 if the broker delivers."""
    takes_jobs: bool = False
    """Whether the worker takes jobs from the ledger, which is its broker."""
    runs_schedule: bool = False
    """Whether the worker submits the ticks of the beat schedule."""
    zones: tuple[str, ...] = ()
    """The rules of the time zones of the worker's schedule and windows, as `ZoneRules` encodes them, sorted."""
    started_at: float = 0.0
    """When the worker started, in seconds since the epoch, by the clock of the ledger; 0.0 if unknown."""
    schedules: tuple[str, ...] = ()
    """The entries of the beat schedule that the worker runs, each as `schedule_digest`, sorted."""

    def to_json(self) -> str:
        """Return the registration as stores keep it."""
        return json.dumps(asdict(self), separators=(",", ":"))

    def knows(self, task: str) -> bool:
        """Return whether the worker may have a task: a worker may have more tasks than it can register."""
        return task in self.tasks or len(self.tasks) >= REGISTERED_TASKS_LIMIT

    def has_schedule(self, entry: str, spec: str) -> bool:
        """Return whether the worker runs an entry of the beat schedule, with this schedule."""
        return schedule_digest(entry, spec) in self.schedules

    def has_message_of(self, job: JobRow) -> bool:
        """Return whether the worker may hold the message of a job: a worker may hold more than it can register."""
        return job.id in self.reserved or (len(self.reserved) >= RESERVED_LIMIT and job.queue in self.queues)


UNREGISTERED = Registration()
"""An empty registration."""


@dataclass(frozen=True, slots=True)
class WorkerInfo(Registration):
    """A worker whose heartbeat has not expired, with its registration; `seen_at` is its latest heartbeat."""

    name: str
    seen_at: float

    @classmethod
    def from_row(cls, name: str, seen_at: float | str, registration: str) -> Self:
        """Build a worker from a store's row, whose registration is JSON."""
        found: dict[str, Any] = json.loads(registration)
        known = {each.name for each in fields(Registration)} & found.keys()  # newer workers may register more
        values: dict[str, Any] = {each: tuple(v) if isinstance(v := found[each], list) else v for each in known}
        return cls(name, float(seen_at), **values)
