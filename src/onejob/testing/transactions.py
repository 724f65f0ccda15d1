"""Takes part in users' transactions on any database, with the ledger of a test in a file of its own.

What a job's completion or submission writes takes effect after the commit of the user's transaction, and is taken back
after its rollback. Between the two commits no test can intervene, so that for a test they are one.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.jobs.model import Job


@dataclass(eq=False)
class PendingWrite:
    """A write that waits for the end of a user's transaction."""

    transaction: Any
    job: Job
    on_commit: Callable[[], object]
    on_rollback: Callable[[], object]
    on_silent_commit: Callable[[], object] = lambda: None
    """What else is done for a commit in a test case of Django, which calls nobody."""
    ended: bool = False

    def __call__(self) -> None:
        """Do what the commit does, once."""
        if not self.ended:
            self.ended = True
            self.on_commit()

    def settle(self) -> None:
        """End the write if its transaction has ended without calling it, or will never call it in a test case."""
        if self.ended:
            return
        if not self._is_registered():
            self.ended = True
            self.on_rollback()
        elif _only_test_case_is_open(self.transaction):
            self()
            self.on_silent_commit()

    def _is_registered(self) -> bool:
        session = getattr(self.transaction, "_session", None)
        if session is not None:
            return any(each.call is self for each in session.info.get("onejob", ()))
        return any(entry[1] is self for entry in _django(self.transaction).run_on_commit)


def is_in_django_transaction() -> bool:
    """Return whether a block of Django's `atomic` is open, besides those of a test case."""
    database: Any = sys.modules.get("django.db")
    return database is not None and any(
        not getattr(block, "_from_testcase", False)
        for connection in database.connections.all(initialized_only=True)
        for block in connection.atomic_blocks
    )


def _django(transaction: Any) -> Any:
    return transaction._connection  # noqa: SLF001 - the wrapper of onejob, which shows the driver's connection only


def _only_test_case_is_open(transaction: Any) -> bool:
    """Return whether all open blocks are those that Django's TestCase rolls back at its end."""
    blocks = getattr(_django(transaction), "atomic_blocks", None)
    return bool(blocks) and all(getattr(block, "_from_testcase", False) for block in blocks or ())
