"""The read operations of the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.errors import JobNotFoundError, JobPurgedError
from onejob.jobs.lifecycle import State
from onejob.jobs.policy import DAY
from onejob.jobs.timestamps import format_timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onejob.jobs.model import Duplicate, Job
    from onejob.jobs.records import AuditEntry, DuplicateCount, Entry, Query, WorkerInfo
    from onejob.stores.protocol import GroupBy, Store


AUDIT_LIMIT = 10_000
"""How many entries of the audit log are kept: the newest ones."""
AUDIT_SECONDS = 90 * DAY
"""How long they are kept."""


class JobReader:
    """Reads jobs and what belongs to them."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def get(self, job_id: str) -> Job:
        """Return a job. Raises `JobNotFoundError`, or its subclass `JobPurgedError` if there is a tombstone."""
        job = self.get_or_none(job_id)
        if job is None:
            raise self.why_missing(job_id)
        return job

    def why_missing(self, job_id: str) -> JobNotFoundError:
        """Return the error for a job that does not exist: a `JobPurgedError` if there is a tombstone."""
        tombstone = self.store.tombstone(job_id)
        if tombstone is None:
            return JobNotFoundError(job_id)
        times = (format_timestamp(tombstone.finished_at), format_timestamp(tombstone.purged_at))
        return JobPurgedError(job_id, tombstone.state, *times)

    def get_or_none(self, job_id: str) -> Job | None:
        """Return a job, or None if it does not exist."""
        return self.store.get_many([job_id]).get(job_id)

    def audit(self, *, limit: int, before: int | None = None) -> list[AuditEntry]:
        """Return entries of the audit log, newest first; `before`: the id of an entry, to continue after it."""
        return self.store.audit(limit=limit, before=before, keep_for=AUDIT_SECONDS)

    def get_many(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """Return the jobs that exist by id."""
        return self.store.get_many(job_ids)

    def read_clock(self) -> float:
        """Return the time on the store's clock."""
        return self.store.read_clock()

    def workers(self) -> list[WorkerInfo]:
        """Return the live workers, whose heartbeats have not expired, by name."""
        return self.store.workers()

    def find(self, query: Query) -> list[Job]:
        """Return jobs, newest first."""
        return self.store.find(query)

    def counts(self, query: Query, *, limit: int | None = None) -> dict[State, int]:
        """Return how many jobs match, by state, including states without jobs; with `limit` of the newest so many."""
        return dict.fromkeys(State, 0) | self.store.counts(query, limit=limit)

    def history(self, job_id: str) -> list[Entry]:
        """Return a job's history, oldest first."""
        return self.store.history(job_id)

    def steps(self, job: Job) -> Mapping[str, str]:
        """Return the memoised steps of a job: name to JSON."""
        return self.store.steps(job.id)

    def duplicates(self, job_id: str) -> list[Duplicate]:
        """Return the newest duplicates of a job, oldest first."""
        return self.store.duplicates(job_id)

    def duplicate_counts(self, by: GroupBy, *, limit: int = 100) -> list[DuplicateCount]:
        """Return the counts of the `limit` groups with the most duplicates, largest first."""
        return self.store.duplicate_counts(by, limit=limit)
