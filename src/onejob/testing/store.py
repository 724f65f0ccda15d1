"""The store of a test: SQLite in a temporary file, on a clock that the test moves; it can be unavailable."""

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from onejob.errors import ConfigurationError
from onejob.stores.holder_cache import HolderCache
from onejob.stores.sqlite import SQLiteStore
from onejob.stores.sqlite.transaction import Transaction

T = TypeVar("T")


class Clock:
    """Seconds since the epoch, ahead of the machine's by `offset` seconds. A store of a test reads this clock."""

    def __init__(self) -> None:
        self.offset = 0.0

    def __call__(self) -> float:
        """Return the time, in whole microseconds."""
        return (time.time_ns() // 1000 + round(self.offset * 1e6)) / 1e6

    def travel(self, seconds: float = 0.0, **units: float) -> None:
        """Advance the clock by `seconds`, or by `minutes`, `hours`, `days`, as `datetime.timedelta` takes them.

        Raises `ConfigurationError` for a negative time: leases and tokens rely on a clock that does not go back.
        """
        ahead = timedelta(seconds=seconds, **units).total_seconds()
        if ahead < 0:
            msg = f"travel takes a time ahead, not {ahead:g} s: the clock of a ledger does not go back"
            raise ConfigurationError(msg)
        self.offset += ahead


class IsolatedStore(SQLiteStore):
    """A SQLite store on the clock of a test. `refuse`, if set, is called before each operation, and may raise."""

    def __init__(self, path: Path, clock: Clock) -> None:
        super().__init__(path, clock=clock)
        self.refuse: Callable[[], object] | None = None

    def clear(self) -> None:
        """Replace the ledger by an empty one."""
        self.close()
        for suffix in ("-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        shutil.copyfile(empty_ledger(), self.path)
        self._holders = HolderCache()

    def rows_of(self, identity: str) -> dict[str, dict[str, Any]]:
        """Return the rows of the jobs with an identity, by their ids."""

        def read(tx: Transaction) -> dict[str, dict[str, Any]]:
            found = tx.execute("select * from jobs where identity = ?", (identity,))
            names = [column[0] for column in found.description]
            rows = [dict(zip(names, row, strict=True)) for row in found]
            return {row["id"]: row for row in rows}

        return super()._statement(read)

    def put_back(self, row: Mapping[str, Any]) -> None:
        """Write a row of a job as it was."""
        columns = ", ".join(f"{name} = :{name}" for name in row)
        update = f"update jobs set {columns} where id = :id"  # noqa: S608 - the table's own names
        super()._statement(lambda tx: tx.execute(update, row))

    def _transaction(self, operation: Callable[[Transaction], T], begin: str = "immediate") -> T:
        self._check()
        return super()._transaction(operation, begin)

    def _statement(self, operation: Callable[[Transaction], T]) -> T:
        self._check()
        return super()._statement(operation)

    def _check(self) -> None:
        if self.refuse is not None:
            self.refuse()


@cache
def empty_ledger() -> Path:
    """Return a file with an empty ledger: copying it is ten times as fast as making a ledger."""
    directory = Path(tempfile.mkdtemp(prefix="onejob-"))
    atexit.register(_remove, directory, os.getpid())
    store = IsolatedStore(directory / "ledger.db", Clock())
    store.get_many(["any"])
    store.close()
    return directory / "ledger.db"


def _remove(directory: Path, process: int) -> None:
    """Remove a directory at the end of the process that made it, not at the end of a forked child."""
    if os.getpid() == process:
        shutil.rmtree(directory, ignore_errors=True)
