"""Runs the statements of one operation: one transaction, with one value of the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onejob.errors import StoreError
from onejob.jobs.lifecycle import Transition
from onejob.jobs.model import Applied, Job
from onejob.stores.protocol import HISTORY_LIMIT
from onejob.stores.statement_files import statements

if TYPE_CHECKING:
    import sqlite3

SQL = statements(__package__, ".sql")


class Transaction:
    """The open transaction of one operation; `now` is the same for all its statements."""

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self._connection = connection
        self.now = now

    def rows(self, statement: str, /, **values: Any) -> list[dict[str, Any]]:
        """Execute a statement and return its rows by column."""
        return self._connection.execute(SQL[statement], {"now": self.now, **values}).fetchall()

    def job(self, statement: str, /, **values: Any) -> Job | None:
        """Execute a statement that returns at most one job."""
        rows = self.rows(statement, **values)
        return Job.from_row(rows[0]) if rows else None

    def existing_job(self, statement: str, /, **values: Any) -> Job:
        """Execute a statement on a job that was read before in this transaction. Raises `StoreError` without a row."""
        job = self.job(statement, **values)
        if job is None:  # pragma: no cover - no other transaction writes meanwhile
            msg = f"the ledger is inconsistent: {statement} found no job for {values}"
            raise StoreError(msg)
        return job

    def append_history(self, job_id: str, event: str, detail: str) -> None:
        """Append an entry to a job's history, and trim the history to its newest entries."""
        self.rows("insert_history", job_id=job_id, event=event, detail=detail)
        self.rows("trim_history", job_id=job_id, history_limit=HISTORY_LIMIT)

    def find_applied(self, job_id: str, request_id: str) -> Applied:
        """Return whether a request is repeated and was applied, or else is refused."""
        rows = self.rows("get", job_id=job_id)
        if not rows:
            return Applied(applied=False, job=None)
        return Applied(applied=request_id in rows[0]["requests"].split(), job=Job.from_row(rows[0]))


def wake_followers(tx: Transaction, ended: Job) -> None:
    """Make the followers of an ended job due, and promote the job that is queued next."""
    for row in tx.rows("wake_followers", job_id=ended.id):
        if row["holds_identity"]:
            tx.append_history(row["id"], Transition.PROMOTE, f"promoted when {ended.id} ended")
