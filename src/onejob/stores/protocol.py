"""The store protocols: the operations that keep rows atomically. The ledger is the use cases on top of them.

A new store begins with `CoreStore`; each of the others is a capability of its own. `tests/contract` has a suite of
each.

Laws every store obeys:

- An operation happens whole or not at all, also when the process or the connection dies in the middle.
- At most one job with `holds_identity` exists for one identity, whatever runs at the same time.
- Time is the store's own clock, never the caller's.
- A repeated call with the same request id (for `submit_many` the job id or the nonce, for `claim` and `consume` the
  nonce) changes nothing and gets the same answer, as long as it is one of the last eight of the job or of the quota,
  or its duplicate is kept.
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


class CoreStore(Protocol):
    """What every store must have: rows in, rows out, atomically. Safe to use from many threads; survives a fork."""

    def submit_many(
        self, submissions: Sequence[Submission], *, wake_in: float, wait_for_locks: bool = True
    ) -> list[Admission]:
        """Submit in this order, at most `BATCH_LIMIT`, in a few round trips; return the answers in this order.

        Each is written as a queued job that holds its identity, unless a job holds it already. A row that exists under
        its id answers for itself, and the first answer to its key for the key, as long as that is kept. Otherwise
        `onejob.uniqueness.on_duplicate.resolve` decides about the job that holds the identity: it may take over the payload, or the new
        one is written as the job that is queued next (if one is queued already, that one may take over the payload).
        With `follows` a row that follows the job which answers is written, too.

        A duplicate is counted on the job in its way and in the statistics, and leaves a duplicate. `wake_in`: seconds
        until `due` returns a job that may run at once; one that may not is returned when its time has come.

        With `patient=False` no row that another transaction holds is waited for longer than a moment: `StoreBusyError`.
        """
        ...

    def follow(self, submission: Submission, *, follows_id: str) -> Job | None:
        """Write `new` as a queued job without an identity whose alarm rings in the change that ends its leader.

        At once when that one has ended already. A row that exists under `new.id` answers for itself; None when there is
        no such leader. When `new` is due, who asks for it and what it wants of a job in its way mean nothing here.
        """
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

    def get_many(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """Return jobs as they are now by their ids, without those that are not there, in one round trip."""
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

    def close(self) -> None:
        """Let go of connections. The store may be used again afterwards."""
        ...


class Queries(Protocol):
    """Finding jobs otherwise than by their ids, and what is remembered of them."""

    def find_existing(self, identity: str, key: str | None) -> Job | None:
        """Return the job that would answer a submission: its key's, or else the one that holds its identity.

        A job whose uniqueness window is over holds its identity until the next submission, or a sweep, takes it.
        """
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

    def tombstone(self, job_id: str) -> Tombstone | None:
        """Return what is remembered of a job that was deleted; nothing when there is a job of this id again."""
        ...


class DuplicateStats(Protocol):
    """The duplicates of duplicates, and how many there were."""

    def record(self, duplicate: Duplicate, *, also: Sequence[str] = ()) -> None:
        """Keep the duplicate of somebody who met a job otherwise than by `submit_many`, and count it as that would.

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


class Quotas(Protocol):
    """How often a name may be used."""

    def consume(
        self, name: str, *, nonce: str, limit: int, period: float, amount: int = 1, until: float | None = None
    ) -> QuotaUse:
        """Count uses of a name, unless `limit` would be passed in the window of `period` seconds that is under way.

        A window begins with the first use after the one before it. A use that is not counted changes nothing. A name
        has always the same period. What is over is removed in small portions by later uses, of whatever name.

        A negative `amount` gives uses back, never more than there were; with `until` only in the window that ends then.
        """
        ...


class Metrics(Protocol):
    """What all processes share besides jobs: running totals, and the workers that are alive."""

    def increment(self, amounts: Mapping[str, float]) -> None:
        """Add to running totals by name; a total that is not there yet is 0.

        When a reply is lost, the amounts may be added twice: they are for people, and nothing is decided by them.
        """
        ...

    def totals(self) -> dict[str, float]:
        """Return all running totals by name."""
        ...

    def heartbeat(self, node: str, *, lasts: float) -> None:
        """Keep the heartbeat of a worker for so many seconds; 0 removes the worker. Stale workers are deleted."""
        ...

    def workers(self) -> list[WorkerInfo]:
        """Return the workers whose heartbeats last, by name."""
        ...


class Store(CoreStore, Queries, DuplicateStats, Quotas, Metrics, Protocol):
    """A full store, as the ledger uses it. One that lives in a SQL database may be a `TransactionalStore`, too."""


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
