"""The moments of crontabs and intervals, a second time: from each minute of local time, as `zoneinfo` converts it.

`onejob.ledger.moments` converts from UTC only, this from local time only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)


def days_of(year: int) -> list[datetime]:
    """Return the days of a year, and two of its neighbours, which are days of the year elsewhere."""
    begin = datetime(year, 1, 1) - timedelta(days=1)
    return [begin + timedelta(days=number) for number in range((datetime(year + 1, 1, 2) - begin).days)]


def days_around_changes(zone: ZoneInfo, year: int, days: int = 1) -> list[datetime]:
    """Return the days of a year near which the offset of a zone changes, in order."""
    all_days = days_of(year)
    offsets = [day.replace(tzinfo=zone).utcoffset() for day in all_days]
    changed = {number for number in range(1, len(all_days)) if offsets[number] != offsets[number - 1]}
    near = {each + away for each in changed for away in range(-1 - days, days + 1)}
    return [day for number, day in enumerate(all_days) if number in near]


def runs_of(days: list[datetime]) -> Iterator[tuple[datetime, datetime]]:
    """Yield the begin and the end of each run of consecutive days."""
    first = last = days[0]
    for day in days[1:]:
        if day - last > timedelta(days=1):
            yield first, last + timedelta(days=1)
            first = day
        last = day
    yield first, last + timedelta(days=1)


def crontab_moments(given: Any, zone: ZoneInfo, days: list[datetime], *, repeats: bool) -> list[float]:
    """Return the moments with a local time on some days, as RFC 5545 has it; with `repeats` both of a repeated one."""
    found, times = set[float](), minutes_of(given)
    for day in days:
        if (
            day.month in given.month_of_year
            and day.day in given.day_of_month
            and day.isoweekday() % 7 in given.day_of_week
        ):
            for minute in times:
                local = day + minute * MINUTE
                found.update(utc_of(local, zone, both=repeats))
    return sorted(found)


def minutes_of(given: Any) -> list[int]:
    """Return the minutes of a day at which a crontab ticks."""
    return [minute for minute in range(1440) if minute // 60 in given.hour and minute % 60 in given.minute]


def utc_of(local: datetime, zone: ZoneInfo, *, both: bool) -> set[float]:
    """Return when a local time is; `both` if it exists twice."""
    first, second = (local.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1))
    return {first, second} if both and second > first else {first}


def boundaries(zone: ZoneInfo, begin: float, end: float, is_one: Callable[[datetime], bool]) -> list[float]:
    """Return the minutes of UTC between two times whose local time is a boundary."""
    minutes = range(int(begin // 60), int(end // 60) + 1)
    return [minute * 60.0 for minute in minutes if is_one(datetime.fromtimestamp(minute * 60, UTC).astimezone(zone))]
