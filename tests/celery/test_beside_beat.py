"""Celery's own beat beside the workers: what it submits are their ticks, on every version of Celery."""

from dataclasses import replace
from typing import Any

import celery
import pytest
from celery import Celery, signals
from celery.beat import PersistentScheduler, ScheduleEntry, Scheduler, SchedulingError, Service

from onejob.celery.app_state import app_state_of
from onejob.celery.beat.ticks import Beat
from onejob.celery.beat.ticks import Scheduler as OwnScheduler
from onejob.jobs.timestamps import parse_timestamp
from onejob.ledger.schedules import write
from onejob.stores.protocol import Store
from tests.celery.schedules import EVERY, NIGHTLY, jobs_of, make_app, ticks_of
from tests.conftest import on_stores
from tests.stores.support import START, ManualClock

fresh_address = on_stores("sqlite")
PLAIN = NIGHTLY | {"task": "shop.plain", "options": {"queue": "plain"}}
marks_calls_of_beat = pytest.mark.skipif(
    tuple(celery.VERSION) < (5, 7), reason="before Celery 5.7, a call of beat has no header of Celery's own"
)


class Reserving(Scheduler):
    """A scheduler that decides itself what is due, and keeps no entry of its own, as that of celery-redbeat."""

    def submit(self, name: str) -> Any:
        return self.apply_async(self.Entry(**dict(self.app.conf.beat_schedule[name], name=name, app=self.app)))

    def reserve(self, entry: Any) -> Any:
        return next(entry)


class Foreign:
    """A scheduler that is no class of Celery's."""

    def __init__(self, **_: Any) -> None: ...


def start_beat(app: Celery, scheduler: type[Scheduler] = Scheduler) -> Any:
    """Return the scheduler of a service of beat that has begun to start."""
    service = Service(app, scheduler_cls=scheduler)
    signals.beat_init.send(sender=service)
    return service.scheduler


def submit(scheduler: Any, name: str) -> Any:
    """Submit an entry as the scheduler does when it is due."""
    if isinstance(scheduler, Reserving):
        return scheduler.submit(name)
    return scheduler.apply_async(scheduler.schedule[name], advance=False)


def messages_in(app: Celery, queue: str) -> list[Any]:
    """Return the messages of a queue, which this takes out."""
    with app.connection_for_read() as connection, connection.SimpleQueue(queue) as found:
        return [found.get_nowait() for _ in range(found.qsize())]


@pytest.mark.parametrize("scheduler", [Scheduler, PersistentScheduler, Reserving])
def test_a_call_of_celerys_beat_is_the_tick(
    store: Store, clock: ManualClock, scheduler: type[Scheduler], tmp_path: Any
) -> None:
    """What Celery's beat submits is the latest tick of the entry with its name, whichever scheduler it has."""
    schedule = {"nightly": NIGHTLY, "equal": NIGHTLY, "all": NIGHTLY | {"options": {"missed": "all"}}}
    app = make_app(store, schedule, beat_schedule_filename=str(tmp_path / "schedule"))
    beat = start_beat(app, scheduler)
    Beat(app).look()
    clock.advance(EVERY + 1)
    early = submit(beat, "nightly")
    Beat(app).look()
    ticks = {state.name: state.last_job for state in store.schedules()}
    assert early.id == ticks["nightly"]
    assert {name: submit(beat, name).id for name in schedule} == {name: ticks[name] for name in schedule}
    assert (len(jobs_of(store)), ticks_of(jobs_of(store))) == (3, [START + EVERY] * 3)
    assert all("onejob_entry" not in job.options for job in jobs_of(store))
    clock.advance(EVERY)
    later = submit(beat, "nightly").id
    assert later not in ticks.values()
    assert len(jobs_of(store)) == 4
    beat.close()
    vars(app_state_of(app))["settings"] = replace(app_state_of(app).settings, beat=False)
    assert submit(start_beat(app), "nightly").id not in [*ticks.values(), later]


def test_a_whole_round_of_beat_is_the_tick(store: Store, clock: ManualClock) -> None:
    """A scheduler that finds an entry due by itself submits the tick."""
    app = make_app(store, {"nightly": NIGHTLY | {"schedule": 0.001}})
    beat = start_beat(app)
    Beat(app).look()
    clock.advance(0.0015)
    while not jobs_of(store):
        beat.tick()
    Beat(app).look()
    assert ticks_of(jobs_of(store)) == [pytest.approx(START + 0.001)]


def test_what_only_beat_has_is_a_call_of_its_own(store: Store, clock: ManualClock) -> None:
    """An entry that no worker knows, of another task, or that no worker has seen, is a job beside the ticks."""
    app = make_app(store, {"nightly": NIGHTLY})
    beat = start_beat(app)
    unseen = submit(beat, "nightly")
    Beat(app).look()
    clock.advance(EVERY)
    Beat(app).look()
    (tick,) = jobs_of(store)
    for name, task in (("saved", "shop.add"), ("nightly", "shop.daily")):
        entry = ScheduleEntry(name=name, task=task, args=(1, 2), schedule=celery.schedules.schedule(EVERY), app=app)
        assert beat.apply_async(entry, advance=False).id != tick.id
    assert unseen.id != tick.id
    assert jobs_of(store) == [tick]


def test_a_plain_task_gets_one_message_of_both(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick of a task of Celery's own class is one message, whoever is first; none is lost with the broker."""
    app = make_app(store, {"plain": PLAIN})
    beat = start_beat(app)
    Beat(app).look()
    for first in (lambda: submit(beat, "plain"), lambda: Beat(app).look()):
        clock.advance(EVERY)
        first()
        submit(beat, "plain")
        Beat(app).look()
        (message,) = messages_in(app, "plain")
        assert parse_timestamp(message.headers["onejob_tick"]) == clock.now
    clock.advance(EVERY)

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("the broker is away")

    plain: Any = app.tasks["shop.plain"]
    with monkeypatch.context() as patch:
        patch.setattr(plain, "apply_async", fail)
        with pytest.raises(SchedulingError, match="the broker is away"):
            submit(beat, "plain")
    Beat(app).look()
    (message,) = messages_in(app, "plain")
    assert parse_timestamp(message.headers["onejob_tick"]) == clock.now


def test_a_paused_entry_refuses_the_calls_of_beat(store: Store, clock: ManualClock) -> None:
    """The call of a paused entry is an error in the log of beat."""
    app = make_app(store, {"nightly": NIGHTLY, "plain": PLAIN})
    Beat(app).look()
    for state in store.schedules():
        write(app_state_of(app).ledger, state, replace(state, paused=True))
    clock.advance(10 * EVERY)
    Beat(app).look()
    beat = start_beat(app)
    for name in ("nightly", "plain"):
        with pytest.raises(SchedulingError, match=f"'{name}' is paused"):
            submit(beat, name)
    assert (jobs_of(store), messages_in(app, "plain")) == ([], [])


@marks_calls_of_beat
def test_a_call_that_only_says_that_it_is_from_beat(store: Store, clock: ManualClock) -> None:
    """A call with the header of Celery 5.7 alone is the latest tick of the entry with its task and arguments."""
    app = make_app(store, {"nightly": NIGHTLY, "other": NIGHTLY | {"args": (5,)}})
    scheduler = Scheduler(app, schedule={})  # of which no service has said that it starts
    Beat(app).look()
    clock.advance(EVERY + 1)
    Beat(app).look()
    ticks = {state.name: state.last_job for state in store.schedules()}
    assert [submit(scheduler, name).id for name in ("nightly", "other")] == [ticks["nightly"], ticks["other"]]
    add: Any = app.tasks["shop.add"]
    unknown = add.apply_async((8, 8), headers={"celery_beat_task": True})
    assert store.get_many([unknown.id])[unknown.id].source == "apply_async"
    for state in store.schedules():
        write(app_state_of(app).ledger, state, replace(state, paused=True))
    with pytest.raises(SchedulingError, match="'nightly' is paused"):
        submit(scheduler, "nightly")


def test_a_scheduler_that_cannot_be_recognised_is_named(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """Beat warns at its start of a scheduler of another kind, whose calls run beside the ticks; not of our own."""
    app = make_app(store, {"nightly": NIGHTLY})
    signals.beat_init.send(sender=Service(app, scheduler_cls=Foreign))  # type: ignore[arg-type]
    (warning,) = [each.getMessage() for each in caplog.records if "is no celery.beat.Scheduler" in each.getMessage()]
    assert "Foreign" in warning
    own = start_beat(app, OwnScheduler)
    assert "apply_async" not in vars(own)
