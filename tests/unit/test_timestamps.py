"""Moments are read as RFC 3339 writes them, and as nothing else does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onejob.jobs.timestamps import format_timestamp, parse_timestamp


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("1970-01-01T00:00:00Z", 0.0),
        ("1970-01-01t00:00:00.25z", 0.25),
        ("1970-01-01 01:00:00+01:00", 0.0),
        ("1969-12-31T23:00:00-01:00", 0.0),
        ("1970-01-01T00:00:00.123456789Z", 0.123456),
    ],
)
def test_a_moment_is_read(text: str, at: float) -> None:
    """A moment is read in any time zone, in small or large letters."""
    assert parse_timestamp(text) == at


@pytest.mark.parametrize(
    "text", ["", "now", "0", "1970-01-01", "19700101T000000Z", "1970-01-01T00:00:00", "1970-W01-4T00:00:00Z", 5, None]
)
def test_what_is_no_moment_is_refused(text: Any) -> None:
    """What lacks a time zone, or is written in another way, is refused with an example."""
    with pytest.raises(ValueError, match="2026-01-31T12:00:00Z"):
        parse_timestamp(text)


@given(st.integers(-(10**15), 10**16))
def test_a_moment_comes_back(microseconds: int) -> None:
    """A moment that was written is read as the same one, to the microsecond."""
    assert parse_timestamp(format_timestamp(microseconds / 1e6)) == pytest.approx(microseconds / 1e6, abs=2e-6)
