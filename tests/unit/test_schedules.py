"""Which ticks of a schedule entry are due, and what becomes of its state in the ledger."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import celery
import pytest
from celery.beat import ScheduleEntry
from celery.schedules import BaseSchedule, crontab, schedule

import onejob
from onejob.celery.beat import Entry, describe_schedule, entries_of
from onejob.celery.option_names import check_schedule
from onejob.errors import ConfigurationError
from onejob.ledger.ledger import Ledger
from onejob.ledger.schedules import (
    FORGET_AFTER,
    LATE,
    MOMENT_LIMIT,
    SEEN_INTERVAL,
    TAKE_OVER_AFTER,
    TICK_LIMIT,
    Missed,
    Timetable,
    due_ticks,
    follow,
    forget,
    pause,
    write,
)
from onejob.stores.protocol import Store
from tests.cases import for_each
from tests.contract.support import START, ManualClock, not_none

HOUR = 3600.0
BERLIN = ZoneInfo("Europe/Berlin")


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


def moments(given: Any, start: datetime, count: int, zone: str = "Europe/Berlin") -> list[str]:
    """Return the next moments of a schedule of Celery, in its time zone."""
    app = celery.Celery("zones", set_as_current=False)
    app.conf.update(timezone=zone, onejob_store="sqlite:///unused.db")
    entry = Entry(app, ScheduleEntry(name="e", task="t", schedule=given, app=app))
    ahead = entry.timetable.between(start.timestamp(), inf)
    return [datetime.fromtimestamp(next(ahead), app.timezone).strftime("%d %H:%M%z") for _ in range(count)]


needs_exact_offsets = pytest.mark.skipif(
    tuple(celery.VERSION) < (5, 7), reason="before Celery 5.7, a moment may be an hour off where local time changes"
)
AUTUMN, SPRING = datetime(2026, 10, 25, 1, 30, tzinfo=BERLIN), datetime(2026, 3, 29, 1, 10, tzinfo=BERLIN)


@needs_exact_offsets
@for_each("given, start, expected", [
    (crontab(minute=30, hour=2), AUTUMN, ["25 02:30+0200", "26 02:30+0100"]),
    (crontab(minute=30, hour=2), SPRING, ["29 03:30+0200", "30 02:30+0200"]),
    (crontab(minute=30), AUTUMN, ["25 02:30+0200", "25 03:30+0100"]),
    (crontab(minute=30), datetime(2026, 10, 25, 2, 5, fold=1, tzinfo=BERLIN), ["25 03:30+0100", "25 04:30+0100"]),
    (schedule(HOUR), AUTUMN, ["25 02:30+0200", "25 02:30+0100", "25 03:30+0100"]),
    (schedule(timedelta(days=1), relative=True), AUTUMN, ["26 00:00+0100", "27 00:00+0100"]),
    (90.0, SPRING, ["29 01:11+0100", "29 01:13+0100"]),
])  # fmt: skip
def test_moments_are_those_of_celery(given: Any, start: datetime, expected: list[str]) -> None:
    """The moments are those that Celery computes, also where local time changes, and each is later than the last."""
    assert moments(given, start, len(expected)) == expected


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


def test_a_schedule_may_end(store: Store, clock: ManualClock) -> None:
    """A schedule without a further moment has no ticks; an entry may run once only, and begin later."""
    app = celery.Celery("ending", set_as_current=False)
    app.conf.update(timezone="UTC", onejob_store="sqlite:///unused.db")
    given: Any = ScheduleEntry(name="e", task="t", schedule=Once(), app=app)
    entry = Entry(app, given)
    assert [*entry.timetable.between(START - 500, inf)] == [START]
    state = not_none(follow(Ledger(store), entry.timetable, None, START))
    assert (entry.begins_at(), entry.is_over(replace(state, last_tick=START))) == (0.0, False)
    given.model = SimpleNamespace(one_off=True, start_time=datetime.fromtimestamp(START + 9, UTC))
    ticked = replace(state, last_tick=START)
    assert (entry.begins_at(), entry.is_over(state), entry.is_over(ticked)) == (START + 9, False, True)


# --- the state of an entry --------------------------------------------------------------------------------------------


def test_a_new_and_a_changed_entry_begin_now(ledger: Ledger, clock: ManualClock) -> None:
    """A new entry, and one with another schedule, has no ticks from before; it keeps its last tick, and its pause."""
    state = not_none(follow(ledger, every(60.0), None, START))
    assert (state.since, state.last_tick, state.paused) == (START, None, False)
    assert follow(ledger, every(60.0), state, START + 5) is state
    paused = pause(ledger, state, paused=True)
    changed = not_none(follow(ledger, every(9.0, spec="other"), paused, START + 500))
    assert (changed.since, changed.spec, changed.former_spec, changed.paused) == (START + 500, "other", "spec", True)


def test_the_former_schedule_waits(ledger: Ledger, clock: ManualClock) -> None:
    """A process with the former schedule leaves the entry to those with the newer one, until nobody has that."""
    former = follow(ledger, every(9.0, spec="old"), None, START)
    changed = not_none(follow(ledger, every(9.0, spec="new"), former, START + 1))
    assert follow(ledger, every(9.0, spec="old"), changed, START + TAKE_OVER_AFTER) is None
    back = not_none(follow(ledger, every(9.0, spec="old"), changed, START + TAKE_OVER_AFTER + 2))
    assert (back.spec, back.since) == ("old", START + TAKE_OVER_AFTER + 2)


def test_a_resumed_entry_begins_now(ledger: Ledger, clock: ManualClock) -> None:
    """The ticks of a pause are not made up for, and a second resumption changes nothing."""
    state = not_none(follow(ledger, every(60.0), None, START))
    paused = not_none(pause(ledger, state, paused=True))
    clock.advance(1000.0)
    resumed = not_none(pause(ledger, paused, paused=False))
    assert (paused.paused, paused.since, resumed.paused, resumed.since) == (True, START, False, START + 1000)
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


@for_each("options", [{"missed": "some"}, {"identity": "entry"}])
def test_wrong_options_of_an_entry_are_refused(options: dict[str, Any]) -> None:
    """An entry with an option that cannot work is refused, and named."""
    app = celery.Celery("wrong", broker="memory://", set_as_current=False)
    app.conf.update(onejob_store="sqlite:///unused.db")
    app.conf.beat_schedule = {"nightly": {"task": "x", "schedule": 60, "options": options}}
    with pytest.raises(ConfigurationError, match="of the schedule entry nightly"):
        entries_of(app)


class InTokyo(crontab):
    """A crontab with a time zone of its own, as those of django-celery-beat."""

    tz: Any = ZoneInfo("Asia/Tokyo")


def test_a_schedule_may_have_a_time_zone_of_its_own() -> None:
    """The moments of a schedule with a time zone are in that one, whatever the time zone of the app."""
    for zone in ("Europe/Berlin", "UTC"):
        started = datetime(2026, 7, 1, tzinfo=UTC)
        (moment,) = moments(InTokyo(hour=3, minute=0), started, 1, zone)
        assert moment == started.replace(hour=18).astimezone(ZoneInfo(zone)).strftime("%d %H:%M%z")


def test_a_time_zone_is_named_once() -> None:
    """The text of a schedule ends with its time zone, also if its own text does, as that of django-celery-beat."""

    class Zoned(crontab):
        def __str__(self) -> str:
            return f"{super().__str__()} {self.tz}"

    app = celery.Celery(set_as_current=False)
    plain, zoned = (describe_schedule(kind(minute="5", app=app)) for kind in (crontab, Zoned))
    assert plain == zoned
    assert plain.endswith(" UTC")
