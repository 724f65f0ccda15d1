"""Operations as parts of a user's transaction on the file of the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from onejob.errors import ConfigurationError
from onejob.stores.schema import LedgerSchema, check_version
from onejob.stores.sqlite.connection import is_uri_path
from onejob.stores.sqlite.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from onejob.stores.protocol import Transaction as UserTransaction


class JoinedTransaction(Transaction):
    """One operation in a user's open transaction: a savepoint. Errors of the driver are not translated.

    On a connection in autocommit mode, without a transaction, the operation is a transaction of its own.
    """

    __slots__ = ("_user_connection",)

    def __init__(self, connection: Any, clock: Callable[[], float]) -> None:
        self._user_connection = connection
        self._clock = clock

    def __enter__(self) -> Self:
        if self._user_connection.isolation_level is not None and not self._user_connection.in_transaction:
            self._run("begin")  # Python begins only before some statements, and a savepoint's release would commit
        self._run("savepoint onejob")
        self._execute = self._run
        self.now = self._clock()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and self._user_connection.in_transaction:  # some errors have rolled everything back
            self._run("rollback to savepoint onejob")
        if self._user_connection.in_transaction:
            self._run("release savepoint onejob")

    def execute(self, sql: str, values: Sequence[Any]) -> Any:
        """Execute SQL with parameters by position."""
        return self._run(sql, values)

    def _run(self, sql: str, values: Any = ()) -> Any:
        cursor = self._user_connection.cursor()
        cursor.row_factory = None  # rows are tuples, whatever those of the user are
        return cursor.execute(sql, values)


def check_same_file(transaction: UserTransaction, path: Path) -> None:
    """Raise `ConfigurationError` unless a user's transaction is on the file of the ledger, at a supported version."""
    if transaction.dialect != "sqlite":
        msg = (
            f"the ledger is in SQLite, and cannot take part in a transaction of {transaction.dialect}. Keep it in that "
            "database (onejob_store='postgresql://...'), or guard your effects with onejob.fence"
        )
        raise ConfigurationError(msg)
    databases = transaction.rows("pragma database_list", {})
    found = next((str(row["file"] or "") for row in databases if row["name"] == "main"), "")
    is_memory = not found and is_uri_path(path)  # SQLite does not tell the name of a database in memory
    if not is_memory and not (found and path.exists() and path.samefile(found)):
        msg = (
            f"this session is on the SQLite file {found or 'in memory'}, and the ledger of this app is in {path}: "
            "pass a session on that file"
        )
        raise ConfigurationError(msg)
    connection: Any = transaction.connection
    cursor = connection.cursor()
    cursor.row_factory = None
    check_version(LedgerSchema(cursor, "sqlite").version(), found or str(path))
