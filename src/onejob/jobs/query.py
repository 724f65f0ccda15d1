"""The query that lists jobs: its filters, and the page of the matching jobs that is read."""

from __future__ import annotations

from dataclasses import dataclass, field

from onejob.jobs.lifecycle import State
from onejob.jobs.model import values_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A filter and a page of jobs, which are sorted by `created_at`, then by id, both descending."""

    states: frozenset[State] = field(default_factory=frozenset)
    task: str | None = None
    tasks: frozenset[str] | None = None
    """Only jobs of these tasks."""
    identity: str | None = None
    reason: str | None = None
    """A substring of the reason, case-insensitive for ASCII letters."""
    submitter: str | None = None
    """The submitter of the job; "" for an unknown submitter."""
    queue: str | None = None
    """The queue of the job's route; "" if it was not resolved."""
    node: str | None = None
    """The worker of the latest claim; "" before the first claim."""
    arguments: str | None = None
    """A substring of the JSON of the arguments, case-sensitive: see `onejob.ledger.job_filters.argument_text`."""
    tag: str | None = None
    """One of the tags of the job."""
    parked_on: str | None = None
    """The pause that the job is parked on."""
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
    """Whether the jobs are read without their `LARGE_FIELDS`, which are then empty."""

    @property
    def filters(self) -> frozenset[str]:
        """The names of the filters that are set, besides the time range."""
        return frozenset(name for name, value in values_of(self).items() if value != _EVERYTHING[name]) - _PAGE


_PAGE = frozenset({"since", "until", "before", "before_id", "offset", "limit", "light"})
"""The fields of a query that are no filters."""
_EVERYTHING = values_of(Query())
