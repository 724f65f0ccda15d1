"""Submits the ticks of `app.conf.beat_schedule` from the workers, each once, without a process of its own for beat.

Every worker computes the same moments from the state of an entry in the ledger (`onejob.ledger.schedules`), and submits
them under the same idempotency key, so it does not matter how many of them look, or which of them dies when.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from math import inf
from typing import Any

from celery import Celery, beat
from celery.schedules import schedule as interval

from onejob import errors
from onejob.celery.app_state import app_state_of
from onejob.celery.beat.moments import next_after_of
from onejob.celery.beat.schedule_rows import Row, read_rows
from onejob.celery.beat.zone_rules import ZoneAgreement
from onejob.celery.messages.broker import Broker
from onejob.celery.submission.call import Call
from onejob.celery.submission.options import BoundTask, tasks_of
from onejob.celery.submission.submit import submit
from onejob.config import check_missed
from onejob.jobs.schedule_state import ScheduleState, schedule_digest
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
"""The values of an entry's `identity`, which says what makes the job of a tick unique; None: its task decides."""
INTERVAL: Any = interval
BRACKETS = str.maketrans("", "", "<>")


class Entry:
    """One entry of the beat schedule: Celery's own, with the options of onejob. Raises `ConfigurationError`."""

    def __init__(self, app: Celery, entry: Any, row: Row | None = None) -> None:
        self.name, self.task, self.schedule = str(entry.name), str(entry.task), entry.schedule
        self._entry, self.row = entry, row
        self.options = {name: value for name, value in entry.options.items() if name not in OWN_OPTIONS}
        settings = app_state_of(app).settings
        missed = check_missed(
            f"missed of the schedule entry {self.name}", entry.options.get("missed", settings.beat_missed)
        )
        self.identity = entry.options.get("identity")
        if self.identity not in IDENTITIES:
            msg = f"identity of the schedule entry {self.name} must be 'tick' or 'task', not {self.identity!r:.100}"
            raise errors.ConfigurationError(msg)
        _check_options(self.name, entry.options)
        self.ends_at = _end_of(self.name, entry.options.get("expires"))
        self._next_after, self.zone = next_after_of(self.schedule, app)
        self.timetable = schedules.Timetable(
            self.name, describe_schedule(self.schedule), self._next_tick_after, missed, once=bool(row and row.once),
            begins_at=row.begins_at if row else None, has_versions=row is None,
        )  # fmt: skip

    @property
    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a tick; arguments that are computed for each tick are computed now."""
        args, kwargs = self._entry.args or (), self._entry.kwargs or {}
        return [_evaluate(value) for value in args], {name: _evaluate(value) for name, value in kwargs.items()}

    def call(self, task: BoundTask) -> Call:
        """Return the call of the entry's task."""
        given: Any = {name: self.options.get(name) for name in ("on_duplicate", "webhook_url")}
        return Call(task, *self.arguments, self.options, **given)

    @property
    def digest(self) -> str:
        """The digest of the entry that a worker registers; "" for a row, of which all processes have one version."""
        return schedule_digest(self.name, self.timetable.spec) if self.timetable.has_versions else ""

    def has_ended(self, now: float) -> bool:
        """Return whether the entry has ended: all its jobs would expire at once, or it is a row that has run once."""
        return self.ends_at <= now or bool(self.row and self.row.has_run)

    def record(self, tick: float) -> None:
        """Write to the row of an entry, if it has one, that it has run at a moment."""
        if self.row is not None:
            self.row.record(tick)

    def restore(self) -> None:
        """Undo `record`: the message of the tick was not sent."""
        if self.row is not None:
            self.row.restore()

    def disable(self) -> None:
        """Disable the row of an entry that has ended."""
        if self.row is not None:
            self.row.disable()

    def _next_tick_after(self, after: float) -> float | None:
        """Return the first moment after a time at which the entry has a tick; None if there is none."""
        moment = self.row.next_after(after, self._next_after) if self.row else self._next_after(after)
        return moment if moment is not None and moment < self.ends_at else None


def _check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` for an option by which all ticks would be one job."""
    for option in ("task_id", "idempotency_key"):
        if options.get(option) is not None:
            msg = (
                f"{option} of the schedule entry {name} would answer all its ticks with the job of the first one: "
                "leave it out, each tick has a key of its own"
            )
            raise errors.ConfigurationError(msg)


def _end_of(name: str, expires: Any) -> float:
    """Return the time of an absolute expiry, infinity for any other expiry: seconds count from each tick."""
    if not isinstance(expires, datetime | str):
        return inf
    try:
        at = datetime.fromisoformat(expires) if isinstance(expires, str) else expires
    except ValueError:
        msg = (
            f"expires of the schedule entry {name} is no number of seconds, datetime or ISO 8601 text: {expires!r:.100}"
        )
        raise errors.ConfigurationError(msg) from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()  # as `apply_async` reads it


def _evaluate(value: Any) -> Any:
    return value() if isinstance(value, beat.BeatLazyFunc) else value


def describe_schedule(schedule: Any) -> str:
    """Return a schedule as text, which is equal for equal schedules: Celery's own text of an interval is rounded."""
    if schedule.__class__ is INTERVAL:
        return f"every {schedule.run_every.total_seconds():g} s{', by the clock' if schedule.relative else ''}"
    text, zone = " ".join(str(schedule).translate(BRACKETS).split()), str(schedule.tz)
    return text if text.endswith(zone) else f"{text} {zone}"  # the text of django-celery-beat has it


def entries_of(app: Celery) -> dict[str, Entry]:
    """Return the schedule entries of an app: of its tasks, its configuration, and the tables of django-celery-beat.

    An entry of the configuration replaces a task's entry of the same name. Raises `ConfigurationError`.
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
        entry.name: entry for entry in _entries_of_rows(app)
    }


def _entries_of_rows(app: Celery) -> Iterator[Entry]:
    for row in read_rows():
        try:
            yield Entry(app, row.to_entry(app), row)
        except Exception as error:  # noqa: BLE001 - a row that nobody has validated costs its own ticks only
            log_warning("the entry %s of django-celery-beat cannot be used: %s", row.name, errors.describe(error))


class Beat:
    """Submits the ticks of an app that are due. Any number of processes may do it at the same time."""

    def __init__(self, app: Celery, node: str = "") -> None:
        self._app, self._node = app, node
        self._broker = Broker(app, app_state_of(app).settings.publish_timeout)
        self._next_look = 0.0
        self.agreement = ZoneAgreement()
        self._failures: dict[str, str] = {}
        """The latest problem of each entry, an error or workers with a newer schedule of it, which is logged once."""
        self.registered: tuple[str, ...] = ()
        """The digests of the entries that were read last, which the worker registers."""

    def read_entries(self) -> dict[str, Entry]:
        """Return the entries of the app by name, and note their digests."""
        entries = entries_of(self._app)
        self.registered = tuple(sorted(entry.digest for entry in entries.values() if entry.digest))
        return entries

    def run(self) -> None:
        """Submit the ticks that are due, unless no entry can be due yet."""
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + self.look()

    def look(self) -> float:
        """Submit the ticks that are due, and return the seconds until the next ticks, at most `LOOK_INTERVAL`."""
        ledger = app_state_of(self._app).ledger
        # The entries are read last: a row that has run only once is not enabled any more when its state says so.
        states, now, entries = states_of(ledger), ledger.read_clock(), self.read_entries()
        zones = {name: (each.zone, each.digest) for name, each in entries.items()}
        for_others = self.agreement.entries_for_others(ledger, zones)
        own = {name: entry for name, entry in entries.items() if name not in for_others}
        following = [self._try_entry(ledger, entry, states.get(name), now) for name, entry in own.items()]
        schedules.forget(ledger, [state for name, state in states.items() if name not in entries], now)
        return max(0.0, min([LOOK_INTERVAL, *(at - now for at in following if at is not None)]))

    def _try_entry(self, ledger: Ledger, entry: Entry, state: ScheduleState | None, now: float) -> float | None:
        """Submit the ticks of one entry, whose errors must not stop other entries; return its next moment."""
        try:
            following = self._submit_due(ledger, entry, state, now)
        except errors.StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - of a schedule, or a broker
            self._log_once(entry, f"cannot be submitted: {errors.describe(error)}")
            return None
        return following

    def _log_once(self, entry: Entry, text: str) -> None:
        if self._failures.get(entry.name) != text:
            log_warning("the schedule entry %s %s", entry.name, text)
        self._failures[entry.name] = text

    def _submit_due(self, ledger: Ledger, entry: Entry, state: ScheduleState | None, now: float) -> float | None:
        if entry.has_ended(now):
            entry.disable()
            return None
        if state is not None and not self._may_follow(ledger, entry, state, now):
            return now
        followed = schedules.follow(ledger, entry.timetable, state, now, self._node)
        if followed is None:
            return now  # another process was first, which may die before it submits what is due
        if followed.paused:
            return None
        due = schedules.due_ticks(entry.timetable, followed.since, now)
        for tick in due.ticks:
            until = due.until if tick == due.ticks[-1] else tick
            advanced = self._submit(ledger, entry, followed, tick, until)
            if advanced is None:
                return now  # another process was first
            followed = advanced
        if not due.ticks and due.until > followed.since:
            schedules.advance(ledger, followed, until=due.until)
        self._failures.pop(entry.name, None)
        return entry.timetable.next_after(due.until)

    def _may_follow(self, ledger: Ledger, entry: Entry, state: ScheduleState, now: float) -> bool:
        """Return whether this process has the schedule of an entry that applies, and not an older version."""
        if state.spec == entry.timetable.spec or not entry.timetable.has_versions:
            return True
        workers = ledger.workers()
        newer = schedules.nodes_with_newer(entry.timetable, state, workers, now)
        if newer:
            self._log_once(entry, describe_newer(entry, state, newer))
            return False
        # A worker that the others do not know to have this schedule would be overruled by them, and they by it.
        return not self._node or any(
            each.name == self._node and each.has_schedule(entry.name, entry.timetable.spec) for each in workers
        )

    def _submit(
        self, ledger: Ledger, entry: Entry, state: ScheduleState, tick: float, until: float
    ) -> ScheduleState | None:
        """Submit a tick, and return the state after it; None if another process has changed the state."""
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
        entry.record(tick)
        return schedules.advance(ledger, state, until=until, tick=tick, job_id=job_id)

    def _send(
        self, ledger: Ledger, entry: Entry, state: ScheduleState, tick: float, until: float
    ) -> ScheduleState | None:
        """Send the message of a task that is not of class `onejob.Task`; return the result of `note_and_send`."""

        def publish(**options: Any) -> None:
            with self._broker.producer(confirms=True) as producer:
                send(self._app, entry, producer=producer, **{**entry.options, **options})

        return self.note_and_send(ledger, entry, state, tick, until, publish)

    def note_and_send(
        self, ledger: Ledger, entry: Entry, state: ScheduleState, tick: float, until: float,
        publish: Callable[..., object],
    ) -> ScheduleState | None:  # fmt: skip
        """Send the message of a tick, if this process is the first to note the tick, and return the state; else None.

        The tick is noted first: nothing recognises a second message. If the broker does not get the message, the tick
        is due again. `publish` gets options of `apply_async`.
        """
        task_id = str(uuid.uuid5(uuid.NAMESPACE_OID, schedules.tick_id(entry.name, tick)))
        advanced = schedules.advance(ledger, state, until=until, tick=tick, job_id=task_id)
        if advanced is None:
            return None
        try:
            entry.record(tick)
        except Exception:
            schedules.write(ledger, advanced, state)
            raise
        try:
            publish(task_id=task_id, **with_tick({"headers": entry.options.get("headers")}, tick))
        except Exception as error:
            if self._broker.is_outage(error):
                schedules.write(ledger, advanced, state)
                entry.restore()
                raise
            _log_skipped(entry, tick, error)
        return advanced


def describe_newer(entry: Entry, state: ScheduleState, nodes: Iterable[str]) -> str:
    """Return the text, for messages that begin with the entry, which workers have a newer schedule of it."""
    return (
        f"is left to {', '.join(nodes)}, which has a newer schedule of it: {state.spec!r}, not {entry.timetable.spec!r}"
    )


def _log_skipped(entry: Entry, tick: float, error: Exception) -> None:
    at = format_timestamp(tick)
    log_warning("the tick %s of the schedule entry %s is left out: %s", at, entry.name, errors.describe(error))


def as_tick(call: Call, entry: Entry, tick: float) -> Call:
    """Return the call of a tick, which may be repeated: all calls of one tick are one job.

    The call is equal to other calls of its task if the entry, an option of the task or another library's rule says so.
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
    """Return the options of a message with the moment of its tick, which the task finds in `request.headers`."""
    return {**options, "headers": {**(options.get("headers") or {}), TICK_HEADER: format_timestamp(tick)}}


def send(app: Celery, entry: Entry, **options: Any) -> Any:
    """Send the call of an entry like Celery's beat, and return its result; `options`: further ones of `apply_async`."""
    task, (args, kwargs) = app.tasks.get(entry.task), entry.arguments
    publish = partial(app.send_task, entry.task) if task is None else task.apply_async
    return publish(tuple(args), kwargs, **{**entry.options, **options})


def states_of(ledger: Ledger) -> dict[str, ScheduleState]:
    """Return the states of the entries in the ledger, by name."""
    return {state.name: state for state in ledger.store.schedules()}


# --- a process of its own ---------------------------------------------------------------------------------------------


class Scheduler(beat.Scheduler):
    """The scheduler of `celery beat --scheduler onejob`: a process that submits the ticks of the workers, each once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._beat = Beat(self.app)

    def setup_schedule(self) -> None:
        """Read the entries, whose errors end beat. Their states are in the ledger, not in a file."""
        entries_of(self.app)

    def tick(self, *_: Any, **__: Any) -> float:
        """Submit the ticks that are due, and return the seconds to sleep."""
        try:
            return max(self._beat.look(), app_state_of(self.app).intervals.sweep)
        except Exception as error:  # noqa: BLE001 - a beat that ends would need somebody to start it again
            log_warning("the beat schedule is tried again in %g s: %s", LOOK_INTERVAL, errors.describe(error))
            return LOOK_INTERVAL
