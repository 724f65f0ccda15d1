"""Times as text, in every output: RFC 3339, with a time zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_WRITTEN = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.IGNORECASE | re.ASCII)
LAST = 253_402_214_399.0
"""The last second of 9999-12-30 in UTC: the latest time that has a year of four digits in every time zone."""


def parse_timestamp(text: object) -> float:
    """Return seconds since the epoch. Raises `ValueError` for any other format, also for a time without a time zone."""
    try:
        if isinstance(text, str) and _WRITTEN.fullmatch(text):
            return datetime.fromisoformat(text.upper()).timestamp()
    except (ValueError, OverflowError):
        pass
    msg = f"{text!r:.100} is not a time with a time zone, such as 2026-01-31T12:00:00Z"
    raise ValueError(msg)


def to_datetime(at: float) -> datetime:
    """Return a time of the ledger in UTC; what a calendar cannot show becomes its first or last time."""
    return datetime.fromtimestamp(min(max(at, 0.0), LAST), UTC)


def format_timestamp(at: float | datetime) -> str:
    """Return a time as text in UTC, to the microsecond."""
    when = at if isinstance(at, datetime) else datetime.fromtimestamp(at, UTC)
    return when.isoformat().replace("+00:00", "Z")


def local_text(at: float | datetime) -> str:
    """Return a time as text in the time zone of this machine, with its offset, to the millisecond."""
    when = at if isinstance(at, datetime) else to_datetime(at)
    return when.astimezone().isoformat(timespec="milliseconds")
