"""The moments of a schedule: on every version of Celery, where local time changes, and from any zone files."""

import time
import zoneinfo
from bisect import bisect_right
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from importlib.resources import files
from itertools import islice, pairwise
from math import inf
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import celery
import pytest
from celery.beat import ScheduleEntry
from celery.schedules import BaseSchedule, crontab, schedstate, schedule, solar

from onejob.celery.beat.moments import next_after_of
from onejob.celery.beat.ticks import Entry
from onejob.jobs.zones import LOCAL, moment_of, name_of, rules_of, segment_at
from onejob.ledger.moments import Crontab
from tests.cases import for_each
from tests.celery.beat import reference_moments as reference
from tests.tiers import deep

HOUR, DAY, YEAR = 3600.0, 86400.0, 2026
BERLIN, LORD_HOWE, HAVANA = map(ZoneInfo, ("Europe/Berlin", "Australia/Lord_Howe", "America/Havana"))
AUTUMN, SPRING = datetime(2026, 10, 25, 1, 30, tzinfo=BERLIN), datetime(2026, 3, 29, 1, 10, tzinfo=BERLIN)


def next_of(given: Any, zone: str = "UTC") -> Callable[[float], float | None]:
    """Return the function that computes the moments of a schedule of Celery in an app with a time zone."""
    app = celery.Celery("zones", set_as_current=False)
    app.conf.update(timezone=zone, onejob_store="sqlite:///unused.db")
    return next_after_of(ScheduleEntry(name="e", task="t", schedule=given, app=app).schedule, app)[0]


def moments(given: Any, zone: str, after: float, until: float = inf) -> Iterator[float]:
    """Yield the moments of a schedule of Celery after a time, and until another, each later than the one before."""
    following = next_of(given, zone)
    while (moment := following(after)) is not None and moment <= until:
        assert moment > after
        yield moment
        after = moment


def texts(given: Any, start: datetime, count: int, zone: str = "Europe/Berlin") -> list[str]:
    """Return the next moments of a schedule as local times."""
    found = islice(moments(given, zone, start.timestamp()), count)
    return [datetime.fromtimestamp(each, ZoneInfo(zone)).strftime("%d %H:%M%z") for each in found]


@for_each("given, start, expected", [
    (crontab(minute=0, hour=9), datetime(2026, 10, 24, 9, tzinfo=BERLIN), ["25 09:00+0100", "26 09:00+0100"]),
    (crontab(minute=0, hour=9), datetime(2026, 3, 28, 9, tzinfo=BERLIN), ["29 09:00+0200", "30 09:00+0200"]),
    (crontab(minute=0, hour=0, day_of_month=1), datetime(2026, 10, 2, tzinfo=BERLIN), ["01 00:00+0100"]),
    (crontab(minute=30, hour=2), AUTUMN, ["25 02:30+0200", "26 02:30+0100"]),
    (crontab(minute=30, hour=2), SPRING, ["29 03:30+0200", "30 02:30+0200"]),
    (crontab(minute=30, hour="2,3"), SPRING, ["29 03:30+0200", "30 02:30+0200"]),
    (crontab(minute="0,30", hour=2), AUTUMN, ["25 02:00+0200", "25 02:30+0200", "26 02:00+0100"]),
    (crontab(minute="*/30", hour=2), AUTUMN, ["25 02:00+0200", "25 02:30+0200", "25 02:00+0100", "25 02:30+0100"]),
    (crontab(minute="*/30", hour=2), SPRING, ["29 03:00+0200", "29 03:30+0200", "30 02:00+0200"]),
    (crontab(minute=30), AUTUMN, ["25 02:30+0200", "25 02:30+0100", "25 03:30+0100"]),
    (crontab(minute=30), datetime(2026, 10, 25, 2, 5, fold=1, tzinfo=BERLIN), ["25 02:30+0100", "25 03:30+0100"]),
    (crontab(minute="*/20"), SPRING, ["29 01:20+0100", "29 01:40+0100", "29 03:00+0200", "29 03:20+0200"]),
    (schedule(HOUR), AUTUMN, ["25 02:30+0200", "25 02:30+0100", "25 03:30+0100"]),
    (schedule(HOUR, relative=True), AUTUMN, ["25 02:00+0200", "25 02:00+0100", "25 03:00+0100"]),
    (schedule(1.5 * HOUR, relative=True), SPRING, ["29 03:00+0200", "29 04:00+0200", "29 05:00+0200"]),
    (schedule(timedelta(days=1), relative=True), AUTUMN, ["26 00:00+0100", "27 00:00+0100"]),
    (90.0, SPRING, ["29 01:11+0100", "29 01:13+0100"]),
])  # fmt: skip
def test_where_local_time_changes(given: Any, start: datetime, expected: list[str]) -> None:
    """A named time ticks once a day, what repeats within the hours goes on, and an interval is one of UTC."""
    assert texts(given, start, len(expected)) == expected


@for_each("given, zone, start, expected", [
    (crontab(minute="0,45", hour="1-2"), LORD_HOWE, datetime(2026, 4, 5, 0, 50, tzinfo=LORD_HOWE),
        ["05 01:00+1100", "05 01:45+1100", "05 02:00+1030", "05 02:45+1030"]),
    (crontab(minute="45"), LORD_HOWE, datetime(2026, 4, 5, 0, 50, tzinfo=LORD_HOWE),
        ["05 01:45+1100", "05 01:45+1030"]),
    (crontab(minute="15"), LORD_HOWE, datetime(2026, 10, 4, 0, 50, tzinfo=LORD_HOWE),
        ["04 01:15+1030", "04 02:45+1100", "04 03:15+1100"]),
    (crontab(minute=0, hour=0), HAVANA, datetime(2026, 3, 7, 12, tzinfo=HAVANA), ["08 01:00-0400", "09 00:00-0400"]),
    (crontab(minute=0, hour=0), HAVANA, datetime(2026, 10, 31, 12, tzinfo=HAVANA), ["01 00:00-0400", "02 00:00-0500"]),
    (schedule(DAY, relative=True), HAVANA, datetime(2026, 3, 7, 12, tzinfo=HAVANA), ["08 01:00-0400", "09 00:00-0400"]),
    (schedule(HOUR, relative=True), LORD_HOWE, datetime(2026, 4, 5, 1, 10, tzinfo=LORD_HOWE),
        ["05 02:00+1030", "05 03:00+1030"]),
    (crontab(minute=0, hour=9), ZoneInfo("Pacific/Apia"), datetime(2011, 12, 28, 12, tzinfo=ZoneInfo("Pacific/Apia")),
        ["29 09:00-1000", "31 09:00+1400", "01 09:00+1400"]),
])  # fmt: skip
def test_where_it_changes_by_half_an_hour_at_midnight_or_by_a_day(
    given: Any, zone: ZoneInfo, start: datetime, expected: list[str]
) -> None:
    """A time that is skipped is as much later as the clock was set, whatever that is, and no tick is repeated."""
    assert texts(given, start, len(expected), zone.key) == expected


def test_no_minute_is_silent_where_clocks_are_set_back() -> None:
    """A crontab of every minute, and an interval of a minute, tick in each minute of a day of 25 hours."""
    start = datetime(2026, 10, 25, tzinfo=BERLIN).timestamp()
    for given in (crontab(), crontab(minute="*", hour="0-23"), 60.0, schedule(60, relative=True)):
        found = [*moments(given, "Europe/Berlin", start - 60, start + 25 * HOUR - 60)]
        assert found == [start + 60 * number for number in range(25 * 60)]


@for_each("day, month, weekday, expected", [
    (29, 2, "*", "2028-02-29"), (29, 2, 1, "2044-02-29"), (31, "4,6,12", "*", "2026-12-31"), (30, 2, "*", None),
])  # fmt: skip
def test_a_rare_day_is_found_and_an_impossible_one_is_none(
    day: int, month: Any, weekday: Any, expected: str | None
) -> None:
    """The next 29 February is found, decades ahead too; a day that no year has is never."""
    possible: Any = crontab(minute=0, hour=12, day_of_week=weekday, month_of_year=month)  # which refuses 30 February
    rules = Crontab.of({0}, {12}, possible.day_of_week, {day}, possible.month_of_year, repeats=False)
    found = rules.next_after(datetime(2026, 7, 1, tzinfo=UTC).timestamp(), BERLIN)
    assert (found and str(datetime.fromtimestamp(found, BERLIN).date())) == expected


def test_a_schedule_without_times_or_length_has_no_moment() -> None:
    """An interval of nothing, and a crontab without a minute, has no moment; one under a minute is not rounded."""
    assert Crontab.of((), {1}, range(7), range(1, 32), range(1, 13), repeats=False).next_after(0.0, BERLIN) is None
    assert next_of(schedule(0.0))(5.0) is None
    assert next_of(schedule(0.25, relative=True))(5.1) == 5.35


class InTokyo(crontab):
    """A crontab with a time zone of its own, as those of django-celery-beat."""

    tz: Any = ZoneInfo("Asia/Tokyo")


class Named(crontab):
    """A crontab whose time zone is a name."""

    tz: Any = "Asia/Tokyo"


def test_a_schedule_may_have_a_time_zone_of_its_own() -> None:
    """The moments of a schedule with a time zone are in that one, whatever the time zone of the app."""
    started = datetime(2026, 7, 1, tzinfo=UTC)
    for zone in ("Europe/Berlin", "UTC"):
        for kind in (InTokyo, Named):
            assert [*moments(kind(hour=3, minute=0), zone, started.timestamp(), started.timestamp() + DAY)] == [
                started.replace(hour=18).timestamp()
            ]


# --- classes with methods of their own --------------------------------------------------------------------------------


class Weekdays(crontab):
    """A crontab whose own `is_due` leaves out some days."""

    left_out = (6, 7)

    def is_due(self, last_run_at: datetime) -> Any:
        due, wait = super().is_due(last_run_at)
        return schedstate(due and self.now().isoweekday() not in self.left_out, wait)


def except_on(*left_out: int) -> Weekdays:
    """Return a schedule with an attribute that a copy of a crontab lacks."""
    made = Weekdays(minute=0, hour=9)
    made.left_out = left_out  # type: ignore[assignment]
    return made


class EveryThird(BaseSchedule):
    """A schedule that has nothing but `is_due`, and asks for a look every 7 minutes."""

    def is_due(self, last_run_at: datetime) -> Any:
        return schedstate((self.now() - last_run_at).total_seconds() >= 3 * HOUR, 420.0)


class Estimate(BaseSchedule):
    """A schedule that has nothing but `remaining_estimate`, 12 hours ahead by the clock on the wall."""

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        return (last_run_at + timedelta(hours=12)).replace(tzinfo=None) - self.now().replace(tzinfo=None)


class Always(BaseSchedule):
    """A schedule that does not look at the time at which it ran."""

    def is_due(self, last_run_at: datetime) -> Any:
        return schedstate(9 <= self.now().hour < 17, 600.0)


class Over(BaseSchedule):
    """A schedule that was due once, and that has no next time."""

    def is_due(self, last_run_at: datetime) -> Any:
        return schedstate(is_due=True, next=0)


class Clocked(BaseSchedule):
    """A schedule of one moment, which is due from then on, and says when to ask in a year."""

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        return datetime(2026, 7, 3, 12, tzinfo=BERLIN) - self.now()

    def is_due(self, last_run_at: datetime) -> Any:
        remaining = self.remaining_estimate(last_run_at).total_seconds()
        return schedstate(remaining <= 0, remaining if remaining > 0 else 3e7)


class Ended(BaseSchedule):
    """A schedule that has no moment, and says None."""

    def is_due(self, last_run_at: datetime) -> Any:
        return schedstate(False, None)  # type: ignore[arg-type] # noqa: FBT003


@for_each("given, start, expected", [
    (Clocked(), datetime(2026, 7, 3, 1, tzinfo=BERLIN), ["03 12:00+0200"]),
    (Ended(), AUTUMN, []),
    (Weekdays(minute=0, hour=9), datetime(2026, 7, 3, 10, tzinfo=BERLIN), ["06 09:00+0200", "07 09:00+0200"]),
    (except_on(7, 1), datetime(2026, 7, 3, 10, tzinfo=BERLIN), ["04 09:00+0200", "07 09:00+0200"]),
    (EveryThird(), datetime(2026, 7, 3, 1, 30, tzinfo=BERLIN), ["03 04:32+0200", "03 07:34+0200"]),
    (Estimate(), datetime(2026, 10, 25, 1, 30, tzinfo=BERLIN), ["25 13:30+0100", "26 01:30+0100"]),
    (Always(), datetime(2026, 7, 3, 16, 45, tzinfo=BERLIN), ["03 16:55+0200", "04 09:05+0200", "04 09:15+0200"]),
    (Over(), AUTUMN, []),
])  # fmt: skip
def test_a_class_of_the_user_is_asked_as_beat_asks_it(given: Any, start: datetime, expected: list[str]) -> None:
    """A schedule with methods of its own ticks when it says that it is due, asked when beat would ask it."""
    most = len(expected) + isinstance(given, Clocked | Ended | Over)
    assert texts(given, start, most) == expected


@for_each("event, latitude, most", [
    ("sunrise", 52, 1.01), ("solar_noon", 0, 1.01), ("dusk_civil", -33, 1.01), ("sunset", 78, 200),
    ("sunrise", 78, 200),
])  # fmt: skip
def test_a_solar_event_is_once_a_day(event: Any, latitude: int, most: float) -> None:
    """A solar event has one moment a day, of whole seconds, on the days that have it, and none where the sun stays."""
    pytest.importorskip("ephem")
    begin = datetime(YEAR, 1, 1, tzinfo=UTC).timestamp()
    found = [*moments(solar(event, latitude, 15), "Europe/Berlin", begin, begin + 400 * DAY)]
    days = [(later - earlier) / DAY for earlier, later in pairwise(found)]
    assert 0.95 < min(days) <= max(days) < most
    assert (most > 2) == (max(days) > 2)
    assert not any(each % 1 for each in found)


# --- a year, beside a plain reference ---------------------------------------------------------------------------------

ZONES = """
    Europe/Berlin Europe/London Europe/Lisbon Europe/Dublin Europe/Chisinau Europe/Kyiv Europe/Istanbul Atlantic/Azores
    America/New_York America/Chicago America/Denver America/Phoenix America/Los_Angeles America/Vancouver
    America/Edmonton America/Winnipeg America/Anchorage America/St_Johns America/Halifax America/Havana
    America/Santiago America/Asuncion America/Sao_Paulo America/Nuuk America/Port-au-Prince Africa/Casablanca
    Africa/Cairo Asia/Gaza Asia/Jerusalem Asia/Beirut Asia/Kolkata Asia/Kathmandu Asia/Tokyo Asia/Tehran
    Australia/Sydney Australia/Lord_Howe Pacific/Auckland Pacific/Chatham Pacific/Easter Antarctica/Troll
""".split()
TIMES: list[dict[str, Any]] = [
    *({"minute": minute, "hour": hour} for minute in (0, 30) for hour in range(0, 24, 2)),
    *({"minute": minute, "hour": hour} for minute in (15, 59) for hour in (0, 1, 2, 3, 23)),
    {"minute": 30, "hour": "2,3"}, {"minute": "0,30", "hour": 1}, {"minute": 5, "hour": 0, "day_of_week": "mon-fri"},
    {"minute": 30, "hour": 2, "day_of_week": "sun"}, {"minute": 0, "hour": 0, "day_of_month": 1},
    {"minute": 30, "hour": 1, "day_of_month": "25-31", "day_of_week": "sun"},
    {"minute": 0, "hour": 9, "day_of_month": 31},
    {"minute": 0, "hour": 2, "month_of_year": "3,10,11"}, {"minute": 10, "hour": "*/12"},
    {"minute": 0, "hour": 3, "day_of_month": 29, "month_of_year": 2},
]  # fmt: skip
FREQUENT: list[dict[str, Any]] = [
    {"minute": "*"}, {"minute": "*/5"}, {"minute": "*/20"}, {"minute": 0}, {"minute": 30}, {"minute": "0,45"},
    {"minute": "*/10", "hour": "0-5"}, {"minute": "*", "hour": 2}, {"minute": 0, "hour": "*/2"},
    {"minute": "15,45", "hour": "0-4"}, {"minute": 1, "hour": "0-23"}, {"minute": "*/30", "day_of_week": "sat,sun"},
    {"minute": "7", "hour": "1-22/3"}, {"minute": "*/15", "hour": "22,23,0,1"}, {"minute": "2-58/8", "hour": "0-12"},
    {"minute": 0, "day_of_month": "1,25-31"},
]  # fmt: skip


def compare(options: dict[str, Any], zone: str, days: list[datetime]) -> int:
    """Compare the moments on some days with the reference, and return how many there are."""
    given: Any = crontab(**options)
    whole = ZoneInfo(zone)
    repeats = str(options["minute"]).startswith("*") or len(given.hour) == 24
    expected, found = reference.crontab_moments(given, whole, days, repeats=repeats), list[float]()
    for first, last in reference.runs_of(days):
        begin, end = (each.replace(tzinfo=whole).timestamp() for each in (first, last))
        found += moments(given, zone, begin - 1, end - 1)
    assert found == expected, f"{given} in {zone}"
    return len(found)


def compare_year(zones: list[str]) -> int:
    """Compare a year: of the schedules with a few ticks a day each day, of the others those around changes."""
    days = reference.days_of(YEAR)
    return sum(compare(options, zone, days) for zone in zones for options in TIMES) + sum(
        compare(options, zone, near)
        for zone in zones if (near := reference.days_around_changes(ZoneInfo(zone), YEAR)) for options in FREQUENT
    )  # fmt: skip


def test_a_year_of_some_zones() -> None:
    """Each moment of a year is the one of the reference, once, where clocks change by an hour, and by half of one."""
    assert len(TIMES + FREQUENT) == 60
    assert compare_year(["Europe/Berlin", "Australia/Lord_Howe"]) > 10_000


@deep
@pytest.mark.parametrize("part", range(4))
def test_a_year_of_forty_zones(part: int) -> None:
    """In 40 zones each of 60 schedules has the moments of the reference in a year, each once, and no others."""
    assert len(ZONES) == 40
    assert compare_year(ZONES[part::4]) > 100_000


@deep
def test_each_day_of_a_year_of_a_frequent_schedule() -> None:
    """A schedule of every five minutes has the moments of the reference all year, not only around changes."""
    for zone in ("Europe/Dublin", "Africa/Casablanca"):
        assert compare({"minute": "*/5"}, zone, reference.days_of(YEAR)) > 100_000


@deep
def test_a_year_of_intervals_by_the_clock() -> None:
    """An interval that is rounded by the clock has the last whole minute or hour in reach, or else the next one."""
    for zone in ("Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Casablanca", "America/St_Johns"):
        whole = ZoneInfo(zone)
        begin, end = (datetime(YEAR + each, 1, 1, tzinfo=UTC).timestamp() for each in (0, 1))
        on_the_hour = reference.boundaries(whole, begin, end + DAY, lambda local: local.minute == 0)
        for seconds in (HOUR, 1.5 * HOUR, 5 * HOUR):
            after = begin
            for found in moments(schedule(seconds, relative=True), zone, begin, end):
                following, reached = (bisect_right(on_the_hour, each) for each in (after, after + seconds))
                assert found == on_the_hour[max(following, reached - 1)]
                after = found


# --- zone files -------------------------------------------------------------------------------------------------------


@pytest.fixture
def zone_files() -> Iterator[Callable[..., None]]:
    """Return a way to use other zone files in this process, as PYTHONTZPATH does."""
    before = zoneinfo.TZPATH

    def use(*folders: Path | str) -> None:
        zoneinfo.reset_tzpath(tuple(map(str, folders)))
        ZoneInfo.clear_cache()

    yield use
    use(*before)


def rename(folder: Path, name: str, source: str) -> Path:
    """Make a folder of zone files in which one zone has the rules of another, and return it."""
    path = folder / name
    path.parent.mkdir(parents=True)
    of_system = [Path(each) / source for each in zoneinfo.TZPATH if (Path(each) / source).is_file()]
    path.write_bytes(of_system[0].read_bytes() if of_system else _of_package(source))
    return folder


def _of_package(source: str) -> bytes:
    return files("tzdata.zoneinfo").joinpath(source).read_bytes()


def test_the_moments_are_those_of_the_given_zone_files(zone_files: Callable[..., None], tmp_path: Path) -> None:
    """Under other zone files the moments are those of these, and the digest of the rules is another."""
    zone, given = "America/Vancouver", crontab(minute=0, hour=6)
    noon = datetime(2026, 1, 5, 12, tzinfo=UTC).timestamp()
    before = next_of(given, zone)(noon), rules_of(ZoneInfo(zone), noon)
    zone_files(rename(tmp_path, zone, "Asia/Tokyo"), *zoneinfo.TZPATH)
    assert next_of(given, zone)(noon) == datetime(2026, 1, 5, 21, tzinfo=UTC).timestamp() != before[0]
    zone_files(rename(tmp_path / "other", zone, "Europe/London"), *zoneinfo.TZPATH)
    assert rules_of(ZoneInfo(zone), noon) != before[1]
    compare({"minute": 30, "hour": 1}, zone, reference.days_of(YEAR))


@deep
def test_a_year_with_the_files_of_the_package(zone_files: Callable[..., None]) -> None:
    """With the zone files of the package `tzdata` instead of the system's the moments are those of the package."""
    pytest.importorskip("tzdata")
    zone_files()
    assert compare_year([zone for zone in ZONES if zone.startswith("America/")]) > 100_000


# --- zones ------------------------------------------------------------------------------------------------------------


class Unhashable(tzinfo):
    """A zone as those of dateutil, which have no hash."""

    __hash__: Any = None

    def __eq__(self, other: object) -> bool:
        return self is other

    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(hours=2) if moment is not None and moment.month in range(4, 10) else timedelta(hours=1)

    def dst(self, moment: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, moment: datetime | None) -> str:
        return "unhashable"


def test_a_local_time_is_the_moment_of_rfc_5545() -> None:
    """A local time that exists twice is the first of both, and one that does not is later by what was skipped."""
    for zone in map(ZoneInfo, ("Europe/Berlin", "America/Havana", "Australia/Lord_Howe", "Pacific/Apia", "UTC")):
        for day in [*reference.days_around_changes(zone, YEAR), datetime(2011, 12, 30)]:
            for local in (day + timedelta(minutes=15 * number) for number in range(96)):
                seconds = int(local.replace(tzinfo=UTC).timestamp())
                assert moment_of(zone, seconds) == local.replace(tzinfo=zone, fold=0).timestamp()


def test_any_zone_is_read() -> None:
    """A zone needs no hash and no key; that of the machine is None; a zone whose offset is fixed has no rules."""
    at = int(datetime(2026, 7, 1, tzinfo=UTC).timestamp())
    assert segment_at(Unhashable(), at).offset == 7200
    assert rules_of(Unhashable(), at)
    assert (rules_of(UTC, at), rules_of(ZoneInfo("Asia/Tokyo"), at)) == ("", "")
    assert segment_at(None, at).offset == time.localtime(at).tm_gmtoff
    names = [name_of(each) for each in (BERLIN, None, timezone(timedelta(hours=1)))]
    assert names == ["Europe/Berlin", LOCAL, "UTC+01:00"]


def test_equal_rules_have_one_digest() -> None:
    """Zones with the same offsets in the years to come have one digest, which does not change from day to day."""
    now = datetime(2026, 7, 1, tzinfo=UTC).timestamp()
    paris, new_york = (rules_of(ZoneInfo(each), now) for each in ("Europe/Paris", "America/New_York"))
    berlin = rules_of(BERLIN, now)
    assert berlin == paris != new_york
    assert rules_of(BERLIN, now + 400 * DAY) == berlin != rules_of(BERLIN, now + 5 * 366 * DAY)


def test_an_app_without_utc_has_the_local_time_of_its_machine() -> None:
    """With `enable_utc = False`, and no time zone, a crontab is one of the machine's local time."""
    app = celery.Celery("local", set_as_current=False)
    app.conf.update(enable_utc=False, onejob_store="sqlite:///unused.db")
    entry: Any = ScheduleEntry(name="e", task="t", schedule=crontab(minute=0, hour=9), app=app)
    now = datetime(2026, 7, 1, tzinfo=UTC).timestamp()
    found = Entry(app, entry).timetable.next_after(now)
    assert found is not None
    assert datetime.fromtimestamp(found).hour == 9  # noqa: DTZ006 - the machine's
