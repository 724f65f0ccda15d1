"""The operations on the beat schedule, for the HTTP API, the command line and the dashboard: list, pause, run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from celery import Celery

from onejob import errors
from onejob.celery.app_state import app_state_of
from onejob.celery.beat.ticks import Entry, describe_newer, entries_of, send, states_of
from onejob.celery.option_declarations import did_you_mean
from onejob.celery.submission.options import tasks_of
from onejob.celery.submission.submit import submit
from onejob.jobs.model import Admission
from onejob.jobs.schedule_state import ScheduleState
from onejob.jobs.timestamps import format_timestamp
from onejob.jobs.transitions import new_id
from onejob.jobs.workers import WorkerInfo
from onejob.ledger import schedules
from onejob.ledger.ledger import Ledger

NAMED = 5
"""How many workers a text names."""
CHANGE_TRIES = 20
"""How often a change is tried while workers change the same entry."""


@dataclass(frozen=True, slots=True)
class ScheduleEntry:
    """An entry of the beat schedule: what the app says of it, and what the ledger knows. Times in seconds."""

    name: str
    task: str
    schedule: str
    missed: schedules.Missed
    paused: bool
    last_tick_at: float | None
    last_job: str
    """The id of the job that answered the last tick; "" without one."""
    next_tick_at: float | None
    """None for a paused entry, for one that no worker has looked at yet, and for one without further ticks."""
    error: str = ""
    """Why the next tick cannot be computed, is overdue, or is not the one that the workers have."""


def list_entries(app: Celery, ledger: Ledger) -> list[ScheduleEntry]:
    """Return the entries of an app, by name. Raises `ConfigurationError` for an entry that cannot work."""
    states, now, workers = states_of(ledger), ledger.read_clock(), ledger.workers()
    return [_describe(entry, states.get(name), workers, now) for name, entry in sorted(entries_of(app).items())]


def _describe(entry: Entry, state: ScheduleState | None, workers: Sequence[WorkerInfo], now: float) -> ScheduleEntry:
    next_tick, error = None, ""
    if entry.ends_at <= now:
        error = f"has ended: its option expires is {format_timestamp(entry.ends_at)}"
    elif state is not None and not state.paused:
        try:
            next_tick = entry.timetable.next_after(state.since)
        except Exception as failed:  # noqa: BLE001 - a schedule of the user's
            error = f"cannot be computed: {errors.describe(failed)}"
        error = error or _why_late(entry, state, workers, next_tick, now)
    return ScheduleEntry(
        entry.name, entry.task, entry.timetable.spec, entry.timetable.missed, state is not None and state.paused,
        state.last_tick if state else None, state.last_job if state else "", next_tick, error,
    )  # fmt: skip


def _why_late(
    entry: Entry, state: ScheduleState, workers: Sequence[WorkerInfo], next_tick: float | None, now: float
) -> str:  # fmt: skip
    """Return why the next tick of an entry is overdue, or is another one; "" if it is neither."""
    newer = schedules.nodes_with_newer(entry.timetable, state, workers, now)
    if newer:
        return describe_newer(entry, state, newer)
    if next_tick is None or next_tick >= now - schedules.LATE:
        return ""
    spec = entry.timetable.spec
    running = [each.name for each in workers if each.schedules and not entry.timetable.has_versions]
    running = running or [each.name for each in workers if each.has_schedule(entry.name, spec)]
    if not running:
        return "is overdue: no live worker runs this schedule"
    return f"is overdue: the log of {', '.join(running[:NAMED])} says why"


def set_paused(app: Celery, ledger: Ledger, name: str, *, paused: bool) -> ScheduleEntry:
    """Pause an entry, or resume it, and return it afterwards. The ticks of a pause are not made up for.

    Raises `ScheduleEntryNotFoundError`, and `StoreUnavailableError` if workers change the entry all the time.
    """
    entry = _entry_of(app, name)
    for _ in range(CHANGE_TRIES):
        state = states_of(ledger).get(name) or schedules.follow(ledger, entry.timetable, None, ledger.read_clock())
        changed = state and schedules.pause(ledger, state, paused=paused)
        if changed is not None:
            return _describe(entry, changed, ledger.workers(), ledger.read_clock())
    raise errors.StoreUnavailableError(f"the schedule entry {name!r} changes all the time: try again")


def run_entry(
    app: Celery, name: str, *, check: Callable[[str], object] = lambda _: None,
    check_answer: Callable[[Admission], object] | None = None,
) -> Any:  # fmt: skip
    """Submit the call of an entry now, besides its ticks, and return the result of the job that answers.

    An equal job that is live answers, as for any call. `check` may refuse the task of the entry, and `check_answer` a
    job that would answer. Raises `ScheduleEntryNotFoundError`, and as `apply_async` does; without `check_answer` only
    `OneJobError`, in one sentence.
    """
    entry = _entry_of(app, name)
    check(entry.task)
    app_state, task = app_state_of(app), tasks_of(app).get(entry.task)
    try:
        key = f"run-{new_id()}" if task is not None and task._onejob.requires_key else None
        if task is None or app_state.is_eager:
            return send(app, entry, **({"idempotency_key": key} if key else {}))
        return submit(app_state, entry.call(task)._replace(key=key, check_answer=check_answer))
    except errors.OneJobError:
        raise
    except Exception as error:
        if check_answer is not None:
            raise
        msg = f"the task {entry.task} of the schedule entry {name!r} cannot be submitted: {errors.describe(error)}"
        raise errors.OneJobError(msg) from error


def _entry_of(app: Celery, name: str) -> Entry:
    entries = entries_of(app)
    if name not in entries:
        raise errors.ScheduleEntryNotFoundError(name, did_you_mean(name, entries))
    return entries[name]
