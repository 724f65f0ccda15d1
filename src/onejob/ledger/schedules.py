"""The beat schedule: which ticks of an entry are due, and how the state of the entry in the ledger changes.

A tick is an identity: the entry and a moment, which every process computes alike from the state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from onejob.jobs.policy import DAY
from onejob.jobs.records import ScheduleState
from onejob.jobs.timestamps import format_timestamp
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger

LATE = 60.0
"""A tick that is at most so many seconds late is on time: it was not missed."""
TICK_LIMIT = 100
"""How many ticks of one entry one look submits at most."""
MOMENT_LIMIT = 10_000
"""How many moments of one entry one look computes at most."""
SEEN_INTERVAL = 60.0
"""How often it is noted that an entry was seen."""
TAKE_OVER_AFTER = 600.0
"""When a former schedule applies again, because nobody has had the newer one for so many seconds."""
FORGET_AFTER = 7 * DAY
"""When the state of an entry that nobody has is deleted."""


class Missed(StrEnum):
    """What becomes of the ticks of a downtime: those that are more than `LATE` seconds late."""

    SKIP = "skip"
    LAST = "last"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Timetable:
    """When an entry has ticks."""

    name: str
    spec: str
    """The schedule as text."""
    next_after: Callable[[float], float | None]
    """Returns the first moment after a time; None without one."""
    missed: Missed = Missed.LAST

    def between(self, since: float, now: float) -> Iterator[float]:
        """Yield the first `MOMENT_LIMIT` moments after `since`, until now."""
        moment = self.next_after(since)
        for _ in range(MOMENT_LIMIT):
            if moment is None or moment > now:
                return
            yield moment
            moment = self.next_after(moment)


class Due(NamedTuple):
    """The moments of the ticks to submit, and until when all ticks are decided after them."""

    ticks: Sequence[float]
    until: float


def due_ticks(timetable: Timetable, since: float, now: float) -> Due:
    """Return the ticks that are due at a time, if those until `since` are decided."""
    moments = list(timetable.between(since, now))
    if not moments:
        return Due((), since)
    if timetable.missed is Missed.ALL or moments[0] >= now - LATE:
        ticks = moments[:TICK_LIMIT]
        return Due(ticks, ticks[-1])
    ticks = [moment for moment in moments if moment >= now - LATE][:TICK_LIMIT]
    if not ticks and timetable.missed is Missed.LAST and len(moments) < MOMENT_LIMIT:
        ticks = moments[-1:]
    return Due(ticks, ticks[-1] if ticks else moments[-1])


def latest_moment(timetable: Timetable, since: float, now: float) -> float:
    """Return the last moment until now, or `since` if there is none after it."""
    return max(timetable.between(since, now), default=since)


def tick_id(name: str, moment: float) -> str:
    """Return the identity of a tick, `tick-<sha256>`: equal in all processes."""
    text = f"{len(name)} {name} {format_timestamp(moment)}"
    return f"tick-{hashlib.sha256(text.encode()).hexdigest()}"


def follow(ledger: Ledger, timetable: Timetable, state: ScheduleState | None, now: float) -> ScheduleState | None:
    """Return the state of an entry, written if it is new, changed, or was not seen for a while; None if not to be used.

    A new entry, and a changed one, begins now. The schedule of an earlier version of the app is not used as long as a
    process has the newer one; nor is a state that another process is changing.
    """
    if state is None:
        return write(ledger, None, ScheduleState(timetable.name, "", timetable.spec, since=now, seen_at=now))
    seen = state.seen_at > now - SEEN_INTERVAL
    if state.spec == timetable.spec:
        return state if seen else write(ledger, state, replace(state, seen_at=now))
    if state.former_spec == timetable.spec and state.seen_at > now - TAKE_OVER_AFTER:
        return None
    changed = replace(state, spec=timetable.spec, former_spec=state.spec, since=now, seen_at=now)
    return write(ledger, state, changed)


def write(ledger: Ledger, before: ScheduleState | None, after: ScheduleState) -> ScheduleState | None:
    """Replace the state of an entry, and return the new one; None if another process has changed it meanwhile."""
    after = replace(after, nonce=new_nonce())
    return after if ledger.store.put_schedule(after, expected="" if before is None else before.nonce) else None


def advance(
    ledger: Ledger, state: ScheduleState, *, until: float, tick: float | None = None, job_id: str = ""
) -> ScheduleState | None:
    """Note until when the ticks of an entry are decided, and the last one; None if another process was first."""
    after = replace(state, since=until)
    return write(ledger, state, after if tick is None else replace(after, last_tick=tick, last_job=job_id))


def pause(ledger: Ledger, state: ScheduleState, *, paused: bool) -> ScheduleState | None:
    """Pause an entry, or resume it: the ticks in between are not made up for. None if its state has changed."""
    since = state.since if paused or not state.paused else ledger.read_clock()
    return write(ledger, state, replace(state, paused=paused, since=since))


def forget(ledger: Ledger, states: Sequence[ScheduleState], now: float) -> None:
    """Delete the states that nobody has seen for `FORGET_AFTER` seconds."""
    for state in states:
        if state.seen_at < now - FORGET_AFTER:
            ledger.store.delete_schedule(state.name, expected=state.nonce)
