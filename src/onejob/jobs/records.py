"""What stores keep besides jobs and duplicates, and the query that lists jobs. Times are seconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from onejob.jobs.lifecycle import State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onejob.jobs.model import Outcome


@dataclass(frozen=True, slots=True)
class DuplicateCount:
    """The number of all duplicates of a task with one outcome, in the group `name` (see `GroupBy`)."""

    name: str
    task: str
    outcome: Outcome
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    """The answer to one use of a quota."""

    name: str
    counted: bool
    """Whether the use is within the limit."""
    left: int
    """How many more uses are."""
    until: float
    """When the window ends, which began with its first counted use."""
    seconds: float
    """Seconds from now to `until`."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a job's history."""

    at: float
    event: str
    state: State
    attempt: int
    node: str
    detail: str


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker whose heartbeat has not expired; `seen_at` is its latest heartbeat."""

    name: str
    seen_at: float


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
