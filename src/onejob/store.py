"""The store protocol: eleven operations that keep rows atomically. The ledger is the use cases on top of it.

Laws every store obeys (`tests/contract` checks them on each):

- An operation happens whole or not at all, also when the process or the connection dies in the middle.
- At most one job with `holds` exists for one identity, whatever runs at the same time.
- Time is the store's own clock, never the caller's.
- A repeated call with the same request id (for `submit` the job id, for `claim` the nonce) changes nothing and gets the
  same answer, as long as it is one of the job's last eight.
- A token is larger than every token the job had before, and at least the clock in microseconds.
- A store knows no rule of the lifecycle: it compares what it is told to compare and sets what it is told to set.
- Driver errors leave a store only as `StoreError`, or `StoreUnavailableError` when the outcome is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onejob.job import Applied, Cancel, Change, Entry, Job, Query, Renewal, Submission
    from onejob.lifecycle import State

HISTORY_LIMIT = 200
"""How many entries of a job's history a store keeps (the newest)."""
WINDOW_OVER = "its uniqueness window is over"
"""What the history says of a job that gave up its identity to a submission."""
RECEIPT_LIMIT = 20
"""How many duplicates get an entry in the history; all of them are counted."""


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

    def joined(self, transaction: Transaction) -> Store:
        """Return this store as a part of a transaction: what it writes becomes true when that is committed.

        There, errors are the driver's own, and nobody waits for the transaction but equal submissions.
        """
        ...


class Store(Protocol):
    """Rows in, rows out, atomically. Safe to use from many threads; survives a fork."""

    def submit(self, new: Submission, *, wake_in: float) -> tuple[Job, Job | None]:
        """Write `new` as a queued job that holds its identity, unless a job holds it already.

        Returns the job that holds the identity, and the row under `new.id` when that is another one (a follower,
        written when `new.follows`). A row that exists under `new.id` answers for itself. `wake_in`: seconds to the
        first alarm.
        """
        ...

    def claim(self, job_id: str, *, nonce: str, node: str, sources: frozenset[State], target: State) -> Applied:
        """Start a run if the job is in `sources`, due, not expired and not asked to cancel: new token, new lease."""
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

    def due(self, *, limit: int, hold: float) -> list[Job]:
        """Return jobs whose alarm has rung and put it off by `hold` seconds, so that one sweeper gets each."""
        ...

    def get(self, job_id: str) -> Job | None:
        """Return a job as it is now."""
        ...

    def find(self, query: Query) -> list[Job]:
        """Return jobs, newest first."""
        ...

    def history(self, job_id: str) -> list[Entry]:
        """Return what happened to a job, oldest first."""
        ...

    def delete(self, job_ids: Sequence[str], *, sources: frozenset[State]) -> list[str]:
        """Remove the jobs that are in `sources` and hold no identity, with all that belongs to them; return their ids.

        A store may leave a job that somebody is just writing for another time.
        """
        ...

    def close(self) -> None:
        """Let go of connections. The store may be used again afterwards."""
        ...
