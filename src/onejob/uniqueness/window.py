"""The uniqueness window: a job is unique until it starts, until it ends, or for a time after its success.

That time is a number of seconds, or a calendar window: `"day@Europe/Berlin"` is the day, in that time zone, on which
the job was submitted. Calendar windows follow local time: with daylight saving time a day has 23, 24 or 25 hours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TypeAlias
from zoneinfo import ZoneInfo

from onejob.errors import ConfigurationError
from onejob.jobs.model import Retention
from onejob.jobs.policy import DAY, check_seconds

UniqueFor: TypeAlias = "float | str | None"
UNTIL = ("started", "finished")


def _month(begin: datetime) -> datetime:
    return (begin.replace(day=1) + timedelta(days=32)).replace(day=1)


CALENDAR: dict[str, tuple[Callable[[datetime], datetime], float]] = {
    "day": (lambda begin: begin + timedelta(days=1), DAY),
    "week": (lambda begin: begin + timedelta(days=7 - begin.weekday()), 7 * DAY),
    "month": (_month, 31 * DAY),
}
"""By name: a function from the midnight of a day in the window to the window's end, and the longest window in
seconds, without `DST_SHIFT`."""


@dataclass(frozen=True, slots=True)
class Window:
    """How long a completed job holds its identity: for `seconds`, or to the end of the calendar window `unit`."""

    seconds: float = 0.0
    unit: str = ""
    zone: tzinfo = UTC

    @property
    def longest(self) -> float:
        """The maximum seconds for which an identity is held after the success, without `DST_SHIFT`."""
        return CALENDAR[self.unit][1] if self.unit else self.seconds

    def keep(self, submitted_at: float) -> Retention:
        """Return how long a job that was submitted at `submitted_at` holds its identity after its success."""
        return Retention(identity_until=self.end(submitted_at)) if self.unit else Retention(identity_for=self.seconds)

    def end(self, timestamp: float) -> float:
        """Return the end of the calendar window that contains `timestamp`, both in seconds since the epoch."""
        local = datetime.fromtimestamp(timestamp, self.zone)
        end = CALENDAR[self.unit][0](datetime(local.year, local.month, local.day))  # noqa: DTZ001 - local time
        return end.replace(tzinfo=self.zone).timestamp()


def window_of(task: str, unique_until: object, unique_for: object) -> Window | None:
    """Return the window of a task's options; None: the identity ends with the job. Raises `ConfigurationError`."""
    if unique_until not in UNTIL:
        raise ConfigurationError(f"unique_until of task {task} must be 'started' or 'finished', not {unique_until!r}")
    if unique_for is None:
        return None
    if unique_until == "started":
        msg = f"task {task} has unique_until='started' and unique_for, which exclude each other: drop one of them"
        raise ConfigurationError(msg)
    if not isinstance(unique_for, str):
        check_seconds(f"unique_for of task {task}, unless it is a string like 'day@Europe/Berlin',", unique_for)
        return Window(seconds=float(unique_for))  # type: ignore[arg-type] # checked above
    unit, separator, zone = unique_for.partition("@")
    if unit not in CALENDAR or not separator:
        units = ", ".join(f"{name}@Zone" for name in CALENDAR)
        msg = f"unique_for={unique_for!r} of task {task} must be a number of seconds, or one of {units}"
        raise ConfigurationError(msg)
    try:
        return Window(unit=unit, zone=ZoneInfo(zone))
    except (OSError, ValueError, KeyError) as error:  # ZoneInfoNotFoundError is a KeyError
        msg = f"unique_for={unique_for!r} of task {task}: unknown time zone {zone!r}; use a name such as Europe/Berlin"
        raise ConfigurationError(msg) from error
