"""How long a job is unique: until it starts, until it ends, or for a while after its success.

A while is a number of seconds from the success on, or a calendar window: `"day@Europe/Berlin"` is the day, there, in
which the job was submitted. Calendar windows are cut by the clock on the wall: a day has 23, 24 or 25 hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias
from zoneinfo import ZoneInfo

from onejob.errors import ConfigurationError
from onejob.jobs.model import Retention
from onejob.jobs.policy import DAY, check_seconds

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import tzinfo

UniqueFor: TypeAlias = "float | str | None"
UNTIL = ("started", "finished")


def _day(begin: datetime) -> datetime:
    return begin + timedelta(days=1)


def _week(begin: datetime) -> datetime:
    return begin + timedelta(days=7 - begin.weekday())


def _month(begin: datetime) -> datetime:
    return (begin.replace(day=1) + timedelta(days=32)).replace(day=1)


CALENDAR: dict[str, tuple[Callable[[datetime], datetime], float]] = {
    "day": (_day, DAY),
    "week": (_week, 7 * DAY),
    "month": (_month, 31 * DAY),
}
"""By name: the midnight at which the window with a given midnight ends, and the longest that such a window can be,
but for the hour by which clocks are put back."""


@dataclass(frozen=True, slots=True)
class Window:
    """How long the identity of a successful job is kept: `seconds`, or to the end of the calendar window `unit`."""

    seconds: float = 0.0
    unit: str = ""
    zone: tzinfo = UTC

    @property
    def longest(self) -> float:
        """The most seconds that an identity is kept after a success, but for the hour of clocks that are put back."""
        return CALENDAR[self.unit][1] if self.unit else self.seconds

    def keep(self, submitted_at: float) -> Retention:
        """Return for how long a job that was submitted at a moment keeps its identity after its success."""
        return Retention(identity_until=self.end(submitted_at)) if self.unit else Retention(identity_for=self.seconds)

    def end(self, timestamp: float) -> float:
        """Return the end of the calendar window that a moment is in, both in seconds since the epoch."""
        there = datetime.fromtimestamp(timestamp, self.zone)
        midnight = CALENDAR[self.unit][0](datetime(there.year, there.month, there.day))  # noqa: DTZ001 - on the wall
        return midnight.replace(tzinfo=self.zone).timestamp()


def window_of(task: str, unique_until: object, unique_for: object) -> Window | None:
    """Return the window that a task's options ask for; None for no time after the end.

    Raises `ConfigurationError` for options that cannot work.
    """
    if unique_until not in UNTIL:
        msg = f"unique_until of task {task} must be 'started' or 'finished', not {unique_until!r}"
        raise ConfigurationError(msg)
    if unique_for is None:
        return None
    if unique_until == "started":
        msg = f"task {task} cannot be unique until it started and for a while after its success: drop one of the two"
        raise ConfigurationError(msg)
    if isinstance(unique_for, str):
        return _calendar(task, unique_for)
    check_seconds(f"unique_for of task {task}, unless it is a text like 'day@Europe/Berlin',", unique_for)
    return Window(seconds=float(unique_for))  # type: ignore[arg-type] # it has just been checked


def _calendar(task: str, text: str) -> Window:
    unit, at, zone = text.partition("@")
    if unit not in CALENDAR or not at:
        msg = f"unique_for={text!r} of task {task} is none of {', '.join(f'{name}@Zone' for name in CALENDAR)}"
        raise ConfigurationError(msg)
    try:
        return Window(unit=unit, zone=ZoneInfo(zone))
    except (OSError, ValueError, KeyError) as error:  # ZoneInfoNotFoundError is a KeyError
        msg = f"unique_for={text!r} of task {task}: no time zone is known as {zone!r}; it is a name like Europe/Berlin"
        raise ConfigurationError(msg) from error
