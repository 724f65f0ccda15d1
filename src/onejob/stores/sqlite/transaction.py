"""Runs the statements of one operation: one transaction, or a savepoint in a user's, with one value of the clock."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from onejob.errors import ConfigurationError, StoreError, StoreRefusedError, StoreUnavailableError
from onejob.jobs.model import Applied, Job
from onejob.jobs.records import claim_detail
from onejob.stores.schema import LedgerSchema, check_version
from onejob.stores.sql import job_of
from onejob.stores.sqlite.connection import ForkSafeConnection, is_uri_path
from onejob.stores.statement_files import NEW_JOB, NEW_VALUES, statements
from onejob.transactions.sessions import OpenTransaction, sqlite_autocommits

T = TypeVar("T")

SQL = statements(
    __package__, ".sql",
    new_job_values=", ".join(f":{name}" for name in NEW_JOB),
    new_row_values=", ".join(f":{column}" for column in NEW_JOB.values()),
    new_values=", ".join(f"{name} = coalesce(:{name}, {name})" for name in NEW_VALUES),
)  # fmt: skip
LOCKED_IN_MEMORY = (
    ". Another connection of this process has an open transaction on this database in memory: pass it as session=, or "
    "isolate the test with onejob.testing.JobsMixin"
)
"""What to do about SQLite's "table is locked", which only connections that share a database in memory get."""
_REFUSED_WRITE = (sqlite3.DataError, sqlite3.IntegrityError, UnicodeEncodeError)
_ERRORS = (sqlite3.Error, UnicodeEncodeError)
"""What the driver raises; the latter for a text with a lone surrogate."""
RETRY_SECONDS = (0.001, 0.05)
"""Seconds before an operation that found the file locked is tried again: at first, and at most."""
_PARAMETER = re.compile(r":(\w+)")


@cache
def positional(statement: str) -> tuple[str, tuple[str, ...]]:
    """Return a statement with parameters by position, which is faster than by name, and their names."""
    return _PARAMETER.sub("?", SQL[statement]), tuple(_PARAMETER.findall(SQL[statement]))


class Transaction:
    """The statements of one operation; `now` is the same for all of them."""

    __slots__ = ("execute", "now")

    def __init__(self, execute: Callable[..., Any], now: float) -> None:
        self.execute = execute
        self.now = now

    def _run(self, statement: str, values: dict[str, Any]) -> Any:
        values["now"] = self.now
        text, names = positional(statement)
        return self.execute(text, [values[name] for name in names])

    def rows(self, statement: str, /, **values: Any) -> list[dict[str, Any]]:
        """Execute a statement and return its rows by column."""
        cursor = self._run(statement, values)
        columns = [column[0] for column in cursor.description or ()]
        return [dict(zip(columns, row, strict=True)) for row in cursor]

    def jobs(self, statement: str, /, **values: Any) -> list[Job]:
        """Execute a statement that returns jobs."""
        return [job_of(row) for row in self._run(statement, values).fetchall()]

    def job(self, statement: str, /, **values: Any) -> Job | None:
        """Execute a statement that returns at most one job."""
        rows: Sequence[Any] = self._run(statement, values).fetchall()
        return job_of(rows[0]) if rows else None

    def existing_job(self, statement: str, /, **values: Any) -> Job:
        """Execute a statement on a job that was read before in this transaction. Raises `StoreError` without a row."""
        job = self.job(statement, **values)
        if job is None:  # pragma: no cover - no other transaction writes meanwhile
            raise StoreError(f"the ledger is inconsistent: {statement} found no job for {values}")
        return job

    def append_history(self, job_id: str, event: str, detail: str) -> None:
        """Append an entry on a job as it is now to its history, and trim the history to its newest entries."""
        self.rows("insert_history", job_id=job_id, event=event, detail=detail)
        self.rows("trim_history", job_id=job_id)

    def append_claim(self, job: Job | None) -> None:
        """Append the entry of a job's latest claim, which the next claim overwrites in its row."""
        if job is not None and job.attempt:
            detail = claim_detail(job.attempt, job.node)
            self.rows(
                "insert_claim", job_id=job.id, at=job.started_at, attempt=job.attempt, node=job.node, detail=detail
            )
            self.rows("trim_history", job_id=job.id)

    def find_applied(self, job_id: str, request_id: str) -> Applied:
        """Return whether a request is repeated and was applied, or else is refused."""
        repeated = self.rows("is_repeated", job_id=job_id, request_id=request_id)
        return Applied(applied=bool(repeated and repeated[0]["repeated"]), job=self.job("get", job_id=job_id))


def run_alone(
    shared: ForkSafeConnection, clock: Callable[[], float], begin: str, operation: Callable[[Transaction], T]
) -> T:
    """Run an operation as a transaction, and return what it returns. Raises `StoreError`.

    `begin` is `immediate` or `deferred`, or "" for an operation of one statement, which is a transaction of its own:
    SQLite begins and commits it without the GIL. A transaction that Python begins and commits keeps the file locked
    while another thread of this process holds the GIL.
    """
    deadline, pause = 0.0, RETRY_SECONDS[0]
    while True:
        try:
            # Lock and connection are context managers in C: an exception of a signal handler cannot come between the
            # call that takes the lock and the block, or before those that end the transaction and release the lock.
            with shared.lock, shared.open_locked() as connection:
                if begin:
                    connection.execute(f"begin {begin}")
                return operation(Transaction(connection.execute, clock()))
        except _ERRORS as error:
            deadline = deadline or time.monotonic() + shared.busy_timeout
            if str(error) != "database is locked" or time.monotonic() > deadline:
                raise _store_error(error, shared.path) from error
        # Without the lock, since whoever has locked the file may be a thread of this process that reads the ledger.
        time.sleep(pause)
        pause = min(2 * pause, RETRY_SECONDS[1])


def _store_error(error: sqlite3.Error | UnicodeEncodeError, path: Path) -> StoreError:
    if isinstance(error, sqlite3.OperationalError):
        hint = LOCKED_IN_MEMORY if "table is locked" in str(error) else ""
        return StoreUnavailableError(f"the SQLite store {path} did not answer: {error}{hint}")
    refused = StoreRefusedError if isinstance(error, _REFUSED_WRITE) else StoreError
    return refused(f"the SQLite store {path} refused: {error}")


# --- in a user's transaction ----------------------------------------------------------------------------------------


def run_joined(connection: Any, clock: Callable[[], float], begin: str, operation: Callable[[Transaction], T]) -> T:
    """Run an operation in a user's open transaction, as a savepoint. Errors of the driver are not translated.

    On a connection in autocommit mode, without a transaction, the operation is a transaction of its own. `begin`: how a
    transaction begins that the user has not begun; one that reads before it writes must be `immediate`, which waits for
    other writers, since SQLite refuses to write after them what it has read before.
    """

    def execute(sql: str, values: Sequence[Any] = ()) -> Any:
        return _cursor_of(connection).execute(sql, values)

    commits = sqlite_autocommits(connection)
    if not connection.in_transaction:
        # Python begins only before some statements, and the release of a savepoint would commit.
        execute(f"begin {begin}")
    execute("savepoint onejob")
    try:
        return operation(Transaction(execute, clock()))
    except BaseException:
        if connection.in_transaction:  # some errors have rolled everything back
            execute("rollback to savepoint onejob")
        raise
    finally:
        if connection.in_transaction:
            execute("commit" if commits else "release savepoint onejob")


def _cursor_of(connection: Any) -> Any:
    """Return a cursor whose rows are tuples, whatever those of the user are."""
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor


def check_same_file(transaction: OpenTransaction, path: Path) -> None:
    """Raise `ConfigurationError` unless a user's transaction is on the file of the ledger, at a supported version."""
    if transaction.dialect != "sqlite":
        raise ConfigurationError(
            f"the ledger is in SQLite, and cannot take part in a transaction of {transaction.dialect}. Keep it in that "
            "database (onejob_store='postgresql://...'), or guard your effects with onejob.fence"
        )
    databases = transaction.rows("pragma database_list", {})
    found = next((str(row["file"] or "") for row in databases if row["name"] == "main"), "")
    is_memory = not found and is_uri_path(path)  # SQLite returns no name for a database in memory
    if not is_memory and not (found and path.exists() and path.samefile(found)):
        raise ConfigurationError(
            f"this session is on the SQLite file {found or 'in memory'}, and the ledger of this app is in {path}: "
            "pass a session on that file"
        )
    check_version(LedgerSchema(_cursor_of(transaction.connection), "sqlite").version(), found or str(path))
