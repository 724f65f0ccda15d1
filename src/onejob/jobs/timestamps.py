"""Moments as people and other programs write them: RFC 3339, with a time zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_WRITTEN = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.IGNORECASE | re.ASCII)
LAST = 253_402_300_799.0
"""The last second that a calendar of four digits shows."""


def parse_timestamp(text: object) -> float:
    """Return the seconds since the epoch at a moment that is written so. Raises `ValueError` for anything else."""
    try:
        if isinstance(text, str) and _WRITTEN.fullmatch(text):
            return datetime.fromisoformat(text.upper()).timestamp()
    except (ValueError, OverflowError):
        pass
    msg = f"{text!r:.100} is no moment with a time zone, such as 2026-01-31T12:00:00Z"
    raise ValueError(msg)


def to_datetime(at: float) -> datetime:
    """Return a time of the ledger as a moment in UTC, one that a calendar can show."""
    return datetime.fromtimestamp(min(max(at, 0.0), LAST), UTC)


def format_timestamp(at: float) -> str:
    """Return a moment in UTC, to the microsecond."""
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
