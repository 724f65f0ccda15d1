"""Computes the moments of Celery's schedules from their rules, in UTC, equal on all versions of Celery.

Celery's own estimates are times to sleep, after which its beat asks again; where local time changes they may be an
hour off. A class whose methods are not Celery's is asked as beat asks it, at the times at which beat would.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from functools import partial
from math import floor, inf
from typing import Any, NamedTuple

from celery import Celery
from celery import schedules as of_celery
from celery.schedules import BaseSchedule, crontab, solar
from celery.utils.time import LocalTimezone, timezone

from onejob.jobs.durations import DAY
from onejob.jobs.zones import segment_at
from onejob.ledger.moments import MINUTE, Crontab, Interval

NextAfter = Callable[[float], float | None]
OUR_RULES = frozenset({"celery.schedules", "django_celery_beat.tzcrontab", "sqlalchemy_celery_beat.tzcrontab"})
"""The modules whose schedules follow the rules that are computed here."""
SOLAR_DAYS = 366
"""For how many days a solar event is searched: where the sun does not set, there may be no event."""
CHECKS = 20_000
"""How often a schedule with methods of its own is asked for its next moment at most."""
HOPS = 180
"""For how many minutes a schedule may know no next moment: an older Celery knows none where clocks are set back."""


def next_after_of(schedule: Any, app: Celery) -> tuple[NextAfter, tzinfo | None]:
    """Return the function from a time to the first moment after it, both in UTC seconds, and the zone of the schedule.

    The function returns None if there is no moment; the zone None is the local time of this machine.
    """
    schedule = _clone(schedule)
    schedule.app = app
    zone = zone_of(schedule)
    return _function_of(schedule, zone), zone


def _function_of(schedule: Any, zone: tzinfo | None) -> NextAfter:
    if not has_our_rules(schedule):
        return partial(_ask_schedule, schedule, zone)
    if isinstance(schedule, crontab):
        return partial(_crontab(schedule).next_after, zone=zone)
    if isinstance(schedule, solar):
        return partial(_next_event, schedule)
    return partial(Interval(schedule.run_every.total_seconds(), bool(schedule.relative)).next_after, zone=zone)


def _clone(schedule: Any) -> Any:
    """Return a copy of a schedule whose clock can be set. `copy` would leave out the app and subclasses' attributes."""
    clone = object.__new__(type(schedule))
    clone.__dict__.update(schedule.__dict__)
    return clone


def zone_of(schedule: Any) -> tzinfo | None:
    """Return the time zone of a schedule, UTC for one without local times; None: the local time of this machine."""
    if has_our_rules(schedule) and not isinstance(schedule, crontab) and not getattr(schedule, "relative", False):
        return UTC
    zone = timezone.get_timezone(schedule.tz)
    return None if isinstance(zone, LocalTimezone) else zone


def has_our_rules(schedule: Any) -> bool:
    """Return whether a schedule follows the rules of Celery's own classes, which no subclass has changed."""
    methods = (getattr(type(schedule), name, None) for name in ("is_due", "remaining_estimate"))
    known = isinstance(schedule, crontab | of_celery.schedule | solar)
    return known and all(getattr(method, "__module__", "") in OUR_RULES for method in methods)


def _crontab(schedule: Any) -> Crontab:
    spelt = str(getattr(schedule, "_orig_minute", ""))
    return Crontab.of(
        schedule.minute, schedule.hour, schedule.day_of_week, schedule.day_of_month, schedule.month_of_year,
        repeats=spelt.startswith("*"),
    )  # fmt: skip


def _next_event(schedule: Any, after: float) -> float | None:
    """Return the time of the next solar event of a schedule, to the second; None without an event.

    The event at `after` itself is not found again, a fraction of a second later.
    """
    for since in (after, after + MINUTE):
        found = _event_from(schedule, since)
        if found is None or found > after + 1:
            return found
    return None


def _event_from(schedule: Any, since: float) -> float | None:
    ephem, center = schedule.ephem, {"use_center": True} if schedule.use_center else {}
    start = ephem.Date(datetime.fromtimestamp(since, UTC).replace(tzinfo=None))
    for _ in range(SOLAR_DAYS):
        try:
            event = getattr(schedule.cal, schedule.method)(ephem.Sun(), start=start, **center)
        except ephem.CircumpolarError:
            start = ephem.Date(schedule.cal.next_antitransit(ephem.Sun(), start=start) + 1 / DAY)
        else:
            return float(round(event.datetime().replace(tzinfo=UTC).timestamp()))
    return None


class _Answer(NamedTuple):
    """The answer of a schedule: whether it is due, and in how many seconds beat would ask again; infinite if never."""

    due: bool
    wait: float


def _ask_schedule(schedule: Any, zone: tzinfo | None, after: float) -> float | None:
    """Return the time at which a schedule with methods of its own says that it is due, if it ran at `after`.

    Where its zone changes its offset, the schedule is asked again: a time to sleep is right for one offset only.
    """
    schedule, ran, now, hops = _clone(schedule), after, after, 0
    for _ in range(CHECKS):
        answer = _answer(schedule, zone, ran, now)
        if answer.due and now > ran:
            return now
        if answer.wait == inf:
            return None
        if answer.due and answer.wait <= 0:  # it knows no moment after the one at which it ran
            hops += 1
            if hops > HOPS:
                return None
            ran = now = now + MINUTE
            continue
        wait = answer.wait if answer.wait > 0 else 1.0
        now = round(min(now + wait, max(segment_at(zone, floor(now)).end, now + 1e-3)), 6)
    return None


def _answer(schedule: Any, zone: tzinfo | None, ran: float, now: float) -> _Answer:
    """Return the answer of a schedule at the time `now`; if it is due although it ran just now, its remaining time."""
    schedule.nowfun = partial(_local, now, zone)
    estimates, decides = (_has_own(schedule, name) for name in ("remaining_estimate", "is_due"))
    if decides:
        due, wait = schedule.is_due(_local(ran, zone))
        if not (due and now == ran and estimates):
            return _Answer(bool(due), inf if wait is None else float(wait))
    remaining = schedule.remaining_estimate(_local(ran, zone))
    wait = inf if remaining is None else remaining.total_seconds()
    return _Answer(wait <= 0, wait)


def _has_own(schedule: Any, name: str) -> bool:
    """Return whether the class of a schedule overrides a method that the base of all schedules only declares."""
    of_base = getattr(BaseSchedule, name)
    return getattr(type(schedule), name, of_base) is not of_base


def _local(at: float, zone: tzinfo | None) -> datetime:
    return datetime.fromtimestamp(at, UTC).astimezone(zone)
