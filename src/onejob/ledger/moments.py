"""The moments of a schedule: when a crontab, or an interval, has its next tick, in UTC by the offsets of a zone.

A local time that is skipped when clocks are set forward is as much later as they were set: 02:30 is 03:30. When a local
time exists twice, a schedule that names times of the day ticks at the first, and a schedule that repeats within the
hours ticks at both, as in cron.
"""

from __future__ import annotations

from bisect import bisect_left
from calendar import monthrange
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, tzinfo
from functools import lru_cache
from math import floor

from onejob.jobs.durations import DAY
from onejob.jobs.zones import Segment, moment_of, segment_at

MINUTE, HOUR = 60, 3600
EPOCH = date(1970, 1, 1).toordinal()
CYCLE_YEARS = 400
"""The years after which the calendar repeats, weekdays included: a day that is not among them does not exist."""


@dataclass(frozen=True, slots=True)
class Crontab:
    """A crontab: sets of numbers, all of which a local time must match. Sunday is 0."""

    minutes: frozenset[int]
    hours: frozenset[int]
    weekdays: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    repeats: bool
    """Whether the crontab ticks in both hours, where clocks are set back."""

    @classmethod
    def of(
        cls, minutes: Collection[int], hours: Collection[int], weekdays: Collection[int], days: Collection[int],
        months: Collection[int], *, repeats: bool,
    ) -> Crontab:  # fmt: skip
        """Return the crontab of some numbers; a crontab that names every hour of the day always `repeats`."""
        whole_day = len(set(hours)) == DAY / HOUR
        return cls(
            frozenset(minutes), frozenset(hours), frozenset(weekdays), frozenset(days), frozenset(months),
            repeats or whole_day,
        )  # fmt: skip

    def next_after(self, after: float, zone: tzinfo | None) -> float | None:
        """Return the first moment after a time; None if there is none, ever."""
        at = floor(after) + 1
        while True:
            segment = segment_at(zone, at)
            found = self._first_in(segment, at)
            if found is None or found < segment.end:
                return found
            at = segment.end

    def _first_in(self, segment: Segment, at: int) -> int | None:
        """Return the first moment from `at` on, if the offset stays as it is; None if there is none, ever."""
        local, repeated_until = at + segment.offset, segment.begin + segment.before
        found = self._next_local(local if self.repeats else max(local, repeated_until))
        if found is None:
            return None
        if at + segment.before < segment.begin + segment.offset:  # the clock was just set forward
            skipped = self._next_local(at + segment.before)
            if skipped is not None and skipped < segment.begin + segment.offset:
                return min(skipped - segment.before, found - segment.offset)
        return found - segment.offset

    def _next_local(self, local: int) -> int | None:
        """Return the first matching local time from `local` on."""
        day, minute = divmod(-(-local // MINUTE), int(DAY) // MINUTE)
        times = _times(self.minutes, self.hours)
        if not times:
            return None
        if minute > times[-1] or not self._has(date.fromordinal(EPOCH + day)):
            following = self._next_day(date.fromordinal(EPOCH + day + 1))
            if following is None:
                return None
            day, minute = following.toordinal() - EPOCH, 0
        return day * int(DAY) + times[bisect_left(times, minute)] * MINUTE

    def _has(self, day: date) -> bool:
        return day.month in self.months and day.day in self.days and day.isoweekday() % 7 in self.weekdays

    def _next_day(self, first: date) -> date | None:
        """Return the first matching day from `first` on."""
        for year in range(first.year, min(first.year + CYCLE_YEARS, date.max.year)):
            for month in sorted(self.months):
                if (year, month) < (first.year, first.month):
                    continue
                length = monthrange(year, month)[1]
                for day in (date(year, month, number) for number in sorted(self.days) if number <= length):
                    if day >= first and self._has(day):
                        return day
        return None


@lru_cache(maxsize=1024)
def _times(minutes: frozenset[int], hours: frozenset[int]) -> tuple[int, ...]:
    """Return the minutes of a day at which a crontab ticks, in order."""
    return tuple(sorted(hour * 60 + minute for hour in hours for minute in minutes))


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval in seconds; `by_clock` rounds its moments down to a whole minute, hour or day of local time.

    The length of the interval selects the unit: an interval of 90 minutes ticks on the hour.
    """

    seconds: float
    by_clock: bool = False

    def next_after(self, after: float, zone: tzinfo | None) -> float | None:
        """Return the moment after a tick, or after the time at which the interval begins; None if it has no length."""
        if self.seconds <= 0:
            return None
        if not self.by_clock or self.seconds < MINUTE:
            return round(after + self.seconds, 6)
        if self.seconds >= DAY:
            local = after + segment_at(zone, floor(after)).offset + self.seconds
            return moment_of(zone, int(local // DAY * DAY))
        unit = HOUR if self.seconds >= HOUR else MINUTE
        last = _last_on_the(unit, zone, floor(after + self.seconds))
        return last if last > after else _first_on_the(unit, zone, floor(after) + 1)


def _last_on_the(unit: int, zone: tzinfo | None, until: int) -> int:
    """Return the last time up to `until` that is a whole unit of local time."""
    segment = segment_at(zone, until)
    found = (until + segment.offset) // unit * unit - segment.offset
    return found if found >= segment.begin else _last_on_the(unit, zone, segment.begin - 1)


def _first_on_the(unit: int, zone: tzinfo | None, since: int) -> int:
    """Return the first time from `since` on that is a whole unit of local time."""
    segment = segment_at(zone, since)
    found = -(-(since + segment.offset) // unit) * unit - segment.offset
    return found if found < segment.end else _first_on_the(unit, zone, segment.end)
