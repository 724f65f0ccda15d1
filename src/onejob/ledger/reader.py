"""The read operations of the ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from onejob.errors import JobNotFoundError, JobPurgedError
from onejob.jobs.audit_entries import AuditEntry
from onejob.jobs.backlog import Backlog
from onejob.jobs.durations import DAY
from onejob.jobs.history import Entry
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Duplicate, DuplicateCount, JobRow
from onejob.jobs.query import Query
from onejob.jobs.run_log import RunLog
from onejob.jobs.timestamps import format_timestamp
from onejob.jobs.workers import WorkerInfo
from onejob.stores.protocol import OTHER_SUBMITTERS, GroupBy, Store

AUDIT_LIMIT = 10_000
"""The number of entries that the audit log keeps: the newest."""
AUDIT_SECONDS = 90 * DAY
"""Seconds for which entries of the audit log are kept."""


def edit_key(job_id: str) -> str:
    """Return the idempotency key of the edit of a dead letter; no scoped key of a submitter equals it."""
    return f"edit:{job_id}"


@dataclass(frozen=True, slots=True)
class Visibility:
    """The conditions for the jobs that a reader sees; None: no condition."""

    submitter: str | None = None
    """Only the jobs of this submitter."""
    tasks: frozenset[str] | None = None
    """Only the jobs of these tasks."""
    predicate: Callable[[JobRow], bool] | None = None
    """Only the jobs for which this returns True."""

    @property
    def limited(self) -> bool:
        """Whether there may be jobs that the reader does not see."""
        return (self.submitter, self.tasks, self.predicate) != (None, None, None)

    def includes(self, job: JobRow) -> bool:
        """Return whether the reader sees a job."""
        return (
            (self.submitter is None or job.submitter == self.submitter)
            and (self.tasks is None or job.task in self.tasks)
            and (self.predicate is None or self.predicate(job))
        )

    def narrow(self, query: Query) -> Query | None:
        """Return a query for the jobs of `query` that the reader sees, except for `predicate`; None: it sees none.

        With a `predicate`, which gets whole jobs, the query is not light.
        """
        if self.submitter is not None and query.submitter not in {None, self.submitter}:
            return None
        if self.tasks is not None and query.task is not None and query.task not in self.tasks:
            return None
        limits = [tasks for tasks in (query.tasks, self.tasks) if tasks is not None]
        tasks = frozenset.intersection(*limits) if limits else None
        submitter = query.submitter if self.submitter is None else self.submitter
        return replace(query, submitter=submitter, tasks=tasks, light=query.light and self.predicate is None)


EVERYTHING = Visibility()


class JobReader:
    """Reads jobs and what belongs to them. A job that `visibility` does not include is not found."""

    def __init__(self, store: Store, visibility: Visibility = EVERYTHING) -> None:
        self.store = store
        self.visibility = visibility

    def get(self, job_id: str) -> JobRow:
        """Return a job. Raises `JobNotFoundError`, or its subclass `JobPurgedError` if there is a tombstone.

        With a limited visibility there is no `JobPurgedError`, since a tombstone has no submitter.
        """
        job = self.get_or_none(job_id)
        if job is None:
            raise self.why_missing(job_id)
        return job

    def why_missing(self, job_id: str) -> JobNotFoundError:
        """Return the error for a job that is not found: a `JobPurgedError` if there is a tombstone."""
        tombstone = None if self.visibility.limited else self.store.tombstone(job_id)
        if tombstone is None:
            return JobNotFoundError(job_id)
        times = (format_timestamp(tombstone.finished_at), format_timestamp(tombstone.purged_at))
        edited = self.store.find_existing("", edit_key(job_id))
        return JobPurgedError(job_id, tombstone.state, *times, "" if edited is None else edited.id)

    def get_or_none(self, job_id: str) -> JobRow | None:
        """Return a job, or None if it does not exist."""
        return self.get_many([job_id]).get(job_id)

    def get_many(self, job_ids: Sequence[str]) -> dict[str, JobRow]:
        """Return the jobs that exist by id, in one round trip."""
        jobs = self.store.get_many(job_ids)
        return {job_id: job for job_id, job in jobs.items() if self.visibility.includes(job)}

    def get_each(self, job_ids: Sequence[str]) -> list[JobRow]:
        """Return the jobs that exist, in the order of their ids."""
        found = self.get_many(job_ids) if job_ids else {}
        return [found[job_id] for job_id in job_ids if job_id in found]

    def audit(self, *, limit: int, before: int | None = None) -> list[AuditEntry]:
        """Return entries of the audit log, newest first; `before`: the id of an entry, to continue after it."""
        return self.store.audit(limit=limit, before=before, keep_for=AUDIT_SECONDS)

    def read_clock(self) -> float:
        """Return the time on the store's clock."""
        return self.store.read_clock()

    def workers(self) -> list[WorkerInfo]:
        """Return the live workers, whose heartbeats have not expired, by name."""
        return self.store.workers()

    def find(self, query: Query) -> list[JobRow]:
        """Return jobs, newest first."""
        return self.find_page(query)[0]

    def find_page(self, query: Query) -> tuple[list[JobRow], JobRow | None]:
        """Return a page of jobs, newest first, and the job after which the next page begins; None after the last page.

        `Visibility.predicate` may leave fewer jobs than the query's limit, although there are more.
        """
        narrowed = self.visibility.narrow(query)
        found = [] if narrowed is None else self.store.find(narrowed)
        last = found[-1] if found and len(found) == query.limit else None
        return [job for job in found if self.visibility.includes(job)], last

    def counts(self, query: Query, *, limit: int | None = None) -> dict[State, int]:
        """Return how many jobs match, by state, including states without jobs; `limit`: count only the newest.

        `Visibility.predicate` is ignored.
        """
        narrowed = self.visibility.narrow(query)
        return dict.fromkeys(State, 0) | ({} if narrowed is None else self.store.counts(narrowed, limit=limit))

    def count_states(self, *, limit: int) -> dict[State, int]:
        """Return how many jobs are in each state; a number of `limit` means `limit` or more.

        With a limited visibility the newest `limit` jobs are counted, as `counts` does.
        """
        if self.visibility.limited:
            return self.counts(Query(), limit=limit)
        return self.store.count_states(limit=limit)

    def is_indexed(self, query: Query) -> bool:
        """Return whether an index has only the jobs of a query, so that `find` reads few other jobs."""
        narrowed = self.visibility.narrow(query)
        return narrowed is None or self.store.is_indexed(narrowed)

    def edge(self, query: Query, *, skip: int) -> float | None:
        """Return the `created_at` of the job `skip` places after the position of a query; None if there is no such job.

        The jobs of the time range count, also those that the reader does not see.
        """
        narrowed = self.visibility.narrow(query)
        return None if narrowed is None else self.store.edge(narrowed, skip=skip)

    def backlog(self, *, tasks: frozenset[str], limit: int) -> list[Backlog]:
        """Return the jobs that wait for a run, or run, by task, queue and state.

        Of each task, `limit` waiting jobs and all running jobs are read; `Visibility.predicate` is ignored.
        """
        visible = tasks if self.visibility.tasks is None else tasks & self.visibility.tasks
        return self.store.backlog(tasks=visible, limit=limit, submitter=self.visibility.submitter)

    def followers(self, job_id: str, *, limit: int) -> list[JobRow]:
        """Return the visible jobs among the first `limit` followers of a job, oldest first."""
        found = self.store.followers(job_id, limit=limit)
        return [job for job in found if self.visibility.includes(job)]

    def run_logs(self, job: JobRow) -> list[RunLog]:
        """Return the logs of the newest attempts of a job, the oldest attempt first."""
        return [RunLog(attempt, text) for attempt, text in self.store.run_logs(job.id).items()]

    def history(self, job_id: str) -> list[Entry]:
        """Return a job's history, oldest first."""
        return self.store.history(job_id)

    def steps(self, job: JobRow) -> Mapping[str, str]:
        """Return the memoised steps of a job: name to JSON."""
        return self.store.steps(job.id)

    def duplicates(self, job_id: str) -> list[Duplicate]:
        """Return the newest duplicates of a job, oldest first."""
        submitter = self.visibility.submitter
        return [each for each in self.store.duplicates(job_id) if submitter in {None, each.submitter}]

    def duplicate_counts(self, by: GroupBy, *, limit: int = 100) -> list[DuplicateCount]:
        """Return the `limit` groups with the most duplicates, largest first, whatever `Visibility.predicate` says."""
        visibility = self.visibility
        if visibility.submitter == OTHER_SUBMITTERS:
            return []  # a submitter of this name would see the sums of others
        return self.store.duplicate_counts(by, limit=limit, submitter=visibility.submitter, tasks=visibility.tasks)
