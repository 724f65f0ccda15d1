"""Times and durations as text."""

import time as clock_time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onejob.jobs.timestamps import LATEST, duration_text, format_timestamp, local_text, parse_timestamp, relative_text
from tests.cases import for_each


@for_each("text, at", [
    ("1970-01-01T00:00:00Z", 0.0), ("1970-01-01t00:00:00.25z", 0.25), ("1970-01-01 01:00:00+01:00", 0.0),
    ("1969-12-31T23:00:00-01:00", 0.0), ("1970-01-01T00:00:00.123456789Z", 0.123456),
    *((text, None) for text in ("", "now", "0", "1970-01-01", "19700101T000000Z", "1970-01-01T00:00:00")),
    ("1970-W01-4T00:00:00Z", None), (5, None), (None, None),
])  # fmt: skip
def test_a_timestamp_has_a_time_zone(text: Any, at: float | None) -> None:
    """A timestamp is parsed in any time zone; without one, or in another format, it is refused with an example."""
    if at is not None:
        assert parse_timestamp(text) == at
    else:
        with pytest.raises(ValueError, match="2026-01-31T12:00:00Z"):
            parse_timestamp(text)


@given(st.integers(-(10**15), 10**16))
def test_a_timestamp_round_trips(microseconds: int) -> None:
    """A formatted timestamp is parsed to the same time, to the microsecond."""
    assert parse_timestamp(format_timestamp(microseconds / 1e6)) == pytest.approx(microseconds / 1e6, abs=2e-6)


@for_each("zone, offset", [("XXX-5:30", "+05:30"), ("XXX+11", "-11:00"), ("XXX-14", "+14:00"), ("UTC", "+00:00")])
def test_local_time_has_its_offset(monkeypatch: pytest.MonkeyPatch, zone: str, offset: str) -> None:
    """A local time has its offset, and can be parsed back to the millisecond; one beyond the calendar is clamped."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        clock_time.tzset()
        for at in (0.0, 1_790_000_000.25, datetime.fromtimestamp(1_790_000_000.25, UTC)):
            text = local_text(at)
            assert text.endswith(offset)
            assert parse_timestamp(text) == (at if isinstance(at, float) else at.timestamp())
        for beyond, parsed in ((-1e300, 0.0), (1e300, LATEST), (float("inf"), LATEST)):
            assert (parse_timestamp(local_text(beyond)), local_text(beyond)[-6:]) == (parsed, offset)
    clock_time.tzset()


@for_each("seconds, text", [
    (0.2, "0 s"), (7.6, "8 s"), (59.7, "1 min"), (61, "1 min 1 s"), (3600, "1 h"), (3605, "1 h"),
    (7500, "2 h 5 min"), (90_000, "1 d 1 h"), (8_640_000, "100 d"), (-30, "30 s"),
])  # fmt: skip
def test_a_duration_has_two_units(seconds: float, text: str) -> None:
    """A duration is written in its largest unit and the next smaller one, rounded; a time in the future, or ago."""
    assert duration_text(seconds) == text
    assert [relative_text(at, 100.0) for at in (160.0, 100.0, 40.0)] == ["in 1 min", "0 s ago", "1 min ago"]
