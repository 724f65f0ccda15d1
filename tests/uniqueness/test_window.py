"""Calendar windows end at local midnight, also when daylight saving time changes."""

from datetime import datetime
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onejob.errors import ConfigurationError
from onejob.jobs.durations import DAY
from onejob.jobs.model import IdentityHold
from onejob.jobs.transitions import DST_SHIFT
from onejob.uniqueness.window import CALENDAR, Window, window_of
from tests.stores.support import not_none


@pytest.mark.parametrize(("unit", "begin", "end", "hours"), [
    ("day@Europe/Berlin", "2026-11-21", "2026-11-22", 24), ("day@Europe/Berlin", "2026-12-31", "2027-01-01", 24),
    ("day@Europe/Berlin", "2026-03-29", "2026-03-30", 23), ("day@Europe/Berlin", "2026-10-25", "2026-10-26", 25),
    ("day@Antarctica/Troll", "2026-10-25", "2026-10-26", 26), ("week@UTC", "2026-11-21", "2026-11-23", 48),
    ("week@UTC", "2026-11-23", "2026-11-30", 168), ("month@UTC", "2026-02-28", "2026-03-01", 24),
    ("month@UTC", "2024-01-31", "2024-02-01", 24), ("month@UTC", "2026-12-01", "2027-01-01", 744),
])  # fmt: skip
def test_a_window_ends_at_midnight(unit: str, begin: str, end: str, hours: int) -> None:
    """A day ends at local midnight, however long it is there, a week on Monday, a month on the first."""
    window = not_none(window_of("task", "finished", unit))
    first, last = (datetime.fromisoformat(each).replace(tzinfo=window.zone).timestamp() for each in (begin, end))
    assert window.end(first) == window.end(last - 1.0) == last == first + 3600 * hours
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
    window = not_none(window_of("task", "finished", f"{unit}@{zone}"))
    end = window.end(timestamp)
    now, last, next_ = (
        datetime.fromtimestamp(each, ZoneInfo(zone)).strftime(KEYS[unit]) for each in (timestamp, end - 1e-3, end)
    )
    assert now == last != next_
    assert 0 < end - timestamp <= window.longest + DST_SHIFT


def test_a_window_says_how_long_to_keep_the_identity() -> None:
    """A number of seconds counts from the success of the job; a calendar window ends at its own time; None is none."""
    seconds, day = window_of("task", "finished", 60), window_of("task", "finished", "day@UTC")
    assert seconds == Window(seconds=60.0)
    assert (seconds.seconds, seconds.unit, seconds.longest) == (60.0, "", 60.0)
    assert seconds.hold(1.0) == IdentityHold(identity_for=60.0)
    assert day == Window(unit="day", zone=ZoneInfo("UTC"))
    assert day.seconds == 0.0
    assert day.hold(1.0) == IdentityHold(identity_until=DAY)
    longest = {unit: Window(unit=unit).longest / DAY for unit in CALENDAR}
    assert longest == {"day": 1, "week": 7, "month": 31}
    assert window_of("task", "finished", None) is window_of("task", "started", None) is None


UNITS = "must be a number of seconds, or one of day@Zone, week@Zone, month@Zone"
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


@given(
    submitted_at=st.floats(1.6e9, 4e9, allow_nan=False),
    ahead=st.floats(-DAY, DAY),
    unit=st.sampled_from(sorted(CALENDAR)),
    zone=st.sampled_from(sorted(available_timezones())),
)
def test_the_end_of_a_window_is_the_submitters(submitted_at: float, ahead: float, unit: str, zone: str) -> None:
    """The limits that a submitter has computed give the window of the store's time, by any clock within a day."""
    window = not_none(window_of("task", "finished", f"{unit}@{zone}"))
    limits = not_none(window.limits_at(submitted_at + ahead))
    assert window.hold(submitted_at, limits) == IdentityHold(identity_until=window.end(submitted_at))


def test_the_limits_of_a_window_are_kept_whatever_a_host_computes() -> None:
    """The end comes from the limits of the submission; a host computes it from none, old ones, or another window's."""
    window = not_none(window_of("task", "finished", "day@Europe/Berlin"))
    assert window.limits_at(DAY / 2) == ["day@Europe/Berlin", -3600.0, DAY - 3600, 2 * DAY - 3600]
    elsewhere: list[str | float] = ["day@Europe/Berlin", -7200.0, DAY - 7200, 2 * DAY - 7200]
    kept, computed = IdentityHold(identity_until=DAY - 7200), IdentityHold(identity_until=DAY - 3600)
    assert window.hold(0.0, elsewhere) == kept
    assert window.hold(-DAY, elsewhere) == IdentityHold(identity_until=-7200.0)
    others: list[list[str | float] | None] = [None, [], ["day@Europe/Paris", *elsewhere[1:]], [window.name, -DAY]]
    for limits in others:
        assert window.hold(0.0, limits) == computed
    assert not_none(window_of("task", "finished", 60)).limits_at(0.0) is None
