"""The uniqueness window: a job is unique until it starts, until it ends, or for a time after its success.

The time after the success is a number of seconds, or a calendar window: `"day@Europe/Berlin"` is the day, in that time
zone, on which the job was submitted. Calendar windows follow local time: with daylight saving time a day has 23, 24 or
25 hours. The limits of a window are computed at the submission and kept with the job: the host that completes it may
have other zone files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import TypeAlias
from zoneinfo import ZoneInfo

from onejob.errors import ConfigurationError
from onejob.jobs.durations import DAY, check_seconds
from onejob.jobs.model import IdentityHold
from onejob.jobs.zones import name_of

UniqueFor: TypeAlias = "float | str | None"
Limits: TypeAlias = "list[str | float]"
"""The name of a calendar window, such as `day@Europe/Berlin`, when it begins and ends, and when the next one ends."""
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
    """The time that a completed job holds its identity: `seconds`, or until the end of the calendar window `unit`."""

    seconds: float = 0.0
    unit: str = ""
    zone: tzinfo = UTC

    @property
    def longest(self) -> float:
        """The maximum seconds for which an identity is held after the success, without `DST_SHIFT`."""
        return CALENDAR[self.unit][1] if self.unit else self.seconds

    @property
    def name(self) -> str:
        """The name of a calendar window, such as `day@Europe/Berlin`."""
        return f"{self.unit}@{name_of(self.zone)}"

    def hold(self, submitted_at: float, limits: Limits | None = None) -> IdentityHold:
        """Return how long a job that was submitted at `submitted_at` holds its identity after its success.

        `limits` are the window's limits as the submitter computed them, by a clock that may differ from the store's.
        Without them, or if they are limits of another window, the end is computed now.
        """
        if not self.unit:
            return IdentityHold(identity_for=self.seconds)
        name, *ends = limits or [""]
        later = (float(each) for each in ends if float(each) > submitted_at)
        end = next(later, None) if name == self.name else None
        return IdentityHold(identity_until=self.end(submitted_at) if end is None else end)

    def limits_at(self, now: float) -> Limits | None:
        """Return the limits of the calendar window at a time, for `hold`; None for a number of seconds."""
        return _limits_in(self, int(now // 60)) if self.unit else None

    def end(self, timestamp: float) -> float:
        """Return the end of the calendar window that contains `timestamp`, both in seconds since the epoch."""
        local = datetime.fromtimestamp(timestamp, self.zone)
        end = CALENDAR[self.unit][0](datetime(local.year, local.month, local.day))  # noqa: DTZ001 - local time
        return end.replace(tzinfo=self.zone).timestamp()


@lru_cache(maxsize=256)
def _limits_in(window: Window, minute: int) -> Limits:
    """Return the limits in a minute since the epoch: a window ends at midnight, which no zone has within a minute."""
    now = minute * 60.0
    begin = window.end(now - window.longest - DAY)
    while (end := window.end(begin)) <= now:
        begin = end
    return [window.name, begin, end, window.end(end)]


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
