"""Runs the statements of one operation: one transaction, with one value of the clock."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, Self

from onejob.errors import StoreError, StoreRefusedError, StoreUnavailableError
from onejob.jobs.history import claim_detail
from onejob.jobs.lifecycle import Transition
from onejob.jobs.model import Applied
from onejob.stores.protocol import HISTORY_LIMIT
from onejob.stores.sqlite.rows import job_of
from onejob.stores.statement_files import statements

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onejob.jobs.model import Job
    from onejob.stores.sqlite.connection import ForkSafeConnection

SQL = statements(__package__, ".sql")
LOCKED_IN_MEMORY = (
    ". Another connection of this process has an open transaction on this database in memory: pass it as session=, or "
    "isolate the test with onejob.testing.JobsMixin"
)
"""What to do about SQLite's "table is locked", which only connections that share a database in memory get."""
_REFUSED_WRITE = (sqlite3.DataError, sqlite3.IntegrityError)


class Transaction:
    """A transaction of one operation, as a context manager; `now` is the same for all its statements.

    `begin` is `immediate` or `deferred`, or "" for an operation of one statement, which is a transaction of its own:
    SQLite begins and commits it without the GIL. A transaction that Python begins and commits keeps the file locked
    while another thread of this process holds the GIL.
    """

    __slots__ = ("_begin", "_clock", "_connection", "_execute", "_shared", "now")

    def __init__(self, shared: ForkSafeConnection, clock: Callable[[], float], begin: str = "") -> None:
        self._shared = shared
        self._clock = clock
        self._begin = begin

    def __enter__(self) -> Self:
        self._shared.lock.acquire()
        try:
            self._connection = self._shared.open_locked()
            self._execute = self._connection.execute
            if self._begin:
                self._execute(f"begin {self._begin}")
            self.now = self._clock()
        except BaseException as error:
            self._shared.lock.release()
            if isinstance(error, sqlite3.Error):
                raise self._store_error(error) from error
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if self._begin and error is None:
                self._execute("commit")
        except sqlite3.Error as failed:
            error = failed
        finally:
            try:
                if self._connection.in_transaction:
                    self._execute("rollback")
            finally:
                self._shared.lock.release()
        if isinstance(error, sqlite3.Error):
            raise self._store_error(error) from error

    def _store_error(self, error: sqlite3.Error) -> StoreError:
        """Return the store's error for one of the driver."""
        if isinstance(error, sqlite3.OperationalError):
            hint = LOCKED_IN_MEMORY if "table is locked" in str(error) else ""
            return StoreUnavailableError(f"the SQLite store {self._shared.path} did not answer: {error}{hint}")
        refused = StoreRefusedError if isinstance(error, _REFUSED_WRITE) else StoreError
        return refused(f"the SQLite store {self._shared.path} refused: {error}")

    def execute(self, sql: str, values: Sequence[Any]) -> sqlite3.Cursor:
        """Execute SQL with parameters by position."""
        return self._execute(sql, values)

    def rows(self, statement: str, /, **values: Any) -> list[dict[str, Any]]:
        """Execute a statement and return its rows by column."""
        values["now"] = self.now
        cursor = self._execute(SQL[statement], values)
        return [{column[0]: value for column, value in zip(cursor.description, row, strict=True)} for row in cursor]

    def jobs(self, statement: str, /, **values: Any) -> list[Job]:
        """Execute a statement that returns jobs."""
        values["now"] = self.now
        return [job_of(row) for row in self._execute(SQL[statement], values).fetchall()]

    def job(self, statement: str, /, **values: Any) -> Job | None:
        """Execute a statement that returns at most one job."""
        jobs = self.jobs(statement, **values)
        return jobs[0] if jobs else None

    def existing_job(self, statement: str, /, **values: Any) -> Job:
        """Execute a statement on a job that was read before in this transaction. Raises `StoreError` without a row."""
        job = self.job(statement, **values)
        if job is None:  # pragma: no cover - no other transaction writes meanwhile
            msg = f"the ledger is inconsistent: {statement} found no job for {values}"
            raise StoreError(msg)
        return job

    def append_history(self, job_id: str, event: str, detail: str) -> None:
        """Append an entry on a job as it is now to its history, and trim the history to its newest entries."""
        self.rows("insert_history", job_id=job_id, event=event, detail=detail)
        self._trim_history(job_id)

    def append_claim(self, job: Job | None) -> None:
        """Append the entry of a job's latest claim, which the next claim overwrites in its row."""
        if job is not None and job.attempt:
            detail = claim_detail(job.attempt, job.node)
            self.rows(
                "insert_claim", job_id=job.id, at=job.started_at, attempt=job.attempt, node=job.node, detail=detail
            )
            self._trim_history(job.id)

    def _trim_history(self, job_id: str) -> None:
        self.rows("trim_history", job_id=job_id, history_limit=HISTORY_LIMIT)

    def find_applied(self, job_id: str, request_id: str) -> Applied:
        """Return whether a request is repeated and was applied, or else is refused."""
        repeated = self.rows("is_repeated", job_id=job_id, request_id=request_id)
        return Applied(applied=bool(repeated and repeated[0]["repeated"]), job=self.job("get", job_id=job_id))


def wake_followers(tx: Transaction, ended: Job) -> None:
    """Make the followers of an ended job due, and promote the job that is queued next."""
    for row in tx.rows("wake_followers", job_id=ended.id):
        if row["holds_identity"]:
            tx.append_history(row["id"], Transition.PROMOTE, f"promoted when {ended.id} ended")
