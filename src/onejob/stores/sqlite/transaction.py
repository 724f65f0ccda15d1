"""Runs the statements of one operation, at one time of the clock: as a transaction, or a savepoint in a user's."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from onejob.errors import ConfigurationError, StoreBusyError, StoreError
from onejob.jobs.history import claim_detail
from onejob.jobs.model import Applied, JobRow
from onejob.stores.carrier import or_error
from onejob.stores.schema import LedgerSchema, check_version
from onejob.stores.sql import job_of
from onejob.stores.sqlite.connection import ForkSafeConnection
from onejob.stores.sqlite.errors import rule_of, translate
from onejob.stores.sqlite.files import is_uri_path
from onejob.stores.statement_files import NEW_JOB, NEW_VALUES, statements
from onejob.stores.verdicts import Verdict, explain
from onejob.transactions.sessions import OpenTransaction, sqlite_autocommits

T = TypeVar("T")

SQL = statements(
    __package__, ".sql",
    new_job_values=", ".join(f":{name}" for name in NEW_JOB),
    new_row_values=", ".join(f":{column}" for column in NEW_JOB.values()),
    new_values=", ".join(f"{name} = coalesce(:{name}, {name})" for name in NEW_VALUES),
)  # fmt: skip
_ERRORS = (sqlite3.Error, UnicodeEncodeError)
"""The exceptions of the driver; it raises `UnicodeEncodeError` for a text with a lone surrogate."""
RETRY_SECONDS = (0.001, 0.05)
"""Seconds before an operation that found the file locked is tried again: at first, and at most."""
SHARED_LIMIT = 32
"""How many operations share a transaction at most: it keeps the file locked while other threads of this process hold
the GIL, for half a millisecond or more in each operation."""
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

    def jobs(self, statement: str, /, **values: Any) -> list[JobRow]:
        """Execute a statement that returns jobs."""
        return [job_of(row) for row in self._run(statement, values).fetchall()]

    def job(self, statement: str, /, **values: Any) -> JobRow | None:
        """Execute a statement that returns at most one job."""
        rows: Sequence[Any] = self._run(statement, values).fetchall()
        return job_of(rows[0]) if rows else None

    def existing_job(self, statement: str, /, **values: Any) -> JobRow:
        """Execute a statement on a job that was read before in this transaction. Raises `StoreError` without a row."""
        job = self.job(statement, **values)
        if job is None:  # pragma: no cover - no other transaction writes meanwhile
            raise StoreError(f"the ledger is inconsistent: {statement} found no job for {values}")
        return job

    def append_history(self, job_id: str, event: str, detail: str) -> None:
        """Append an entry on a job as it is now to its history, and trim the history to its newest entries."""
        self.rows("insert_history", job_id=job_id, event=event, detail=detail)
        self.rows("trim_history", job_id=job_id)

    def append_claim(self, job: JobRow | None) -> None:
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
    """Run an operation as a transaction, and return its result. Raises `StoreError`.

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
            rule = rule_of(error)
            if rule.verdict is Verdict.STALE:
                shared.close()
            if not rule.repeats or time.monotonic() > deadline:
                raise translate(error, shared.path) from error
        # Without the lock, since whoever has locked the file may be a thread of this process that reads the ledger.
        time.sleep(pause)
        pause = min(2 * pause, RETRY_SECONDS[1])


# --- the operations of several callers --------------------------------------------------------------------------------


class Request(NamedTuple):
    """An operation of one caller, and how its transaction begins: as for `run_alone`."""

    begin: str
    operation: Callable[[Transaction], Any]


def run_together(shared: ForkSafeConnection, clock: Callable[[], float], requests: Sequence[Request]) -> list[Any]:
    """Run operations of several callers in few transactions; return the value of each, or its error.

    If another process has the file locked for too long, none of the others is tried: each would wait as long.
    """
    answers: list[Any] = []
    for start in range(0, len(requests), SHARED_LIMIT):
        try:
            answers += _run_as_one(shared, clock, requests[start : start + SHARED_LIMIT])
        except StoreBusyError as error:
            return answers + [error] * (len(requests) - start)
    return answers


def _run_as_one(shared: ForkSafeConnection, clock: Callable[[], float], requests: Sequence[Request]) -> list[Any]:
    """Run operations as one transaction, or if it fails each alone: a full disk may have room for some.

    Raises `StoreBusyError`.
    """
    if len(requests) > 1:
        try:
            return run_alone(
                shared, clock, "immediate", lambda tx: [_run_one(shared, tx, clock, one) for one in requests]
            )
        except StoreError as error:
            if isinstance(error, StoreBusyError):
                raise
    return [or_error(partial(run_alone, shared, clock, *request)) for request in requests]


def _run_one(shared: ForkSafeConnection, tx: Transaction, clock: Callable[[], float], request: Request) -> Any:
    """Run one of several operations, at a time of its own; return its value, or its error if it leaves the others.

    Only an operation of several statements needs a savepoint: SQLite undoes a statement that fails.
    """
    if request.begin != "immediate":
        return _run_or_error(shared, request, Transaction(tx.execute, clock()))
    tx.execute("savepoint one")
    found = _run_or_error(shared, request, Transaction(tx.execute, clock()))
    if isinstance(found, Exception):
        tx.execute("rollback to savepoint one")
    tx.execute("release savepoint one")
    return found


def _run_or_error(shared: ForkSafeConnection, request: Request, tx: Transaction) -> Any:
    try:
        return request.operation(tx)
    except _ERRORS as error:
        is_over = shared.connection is None or not shared.connection.in_transaction
        if is_over or rule_of(error).repeats:  # some errors have rolled everything back
            raise
        return translate(error, shared.path)
    except Exception as error:  # noqa: BLE001 - it is raised in its caller
        return error


# --- in a user's transaction ----------------------------------------------------------------------------------------


def run_joined(connection: Any, clock: Callable[[], float], begin: str, operation: Callable[[Transaction], T]) -> T:
    """Run an operation in a user's open transaction, as a savepoint.

    Errors of the driver are not translated; a note on each says what it means.
    On a connection in autocommit mode, without a transaction, the operation is a transaction of its own. `begin`: how a
    transaction begins that the user has not begun; a transaction that reads before it writes must be `immediate`, which
    waits for other writers, since SQLite refuses writes that are based on reads from before another write.
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
    except BaseException as error:
        if connection.in_transaction:  # some errors have rolled everything back
            execute("rollback to savepoint onejob")
        if isinstance(error, sqlite3.Error):
            explain(error, rule_of(error), "the SQLite ledger of this session")
        raise
    finally:
        if connection.in_transaction:
            execute("commit" if commits else "release savepoint onejob")


def _cursor_of(connection: Any) -> Any:
    """Return a cursor whose rows are tuples, whatever kind of rows the user's cursors have."""
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor


def join(transaction: OpenTransaction, path: Path, *, writes: bool) -> None:
    """Check that a user's transaction is on the ledger's file, at a supported version; lock the file if it `writes`.

    In SQLite a transaction that has read before cannot wait for another writer. Raises `ConfigurationError`, and if the
    file is locked the driver's error, with a note.
    """
    file = _check_same_file(transaction, path)
    connection: Any = transaction.connection
    if writes and connection.in_transaction:
        try:
            _cursor_of(connection).execute("delete from schema_version where false")
        except sqlite3.Error as error:
            rule = rule_of(error)
            if rule.verdict is not Verdict.OPERATOR:  # the check of the version tells of a missing table
                explain(error, rule, "the SQLite ledger of this session")
                raise
    check_version(LedgerSchema(_cursor_of(connection), "sqlite").version(), file)


def _check_same_file(transaction: OpenTransaction, path: Path) -> str:
    """Return the file of a user's transaction. Raises `ConfigurationError` unless it is that of the ledger."""
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
    return found or str(path)
