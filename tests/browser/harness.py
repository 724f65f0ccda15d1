"""The whole demo for tests of its page: its processes, and a provider that tests can hold."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

from onejob.demo import TASK
from onejob.demo.scenario import LIVE
from tests.services import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from onejob.demo.supervisor import Stack

PATIENCE = 45.0


class Provider:
    """The paid provider of the demo, whose duration the test controls."""

    def __init__(self, bill: Path) -> None:
        self._bill = bill
        self._hold: sqlite3.Connection | None = None

    def hold(self) -> None:
        """Hold all calls from now on until they are released."""
        self._hold = self._opened()
        self._hold.execute("begin immediate")

    def release(self) -> None:
        """Release the calls."""
        if self._hold is not None:
            self._hold.close()
            self._hold = None

    def let_through(self, calls: int) -> None:
        """Release some calls, or a few more, and hold the others."""
        wanted = self._paid() + calls
        self.release()
        eventually(lambda: self._paid() >= wanted, PATIENCE)
        self.hold()

    def _paid(self) -> int:
        with closing(self._opened()) as bill:
            return int(bill.execute("select count(*) from calls").fetchone()[0])

    def _opened(self) -> sqlite3.Connection:
        return sqlite3.connect(self._bill, timeout=PATIENCE, isolation_level=None)


class Demo:
    """The demo, with operations for tests."""

    def __init__(self, stack: Stack, documents: Path) -> None:
        self.stack = stack
        self.documents = documents
        self.api = stack.start()
        self.provider = Provider(stack.folder / "bill.db")

    def jobs(self, project: str) -> list[dict[str, Any]]:
        """Return the jobs of a project, newest first."""
        validated = self.api.post("jobs", {"task": TASK, "kwargs": {"project": project}, "validate_only": True})
        found: list[dict[str, Any]] = self.api.get(f"jobs?include=result&identity={validated['identity']}")["jobs"]
        return found

    def occupy(self, project: str) -> None:
        """Occupy every worker with a job that waits for the provider."""
        jobs = [self.api.submit(f"{project}-{number}")["job"]["id"] for number in (1, 2)]
        eventually(lambda: all(self.api.job(job)["state"] == "running" for job in jobs), PATIENCE)

    def rest(self) -> None:
        """Wait until no job is live, so that the next test has all workers."""
        self.provider.release()
        eventually(lambda: not self._live(), PATIENCE)

    def _live(self) -> list[str]:
        return [job["id"] for job in self.api.get("jobs")["jobs"] if job["state"] in LIVE]
