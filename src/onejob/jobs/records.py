"""What stores keep besides jobs and duplicates, and the query that lists jobs. Times are seconds since the epoch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from math import inf
from types import MappingProxyType
from typing import Any, Self

from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Change, Job, Outcome, Route, value, values_of
from onejob.jobs.policy import DAY

REDELIVERED = "redelivered"
"""What stores count redelivered messages as, in place of an outcome."""


@dataclass(frozen=True, slots=True)
class DuplicateCount:
    """The number of all duplicates of a task with one outcome, in the group `name` (see `GroupBy`)."""

    name: str
    task: str
    outcome: Outcome | None
    """None: redelivered messages, which are no submissions."""
    count: int

    @classmethod
    def from_row(cls, name: str, task: str, outcome: str, count: int) -> Self:
        """Build a count from a store's row."""
        return cls(name, task, None if outcome == REDELIVERED else Outcome(outcome), count)


class Period(StrEnum):
    """How metrics are grouped by time: in buckets of a minute or of an hour."""

    MINUTE = "minute"
    HOUR = "hour"

    @property
    def seconds(self) -> int:
        """The length of a bucket, which begins at a multiple of it since the epoch."""
        return 60 if self is Period.MINUTE else 3600

    @property
    def kept_for(self) -> float:
        """How many seconds after its begin a bucket is kept."""
        return 7200.0 if self is Period.MINUTE else 8 * DAY


@dataclass(frozen=True, slots=True)
class Bucket:
    """What was added to metrics, by name, in one bucket of a period."""

    start: float
    """When it begins."""
    amounts: dict[str, float]


NO_AMOUNTS: Mapping[str, float] = MappingProxyType({})
"""No amounts to add."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a job's history."""

    at: float
    event: str
    state: State
    attempt: int
    node: str
    detail: str


REGISTERED_TASKS_LIMIT = 1000
"""How many tasks a worker registers at most."""
RESERVED_LIMIT = 1000
"""How many reserved jobs a worker registers at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a worker registers with each heartbeat."""

    tasks: tuple[str, ...] = ()
    """The names of the tasks whose jobs it publishes and runs, sorted; at most `REGISTERED_TASKS_LIMIT`."""
    queues: tuple[str, ...] = ()
    """The names of the queues that it consumes at the time of the heartbeat, sorted."""
    pool: str = ""
    """The name of its pool: `prefork`, `threads`, `solo`, ...; "" if unknown."""
    concurrency: int = 0
    """How many jobs it runs at a time; 0 if unknown."""
    reserved: tuple[str, ...] = ()
    """The ids of the jobs whose messages it holds, running or not yet; at most `RESERVED_LIMIT`."""
    versions: tuple[str, ...] = ()
    """Of Python, onejob, Celery, kombu and the drivers, as `celery 5.6.0`, sorted."""
    silent_since: float = 0.0
    """Since when jobs have waited that its broker has not delivered; 0.0 if it hears its broker."""
    takes_jobs: bool = False
    """Whether it takes jobs from the ledger, which is its broker."""
    started_at: float = 0.0
    """When it started, in seconds since the epoch, by the clock of the ledger; 0.0 if unknown."""

    def to_json(self) -> str:
        """Return the registration as stores keep it."""
        return json.dumps(asdict(self), separators=(",", ":"))

    def knows(self, task: str) -> bool:
        """Return whether the worker has a task, as far as is known: one may have more than it can register."""
        return task in self.tasks or len(self.tasks) >= REGISTERED_TASKS_LIMIT

    def has_message_of(self, job: Job) -> bool:
        """Return whether the worker may hold the message of a job: one may hold more than it can register."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """How a purged job had ended."""

    id: str
    state: State
    finished_at: float
    purged_at: float

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Build a tombstone from a store's row."""
        times = {name: float(row[name]) for name in ("finished_at", "purged_at")}
        return cls(id=row["id"], state=State(row["state"]), **times)


ACTION, OWN, ACCESS = "action", "own", "access"
AUDIT_KINDS = (ACTION, OWN, ACCESS)
"""What operators did, what submitters did to their own jobs, and refused requests and logins.

Each kind is kept apart: many entries of one never displace an entry of another.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One entry of the audit log: an action of an operator, refused requests, or logins."""

    actor: str
    """The name of the API key, or the user of the command line; "" if unknown."""
    source: str
    """`http`, `cli`, `dashboard` or `admin`: Django's."""
    address: str
    """The client's IP address, or the host of the command line."""
    action: str
    target: str = ""
    """The id of the job, the name of the key, or how many jobs."""
    outcome: str = "done"
    detail: str = ""
    count: int = 1
    """How many equal requests the entry stands for."""
    kind: str = ACTION
    """One of `AUDIT_KINDS`."""
    id: int = 0
    """Assigned by the store: a larger one is newer."""
    at: float = 0.0
    """When, on the store's clock."""

    def to_json(self) -> str:
        """Return what the caller knows, as JSON: all but `id` and `at`."""
        return json.dumps({name: value for name, value in asdict(self).items() if name not in {"id", "at"}})

    @classmethod
    def from_row(cls, id: int | str, at: float | str, entry: str) -> Self:  # noqa: A002 - the name of the column
        """Build an entry from a store's row."""
        return cls(id=int(id), at=float(at), **json.loads(entry))


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """What the ledger knows of one entry of the beat schedule. Times on the store's clock."""

    name: str
    nonce: str
    """A new one with each change, which compares and sets it."""
    spec: str
    """The schedule as text: a changed one begins anew."""
    since: float
    """The ticks after this time are not decided yet. Intervals are counted from here."""
    seen_at: float
    """When a process that has the entry looked at it, to about a minute."""
    former_spec: str = ""
    """The schedule before this one, which processes of an earlier version still have."""
    last_tick: float | None = None
    last_job: str = ""
    """The job that answered the last tick, or the id of a plain Celery task."""
    paused: bool = False

    def to_json(self) -> str:
        """Return all but `name` and `nonce`, as JSON."""
        return json.dumps({name: value for name, value in asdict(self).items() if name not in {"name", "nonce"}})

    @classmethod
    def from_row(cls, name: str, nonce: str, state: str) -> Self:
        """Build a state from a store's row."""
        return cls(name=name, nonce=nonce, **json.loads(state))


@dataclass(frozen=True, slots=True)
class Backlog:
    """The jobs of a task that wait for a run, or run, in one queue and one state."""

    task: str
    queue: str
    """The queue of their route; "" if it was not resolved."""
    state: State
    count: int
    due: int
    """How many of them wait, and may run by now."""
    oldest_run_at: float
    """The earliest `run_at` of these jobs."""


def group_backlog(rows: Iterable[Iterable[Any]]) -> list[Backlog]:
    """Return the backlog, sorted, of rows of task, route, state, count, due and oldest `run_at`.

    Several rows may have the same task, queue and state.
    """
    found: dict[tuple[str, str, State], tuple[int, int, float]] = {}
    for task, route, state, count, due, oldest in rows:
        group = (task, Route.decode(route).queue, State(state))
        total, total_due, earliest = found.get(group, (0, 0, inf))
        found[group] = (total + int(count), total_due + int(due), min(earliest, float(oldest)))
    return [Backlog(*group, *numbers) for group, numbers in sorted(found.items())]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A filter and a page of jobs. They are sorted by `created_at`, then by id, both descending."""

    states: frozenset[State] = field(default_factory=frozenset)
    task: str | None = None
    tasks: frozenset[str] | None = None
    """Only jobs of these tasks."""
    identity: str | None = None
    reason: str | None = None
    """A substring of the reason, case-insensitive for ASCII letters."""
    submitter: str | None = None
    """The submitter of the job; "" for unknown ones."""
    queue: str | None = None
    """The queue of the job's route; "" if it was not resolved."""
    node: str | None = None
    """The worker of the latest claim; "" before the first."""
    arguments: str | None = None
    """A substring of the JSON of the arguments, case-sensitive: see `onejob.ledger.search.argument_text`."""
    tag: str | None = None
    """One of the tags of the job."""
    unsettled: bool = False
    """Only jobs that have not ended, or whose canvas is still to be notified of their end."""
    since: float | None = None
    """Only jobs created at this time or later."""
    until: float | None = None
    """Only jobs created before this time."""
    before: float | None = None
    """The `created_at` to continue from: only jobs created earlier."""
    before_id: str | None = None
    """With `before`, the job to continue after: also jobs of that time with smaller ids."""
    offset: int = 0
    """How many of the matching jobs to skip."""
    limit: int = 50
    light: bool = False
    """Read the jobs without their `LARGE_FIELDS`, which are then empty."""

    @property
    def filters(self) -> frozenset[str]:
        """The names of the filters that are set, besides the time range."""
        return frozenset(name for name, value in values_of(self).items() if value != _EVERYTHING[name]) - _PAGE


_PAGE = frozenset({"since", "until", "before", "before_id", "offset", "limit", "light"})
"""The fields of a query that are no filters."""
_EVERYTHING = values_of(Query())


# --- the history of a job ---------------------------------------------------------------------------------------------


ORIGINS = frozenset({"submit", "queue_next", "follow", "wait"})
"""The events that begin a history. Only that of a job which holds its identity from the beginning is not stored."""
COMPLETED = "completed"
"""The reason of a completed job, and the detail of that entry."""


def claim_detail(attempt: int, node: str) -> str:
    """Return the detail of the entry of a claim."""
    return f"attempt {attempt} on {node}"


def row_implies_entry(change: Change) -> bool:
    """Return whether the row of a job implies the history entry of a change, which so need not be stored."""
    return change.event is Transition.COMPLETE and change.detail == COMPLETED


def full_history(job: Job | None, stored: Sequence[Entry]) -> list[Entry]:
    """Return the history of a job, oldest first, from its row and its stored entries, in the order of their writing.

    The row tells its submission, its latest claim, and its completion, which are not stored. With a claim a store keeps
    the entry of the claim before, whose time and node the claim overwrites.
    The order follows from attempts and states, not from times, because a clock may stand still or be set back.
    """
    if job is None:
        return []
    # The entry of an earlier claim was stored by the claim after it: behind what happened in between.
    entries = sorted(stored, key=lambda entry: (entry.attempt, entry.event != Transition.CLAIM))
    if not any(entry.event in ORIGINS for entry in entries):
        entries.insert(0, Entry(job.created_at, "submit", State.QUEUED, 0, "", job.source))
    if job.attempt and job.started_at is not None:
        detail = claim_detail(job.attempt, job.node)
        claim = Entry(job.started_at, Transition.CLAIM, State.RUNNING, job.attempt, job.node, detail)
        _insert(entries, claim, [entry.attempt >= job.attempt for entry in entries])
    if job.state is State.COMPLETED and job.finished_at is not None:
        end = Entry(job.finished_at, Transition.COMPLETE, State.COMPLETED, job.attempt, job.node, COMPLETED)
        _insert(entries, end, [entry.attempt == job.attempt and entry.state.final for entry in entries])
    return entries


def _insert(entries: list[Entry], entry: Entry, is_later: Sequence[bool]) -> None:
    """Insert an entry before the first later one, unless it is there already."""
    if not any((each.event, each.attempt) == (entry.event, entry.attempt) for each in entries):
        entries.insert(next((index for index, later in enumerate(is_later) if later), len(entries)), entry)


# --- the messages of a store that is a broker: those of Celery that are not messages of jobs --------------------------


@value(slots=True)
class NewMessage:
    """A message that is published."""

    id: str
    """Made by its publisher, so that a repeated call writes nothing."""
    exchange: str
    """The exchange whose bindings decide which queues get a copy; "" for the queue that `routing_key` names."""
    routing_key: str
    body: str
    priority: int = 0
    """Larger ones are delivered first."""
    expires_in: float | None = None
    """After how many seconds it is no longer delivered."""


@value(slots=True)
class Delivery:
    """A copy of a message in one queue, taken by a consumer."""

    id: int
    queue: str
    body: str
    redelivered: bool
    """Whether a consumer had it before."""
