"""The store of a test: SQLite in a temporary file, which a test can make unavailable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.errors import StoreUnavailableError
from onejob.stores.sqlite import SQLiteStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from onejob.stores.sqlite.transaction import Transaction
    from onejob.testing.clock import Clock


class IsolatedStore(SQLiteStore):
    """A SQLite store on the clock of a test. `refuse`, if set, is called before each operation, and may raise."""

    def __init__(self, path: Path, clock: Clock) -> None:
        super().__init__(path, clock=clock)
        self.refuse: Callable[[], object] | None = None

    def _transaction(self) -> Transaction:
        self._check()
        return super()._transaction()

    def _statement(self) -> Transaction:
        self._check()
        return super()._statement()

    def _check(self) -> None:
        if self.refuse is not None:
            self.refuse()


class Outage:
    """Refuses the next operations of a store: `operations` of them, or all."""

    def __init__(self, operations: int | None) -> None:
        self._left = operations

    def __call__(self) -> None:
        """Raise `StoreUnavailableError`, unless all operations to refuse have been refused."""
        if self._left == 0:
            return
        if self._left is not None:
            self._left -= 1
        msg = "the store is unavailable: the test said so, by store_unavailable()"
        raise StoreUnavailableError(msg)
