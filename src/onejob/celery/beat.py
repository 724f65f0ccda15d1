"""Beat without a process of its own: the workers submit the ticks of `app.conf.beat_schedule`, each once.

Every worker computes the same moments from the state of an entry in the ledger (`onejob.ledger.schedules`), and submits
them under the same idempotency key, so it does not matter how many of them look, or which of them dies when.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from celery import Celery, beat
from celery.schedules import schedule as interval

from onejob import errors
from onejob.celery.app_state import app_state_of
from onejob.celery.broker import Broker
from onejob.celery.call import Call
from onejob.celery.option_names import did_you_mean
from onejob.celery.options import BoundTask, tasks_of
from onejob.celery.submit import submit
from onejob.config import check_missed
from onejob.jobs.model import Admission
from onejob.jobs.records import ScheduleState
from onejob.jobs.timestamps import format_timestamp
from onejob.ledger import schedules
from onejob.ledger.ledger import Ledger
from onejob.observability.logs import log_warning

LOOK_INTERVAL = 10.0
"""After how many seconds an entry is looked at again at the latest: it may have been paused or resumed."""
TICK_HEADER = "onejob_tick"
"""The header that has the moment of a tick, as RFC 3339."""
SOURCE = "beat"
OWN_OPTIONS = ("missed", "identity")
"""The options of an entry that are not Celery's."""
IDENTITIES = (None, "tick", "task")
"""What makes the job of a tick unique; None: its task decides."""
INTERVAL: Any = interval
BRACKETS = str.maketrans("", "", "<>")
HOP, HOPS = 60.0, 180
"""Seconds, and how often: how far a moment is looked for where local time was set back and a schedule finds none."""


class Entry:
    """One entry of the beat schedule: Celery's own, with the options of onejob. Raises `ConfigurationError`."""

    def __init__(self, app: Celery, entry: Any) -> None:
        self.name, self.task, self.schedule = str(entry.name), str(entry.task), entry.schedule
        self._entry, self._app = entry, app
        self.options = {name: value for name, value in entry.options.items() if name not in OWN_OPTIONS}
        settings = app_state_of(app).settings
        missed = check_missed(
            f"missed of the schedule entry {self.name}", entry.options.get("missed", settings.beat_missed)
        )
        self.identity = entry.options.get("identity")
        if self.identity not in IDENTITIES:
            msg = f"identity of the schedule entry {self.name} must be 'tick' or 'task', not {self.identity!r:.100}"
            raise errors.ConfigurationError(msg)
        self.timetable = schedules.Timetable(self.name, describe_schedule(self.schedule), self._next_after, missed)

    @property
    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a tick; those that are computed for each are computed now."""
        args, kwargs = self._entry.args or (), self._entry.kwargs or {}
        return [_evaluate(value) for value in args], {name: _evaluate(value) for name, value in kwargs.items()}

    def call(self, task: BoundTask) -> Call:
        """Return the call of the entry's task."""
        given: Any = {name: self.options.get(name) for name in ("on_duplicate", "webhook_url")}
        return Call(task, *self.arguments, self.options, **given)

    def is_over(self, state: ScheduleState) -> bool:
        """Return whether an entry of django-celery-beat was to run once, and has."""
        return bool(getattr(getattr(self._entry, "model", None), "one_off", False)) and state.last_tick is not None

    def begins_at(self) -> float:
        """Return the time before which an entry of django-celery-beat has no ticks; 0 without one."""
        start = getattr(getattr(self._entry, "model", None), "start_time", None)
        return 0.0 if start is None else float(start.timestamp())

    def _next_after(self, after: float) -> float | None:
        """Return when Celery's scheduler would start the entry next that it has started at `after`."""
        schedule = copy(self.schedule)
        schedule.app = self._app
        for started in (after + hop * HOP for hop in range(HOPS)):
            schedule.nowfun = partial(datetime.fromtimestamp, started, schedule.tz)
            remaining: float = schedule.remaining_estimate(schedule.nowfun()).total_seconds()
            moment = round(started + remaining, 6)
            if moment > after:
                return moment
        return None


def _evaluate(value: Any) -> Any:
    return value() if isinstance(value, beat.BeatLazyFunc) else value


def describe_schedule(schedule: Any) -> str:
    """Return a schedule as text, equal for equal ones: Celery's own text of an interval is rounded."""
    if schedule.__class__ is INTERVAL:
        return f"every {schedule.run_every.total_seconds():g} s{', by the clock' if schedule.relative else ''}"
    text, zone = " ".join(str(schedule).translate(BRACKETS).split()), str(schedule.tz)
    return text if text.endswith(zone) else f"{text} {zone}"  # the text of django-celery-beat has it


def entries_of(app: Celery) -> dict[str, Entry]:
    """Return the schedule entries of an app: of its tasks, its configuration, and the tables of django-celery-beat.

    An entry of the configuration replaces that of the task with its name. Raises `ConfigurationError`.
    """
    scheduler: Any = beat.Scheduler(app, schedule={}, lazy=True)
    scheduler.install_default_entries({})
    given = {name: task._onejob.schedule for name, task in tasks_of(app).items()}
    of_tasks = {
        name: {**(schedule if isinstance(schedule, dict) else {"schedule": schedule}), "task": name}
        for name, schedule in given.items()
        if schedule is not None
    }
    scheduler.merge_inplace({**of_tasks, **scheduler.schedule, **app.conf.beat_schedule})
    return {str(entry.name): Entry(app, entry) for entry in scheduler.schedule.values()} | {
        entry.name: entry for entry in _django_entries(app)
    }


def _django_entries(app: Celery) -> Iterator[Entry]:
    """Yield the enabled entries of django-celery-beat, if it is installed; none while its database is away."""
    try:
        from django.apps import apps
    except ImportError:
        return
    if not apps.ready or not apps.is_installed("django_celery_beat"):
        return
    from django.db import Error, close_old_connections
    from django_celery_beat.models import PeriodicTask
    from django_celery_beat.schedulers import ModelEntry

    close_old_connections()  # that of a worker's thread may be broken
    try:
        models = [*PeriodicTask.objects.enabled()]
    except Error as error:
        log_warning("the entries of django-celery-beat cannot be read: %s", errors.describe(error))
        return
    for model in models:
        try:
            yield Entry(app, ModelEntry(model, app=app))
        except Exception as error:  # noqa: BLE001 - a row that nobody has validated costs its own ticks only
            log_warning("the entry %s of django-celery-beat cannot be used: %s", model, errors.describe(error))


class Beat:
    """Submits the ticks of an app that are due. Any number of processes may do it at the same time."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._broker = Broker(app, app_state_of(app).settings.publish_timeout)
        self._next_look = 0.0
        self._failures: dict[str, str] = {}
        """The last error of each entry that is tried again, which is logged once."""

    def run(self) -> None:
        """Look, if an entry can be due."""
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + self.look()

    def look(self) -> float:
        """Submit the ticks that are due, and return the seconds until the next ones, at most `LOOK_INTERVAL`."""
        ledger = app_state_of(self._app).ledger
        states, now, entries = _states_of(ledger), ledger.read_clock(), entries_of(self._app)
        following = [self._try_entry(ledger, entry, states.get(name), now) for name, entry in entries.items()]
        schedules.forget(ledger, [state for name, state in states.items() if name not in entries], now)
        return max(0.0, min([LOOK_INTERVAL, *(at - now for at in following if at is not None)]))

    def _try_entry(self, ledger: Ledger, entry: Entry, state: ScheduleState | None, now: float) -> float | None:
        """Submit the ticks of one entry, whose errors must not keep the others from theirs; return its next moment."""
        try:
            following = self._submit_due(ledger, entry, state, now)
        except errors.StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - of a schedule, or a broker
            text = errors.describe(error)
            if self._failures.get(entry.name) != text:
                log_warning("the schedule entry %s cannot be submitted: %s", entry.name, text)
            self._failures[entry.name] = text
            return None
        self._failures.pop(entry.name, None)
        return following

    def _submit_due(self, ledger: Ledger, entry: Entry, state: ScheduleState | None, now: float) -> float | None:
        followed = schedules.follow(ledger, entry.timetable, state, now)
        if followed is None:
            return now  # another process was first, which may die before it submits what is due
        if followed.paused or entry.is_over(followed):
            return None
        since = max(followed.since, entry.begins_at())
        due = schedules.due_ticks(entry.timetable, since, now)
        for tick in due.ticks:
            until = due.until if tick == due.ticks[-1] else tick
            advanced = self._submit(ledger, entry, followed, tick, until)
            if advanced is None:
                return now  # another process was first
            followed = advanced
        if not due.ticks and due.until > since:
            schedules.advance(ledger, followed, until=due.until)
        return entry.timetable.next_after(due.until)

    def _submit(
        self, ledger: Ledger, entry: Entry, state: ScheduleState, tick: float, until: float
    ) -> ScheduleState | None:
        """Submit a tick, and return the state after it; None if another process has changed it."""
        task, job_id = tasks_of(self._app).get(entry.task), ""
        if task is None:
            return self._send(ledger, entry, state, tick, until)
        call = entry.call(task)
        try:
            job_id = str(submit(app_state_of(self._app), as_tick(call, entry, tick)).id)
        except (errors.DuplicateJobError, errors.KeyReuseMismatchError) as error:
            job_id = error.job_id
        except Exception as error:
            if isinstance(error, errors.StoreError) and not isinstance(error, errors.StoreRefusedError):
                raise
            _log_skipped(entry, tick, error)  # what is wrong with the call is wrong with it later, too
        return schedules.advance(ledger, state, until=until, tick=tick, job_id=job_id)

    def _send(
        self, ledger: Ledger, entry: Entry, state: ScheduleState, tick: float, until: float
    ) -> ScheduleState | None:
        """Send the message of a task that is not of class `onejob.Task`, if this process is the first to note its tick.

        It is noted first: nothing recognises a second message. If the broker does not get it, its tick is due again.
        """
        task_id = str(uuid.uuid5(uuid.NAMESPACE_OID, schedules.tick_id(entry.name, tick)))
        advanced = schedules.advance(ledger, state, until=until, tick=tick, job_id=task_id)
        if advanced is None:
            return None
        try:
            with self._broker.producer(confirms=True) as producer:
                send(self._app, entry, task_id=task_id, producer=producer, **with_tick(entry.options, tick))
        except Exception as error:
            if self._broker.is_outage(error):
                schedules.write(ledger, advanced, state)
                raise
            _log_skipped(entry, tick, error)
        return advanced


def _log_skipped(entry: Entry, tick: float, error: Exception) -> None:
    at = format_timestamp(tick)
    log_warning("the tick %s of the schedule entry %s is left out: %s", at, entry.name, errors.describe(error))


def as_tick(call: Call, entry: Entry, tick: float) -> Call:
    """Return the call of a tick, which may be repeated: a job of its own.

    It is equal to other calls of its task if the entry, an option of the task or another library's rule says so.
    """
    identity = schedules.tick_id(entry.name, tick)
    options = {name: value for name, value in call.options.items() if name not in OWN_OPTIONS}
    call = call._replace(options=with_tick(options, tick), source=SOURCE, key=identity)
    task = call.task._onejob
    has_own_rule = call.task._onejob_has_own_rule or task.unique_on is not None or task.unique_for is not None
    if entry.identity == "task" or (entry.identity is None and has_own_rule):
        return call
    return call._replace(identity=identity, on_duplicate="attach")


def with_tick(options: Mapping[str, Any], tick: float) -> dict[str, Any]:
    """Return the options of a message with its tick, which its task finds in `request.headers`."""
    return {**options, "headers": {**(options.get("headers") or {}), TICK_HEADER: format_timestamp(tick)}}


def send(app: Celery, entry: Entry, **options: Any) -> Any:
    """Send the call of an entry as Celery's beat does, and return its result; `options` are those of `apply_async`."""
    task, (args, kwargs) = app.tasks.get(entry.task), entry.arguments
    publish = partial(app.send_task, entry.task) if task is None else task.apply_async
    return publish(tuple(args), kwargs, **{**entry.options, **options})


# --- the operations of the HTTP API, the command line and the dashboard -----------------------------------------------


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
    """Why the next tick cannot be computed."""


def list_entries(app: Celery, ledger: Ledger) -> list[ScheduleEntry]:
    """Return the entries of an app, by name. Raises `ConfigurationError` for an entry that cannot work."""
    states = _states_of(ledger)
    return [_describe(entry, states.get(name)) for name, entry in sorted(entries_of(app).items())]


def _describe(entry: Entry, state: ScheduleState | None) -> ScheduleEntry:
    next_tick, error = None, ""
    if state is not None and not state.paused and not entry.is_over(state):
        try:
            next_tick = entry.timetable.next_after(max(state.since, entry.begins_at()))
        except Exception as failed:  # noqa: BLE001 - a schedule of the user's
            error = errors.describe(failed)
    return ScheduleEntry(
        entry.name, entry.task, entry.timetable.spec, entry.timetable.missed, state is not None and state.paused,
        state.last_tick if state else None, state.last_job if state else "", next_tick, error,
    )  # fmt: skip


def set_paused(app: Celery, ledger: Ledger, name: str, *, paused: bool) -> ScheduleEntry:
    """Pause an entry, or resume it, and return it afterwards. The ticks of a pause are not made up for.

    Raises `ScheduleEntryNotFoundError`, and `StoreUnavailableError` if workers change the entry all the time.
    """
    entry = _entry_of(app, name)
    for _ in range(CHANGE_TRIES):
        state = _states_of(ledger).get(name) or schedules.follow(ledger, entry.timetable, None, ledger.read_clock())
        changed = state and schedules.pause(ledger, state, paused=paused)
        if changed is not None:
            return _describe(entry, changed)
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
        if task is None or app_state.is_eager:
            return send(app, entry)
        key, task_id = entry.options.get("idempotency_key"), entry.options.get("task_id")
        return submit(app_state, entry.call(task)._replace(key=key, task_id=task_id, check_answer=check_answer))
    except errors.OneJobError:
        raise
    except Exception as error:
        if check_answer is not None:
            raise
        msg = f"the task {entry.task} of the schedule entry {name!r} cannot be submitted: {errors.describe(error)}"
        raise errors.OneJobError(msg) from error


def _states_of(ledger: Ledger) -> dict[str, ScheduleState]:
    return {state.name: state for state in ledger.store.schedules()}


def _entry_of(app: Celery, name: str) -> Entry:
    entries = entries_of(app)
    if name not in entries:
        raise errors.ScheduleEntryNotFoundError(name, did_you_mean(name, entries))
    return entries[name]


# --- Celery's own beat ------------------------------------------------------------------------------------------------


class Scheduler(beat.Scheduler):
    """For `celery beat --scheduler onejob`: a process that submits the same ticks as the workers, each once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._beat = Beat(self.app)

    def setup_schedule(self) -> None:
        """Read the entries, whose errors end beat. They are in the ledger, not in a file."""
        entries_of(self.app)

    def tick(self, *_: Any, **__: Any) -> float:
        """Submit what is due, and return the seconds to sleep."""
        try:
            return max(self._beat.look(), app_state_of(self.app).settings.sweep)
        except Exception as error:  # noqa: BLE001 - a beat that ends would need somebody to start it again
            log_warning("the beat schedule is tried again in %g s: %s", LOOK_INTERVAL, errors.describe(error))
            return LOOK_INTERVAL


def find_tick(call: Call) -> Call:
    """Return a call of Celery's own beat as that of its entry's latest tick, if the workers run the schedule.

    Its entry is one with the same task and arguments. So a beat beside the workers submits no job of its own. Raises
    `OneJobError` for a call, not for a message, of a paused entry.
    """
    app = call.task.app
    app_state = app_state_of(app)
    if not app_state.settings.beat:
        return call
    states, now = _states_of(app_state.ledger), app_state.ledger.read_clock()
    called = call.task.name, [*call.args], {**call.kwargs}
    ticks = [
        (schedules.latest_moment(entry.timetable, states[entry.name].since, now), entry)
        for entry in entries_of(app).values()
        if entry.name in states and (entry.task, *entry.arguments) == called
    ]
    if not ticks:
        return call
    moment, entry = max(ticks, key=lambda tick: tick[0])
    if states[entry.name].paused and not call.is_message:
        raise errors.OneJobError(f"the schedule entry {entry.name!r} is paused, and Celery's beat has submitted it")
    return as_tick(call, entry, moment)
