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
from onejob.ledger.sweep import sweep
from onejob.observability.events import EVENTS, HEARTBEAT_LATE, JobEvent
from onejob.observability.logs import log
from onejob.observability.metrics import SERIES
from onejob.stores.sqlite import SQLiteStore
from tests.contract.support import ManualClock, submission

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


class Life:
    """A ledger in which every event is emitted."""

    def __init__(self, path: Path) -> None:
        self.told: list[JobEvent] = []
        self.clock = ManualClock()
        self.ledger = Ledger(SQLiteStore(path, clock=self.clock), Policy(crash_limit=2), self.told.append)

    def run(self, job_id: str) -> Job:
        """Begin a run of a job, which is submitted if need be."""
        self.ledger.submit(submission(job_id, nonce=job_id, canvas=True))
        job = self.ledger.claim(job_id, nonce=new_nonce(), node="node-1").job
        assert job is not None
        return job

    def live(self) -> None:
        """Have everything happen."""
        ledger = self.ledger
        ledger.mark_canvas_notified(
            ledger.complete(ledger.release_identity(self.run("completed")), "1", keep=Retention(identity_for=1.0))
        )
        ledger.fail(self.run("dead"), '"error"', "failed")
        ledger.redrive("dead")
        ledger.fail(self.run("dropped"), '"error"', "failed")
        ledger.drop("dropped")
        job = self.run("again")
        ledger.retry(job, delay=0.0, payload="{}", options="{}", retries=1, error=None, reason="again")
        ledger.release(self.run("again"), "released", wake_in=0.0)
        ledger.crash(self.run("lost"), "crashed", '"lost"')
        ledger.crash(self.run("lost"), "crashed", '"lost"')
        ledger.cancel(self.run("asked").id)
        ledger.claim("asked", nonce="another", node="node-2")
        ledger.abandon(ledger.get("asked"), "canceled")
        ledger.submit(submission("follows_id", identity="same"))
        ledger.submit(submission("follower", identity="same", follows=True))
        ledger.submit(submission("late", expires_in=1.0))
        self.promoted()
        self.swept()

    def promoted(self) -> None:
        """Let a sweep find that it is a job's turn."""
        followed = self.ledger.claim("follows_id", nonce="n", node="node-1").job
        assert followed is not None
        self.ledger.submit(submission("next", identity="same", fingerprint="other", queues_next=True))
        waiting = self.ledger.get("next")
        self.ledger.release_identity(followed)
        self.ledger.promote(waiting)

    def swept(self) -> None:
        """Sweep until everything is gone."""
        for seconds in (10.0, 1000.0, 1e7, 1e7):
            self.clock.advance(seconds)
            sweep(self.ledger, lambda _job: None)


def test_the_page_has_every_event(tmp_path: Path) -> None:
    """The table of events has each name once, and exactly the fields that are emitted."""
    life = Life(tmp_path / "ledger.db")
    life.live()
    rows = list(table("event"))
    assert sorted(NAME.findall(row[0])[0] for row in rows) == sorted(EVENTS)
    documented = {NAME.findall(row[0])[0]: set(NAME.findall(row[3])) for row in rows}
    told: dict[str, set[str]] = {name: set() for name in documented}
    for event in life.told:
        told[event.event] |= set(event.fields) - {"follows_id"}
    told[HEARTBEAT_LATE] = documented[HEARTBEAT_LATE]
    assert told == documented
    assert {event.event for event in life.told} == set(EVENTS) - {HEARTBEAT_LATE}


@pytest.mark.parametrize("row", list(table("event")), ids=lambda row: row[0].strip("`"))
def test_the_page_has_the_levels(row: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """An event is logged at the level that the table says first."""
    with caplog.at_level(logging.DEBUG, "onejob.jobs"):
        log(JobEvent(row[0].strip("`"), "job-1", "t", {"seen": 1}))
    assert caplog.records[0].levelname == row[1].partition(";")[0]


def test_the_page_has_every_series() -> None:
    """The table of series has each of them, with its kind and its labels, in their order."""
    rows = [(NAME.findall(row[0])[0], row[1], tuple(NAME.findall(row[2]))) for row in table("series")]
    assert rows == [(name, series.kind.value, series.labels) for name, series in SERIES.items()]
