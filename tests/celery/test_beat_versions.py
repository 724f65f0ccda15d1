"""Several versions of an app with one ledger: which schedule applies, in rolling deploys and after a rollback."""

from __future__ import annotations

from typing import Any

import pytest
from celery.schedules import crontab

from onejob.celery.app_state import app_state_of
from onejob.celery.beat.ticks import LOOK_INTERVAL, Beat
from onejob.client.schedules import ScheduleEntry, list_entries
from onejob.jobs.schedule_state import ScheduleState
from onejob.jobs.workers import Registration
from onejob.stores.protocol import Store
from tests.celery.schedules import jobs_of, make_app, ticks_of
from tests.conftest import on_every_store
from tests.stores.support import START, ManualClock

MINUTE, HOUR = 60.0, 3600.0
LASTS = 90.0
"""Seconds that a heartbeat lasts."""


def at(minute: int, **options: Any) -> dict[str, Any]:
    """Return an entry that is due at a minute of each hour."""
    return {"task": "shop.add", "schedule": crontab(minute=str(minute)), "args": (minute,), "options": options}


class Node:
    """A worker with a version of the app; `START` is the beginning of an hour."""

    def __init__(self, store: Store, clock: ManualClock, name: str, **entries: dict[str, Any]) -> None:
        self.name, self.clock, self.app = name, clock, make_app(store, entries)
        self.ledger, self.beat = app_state_of(self.app).ledger, Beat(self.app, name)

    def start(self) -> Node:
        self.beat.read_entries()
        self.beat_heart()
        return self

    def beat_heart(self) -> None:
        self.ledger.heartbeat(self.name, lasts=LASTS, registration=Registration(schedules=self.beat.registered))

    def stop(self) -> None:
        self.ledger.heartbeat(self.name, lasts=0.0)

    def look(self, minute: float) -> float:
        """Look so many minutes after `START`; return the seconds until the next look."""
        self.clock.now = START + minute * MINUTE
        self.beat_heart()
        return self.beat.look()

    def state(self, entry: str = "e") -> ScheduleState:
        return {each.name: each for each in self.ledger.store.schedules()}[entry]

    def listed(self, entry: str = "e") -> ScheduleEntry:
        return {each.name: each for each in list_entries(self.app, self.ledger)}[entry]


def minutes_of(store: Store) -> list[float]:
    """Return the ticks that were submitted, in minutes after `START`."""
    return [(tick - START) / MINUTE for tick in ticks_of(jobs_of(store))]


@on_every_store
def test_a_release_that_is_rolled_back_leaves_no_gap(
    store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """When the last worker of a newer release is gone, the next sweep goes on with the former schedule."""
    old, new = (Node(store, clock, name, e=at(minute)).start() for name, minute in (("old", 30), ("new", 45)))
    old.look(0)
    new.look(20)
    for minute in range(21, 30):
        assert (new.look(minute), old.look(minute)) == (LOOK_INTERVAL, 0.0)  # 0.0: again with the next sweep
    new.stop()
    assert old.look(31) == LOOK_INTERVAL
    assert (minutes_of(store), old.state().former_specs) == ([30], (new.listed().schedule,))
    assert old.listed().error == ""
    warnings = [each.getMessage() for each in caplog.records if "is left to new" in each.getMessage()]
    assert len(warnings) == 1


@on_every_store
@pytest.mark.parametrize(("missed", "ticks"), [("last", [90]), ("skip", []), ("all", [30, 90])])
def test_ticks_that_were_due_meanwhile_are_missed(
    store: Store, clock: ManualClock, missed: str, ticks: list[float]
) -> None:
    """The ticks between a release that had none and the one before, which returns, are made up for as missed says."""
    old = Node(store, clock, "old", e=at(30, missed=missed)).start()
    new = Node(store, clock, "new", e=at(29, missed=missed) | {"schedule": crontab(minute="29", hour="23")}).start()
    old.look(10)
    new.look(20)
    new.stop()
    old.look(95)
    assert minutes_of(store) == ticks


@on_every_store
def test_a_release_that_had_ticks_decides_its_time(store: Store, clock: ManualClock) -> None:
    """What the former schedule had between ticks of the newer one is not submitted in addition."""
    old, new = (Node(store, clock, name, e=at(minute)).start() for name, minute in (("old", 30), ("new", 15)))
    old.look(0)
    for minute in (5, 15, 50):
        new.look(minute)
    new.stop()
    old.look(51)
    old.look(95)
    assert minutes_of(store) == [15, 90]


@on_every_store
def test_a_killed_worker_holds_its_schedule_as_long_as_its_heartbeat(store: Store, clock: ManualClock) -> None:
    """A newer schedule ends with the last heartbeat of a killed worker."""
    old, new = (Node(store, clock, name, e=at(minute)).start() for name, minute in (("old", 30), ("new", 45)))
    old.look(0)
    new.look(30 - LASTS / MINUTE + 0.1)
    assert [old.look(30.0), minutes_of(store)] == [0.0, []]
    old.look(30.2)
    assert minutes_of(store) == [30]


@on_every_store
def test_two_releases_in_one_deployment(store: Store, clock: ManualClock) -> None:
    """Of any number of versions whose workers are alive the newest applies, and none is overruled twice."""
    nodes = [Node(store, clock, f"n{number}", e=at(minute)).start() for number, minute in enumerate((30, 45, 50))]
    for minute in range(60):
        for node in nodes[: 1 + minute // 10]:
            node.look(minute)
    assert minutes_of(store) == [50]
    nodes[2].stop()
    for minute in range(60, 120):
        for node in nodes[:2]:
            node.look(minute)
    assert minutes_of(store) == [50, 105]
    assert (nodes[0].state().former_specs[0], len(nodes[0].state().former_specs)) == (nodes[2].listed().schedule, 2)


@on_every_store
def test_a_release_that_is_deployed_again(store: Store, clock: ManualClock) -> None:
    """After a rollback the same release takes over once the last worker of the other one is gone."""
    old, new = (Node(store, clock, name, e=at(minute)).start() for name, minute in (("old", 30), ("new", 45)))
    old.look(0)
    new.look(1)
    new.stop()
    old.look(2)
    new.start()
    assert new.look(3) == 0.0
    old.look(30)
    old.stop()
    new.look(40)
    new.look(45)
    assert minutes_of(store) == [30, 45]


@on_every_store
def test_a_worker_that_nobody_knows_takes_nothing_over(store: Store, clock: ManualClock) -> None:
    """A worker changes no entry before its heartbeat says which schedules it has: the others would change it back."""
    old, new = (Node(store, clock, name, e=at(minute)) for name, minute in (("old", 30), ("new", 45)))
    old.start().look(0)
    clock.now = START + MINUTE
    assert (new.beat.look(), new.state().spec) == (0.0, old.listed().schedule)
    new.look(2)
    assert new.state().spec == new.listed().schedule


@on_every_store
def test_an_entry_that_is_removed_and_put_back(store: Store, clock: ManualClock) -> None:
    """An entry that a release lacks has no ticks; if it is put back, they are those of a downtime."""
    old, new = Node(store, clock, "old", e=at(30)).start(), Node(store, clock, "new").start()
    old.look(0)
    old.stop()
    for minute in (20, 29, 31, 100):
        new.look(minute)
    assert minutes_of(store) == []
    new.stop()
    old.start().look(101)
    assert minutes_of(store) == [90]


@on_every_store
def test_an_entry_that_is_renamed_is_a_new_one(store: Store, clock: ManualClock) -> None:
    """A renamed entry begins now, and the former name goes on as long as a worker has it."""
    old, new = Node(store, clock, "old", e=at(30)).start(), Node(store, clock, "new", f=at(30)).start()
    old.look(0)
    new.look(20)
    for node in (old, new):
        node.look(30)
    old.stop()
    new.look(90)
    assert minutes_of(store) == [30, 30, 90]


@on_every_store
def test_other_options_alone_change_no_schedule(store: Store, clock: ManualClock) -> None:
    """A release with other arguments or options and the same schedule goes on at once, as does the one before."""
    old, new = Node(store, clock, "old", e=at(30)).start(), Node(store, clock, "new", e=at(30) | {"args": (9,)}).start()
    for minute, node in ((0, old), (29, new), (30, old), (30, new), (90, new), (150, old)):
        node.look(minute)
    new.stop()
    old.look(210)
    assert minutes_of(store) == [30, 90, 150, 210]


@on_every_store
def test_a_clock_that_was_ahead(store: Store, clock: ManualClock) -> None:
    """After the clock of the ledger was ahead, ticks go on; those that were submitted early are not repeated."""
    node = Node(store, clock, "one", e=at(30)).start()
    node.look(0)
    node.look(24 * 60 + 31)
    early = minutes_of(store)
    node.look(1)
    node.look(30)
    assert (early, minutes_of(store)) == ([24 * 60 + 30], [30, 24 * 60 + 30])
    assert node.listed().next_tick_at == START + 90 * MINUTE


@on_every_store
def test_an_overdue_tick_has_a_reason(store: Store, clock: ManualClock) -> None:
    """Where the next tick has passed, or is another version's, the entry says why, and names the workers."""
    old, new = (Node(store, clock, name, e=at(minute)).start() for name, minute in (("old", 30), ("new", 45)))
    old.look(0)
    clock.now = START + 40 * MINUTE
    assert (old.listed().next_tick_at, old.listed().error) == (
        START + 30 * MINUTE, "is overdue: no live worker runs this schedule"
    )  # fmt: skip
    old.beat_heart()
    assert old.listed().error == "is overdue: the log of old says why"
    new.look(41)
    assert old.listed().error.startswith("is left to new, which has a newer schedule of it: '")
    assert new.listed().error == ""
