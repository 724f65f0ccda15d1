"""The store protocol: the operations that keep rows atomically. The ledger is the use cases on top of it.

Laws every store obeys (`tests/contract` checks them on each):

- An operation happens whole or not at all, also when the process or the connection dies in the middle.
- At most one job with `holds_identity` exists for one identity, whatever runs at the same time.
- Time is the store's own clock, never the caller's.
- A repeated call with the same request id (for `submit` the job id or the nonce, for `claim`, `consume` and `refund`
  the nonce) changes nothing and gets the same answer, as long as it is one of the last eight of the job or of the
  quota, or its duplicate is kept.
- The job that is queued next gets its identity in the very change that ends the one before it: no submission comes in
  between. At most one job waits so for one identity.
- A token is larger than every token the job had before, and at least the clock in microseconds.
- A store knows no rule of the lifecycle: it compares what it is told to compare and sets what it is told to set.
- Driver errors leave a store only as `StoreError`, or `StoreUnavailableError` when the outcome is unknown.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onejob.jobs.lifecycle import State
    from onejob.jobs.model import (
        Admission,
        Applied,
        Cancel,
        Change,
        Duplicate,
        DuplicateCount,
        Entry,
        Job,
        Query,
        QuotaUse,
        Renewal,
        Submission,
        Tombstone,
        WorkerInfo,
    )

HISTORY_LIMIT = 200
"""How many entries of a job's history a store keeps (the newest)."""
WINDOW_OVER = "its uniqueness window is over"
"""What the history says of a job that gave up its identity to a submission."""
DUPLICATE_LIMIT = 20
"""How many duplicates a store keeps of those that met one job (the newest); all of them are counted."""
BATCH_LIMIT = 1000
"""How many submissions a store is given at once."""


class GroupBy(StrEnum):
    """By what duplicates are counted."""

    TASK = "task"
    IDENTITY = "identity"
    SUBMITTER = "submitter"


class Transaction(Protocol):
    """Somebody else's open transaction on a SQL database, which that somebody commits or rolls back."""

    @property
    def dialect(self) -> str:
        """The kind of the database: `postgresql`, `sqlite`, or another."""
        ...

    def rows(self, sql: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Execute a statement whose values stand in it as `:name`, and return its rows by column."""
        ...


@runtime_checkable
class TransactionalStore(Protocol):
    """What a store can do besides when it lives in a SQL database that users write to as well."""

    def in_transaction(self, transaction: Transaction) -> Store:
        """Return this store as a part of a transaction: what it writes becomes true when that is committed.

        There, errors are the driver's own, and nobody waits for the transaction but equal submissions.
        """
        ...


class Store(Protocol):
    """Rows in, rows out, atomically. Safe to use from many threads; survives a fork."""

    def submit(self, submission: Submission, *, wake_in: float) -> Admission:
        """Write `new` as a queued job that holds its identity, unless a job holds it already.

        A row that exists under `new.id` answers for itself, and the first answer to `new.key` for the key, as long as
        it is kept. Otherwise `onejob.uniqueness.on_duplicate.resolve` says what comes of the job that holds the identity: it may take
        over the payload, or `new` is written as the job that is queued next (if one is queued already, that one may
        take over the payload). With `new.follows` a row that follows the job which answers is written, too.

        Whoever meets a job is counted there and in the tallies, and leaves a duplicate. `wake_in`: seconds to the first
        alarm of a job that is due at once; one that is not is woken when it is due.
        """
        ...

    def submit_many(
        self, submissions: Sequence[Submission], *, wake_in: float, wait_for_locks: bool = True
    ) -> list[Admission]:
        """Submit in this order, at most `BATCH_LIMIT`, in a few round trips; return the answers in this order.

        With `patient=False` nobody waits for more than a moment for a row that is somebody else's: `StoreBusyError`.
        """
        ...

    def follow(self, submission: Submission, *, follows_id: str) -> Job | None:
        """Write `new` as a queued job without an identity whose alarm rings in the change that ends its leader.

        At once when that one has ended already. A row that exists under `new.id` answers for itself; None when there is
        no such leader. When `new` is due, who asks for it and what it wants of a job in its way mean nothing here.
        """
        ...

    def record(self, duplicate: Duplicate, *, also: Sequence[str] = ()) -> None:
        """Keep the duplicate of somebody who met a job otherwise than by `submit`, and count it as `submit` would.

        `also`: the nonces of more submissions that met it in the very same way; their duplicates follow in this order.

        A message that came again (a duplicate without `submission`) is tallied, but is no duplicate of the job. Nothing
        happens when the job is gone.
        """
        ...

    def duplicates(self, job_id: str) -> list[Duplicate]:
        """Return the newest duplicates of those who met a job, oldest first."""
        ...

    def duplicate_counts(self, by: GroupBy, *, limit: int) -> list[DuplicateCount]:
        """Return how many have met jobs, for the `limit` names with the most of them, these first."""
        ...

    def claim(self, job_id: str, *, nonce: str, node: str, sources: frozenset[State], target: State) -> Applied:
        """Start a run: new token, new lease.

        The job must be in `sources`, due, not expired, not asked to cancel, and not waiting for its identity.
        """
        ...

    def renew(self, claims: Sequence[tuple[str, str]], *, sources: frozenset[State]) -> list[Renewal]:
        """Extend the leases of all (job id, nonce) in one call and tell what became of each, in the same order."""
        ...

    def apply(self, change: Change) -> Applied:
        """Apply a change if its conditions hold."""
        ...

    def report(self, job_id: str, token: int, progress: str, *, sources: frozenset[State]) -> Cancel | None:
        """Keep a run's progress. Returns what has been asked of the run, or None when the token is stale."""
        ...

    def keep_step(self, job_id: str, token: int, name: str, value: str, *, sources: frozenset[State]) -> str | None:
        """Memoise a step. Returns the value that is kept (an earlier one wins), or None when the token is stale."""
        ...

    def steps(self, job_id: str) -> Mapping[str, str]:
        """Return the memoised steps of a job by name."""
        ...

    def take_due(self, *, limit: int, hold: float) -> list[Job]:
        """Return jobs whose alarm has rung and put it off by `hold` seconds, so that one sweeper gets each.

        Runs whose lease ran out come before all others; otherwise those whose alarm rang first come first.
        """
        ...

    def get(self, job_id: str) -> Job | None:
        """Return a job as it is now."""
        ...

    def get_many(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """Return jobs by their ids, without those that are not there, in one round trip."""
        ...

    def holder(self, identity: str) -> Job | None:
        """Return the job that holds an identity."""
        ...

    def find_existing(self, identity: str, key: str | None) -> Job | None:
        """Return the job that would answer a submission: its key's, or else the one that holds its identity."""
        ...

    def find(self, query: Query) -> list[Job]:
        """Return jobs, newest first."""
        ...

    def counts(self, query: Query) -> dict[State, int]:
        """Return how many jobs match, by state, without states that none is in; place and limit do not matter."""
        ...

    def history(self, job_id: str) -> list[Entry]:
        """Return what happened to a job, oldest first."""
        ...

    def delete(
        self, job_ids: Sequence[str], *, sources: frozenset[State], skip_keyed: bool = False, tombstone_for: float = 0.0
    ) -> list[str]:
        """Remove the jobs that are in `sources` and hold no identity, with all that belongs to them; return their ids.

        `skip_keyed`: a job that an idempotency key points to stays, and its alarm rings when the key is forgotten. A store
        may leave a job that somebody is just writing for another time. What has been counted stays counted.

        `tombstone_for`: each job that had ended leaves a tombstone for so many seconds. At most twice as many old
        tombstones go as there are `job_ids`, so that they never gather.
        """
        ...

    def tombstone(self, job_id: str) -> Tombstone | None:
        """Return what is remembered of a job that was deleted; nothing when there is a job of this id again."""
        ...

    def consume(self, name: str, *, nonce: str, limit: int, period: float) -> QuotaUse:
        """Count one use of a name, unless `limit` were counted in the window of `period` seconds that is under way.

        A window begins with the first use after the one before it. A use that is not counted changes nothing. A name
        has always the same period. What is over is removed in small portions by later uses, of whatever name.
        """
        ...

    def refund(self, name: str, *, nonce: str, until: float) -> None:
        """Take back one use of a name that was counted in the window which ends at `until`, unless that is over."""
        ...

    def heartbeat(self, node: str, *, lasts: float) -> None:
        """Keep a worker node's sign of life, for so many seconds; 0 removes it. Signs that are over go."""
        ...

    def workers(self) -> list[WorkerInfo]:
        """Return the nodes whose signs last, by name."""
        ...

    def increment(self, amounts: Mapping[str, float]) -> None:
        """Add to running totals by name; a total that is not there yet is 0.

        When a reply is lost, the amounts may be added twice: they are for people, and nothing is decided by them.
        """
        ...

    def totals(self) -> dict[str, float]:
        """Return all running totals by name."""
        ...

    def close(self) -> None:
        """Let go of connections. The store may be used again afterwards."""
        ...
