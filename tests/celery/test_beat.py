"""The beat schedule without a beat: each tick is one job, whoever looks, dies, or runs Celery's own beat beside."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random
from typing import Any
from unittest.mock import Mock

import celery
import pytest
from celery.beat import SchedulingError
from celery.schedules import crontab, schedule
from kombu.exceptions import SerializerNotInstalled

import onejob
from onejob.celery.app_state import app_state_of
from onejob.celery.beat import ticks as beat
from onejob.celery.beat.ticks import Beat
from onejob.client.schedules import run_entry
from onejob.errors import StoreError, StoreRefusedError, StoreUnavailableError
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.query import Query
from onejob.jobs.timestamps import format_timestamp
from onejob.ledger.schedules import write
from onejob.observability.metrics import WEBHOOK_TASK
from onejob.stores.protocol import Store
from onejob.webhooks.job import WebhookPayload
from tests.celery.app import CONFIG
from tests.celery.harness import LEASE, Cluster, await_, program_environment
from tests.celery.schedules import EVERY, NIGHTLY, jobs_of, make_app, ticks_of
from tests.conftest import on_every_store, on_stores
from tests.forks import interpret
from tests.quiet import KILLED, provokes
from tests.services import Daemon
from tests.stores.processes import RaceProcess, race
from tests.stores.support import START, ManualClock, StoreAddress
from tests.tiers import rounds

PORTION = 50
fresh_address = on_stores("sqlite")


# --- many processes ---------------------------------------------------------------------------------------------------


class DeathError(BaseException):
    """The end of a process at the worst moment: after the submission of a tick, before it is noted."""


def look_often(process: RaceProcess, task: str, first: int, last: int) -> list[str]:
    """Look at a schedule at random times from one tick to another; die now and then. Returns the sent ids."""
    dice, clock, sent = Random(first + process.number), ManualClock(START + first * EVERY), []

    def send(_app: object, _entry: object, *, task_id: str, **_: object) -> None:
        sent.append(task_id)

    vars(beat)["send"] = send
    with process.address.opened(clock) as store:
        put = store.put_schedule

        def put_or_die(state: Any, *, expected: str) -> bool:
            if task == "shop.add" and expected and dice.random() < 0.1:
                raise DeathError
            return put(state, expected=expected)

        store.put_schedule = put_or_die  # type: ignore[method-assign]
        app = make_app(store, {"nightly": NIGHTLY | {"task": task, "options": {"missed": "all"}}})
        with suppress(DeathError):
            Beat(app).look()
        process.ready()
        while clock.now < START + last * EVERY:
            clock.now = min(clock.now + dice.choice((1.0, 59.0, 200.0, 300.0)), START + last * EVERY)
            with suppress(DeathError):
                Beat(app).look()
    return sent


@on_every_store
@rounds(20, 500)
def test_each_tick_is_one_job(store_address: StoreAddress, rounds: int) -> None:
    """Each tick is exactly one job, however many processes look, at whatever times, and die in between."""
    for first in range(0, rounds, PORTION):  # each portion with new processes
        race(store_address, 3, look_often, "shop.add", first, min(first + PORTION, rounds))
    with store_address.opened(ManualClock(START + rounds * EVERY)) as store:
        Beat(make_app(store, {"nightly": NIGHTLY | {"options": {"missed": "all"}}})).look()
        jobs = jobs_of(store)
        assert ticks_of(jobs) == [START + number * EVERY for number in range(1, rounds + 1)]
        assert len({job.identity for job in jobs}) == rounds
        (state,) = [state for state in store.schedules() if state.name == "nightly"]
        assert (state.last_tick, state.since) == (START + rounds * EVERY, START + rounds * EVERY)
        assert state.last_job in {job.id for job in jobs}


def test_each_tick_of_a_plain_task_is_one_message(store_address: StoreAddress) -> None:
    """A task of Celery's own class gets one message per tick, with an id that tells the tick."""
    sent = [each for ids in race(store_address, 3, look_often, "shop.plain", 0, 20) for each in ids]
    assert len(sent) == len(set(sent)) == 20


# --- one process ------------------------------------------------------------------------------------------------------


def test_a_tick_is_a_job_of_its_own_or_a_call_of_its_task(store: Store, clock: ManualClock) -> None:
    """A tick is a job beside an equal call; with `identity="task"`, or a task's own rule, the live call answers it."""
    daily = NIGHTLY | {"task": "shop.daily"}
    ruled = ("daily", "once", "single")
    schedule = {name: NIGHTLY | {"task": f"shop.{name}"} for name in ruled} | {
        "own": NIGHTLY, "call": NIGHTLY | {"options": {"identity": "task"}},
        "always": daily | {"options": {"identity": "tick"}},
    }  # fmt: skip
    app = make_app(store, schedule)
    Beat(app).look()
    called, *calls = [app.tasks[f"shop.{name}"].delay(1, 2) for name in ("add", *ruled)]
    clock.advance(EVERY)
    wait = Beat(app).look()
    states = {state.name: state for state in store.schedules()}
    assert (states["call"].last_job, states["call"].last_tick) == (called.id, START + EVERY)
    assert [states[name].last_job for name in ruled] == [each.id for each in calls]
    assert {job.id for job in jobs_of(store)} == {states["own"].last_job, states["always"].last_job}
    assert wait == beat.LOOK_INTERVAL
    clock.advance(EVERY - 5.0)
    assert Beat(app).look() == 5.0


def test_the_end_of_a_tick_is_sent_to_the_webhook_of_its_entry(store: Store, clock: ManualClock) -> None:
    """An entry with `webhook_url` among its options has a webhook for the job of each tick."""
    url = "https://shop.example/done"
    secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLTzP"]
    schedule = {"nightly": NIGHTLY | {"options": {"webhook_url": url}}}
    app = make_app(store, schedule, onejob_webhook_secrets=secrets)
    Beat(app).look()
    clock.advance(EVERY)
    Beat(app).look()
    (tick,), (webhook,) = jobs_of(store), store.find(Query(task=WEBHOOK_TASK))
    assert (WebhookPayload.from_job(webhook).url, webhook.follows_id) == (url, tick.id)


def test_a_run_of_an_entry_is_a_call_of_its_task(store: Store) -> None:
    """A run of an entry is the call of its task, with a key where one is required, also if tasks are eager."""
    entries = {
        "nightly": NIGHTLY | {"options": {"identity": "tick", "missed": "all"}},
        "plain": NIGHTLY | {"task": "shop.plain"}, "keyed": NIGHTLY | {"task": "shop.keyed"},
    }  # fmt: skip
    app = make_app(store, entries)
    assert run_entry(app, "nightly").id == run_entry(app, "nightly").id
    keyed = [run_entry(app, "keyed").id for _ in range(2)]
    assert {job.id for job in store.get_many(keyed).values() if job.task == "shop.keyed"} == {*keyed}
    checked: list[str] = []
    assert run_entry(app, "plain", check=checked.append).id != run_entry(app, "plain").id
    assert checked == ["shop.plain"]
    app.conf.task_always_eager = True
    assert [run_entry(app, name).get() for name in ("nightly", "keyed")] == [3, 3]
    app.conf.task_always_eager = False
    app.conf.beat_schedule["nightly"] = NIGHTLY | {"options": {"serializer": "none"}}
    with pytest.raises(onejob.OneJobError, match="'nightly' cannot be submitted"):
        run_entry(app, "nightly")
    with pytest.raises(SerializerNotInstalled):
        run_entry(app, "nightly", check_answer=bool)


def test_a_paused_entry_has_no_ticks(store: Store, clock: ManualClock) -> None:
    """A paused entry submits nothing, and refuses the calls of Celery's beat."""
    app = make_app(store, {"nightly": NIGHTLY})
    Beat(app).look()
    (state,) = [state for state in store.schedules() if state.name == "nightly"]
    write(app_state_of(app).ledger, state, replace(state, paused=True))
    clock.advance(10 * EVERY)
    Beat(app).look()
    scheduler = celery.beat.Scheduler(app, schedule={})
    with pytest.raises(SchedulingError, match="'nightly' is paused"):
        scheduler.apply_async(scheduler.schedule["nightly"], advance=False)
    assert store.find(Query()) == []


class FailingSchedule(schedule):
    def __init__(self) -> None:
        super().__init__(EVERY)

    def remaining_estimate(self, last_run_at: Any) -> Any:
        raise LookupError("no such moon")


def test_an_entry_that_fails_keeps_no_other_from_its_ticks(
    store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A tick that cannot be submitted is logged and left out, and so is a schedule that fails; other entries go on."""
    wrong = {"broken": NIGHTLY | {"args": (1, 2, 3)}, "failing": NIGHTLY | {"schedule": FailingSchedule()}}
    looks = Beat(make_app(store, wrong | {"nightly": NIGHTLY}))
    for _ in range(3):
        looks.look()
        clock.advance(EVERY)
    states = {state.name: state for state in store.schedules()}
    assert (states["broken"].last_tick, states["broken"].last_job) == (START + 2 * EVERY, "")
    assert len(jobs_of(store)) == 2
    texts = [each.getMessage() for each in caplog.records]
    assert len([text for text in texts if "of the schedule entry broken is left out" in text]) == 2
    assert len([text for text in texts if "the schedule entry failing cannot be submitted" in text]) == 1


def test_a_message_that_the_broker_did_not_get_is_due_again(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tick of a plain task is due again after an outage of the broker; after the ledger's, looking raises."""
    app = make_app(store, {"plain": NIGHTLY | {"task": "shop.plain", "options": {"queue": "plain"}}})
    Beat(app).look()
    clock.advance(EVERY)
    with monkeypatch.context() as patch:
        patch.setattr(beat, "send", Mock(side_effect=OSError("the broker is away")))
        Beat(app).look()
    assert {state.last_tick for state in store.schedules()} == {None}
    Beat(app).look()
    assert {state.last_tick for state in store.schedules() if state.name == "plain"} == {START + EVERY}
    with app.connection_for_read() as connection:
        message = connection.SimpleQueue("plain").get_nowait()
    assert message.headers["onejob_tick"] == format_timestamp(START + EVERY)
    monkeypatch.setattr(store, "put_schedule", Mock(side_effect=StoreUnavailableError))
    clock.advance(EVERY)
    with pytest.raises(StoreUnavailableError):
        Beat(app).look()


@pytest.mark.parametrize("refused", [True, False])
def test_a_tick_waits_for_the_ledger(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, *, refused: bool
) -> None:
    """A tick that the ledger could not take is due again; one whose values no store can take is left out."""
    app = make_app(store, {"nightly": NIGHTLY})
    Beat(app).look()
    clock.advance(EVERY)
    error = StoreRefusedError("no") if refused else StoreError("full")
    with monkeypatch.context() as patch, nullcontext() if refused else pytest.raises(StoreError, match="full"):
        patch.setattr(store, "submit_many", Mock(side_effect=error))
        Beat(app).look()
    Beat(app).look()
    assert ticks_of(jobs_of(store)) == ([] if refused else [START + EVERY])


def test_a_submission_of_another_version_is_the_tick(store: Store, clock: ManualClock) -> None:
    """The first submission of a tick counts, also if another version of the app has other arguments for it."""
    first, second = make_app(store, {"nightly": NIGHTLY}), make_app(store, {"nightly": NIGHTLY | {"args": (7,)}})
    Beat(first).look()
    clock.advance(EVERY)
    Beat(first).look()
    (state,) = [state for state in store.schedules() if state.name == "nightly"]
    write(app_state_of(first).ledger, state, replace(state, since=START, last_tick=None, last_job=""))
    Beat(second).look()
    (job,) = jobs_of(store)
    assert {each.last_job for each in store.schedules() if each.name == "nightly"} == {job.id}


def test_a_scheduler_for_celerys_beat(store: Store, clock: ManualClock) -> None:
    """`celery beat --scheduler` with onejob's submits the same ticks, and waits while the ledger is away."""
    app = make_app(store, {"nightly": NIGHTLY | {"schedule": crontab(minute="*/5")}})
    scheduler = beat.Scheduler(app, lazy=False)
    assert scheduler.tick() == beat.LOOK_INTERVAL
    clock.advance(300.0)
    assert 0 <= scheduler.tick() <= beat.LOOK_INTERVAL
    Beat(app).look()
    assert len(jobs_of(store)) == 1
    store.close()
    app_state_of(app).ledger.store = _Away()  # type: ignore[assignment]
    assert scheduler.tick() == beat.LOOK_INTERVAL


class _Away:
    def schedules(self) -> list[Any]:
        raise StoreUnavailableError


# --- real workers -----------------------------------------------------------------------------------------------------


def scheduled(seconds: float) -> dict[str, Any]:
    """Return the settings of a cluster whose workers run a schedule."""
    entry = {"task": "echo", "schedule": seconds, "args": ["tick"], "options": {"missed": "all"}}
    return {"onejob_beat": True, "beat_schedule": {"often": entry}}


def test_a_worker_runs_the_schedule(new_cluster: Callable[..., Cluster]) -> None:
    """A worker with `onejob_beat` submits the ticks and runs them; a message of Celery's beat is one of them."""
    cluster = new_cluster("redis", **scheduled(0.5))
    cluster.worker("-c", "2")
    cluster.await_mark("echo", times=3)
    plain = celery.Celery("elsewhere", broker=cluster.config["broker_url"], set_as_current=False)
    sent = plain.send_task("echo", ["tick"], headers={"celery_beat_task": True})
    job = cluster.await_state(sent.id, State.COMPLETED)
    assert job.follows_id is not None
    assert cluster.job(job.follows_id).source == "beat"
    plain.close()


@contextmanager
def celery_beat(cluster: Cluster) -> Iterator[Callable[[], Daemon]]:
    """Yield a way to start a process of Celery's beat with the scheduler of onejob; what runs at the end is killed."""
    environment = program_environment() | {CONFIG: json.dumps(cluster.config)}
    command = "-m celery -A tests.celery.app beat -S onejob.celery.beat.ticks:Scheduler --pidfile=".split()
    folder, log = cluster.directory, cluster.directory / "beat.log"
    with ExitStack() as stack:
        yield lambda: stack.enter_context(interpret(command, environment=environment, cwd=folder, output=log))


def _has_ticks(cluster: Cluster, number: int) -> bool:
    return len(jobs_of(cluster.ledger.store)) >= number


@rounds(40, 500)
@provokes(Transition.CRASH, Transition.PUBLISH, logs=[KILLED], because="workers are killed")
def test_two_beats_and_three_workers_are_killed(new_cluster: Callable[..., Cluster], rounds: int) -> None:
    """While two beats and three workers are killed at random, each tick is one job, and completes."""
    cluster, dice = new_cluster("redis", **scheduled(0.1)), Random(rounds)
    cluster.use_lease(LEASE)
    with celery_beat(cluster) as start_beat:
        workers, beats = [cluster.start("-c", "1") for _ in range(3)], [start_beat(), start_beat()]
        for kills in count(1):
            await_(partial(_has_ticks, cluster, kills * 15))
            if kills * 15 >= rounds:
                break
            victim = dice.randrange(5)
            if victim < 3:
                workers[victim].sigkill()
                workers[victim] = cluster.start("-c", "1")
            else:
                beats[victim - 3].process.kill()
                beats[victim - 3] = start_beat()
    for worker in workers:
        worker.await_ready()
    jobs = jobs_of(cluster.ledger.store)
    ticks = ticks_of(jobs)
    assert len(jobs) >= rounds
    assert ticks == [pytest.approx(ticks[0] + number / 10) for number in range(len(ticks))]
    assert len({job.identity for job in jobs}) == len(jobs)
    for job in jobs:
        cluster.await_state(job.id, State.COMPLETED)
        assert [entry.event for entry in cluster.ledger.history(job.id)].count(Transition.COMPLETE) == 1
