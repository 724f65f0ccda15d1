"""The values that the client returns: public jobs, and values of the ledger with times as `datetime`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, TypeVar

from onejob.jobs.blocks import BlockKind
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Outcome
from onejob.jobs.public_view import Costs, Failure, Job, fields_of, public_job
from onejob.jobs.run_log import RunLog
from onejob.ledger.costs import Cost
from onejob.ledger.explain import Explanation as ExplanationRow
from onejob.ledger.schedules import Missed
from onejob.ledger.stats import QueueLoad

__all__ = [
    "Block", "BulkPage", "Cost", "Costs", "Duplicate", "Edit", "Explanation", "Failure", "HistoryEntry", "Job",
    "JobCount", "JobPage", "LimitState", "QueueLoad", "RunLog", "Schedule", "Worker", "explanation_of", "value_of",
]  # fmt: skip
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """A page of jobs, newest first."""

    jobs: list[Job]
    next: str | None
    """The cursor of the next page; None after the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCount:
    """How many jobs match."""

    total: int
    by_state: dict[State, int]
    """The number in each of the six states."""
    is_complete: bool
    """Whether these are all; otherwise they are the newest ones, as many as the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkPage:
    """The result of an operation on many jobs."""

    done: list[str]
    """The ids of the jobs to which it was applied, or would be in a dry run."""
    refused: dict[str, str]
    """The reason for each job to which it was not applied, by id."""
    next: str | None
    """Where to continue if the limit has ended the operation: the `cursor` of the next call; None at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """The answer to the submission of a dead letter with other arguments."""

    outcome: Outcome
    job: Job
    """The new job, or the equal job that has answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """A submission that an existing job has answered."""

    at: datetime
    outcome: Outcome
    answered_by: str
    """The id of the job that answered: the job whose duplicate this is, or the job that is queued next."""
    source: str
    """The entry point of the submission: `apply_async`, `http`, ..."""
    submitter: str
    host: str
    arguments_differ: bool
    """Whether the arguments differ from the job's arguments, outside of those that make the identity."""
    rescheduled: bool
    """Whether the submission has postponed the job, as in a debounce."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """A transition of a job."""

    at: datetime
    event: str
    state: State
    """The state afterwards."""
    attempt: int
    node: str
    """The worker of the attempt; "" without one."""
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A job, explained."""

    job: Job
    sentences: list[str]
    """Sentences about the events, oldest first, and then what the job waits for, and what happens next."""
    stuck: str | None
    """Why the job makes no progress; None if it does."""
    history: list[HistoryEntry]
    """The transitions of the job, oldest first."""
    duplicates: list[Duplicate]
    """The newest duplicates, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker whose heartbeat has not expired."""

    name: str
    seen_at: datetime
    """The time of the latest heartbeat."""
    started_at: datetime | None
    pool: str
    """`prefork`, `threads`, ...; "" if unknown."""
    concurrency: int
    """How many jobs the worker runs at a time; 0 if unknown."""
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    reserved: tuple[str, ...]
    """The ids of the jobs whose messages the worker holds, running or not yet."""
    versions: tuple[str, ...]
    """The versions of Python, onejob, Celery and the drivers, as `celery 5.6.0`."""
    silent_since: datetime | None
    """Since when the worker's broker has not delivered jobs that wait; None if it delivers."""
    runs_schedule: bool
    """Whether the worker submits the ticks of the schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """An entry of the schedule that the workers run."""

    name: str
    task: str
    schedule: str
    """The schedule as text."""
    missed: Missed
    """The policy for ticks that no worker could submit in time."""
    paused: bool
    last_tick_at: datetime | None
    last_job: str
    """The id of the job that answered the last tick; "" without one."""
    next_tick_at: datetime | None
    """None for a paused entry, for one that no worker has looked at yet, and for one without further ticks."""
    error: str
    """Why the next tick cannot be computed, or is overdue; "" if all is well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A pause or a strike: it matches the jobs of a task, of a queue, and with these values of arguments."""

    id: str
    kind: BlockKind
    task: str
    """The task of the jobs; "": any."""
    queue: str
    """The queue of the jobs; "": any."""
    where: Mapping[str, str]
    """The values of arguments as texts, by path as in `unique_on`."""
    until: datetime | None
    """When the block ends by itself; None: not before it is ended."""
    note: str
    created_by: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitState:
    """A limit, or one of its keys: how much room it has, and who uses it."""

    key: str
    """The name of a limit, such as `customer`, or one of its keys, such as `customer=42`."""
    value: str | None
    """How many jobs may run at once, or a rate: `3`, `90000/minute`. None: nothing limits the key."""
    default: str | None
    """The value of the definition; None: no task defines the limit any more."""
    is_exception: bool
    """Whether an exception is in force, of the key or of its name."""
    until: datetime | None
    """When the exception ends by itself; None: not before it is cleared."""
    use: str
    """The use as text: `3 of 3 run`; empty for a name that no job has as its key."""
    waiting: int
    """How many jobs wait for room."""
    holders: tuple[str, ...]
    """The ids of the jobs that have a slot, at most 100; of a rate those that are about to run."""


def value_of(kind: type[V], row: object) -> V:
    """Return a value of the ledger as one of the classes above, whose fields it has; times as `datetime`."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type] # they are dataclasses
    values: dict[str, Any] = fields_of(row, *names)
    return kind(**values)


def explanation_of(found: ExplanationRow) -> Explanation:
    """Return the explanation of a job."""
    return Explanation(
        job=public_job(found.job), sentences=found.sentences, stuck=None if found.stuck is None else str(found.stuck),
        history=[value_of(HistoryEntry, each) for each in found.history],
        duplicates=[value_of(Duplicate, each) for each in found.duplicates],
    )  # fmt: skip
