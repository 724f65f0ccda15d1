"""Lets Celery's own beat run beside the workers: each of its submissions becomes a tick of the workers' schedule.

A message that another scheduler has sent says, at most, that it is from beat. So in the process of beat each call gets
the name of its entry and the moment of its tick, whatever the scheduler.
"""

from __future__ import annotations

from typing import Any

from celery import beat

from onejob import errors
from onejob.celery.app_state import app_state_of
from onejob.celery.beat.ticks import (
    OWN_OPTIONS,
    TICK_HEADER,
    Beat,
    Entry,
    Scheduler,
    as_tick,
    entries_of,
    states_of,
    with_tick,
)  # fmt: skip
from onejob.celery.submission.call import ENTRY_HEADER, Call
from onejob.celery.submission.options import tasks_of
from onejob.jobs.schedule_state import ScheduleState
from onejob.jobs.timestamps import parse_timestamp
from onejob.ledger import schedules
from onejob.observability.logs import log_warning


def run_beside(service: Any) -> None:
    """Make the scheduler of a starting beat service submit the ticks of the workers, if they run the schedule."""
    if not app_state_of(service.app).settings.beat:
        return
    scheduler = service.scheduler
    if isinstance(scheduler, Scheduler):
        return
    if not isinstance(scheduler, beat.Scheduler):
        log_warning(
            "the scheduler %s of beat is no celery.beat.Scheduler: its calls are not known as the ticks that the "
            "workers submit with onejob_beat, and each runs twice: stop it",
            type(scheduler).__qualname__,
        )
        return
    scheduler.apply_async = BesideBeat(scheduler).apply_async  # type: ignore[method-assign] # its class is others'


class BesideBeat:
    """Submits the due entries of a scheduler of Celery's beat, each as the tick of its entry if the workers have it."""

    def __init__(self, scheduler: beat.Scheduler) -> None:
        self._scheduler: Any = scheduler
        self._submit, self._app, self._beat = scheduler.apply_async, scheduler.app, Beat(scheduler.app)

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002 - of `Scheduler.apply_async`
        """Submit an entry, in place of the scheduler's own method. Raises `SchedulingError`."""
        entry = self._scheduler.reserve(entry) if advance else entry

        def submit(**options: Any) -> Any:
            marked = object.__new__(type(entry))  # not `copy`: classes of others cannot be built of what `vars` has
            vars(marked).update(vars(entry))
            marked.options = {name: value for name, value in entry.options.items() if name not in OWN_OPTIONS}
            headers = {**(marked.options.get("headers") or {}), **options.pop("headers", {})}
            marked.options |= {**options, "headers": headers}
            return self._submit(marked, producer=producer, advance=False, **kwargs)

        try:
            return self._submit_tick(entry, submit)
        except beat.SchedulingError:
            raise
        except Exception as error:
            raise beat.SchedulingError(f"Couldn't apply scheduled task {entry.name}: {error}") from error

    def _submit_tick(self, entry: Any, submit: Any) -> Any:
        ledger = app_state_of(self._app).ledger
        states, now, own = states_of(ledger), ledger.read_clock(), entries_of(self._app).get(entry.name)
        state = states.get(entry.name)
        headers: dict[str, Any] = {"headers": {ENTRY_HEADER: entry.name}}
        if own is None or state is None or own.task != entry.task:
            return submit(**headers)  # an entry that only this scheduler has, or that no worker has seen yet
        check_not_paused(state)
        tick = schedules.latest_moment(own.timetable, state.since, now)
        headers = with_tick(headers, tick)
        if entry.task in tasks_of(self._app):
            return submit(**headers)
        if state.last_tick is None or state.last_tick < tick:
            self._send(own, state, tick, submit, headers)
        return None

    def _send(self, own: Entry, state: ScheduleState, tick: float, submit: Any, headers: dict[str, Any]) -> None:
        """Send the message of a tick for which nobody keeps a job, unless a worker has sent it meanwhile."""

        def publish(**options: Any) -> None:
            try:
                submit(**(options | headers))
            except beat.SchedulingError as error:
                raise (error.__context__ or error) from None

        self._beat.note_and_send(app_state_of(self._app).ledger, own, state, tick, tick, publish)


def check_not_paused(state: ScheduleState) -> None:
    """Raise `OneJobError` if an entry is paused, which Celery's beat does not know."""
    if state.paused:
        raise errors.OneJobError(f"the schedule entry {state.name!r} is paused, and Celery's beat has submitted it")


# --- a call of Celery's beat ------------------------------------------------------------------------------------------


def find_tick(call: Call) -> Call:
    """Return a call of Celery's own beat as the call of its entry's tick, if the workers run the schedule.

    The process of beat names the entry and the moment. Without them, the header of Celery 5.7 has only said that the
    call is from beat: then it is the latest tick of an entry with the same task and arguments. So a beat beside the
    workers submits no job of its own. Raises `OneJobError` for a call, not for a message, of a paused entry.
    """
    app_state = app_state_of(call.task.app)
    if not app_state.settings.beat:
        return call
    headers = dict(call.options["headers"])
    name, at = headers.pop(ENTRY_HEADER, None), headers.get(TICK_HEADER)
    if name is None:
        return _find_latest(call)
    call = call._replace(options={**call.options, "headers": headers})  # what the job submits is no tick of this entry
    entry = entries_of(call.task.app).get(str(name))
    if entry is None or entry.task != call.task.name or at is None:
        return call
    return as_tick(call, entry, parse_timestamp(str(at)))


def _find_latest(call: Call) -> Call:
    app = call.task.app
    ledger = app_state_of(app).ledger
    states, now = states_of(ledger), ledger.read_clock()
    called = call.task.name, [*call.args], {**call.kwargs}
    ticks = [
        (schedules.latest_moment(entry.timetable, states[entry.name].since, now), entry)
        for entry in entries_of(app).values()
        if entry.name in states and (entry.task, *entry.arguments) == called
    ]
    if not ticks:
        return call
    moment, entry = max(ticks, key=lambda tick: tick[0])
    if not call.is_message:
        check_not_paused(states[entry.name])
    return as_tick(call, entry, moment)
