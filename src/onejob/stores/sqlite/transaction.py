"""The statements of one operation: one transaction, at one moment of the clock."""

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
    """The statements of one operation, all at one moment of the clock."""

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self._connection = connection
        self.now = now

    def rows(self, statement: str, /, **values: Any) -> list[dict[str, Any]]:
        """Execute a statement and return its rows by column."""
        return self._connection.execute(SQL[statement], {"now": self.now, **values}).fetchall()

    def job(self, statement: str, /, **values: Any) -> Job | None:
        """Execute a statement that returns one job, or nothing."""
        rows = self.rows(statement, **values)
        return Job.from_row(rows[0]) if rows else None

    def one(self, statement: str, /, **values: Any) -> Job:
        """Execute a statement that must return a job, by what was seen before in this transaction."""
        job = self.job(statement, **values)
        if job is None:  # pragma: no cover - nobody else writes meanwhile
            msg = f"the ledger contradicts itself: {statement} found no job for {values}"
            raise StoreError(msg)
        return job

    def note(self, job_id: str, event: str, detail: str) -> None:
        """Write one line of a job's history."""
        self.rows("insert_history", job_id=job_id, event=event, detail=detail)
        self.rows("trim_history", job_id=job_id, history_limit=HISTORY_LIMIT)

    def applied_before(self, job_id: str, request_id: str) -> Applied:
        """Tell a repeated request, whose first answer was lost, from a refused one."""
        rows = self.rows("get", job_id=job_id)
        if not rows:
            return Applied(applied=False, job=None)
        return Applied(applied=request_id in rows[0]["requests"].split(), job=Job.from_row(rows[0]))


def wake(tx: Transaction, ended: Job) -> None:
    """Ring the alarms of those that follow an ended job, and let the one that is queued next have its turn."""
    for row in tx.rows("wake", job_id=ended.id):
        if row["holds_identity"]:
            tx.note(row["id"], Transition.PROMOTE, f"its turn came when {ended.id} ended")
