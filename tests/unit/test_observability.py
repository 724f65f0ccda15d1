"""The page on observability agrees with the code: its tables have every event, every field and every series."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onejob.jobs.model import Retention
from onejob.jobs.policy import Policy
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger
from onejob.ledger.publication import fail_unpublishable
from onejob.observability.events import EVENTS, HEARTBEAT_LATE, JobEvent
from onejob.observability.logs import log
from onejob.observability.metrics import SERIES
from onejob.stores.sqlite import SQLiteStore
from tests.contract.support import ManualClock, submission, sweep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onejob.jobs.model import Job

PAGE = (Path(__file__).parents[2] / "docs" / "observability.md").read_text()
NAME = re.compile(r"`(\w+)`")


def table(first: str) -> Iterator[list[str]]:
    """Yield the rows of the table whose first column has this heading."""
    lines = PAGE[PAGE.index(f"| {first} |") :].split("\n\n", 1)[0].splitlines()[2:]
    for line in lines:
        yield [cell.strip() for cell in line.strip("|").split("|")]


class Scenario:
    """A ledger in which every event is emitted."""

    def __init__(self, path: Path) -> None:
        self.emitted: list[JobEvent] = []
        self.clock = ManualClock()
        self.ledger = Ledger(SQLiteStore(path, clock=self.clock), Policy(crash_limit=2), self.emitted.append)

    def run(self, job_id: str) -> Job:
        """Start a run of a job, and submit the job first if it is new."""
        self.ledger.submit(submission(job_id, nonce=job_id, canvas=True))
        job = self.ledger.claim(job_id, nonce=new_nonce(), node="node-1").job
        assert job is not None
        return job

    def run_all(self) -> None:
        """Make every transition that emits an event."""
        ledger = self.ledger
        ledger.mark_canvas_notified(
            ledger.complete(ledger.release_identity(self.run("completed")), "1", keep=Retention(identity_for=1.0))
        )
        ledger.fail(self.run("dead"), '"error"', "failed")
        ledger.redrive("dead")
        ledger.submit(submission("delayed", delay=60.0))
        ledger.run_now("delayed")
        ledger.fail(self.run("dropped"), '"error"', "failed")
        ledger.drop("dropped")
        job = self.run("again")
        ledger.retry(job, delay=0.0, payload="{}", options="{}", retries=1, error=None, reason="again")
        ledger.release(self.run("again"), "released", wake_in=0.0)
        ledger.replace(self.run("replaced"), payload="{}", options="{}", canvas=False, reason="replaced", wake_in=0.0)
        ledger.crash(self.run("lost"), "crashed", '"lost"')
        ledger.crash(self.run("lost"), "crashed", '"lost"')
        ledger.cancel(self.run("canceled").id)
        ledger.claim("canceled", nonce="another", node="node-2")
        ledger.abandon(ledger.get("canceled"), "canceled")
        ledger.submit(submission("holder", identity="same"))
        ledger.submit(submission("follower", identity="same", follows=True))
        ledger.submit(submission("late", expires_in=1.0))
        fail_unpublishable(ledger, ledger.submit(submission("unsendable")).job, "no such queue")
        self.promote()
        self.sweep_all()

    def promote(self) -> None:
        """Promote a job that was queued next."""
        holder = self.ledger.claim("holder", nonce="n", node="node-1").job
        assert holder is not None
        self.ledger.submit(submission("next", identity="same", fingerprint="other", queues_next=True))
        waiting = self.ledger.get("next")
        self.ledger.release_identity(holder)
        self.ledger.promote(waiting)

    def sweep_all(self) -> None:
        """Sweep until all jobs are purged."""
        for seconds in (10.0, 1000.0, 1e7, 1e7):
            self.clock.advance(seconds)
            sweep(self.ledger, lambda _job: None)


def test_the_page_has_every_event(tmp_path: Path) -> None:
    """The table of events has each name once, and exactly the fields that are emitted."""
    scenario = Scenario(tmp_path / "ledger.db")
    scenario.run_all()
    rows = list(table("event"))
    assert sorted(NAME.findall(row[0])[0] for row in rows) == sorted(EVENTS)
    documented = {NAME.findall(row[0])[0]: set(NAME.findall(row[3])) for row in rows}
    fields: dict[str, set[str]] = {name: set() for name in documented}
    for event in scenario.emitted:
        fields[event.name] |= set(event.fields) - {"follows_id"}
    fields[HEARTBEAT_LATE] = documented[HEARTBEAT_LATE]
    assert fields == documented
    assert {event.name for event in scenario.emitted} == set(EVENTS) - {HEARTBEAT_LATE}


@pytest.mark.parametrize("row", list(table("event")), ids=lambda row: row[0].strip("`"))
def test_the_page_has_the_levels(row: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """Each event is logged at the first level in its row."""
    with caplog.at_level(logging.DEBUG, "onejob.jobs"):
        log(JobEvent(row[0].strip("`"), "job-1", "t", {"seen": 1}))
    assert caplog.records[0].levelname == row[1].partition(";")[0]


def test_the_page_has_every_series() -> None:
    """The table of series lists each one with its kind and its labels, in the order of `SERIES`."""
    rows = [(NAME.findall(row[0])[0], row[1], tuple(NAME.findall(row[2]))) for row in table("series")]
    assert rows == [(name, series.kind.value, series.labels) for name, series in SERIES.items()]
