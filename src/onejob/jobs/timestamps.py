"""Times and durations as text: timestamps are RFC 3339, with a time zone, in all inputs and outputs."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta

_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.IGNORECASE | re.ASCII)
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(rf"(\d{{1,6}})([{''.join(UNITS)}])", re.ASCII)
EARLIEST = -62_135_596_800.0
"""0001-01-01T00:00:00Z, where the calendar begins."""
LATEST = 253_402_214_399.0
"""9999-12-30T23:59:59Z, the latest time that has a four-digit year in every time zone."""


def parse_timestamp(text: object) -> float:
    """Return seconds since the epoch. Raises `ValueError` for any other format, and without a time zone."""
    with suppress(ValueError, OverflowError):
        if isinstance(text, str) and _RFC_3339.fullmatch(text):
            return datetime.fromisoformat(text.upper()).timestamp()
    raise ValueError(f"{text!r:.100} is not a time with a time zone, such as 2026-01-31T12:00:00Z")


def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as `90d`, `24h`, `30m` or `45s`. Raises `ValueError` for any other text."""
    match = _DURATION.fullmatch(text)
    if match is None:
        msg = f"{text!r:.100} is not a duration: write a number and one of {', '.join(UNITS)}, such as 90d or 24h"
        raise ValueError(msg)
    return float(int(match[1]) * UNITS[match[2]])


def parse_day(text: str) -> date:
    """Return the day of a text such as `2026-01-31`. Raises `ValueError` for any other text."""
    with suppress(ValueError):
        if _DAY.fullmatch(text):
            return date.fromisoformat(text)
    raise ValueError(f"{text!r:.100} is not a day, such as 2026-01-31")


def parse_time(text: str) -> float | timedelta:
    """Return a time, or a duration before or after now. Raises `ValueError` for any other text."""
    with suppress(ValueError):
        return timedelta(seconds=parse_duration(text))
    try:
        return parse_timestamp(text)
    except ValueError as error:
        raise ValueError(f"{error}, nor a duration such as 90m, 1h or 1d") from error


def seconds_of(at: float | timedelta | None, now: float, sign: int = -1) -> float | None:
    """Return a time in seconds since the epoch: a duration before now, or after it with a positive sign."""
    return now + sign * at.total_seconds() if isinstance(at, timedelta) else at


def to_datetime(at: float) -> datetime:
    """Return seconds since the epoch as a `datetime` in UTC, clamped to 0 and `LATEST`."""
    return datetime.fromtimestamp(min(max(at, 0.0), LATEST), UTC)


def format_timestamp(at: float | datetime) -> str:
    """Return a time in UTC, to the microsecond; seconds are clamped to `EARLIEST` and `LATEST`."""
    when = at if isinstance(at, datetime) else datetime.fromtimestamp(min(max(at, EARLIEST), LATEST), UTC)
    return when.isoformat().replace("+00:00", "Z")


def local_text(at: float | datetime) -> str:
    """Return a time in the local time zone with its offset, to the millisecond."""
    when = at if isinstance(at, datetime) else to_datetime(at)
    return when.astimezone().isoformat(timespec="milliseconds")


_PARTS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def duration_text(seconds: float) -> str:
    """Return a duration in its largest unit and the next smaller one, e.g. `2 h 5 min`."""
    rest = round(abs(seconds))
    words = []
    for size, unit in _PARTS:
        count, rest = divmod(rest, size)
        if count:
            words.append(f"{count} {unit}")
        elif words:
            break
    return " ".join(words[:2]) or "0 s"


def relative_text(at: float, now: float) -> str:
    """Return the distance of a time from now: `in 5 min` or `5 min ago`."""
    return f"in {duration_text(at - now)}" if at > now else f"{duration_text(now - at)} ago"
