"""Calendar windows end at local midnight, also when daylight saving time changes."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onejob.jobs.transitions import DST_SHIFT
from onejob.uniqueness.window import CALENDAR, window_of

BERLIN = ZoneInfo("Europe/Berlin")


def end(text: str, timestamp: str, zone: str = "Europe/Berlin") -> str:
    """Return the local end of the window that contains a local time."""
    window = window_of("task", "finished", f"{text}@{zone}")
    assert window is not None
    local = ZoneInfo(zone)
    window_end = window.end(datetime.fromisoformat(timestamp).replace(tzinfo=local).timestamp())
    return datetime.fromtimestamp(window_end, local).replace(tzinfo=None).isoformat(" ", "minutes")


@pytest.mark.parametrize(
    ("unit", "timestamp", "expected"),
    [
        ("day", "2026-11-21 00:00", "2026-11-22 00:00"),
        ("day", "2026-11-21 23:59", "2026-11-22 00:00"),
        ("day", "2026-03-29 01:30", "2026-03-30 00:00"),
        ("day", "2026-10-25 12:00", "2026-10-26 00:00"),
        ("day", "2026-12-31 12:00", "2027-01-01 00:00"),
        ("week", "2026-11-21 12:00", "2026-11-23 00:00"),
        ("week", "2026-11-23 00:00", "2026-11-30 00:00"),
        ("month", "2026-02-28 23:00", "2026-03-01 00:00"),
        ("month", "2024-01-31 23:00", "2024-02-01 00:00"),
        ("month", "2026-12-01 00:00", "2027-01-01 00:00"),
    ],
)
def test_a_window_ends_at_midnight(unit: str, timestamp: str, expected: str) -> None:
    """A day ends at the next local midnight, a week on Monday, a month on the first."""
    assert end(unit, timestamp) == expected


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-11-21", 24)])
def test_a_day_has_its_local_length(day: str, hours: int) -> None:
    """A day has 23 or 25 hours when daylight saving time begins or ends."""
    window = window_of("task", "finished", "day@Europe/Berlin")
    assert window is not None
    begin = datetime.fromisoformat(day).replace(tzinfo=BERLIN).timestamp()
    assert window.end(begin) - begin == hours * 3600


@given(
    timestamp=st.floats(0, 4e9, allow_nan=False),
    unit=st.sampled_from(sorted(CALENDAR)),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Apia", "Asia/Kathmandu"]),
)
def test_every_time_is_in_one_window(timestamp: float, unit: str, zone: str) -> None:
    """A window ends after every time in it, within its longest duration plus the DST shift."""
    window = window_of("task", "finished", f"{unit}@{zone}")
    assert window is not None
    assert 0 < window.end(timestamp) - timestamp <= window.longest + DST_SHIFT


def test_seconds_are_a_window() -> None:
    """A number of seconds is a window of that length; None is no window."""
    window = window_of("task", "finished", timedelta(minutes=1).total_seconds())
    assert window is not None
    assert (window.seconds, window.longest, window.unit) == (60.0, 60.0, "")
    assert window_of("task", "finished", None) is None
