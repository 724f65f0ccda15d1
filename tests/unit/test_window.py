"""Calendar windows end at local midnight, also when daylight saving time changes."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onejob.errors import ConfigurationError
from onejob.jobs.model import Retention
from onejob.jobs.policy import DAY
from onejob.jobs.transitions import DST_SHIFT
from onejob.uniqueness.window import CALENDAR, Window, window_of


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


@pytest.mark.parametrize(
    ("day", "zone", "hours"),
    [
        ("2026-03-29", "Europe/Berlin", 23),
        ("2026-10-25", "Europe/Berlin", 25),
        ("2026-11-21", "Europe/Berlin", 24),
        ("2026-10-25", "Antarctica/Troll", 26),
    ],
)
def test_a_day_has_its_local_length(day: str, zone: str, hours: int) -> None:
    """A day is shorter or longer by the time that a zone's clock is set forward or back, also by two hours."""
    window = window_of("task", "finished", f"day@{zone}")
    assert window is not None
    begin = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)).timestamp()
    assert window.end(begin) - begin == hours * 3600
    assert hours * 3600 <= window.longest + DST_SHIFT


KEYS = {"day": "%Y-%m-%d", "week": "%G-%V", "month": "%Y-%m"}
"""What all times of a window have in common, and no others."""


@given(
    timestamp=st.floats(1.6e9, 4e9, allow_nan=False),
    unit=st.sampled_from(sorted(CALENDAR)),
    zone=st.sampled_from(sorted(available_timezones())),
)
def test_a_window_has_the_times_of_one_day_week_or_month(timestamp: float, unit: str, zone: str) -> None:
    """In every zone a window ends after its last local second, and is no longer than retention allows for."""
    window = window_of("task", "finished", f"{unit}@{zone}")
    assert window is not None
    end = window.end(timestamp)
    now, last, next_ = (
        datetime.fromtimestamp(each, ZoneInfo(zone)).strftime(KEYS[unit]) for each in (timestamp, end - 1e-3, end)
    )
    assert now == last != next_
    assert 0 < end - timestamp <= window.longest + DST_SHIFT


def test_the_longest_windows() -> None:
    """The longest day, week and month have 1, 7 and 31 days, before any shift."""
    found = {unit: window_of("task", "finished", f"{unit}@UTC") for unit in CALENDAR}
    assert {unit: window and window.longest / DAY for unit, window in found.items()} == {
        "day": 1, "week": 7, "month": 31,
    }  # fmt: skip


def test_a_window_says_how_long_to_keep_the_identity() -> None:
    """A number of seconds counts from the success of the job; a calendar window ends at its own time; None is none."""
    seconds, day = window_of("task", "finished", 60), window_of("task", "finished", "day@UTC")
    assert seconds == Window(seconds=60.0)
    assert (seconds.seconds, seconds.unit, seconds.longest) == (60.0, "", 60.0)
    assert seconds.keep(1.0) == Retention(identity_for=60.0)
    assert day == Window(unit="day", zone=ZoneInfo("UTC"))
    assert day.keep(1.0) == Retention(identity_until=DAY)
    assert Window() == Window(seconds=0.0, unit="", zone=UTC)
    assert window_of("task", "finished", None) is window_of("task", "started", None) is None


UNITS = "must be one of day@Zone, week@Zone, month@Zone"
REFUSALS = [
    ("ended", None, "unique_until of task t must be 'started' or 'finished', not 'ended'"),
    ("started", 60, "task t has unique_until='started' and unique_for, which exclude each other: drop one of them"),
    ("finished", "day", f"unique_for='day' of task t {UNITS}"),
    ("finished", "year@UTC", f"unique_for='year@UTC' of task t {UNITS}"),
    *(
        ("finished", f"day@{zone}", f"unique_for='day@{zone}' of task t: unknown time zone '{zone}'; use a name")
        for zone in ("Nowhere", "/etc/passwd", "Europe")
    ),
    ("finished", -1, "unique_for of task t, unless it is a string like 'day@Europe/Berlin', must be"),
]  # fmt: skip


@pytest.mark.parametrize(("until", "unique_for", "message"), REFUSALS)
def test_a_window_that_cannot_work_is_refused(until: str, unique_for: object, message: str) -> None:
    """A window that cannot work is refused with the option, its value, and what is expected."""
    with pytest.raises(ConfigurationError) as caught:
        window_of("t", until, unique_for)
    assert str(caught.value).startswith(message)
