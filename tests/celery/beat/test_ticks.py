"""Which ticks of a schedule entry are due, and what becomes of its state in the ledger."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any

import celery
import pytest
from celery.beat import ScheduleEntry
from celery.schedules import BaseSchedule, crontab

import onejob
from onejob.celery.beat.ticks import Entry, describe_schedule, entries_of
from onejob.celery.option_declarations import check_schedule
from onejob.errors import ConfigurationError
from onejob.jobs.schedule_state import ScheduleState, schedule_digest
from onejob.jobs.workers import WorkerInfo
from onejob.ledger.ledger import Ledger
from onejob.ledger.schedules import (
    AHEAD,
    FORGET_AFTER,
    FORMER_LIMIT,
    LATE,
    MOMENT_LIMIT,
    SEEN_INTERVAL,
    TICK_LIMIT,
    UNREGISTERED_FOR,
    Due,
    Missed,
    Timetable,
    advance,
    due_ticks,
    follow,
    forget,
    has_ended,
    nodes_with_newer,
    pause,
    write,
)
from onejob.stores.protocol import Store
from tests.cases import for_each
from tests.conftest import on_stores
from tests.stores.support import START, ManualClock, not_none

fresh_address = on_stores("sqlite")

HOUR = 3600.0


def every(seconds: float, missed: Missed = Missed.LAST, spec: str = "spec") -> Timetable:
    return Timetable("entry", spec, lambda after: after + seconds, missed)


@for_each("seconds, missed, passed, ticks, until", [
    (60.0, "last", 59.0, [], 0.0),
    (60.0, "last", 60.0, [60.0], 60.0),
    (20.0, "last", 61.0, [20.0, 40.0, 60.0], 60.0),  # late, and not missed
    (20.0, "skip", 61.0, [20.0, 40.0, 60.0], 60.0),
    (20.0, "last", 85.0, [40.0, 60.0, 80.0], 80.0),  # of which none but the first was missed
    (20.0, "skip", 85.0, [40.0, 60.0, 80.0], 80.0),
    (HOUR, "last", 5 * HOUR + 61, [5 * HOUR], 5 * HOUR),
    (HOUR, "skip", 5 * HOUR + 61, [], 5 * HOUR),
    (HOUR, "skip", 5 * HOUR + 60, [5 * HOUR], 5 * HOUR),
    (HOUR, "all", 3 * HOUR + 61, [HOUR, 2 * HOUR, 3 * HOUR], 3 * HOUR),
    (1.0, "all", 1e6, [1.0 + n for n in range(TICK_LIMIT)], float(TICK_LIMIT)),
    (0.5, "last", LATE, [0.5 + n / 2 for n in range(TICK_LIMIT)], TICK_LIMIT / 2),
    (1.0, "last", 1e6, [], float(MOMENT_LIMIT)),  # the rest is for the next look
])  # fmt: skip
def test_the_ticks_of_a_downtime(seconds: float, missed: str, passed: float, ticks: list[float], until: float) -> None:
    """Ticks up to a minute late are due; of older ones none, the last one if no later one is due, or all."""
    due = due_ticks(every(seconds, Missed(missed)), 0.0, passed)
    assert ([*due.ticks], due.until) == (ticks, until)


def test_moments_do_not_depend_on_who_computes_them() -> None:
    """Processes that look at different times compute the same moments, to the microsecond."""
    timetable = Timetable("e", "s", lambda after: round(after + 0.1, 6))
    all_at_once = [*due_ticks(timetable, START, START + 5).ticks]
    since = START
    one_by_one: list[float] = []
    for passed in range(1, 51):
        due = due_ticks(timetable, since, START + passed / 10 + 0.05)
        one_by_one += due.ticks
        since = due.until
    assert one_by_one == all_at_once
    assert len(one_by_one) == 50


class Once(BaseSchedule):
    """A schedule with a single moment, as the clocked ones of django-celery-beat."""

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        return datetime.fromtimestamp(START, UTC) - self.now()


def test_a_schedule_may_end() -> None:
    """A schedule without a further moment has no ticks, and an entry none from its absolute expiry on."""
    app = celery.Celery("ending", set_as_current=False)
    app.conf.update(timezone="UTC", onejob_store="sqlite:///unused.db")
    given: Any = ScheduleEntry(name="e", task="t", schedule=Once(), app=app)
    assert [*Entry(app, given).timetable.between(START - 500, inf)] == [START]
    given.options["expires"] = datetime.fromtimestamp(START, UTC)
    ended = Entry(app, given)
    assert [*ended.timetable.between(START - 500, inf)] == []
    assert not ended.has_ended(START - 1)
    assert ended.has_ended(START)
    given.options["expires"] = "soon"
    with pytest.raises(ConfigurationError, match="expires of the schedule entry e"):
        Entry(app, given)


# --- the state of an entry --------------------------------------------------------------------------------------------


def test_a_new_entry_begins_now(ledger: Ledger, clock: ManualClock) -> None:
    """A new entry has no ticks from before; a changed one keeps its last tick, and its pause."""
    state = not_none(follow(ledger, every(60.0), None, START))
    assert state.since == START
    assert state.last_tick is None
    assert not state.paused
    assert follow(ledger, every(60.0), state, START + 5) is state
    paused = pause(ledger, state, paused=True)
    changed = not_none(follow(ledger, every(9.0, spec="other"), paused, START + 500))
    assert changed.spec == "other"
    assert changed.former_specs == ("spec",)
    assert changed.paused


def test_a_state_of_an_earlier_version_is_read() -> None:
    """The state of an entry is read if it has one former schedule, and if it has what a later version adds."""
    found = ScheduleState.from_row("e", "n", '{"spec": "b", "since": 1, "seen_at": 2, "former_spec": "a", "more": 1}')
    assert found == ScheduleState("e", "n", "b", 1, 2, "", ("a",))
    assert ScheduleState.from_row("e", "n", found.to_json()) == found


NEW, OLD, OLDER, OTHER = (every(9.0, spec=spec) for spec in ("new", "old", "older", "other"))


def worker(name: str, *timetables: Timetable) -> WorkerInfo:
    """Return a live worker that registers an entry with these schedules."""
    return WorkerInfo(name, 0.0, schedules=tuple(schedule_digest(each.name, each.spec) for each in timetables))


@for_each("timetable, workers, nodes", [
    (NEW, ["new"], []),
    (OLD, ["new"], ["new"]),
    (OLD, ["old", "older"], []),  # nobody has the newer one any more
    (OLDER, ["older", "old"], ["old"]),
    (OLDER, ["older", "old", "new"], ["new", "old"]),
    (OTHER, ["old", "new"], []),  # newer than all that are known
])  # fmt: skip
def test_the_most_recent_schedule_of_a_live_worker_applies(
    timetable: Timetable, workers: list[str], nodes: list[str]
) -> None:
    """A schedule waits for the live workers that have a more recent one, whatever the number of versions."""
    state = ScheduleState("entry", "n", "new", START, START, "any", ("old", "older"))
    live = [worker(spec, every(9.0, spec=spec)) for spec in sorted(workers)]
    assert nodes_with_newer(timetable, state, live, START) == nodes
    assert nodes_with_newer(replace(timetable, has_versions=False), state, live, START) == []


def test_a_process_of_beat_is_waited_for() -> None:
    """A process that registers nowhere is taken for alive for a while since it looked."""
    state = ScheduleState("entry", "n", "new", START, START, "", ("old",))
    for passed, nodes in ((UNREGISTERED_FOR - 1, ["a process of beat"]), (UNREGISTERED_FOR, [])):
        assert nodes_with_newer(OLD, state, [], START + passed) == nodes
    assert nodes_with_newer(OLD, replace(state, seen_by="gone@host"), [], START) == []


def test_a_changed_schedule_decides_what_the_former_one_has_not(ledger: Ledger, clock: ManualClock) -> None:
    """A schedule begins where the former one was seen last; one that returns, where that began if it had no tick."""
    old = not_none(follow(ledger, OLD, None, START, "a"))
    new = not_none(follow(ledger, NEW, old, START + 500, "b"))
    assert (new.since, new.seen_at, new.seen_by, new.former_specs) == (START, START + 500, "b", ("old",))
    seen = not_none(follow(ledger, NEW, new, START + 600, "b"))
    back = not_none(follow(ledger, OLD, seen, START + 700, "a"))
    assert (back.since, back.former_specs) == (START, ("new",))
    ticked = replace(seen, since=START + 550, last_tick=START + 550)
    assert write(ledger, back, ticked) is not None
    states = {each.name: each for each in ledger.store.schedules()}
    again = not_none(follow(ledger, OLD, states["entry"], START + 700, "a"))
    assert again.since == START + 600
    for number in range(FORMER_LIMIT + 2):
        again = not_none(follow(ledger, every(9.0, spec=str(number)), again, START + 700, "a"))
    assert again.former_specs == tuple(str(number) for number in range(FORMER_LIMIT, FORMER_LIMIT - 5, -1))


def test_a_clock_that_was_ahead_stops_no_entry(ledger: Ledger, clock: ManualClock) -> None:
    """What the state of an entry says of the future is taken back, so that its next tick is on time."""
    ahead = not_none(follow(ledger, every(60.0), None, START + 9999))
    assert not_none(follow(ledger, every(60.0), ahead, START + 9999 - AHEAD)) is ahead
    mended = not_none(follow(ledger, every(60.0), ahead, START))
    assert (mended.since, mended.seen_at) == (START, START)


def test_an_entry_that_runs_once_runs_again_when_it_is_seen_again(ledger: Ledger, clock: ManualClock) -> None:
    """An entry that runs once has a single tick; when it is there again, it has another, at a time of its own."""
    once = replace(every(60.0, Missed.SKIP), once=True, begins_at=START - 100)
    state = not_none(follow(ledger, once, None, START))
    assert (state.since, due_ticks(once, state.since, START)) == (START - 100, Due([START - 40], START - 40))
    ended = not_none(advance(ledger, state, until=START - 40, tick=START - 40))
    assert not has_ended(state)
    assert has_ended(ended)
    again = not_none(follow(ledger, once, ended, START + 5))
    assert again.since == START + 5
    assert not has_ended(again)


def test_a_resumed_entry_begins_now(ledger: Ledger, clock: ManualClock) -> None:
    """The ticks of a pause are not made up for, and a second resumption changes nothing."""
    state = not_none(follow(ledger, every(60.0), None, START))
    paused = not_none(pause(ledger, state, paused=True))
    clock.advance(1000.0)
    resumed = not_none(pause(ledger, paused, paused=False))
    assert paused.paused
    assert paused.since == START
    assert not resumed.paused
    assert resumed.since == START + 1000
    clock.advance(50.0)
    again = not_none(pause(ledger, resumed, paused=False))
    assert again.since == START + 1000
    assert write(ledger, resumed, resumed) is None


def test_an_entry_that_nobody_has_is_forgotten(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """The state of an entry is deleted a week after it was seen last, and seeing is noted once a minute."""
    state = follow(ledger, every(60.0), None, START)
    seen = not_none(follow(ledger, every(60.0), state, START + SEEN_INTERVAL))
    assert seen.seen_at == START + SEEN_INTERVAL
    for later, left in ((seen.seen_at + FORGET_AFTER, 1), (seen.seen_at + FORGET_AFTER + 1, 0)):
        forget(ledger, store.schedules(), later)
        assert len(store.schedules()) == left


# --- entries and options ----------------------------------------------------------------------------------------------


def test_entries_come_from_tasks_and_from_the_configuration() -> None:
    """A task's own schedule is an entry with its name; one of the configuration with that name replaces it."""
    app = celery.Celery("entries", broker="memory://", set_as_current=False)
    app.conf.update(onejob_store="sqlite:///unused.db", onejob_beat_missed="skip")
    app.conf.beat_schedule = {"nightly": {"task": "own", "schedule": 60, "options": {"missed": "all", "queue": "q"}}}

    def add(number: int = 0) -> int:
        return number

    app.task(base=onejob.Task, shared=False, name="own", schedule=timedelta(minutes=1))(add)
    app.task(base=onejob.Task, shared=False, name="with", schedule={"schedule": crontab(hour=3), "args": (1,)})(add)
    app.finalize()
    found = entries_of(app)
    assert {name: (each.task, each.timetable.missed, each.options) for name, each in found.items()} == {
        "celery.backend_cleanup": ("celery.backend_cleanup", Missed.SKIP, {"expires": 12 * HOUR}),
        "nightly": ("own", Missed.ALL, {"queue": "q"}),
        "own": ("own", Missed.SKIP, {}),
        "with": ("with", Missed.SKIP, {}),
    }
    assert found["with"].arguments == ([1], {})
    assert found["own"].timetable.spec == "every 60 s"
    app.conf.beat_schedule["own"] = {"task": "with", "schedule": 5}
    assert entries_of(app)["own"].task == "with"


@for_each("given", [0, -1.0, True, "daily", timedelta(0), {"schedule": 5, "task": "x"}, {}, []])
def test_what_is_no_schedule_is_refused(given: Any) -> None:
    """A task whose schedule is none is refused when it is defined."""
    with pytest.raises(ConfigurationError, match="schedule of task t must be"):
        check_schedule("t", given)


@for_each("options", [{"missed": "some"}, {"identity": "entry"}, {"task_id": "mine"}, {"idempotency_key": "k"}])
def test_wrong_options_of_an_entry_are_refused(options: dict[str, Any]) -> None:
    """An entry with an option that cannot work is refused, and named."""
    app = celery.Celery("wrong", broker="memory://", set_as_current=False)
    app.conf.update(onejob_store="sqlite:///unused.db")
    app.conf.beat_schedule = {"nightly": {"task": "x", "schedule": 60, "options": options}}
    with pytest.raises(ConfigurationError, match="of the schedule entry nightly"):
        entries_of(app)


def test_a_time_zone_is_named_once() -> None:
    """The text of a schedule ends with its time zone, also if its own text does, as that of django-celery-beat."""

    class Zoned(crontab):
        def __str__(self) -> str:
            return f"{super().__str__()} {self.tz}"

    app = celery.Celery(set_as_current=False)
    plain, zoned = (describe_schedule(kind(minute="5", app=app)) for kind in (crontab, Zoned))
    assert plain == zoned
    assert plain.endswith(" UTC")
