"""The beat schedule: the due ticks of an entry, and the changes of the entry's state in the ledger.

The identity of a tick is its entry and a moment, which every process computes alike from the state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from onejob.jobs.durations import DAY
from onejob.jobs.schedule_state import ScheduleState
from onejob.jobs.timestamps import format_timestamp
from onejob.jobs.transitions import new_nonce
from onejob.jobs.workers import WorkerInfo
from onejob.ledger.ledger import Ledger

LATE = 60.0
"""The seconds that a tick may be late without counting as missed."""
TICK_LIMIT = 100
"""The maximum number of ticks of an entry that are submitted at a time."""
MOMENT_LIMIT = 10_000
"""The maximum number of moments of an entry that are computed at a time."""
SEEN_INTERVAL = 60.0
"""Seconds between two records that an entry was seen."""
UNREGISTERED_FOR = 2 * SEEN_INTERVAL
"""Seconds for which an unregistered process counts as alive after it has seen an entry."""
FORMER_LIMIT = 5
"""The number of former schedules of an entry that its state keeps."""
AHEAD = 3600.0
"""The seconds that a state may be ahead of the ledger's clock: a standby's clock differs a little."""
TINY = 1e-6
"""The shortest time between two moments, in seconds."""
FORGET_AFTER = 7 * DAY
"""Seconds after which the state of an entry that no process has is deleted."""


class Missed(StrEnum):
    """The rule for missed ticks, which are more than `LATE` seconds late, as after a downtime."""

    SKIP = "skip"
    LAST = "last"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Timetable:
    """The schedule of an entry: when it has ticks."""

    name: str
    spec: str
    """The schedule as text."""
    next_after: Callable[[float], float | None]
    """A function that returns the first moment after a time, or None."""
    missed: Missed = Missed.LAST
    once: bool = False
    """Whether the entry ends with its first tick."""
    begins_at: float | None = None
    """The time after which a new entry has ticks; None: now."""
    has_versions: bool = True
    """Whether each version of the app has a schedule of its own; if not, all processes read the same schedule."""

    def between(self, since: float, now: float) -> Iterator[float]:
        """Yield the first `MOMENT_LIMIT` moments after `since`, until now."""
        moment = self.next_after(since)
        for _ in range(1 if self.once else MOMENT_LIMIT):
            if moment is None or moment > now:
                return
            yield moment
            moment = self.next_after(moment)


class Due(NamedTuple):
    """The moments of the ticks to submit, and the time up to which all ticks are then decided."""

    ticks: Sequence[float]
    until: float


def due_ticks(timetable: Timetable, since: float, now: float) -> Due:
    """Return the ticks that are due at the time `now`, if the ticks up to `since` are decided."""
    moments = list(timetable.between(since, now))
    if not moments:
        return Due((), since)
    if timetable.once or timetable.missed is Missed.ALL or moments[0] >= now - LATE:
        ticks = moments[:TICK_LIMIT]
        return Due(ticks, ticks[-1])
    ticks = [moment for moment in moments if moment >= now - LATE][:TICK_LIMIT]
    if not ticks and timetable.missed is Missed.LAST and len(moments) < MOMENT_LIMIT:
        ticks = moments[-1:]
    return Due(ticks, ticks[-1] if ticks else moments[-1])


def latest_moment(timetable: Timetable, since: float, now: float) -> float:
    """Return the last moment up to now, or `since` if no moment follows it."""
    return max(timetable.between(since, now), default=since)


def tick_id(name: str, moment: float) -> str:
    """Return the identity of a tick, `tick-<sha256>`: equal in all processes."""
    text = f"{len(name)} {name} {format_timestamp(moment)}"
    return f"tick-{hashlib.sha256(text.encode()).hexdigest()}"


def follow(
    ledger: Ledger, timetable: Timetable, state: ScheduleState | None, now: float, node: str = ""
) -> ScheduleState | None:
    """Return the state of an entry, written if it is new, changed, or was not seen for a while by `node`.

    None if another process is changing the state. `nodes_with_newer` checks whether a schedule may replace the state's
    schedule.
    """
    if state is None:
        since = now if timetable.begins_at is None else min(timetable.begins_at, now)
        return write(ledger, None, ScheduleState(timetable.name, "", timetable.spec, since, now, node))
    followed = state
    if _is_ahead(state, now):  # what was decided for the time until `since` keeps its ticks: they have their keys
        followed = replace(followed, since=min(state.since, now), seen_at=now)
    if state.spec != timetable.spec:
        followed = _changed(followed, timetable.spec)
    if timetable.once and has_ended(followed):
        followed = replace(followed, since=max(now, followed.since + TINY))
    if followed is state and state.seen_at > now - SEEN_INTERVAL:
        return state
    return write(ledger, state, replace(followed, seen_at=now, seen_by=node))


def _is_ahead(state: ScheduleState, now: float) -> bool:
    """Return whether the clock of the ledger was set back: the state has times that were never reached."""
    return max(state.since, state.seen_at) > now + AHEAD


def _changed(state: ScheduleState, spec: str) -> ScheduleState:
    """Return the state with another schedule, which decides all ticks that the former schedule has not.

    The former schedule decided until it was seen last. A schedule that returns before the schedule in between had a
    tick also decides the time in between: nothing was submitted in it.
    """
    others = tuple(each for each in (state.spec, *state.former_specs) if each != spec)
    returns = spec in state.former_specs and not has_ended(state)
    since = state.since if returns else max(state.since, state.seen_at)
    return replace(state, spec=spec, former_specs=others[:FORMER_LIMIT], since=since)


def has_ended(state: ScheduleState) -> bool:
    """Return whether an entry that runs once has run: nothing has changed it since its last tick."""
    return state.last_tick is not None and state.last_tick >= state.since


def nodes_with_newer(
    timetable: Timetable, state: ScheduleState, workers: Iterable[WorkerInfo], now: float
) -> list[str]:  # fmt: skip
    """Return the live workers with a newer schedule of an entry; this schedule does not apply until they end.

    A schedule that the state does not know is newer than all schedules that it knows. An unregistered process has no
    name.
    """
    specs = (state.spec, *state.former_specs)
    if not timetable.has_versions or timetable.spec not in specs:
        return []
    newer = specs[: specs.index(timetable.spec)]
    nodes = [each.name for each in workers if any(each.has_schedule(state.name, spec) for spec in newer)]
    unregistered = bool(newer) and not state.seen_by and state.seen_at > now - UNREGISTERED_FOR
    return nodes or (["a process of beat"] if unregistered else [])


def write(ledger: Ledger, before: ScheduleState | None, after: ScheduleState) -> ScheduleState | None:
    """Replace the state of an entry, and return the new one; None if another process has changed it meanwhile."""
    after = replace(after, nonce=new_nonce())
    return after if ledger.store.put_schedule(after, expected="" if before is None else before.nonce) else None


def advance(
    ledger: Ledger, state: ScheduleState, *, until: float, tick: float | None = None, job_id: str = ""
) -> ScheduleState | None:
    """Record until when the ticks of an entry are decided, and its last tick; None if another process was first."""
    after = replace(state, since=until)
    return write(ledger, state, after if tick is None else replace(after, last_tick=tick, last_job=job_id))


def pause(ledger: Ledger, state: ScheduleState, *, paused: bool) -> ScheduleState | None:
    """Pause an entry, or resume it: the ticks in between are not made up for. None if its state has changed."""
    since = state.since if paused or not state.paused else ledger.read_clock()
    return write(ledger, state, replace(state, paused=paused, since=since))


def forget(ledger: Ledger, states: Sequence[ScheduleState], now: float) -> None:
    """Delete the states that no process has seen for `FORGET_AFTER` seconds."""
    for state in states:
        if state.seen_at < now - FORGET_AFTER:
            ledger.store.delete_schedule(state.name, expected=state.nonce)
