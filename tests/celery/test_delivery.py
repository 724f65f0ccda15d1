"""The ledger delivers jobs by itself: real workers on `broker_url = "onejob://"`, on both stores that can."""

import asyncio
import math
import select
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import celery
import psycopg
import pytest
from billiard import pool
from kombu import Queue
from kombu.asynchronous import Hub

from onejob.celery.app_state import app_state_of
from onejob.celery.transport.channel import PlainMessages
from onejob.celery.transport.connection import Waker
from onejob.celery.transport.job_delivery import ASK_AFTER, LOCKED_PAUSES, JobMessages, Taken
from onejob.errors import StoreUnavailableError
from onejob.jobs.lifecycle import State, Transition
from onejob.ledger.ledger import NextRun
from onejob.stores.protocol import JOB, LOOK_INTERVAL, MESSAGE
from tests.cases import further
from tests.celery.harness import DELIVERS, LEASE, PATIENCE, Cluster, await_, event_loop
from tests.quiet import provokes
from tests.stores.support import accepted

LONG = 3600.0


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.deep)])
def delivering(request: pytest.FixtureRequest, new_cluster: Callable[..., Cluster]) -> Cluster:
    """Return a cluster whose ledger delivers, without a worker; no sweep helps its workers."""
    return new_cluster(request.param, **DELIVERS, test_sweep=LONG)


def test_a_job_is_its_own_message(delivering: Cluster) -> None:
    """Jobs submitted one by one, many at once, delayed and retried run once each, and no message is written."""
    results = [delivering.play.delay("one", ["return:1"]), *delivering.play.submit_many([("two", ["return:2"])])]
    results += [delivering.play.apply_async(("later", ["return:3"]), countdown=0.2)]
    results += [delivering.play.delay("again", ["retry", "return:4"])]
    assert delivering.play.delay("one", ["return:1"]).id == results[0].id
    assert delivering.offered_messages() == 0
    delivering.worker("-c", "2")
    assert [result.get(PATIENCE) for result in results] == ["1", "2", "3", "4"]
    assert [delivering.runs(key) for key in ("one", "two", "later", "again")] == [1, 1, 1, 2]
    assert not [each for result in results for each in delivering.events(result) if each == Transition.PUBLISH]


def test_canvases_go_on(delivering: Cluster) -> None:
    """Chains, groups and chords of jobs go on, and a member that is a duplicate ends as the job that it follows."""
    delivering.config["test_sweep"] = 1.0
    delivering.worker("-c", "2")
    play, keeps = delivering.play, delivering.play_unique_for
    chain = celery.chain(play.si("first", ["return:1"]), play.si("second", ["return:2"]))
    chord = celery.chord(
        [keeps.si(f"member-{number % 2}", ["return:m"]) for number in range(3)], play.si("body", ["return:b"])
    )
    assert [chain.delay().get(PATIENCE), chord.delay().get(PATIENCE)] == ["2", "b"]
    assert delivering.runs("member-0") == delivering.runs("body") == 1


@provokes(Transition.PUBLISH, because="a sweep looks now and then whether what replaced a job has ended")
@pytest.mark.parametrize("way", ["replace:plain", "replace:anywhere,note"])
def test_a_replaced_job_waits_for_what_replaced_it(delivering: Cluster, way: str) -> None:
    """A job that another task has replaced is not taken as if it were due, and ends with the end of that task."""
    delivering.config["test_sweep"] = 0.2
    delivering.worker("-c", "2")
    first = delivering.play.delay("replaced", [way], ["what replaced it"])
    assert first.get(PATIENCE)
    delivering.await_state(first, State.COMPLETED)
    assert delivering.runs("replaced") == 1


def test_an_urgent_job_overtakes(delivering: Cluster) -> None:
    """What waits runs by priority, and a worker takes no more jobs than its processes are free for."""
    delivering.worker("-c", "1")
    held = delivering.begin("held", ["hold:gate"])
    waiting = [delivering.play.apply_async((f"p{rank}", ["return"]), priority=rank) for rank in (1, 9, 5)]
    assert all(delivering.job(result).published_at is None for result in waiting)
    delivering.open("gate")
    assert [result.get(PATIENCE) for result in [held, *waiting]]
    started = {rank: delivering.marks(f"p{rank}")[0]["at"] for rank in (1, 5, 9)}
    assert started[9] < started[5] < started[1]


@provokes(Transition.CRASH, because="a worker is killed")
def test_a_killed_workers_jobs_go_to_another(delivering: Cluster) -> None:
    """A job that runs in a worker that is killed runs again, and what the worker had only taken does so at once."""
    delivering.config["test_sweep"] = 0.2
    delivering.use_lease(LEASE)
    first = delivering.worker("-c", "1")
    held = delivering.begin("held", ["hold:gate", "return:again"], task="play_short_lease")
    next_one = delivering.play_short_lease.delay("next", ["return:next"])
    first.sigkill()
    delivering.worker("-c", "1")
    assert [held.get(PATIENCE), next_one.get(PATIENCE)] == ["again", "next"]
    assert (delivering.runs("held"), delivering.runs("next")) == (2, 1)


@provokes(Transition.RELEASE, logs=["SIGKILL"], because="a worker stops")
def test_a_stopped_worker_offers_what_it_has_taken(delivering: Cluster) -> None:
    """A worker that stops returns the jobs that no process has begun, and another one runs them at once."""
    first = delivering.worker("-c", "1")
    held = delivering.begin("held", ["hold:gate", "return:again"])
    first.stop()
    assert delivering.job(held).state is State.QUEUED
    delivering.worker("-c", "1")
    assert held.get(PATIENCE) == "again"


def alter(cluster: Cluster, statement: str) -> None:
    """Change the schema of a ledger, which the statement calls S."""
    url, schema = cluster.config["onejob_store"], cluster.config.get("onejob_namespace", "")
    if url.startswith("postgresql"):
        with psycopg.connect(url, autocommit=True) as session:
            session.execute(statement.replace("S.", f"{schema}.").encode())
    else:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=PATIENCE)) as file, file:
            file.execute(statement.replace("S.", ""))


@pytest.mark.parametrize("delivering", ["postgresql"], indirect=True)
def test_a_worker_survives_a_change_of_the_schema(delivering: Cluster) -> None:
    """When a migration changes a column under a worker and its clients, each job before and after it runs once."""
    delivering.config["test_sweep"] = 0.2
    worker = delivering.worker("-c", "1")
    for number, kind in enumerate(("bigint", "int", "bigint")):
        keys = [f"{number}-{each}" for each in range(8)]  # psycopg prepares what it has executed five times
        assert [delivering.play.delay(key, ["return:ran"]).get(PATIENCE) for key in keys] == ["ran"] * 8
        alter(delivering, f"alter table S.jobs alter column duplicate_count type {kind}")
        assert asyncio.run(submitted(delivering, f"{number}-awaited")) == "ran"
        assert [delivering.runs(key) for key in keys] == [1] * 8
    assert worker.alive


async def submitted(cluster: Cluster, key: str) -> str:
    """Return the result of a job that a coroutine submits and awaits."""
    return str(await (await cluster.play.aapply_async((key, ["return:ran"]))).aget(PATIENCE))


@pytest.mark.parametrize("table", ["jobs", "messages"])
@provokes(
    logs=["failed, and goes on", "has another schema", "Connection to broker lost", "reconnect"],
    because="a table is away",
)
def test_an_error_that_is_no_outage_ends_no_worker(delivering: Cluster, table: str) -> None:
    """A worker whose ledger lacks a table logs that, waits, and goes on when the table is back."""
    delivering.config["test_sweep"] = 0.2
    worker = delivering.worker("-c", "1")
    assert delivering.play.delay("before", ["return:before"]).get(PATIENCE) == "before"
    alter(delivering, f"alter table S.{table} rename to elsewhere")
    worker.await_text("has another schema than this onejob expects")
    alter(delivering, f"alter table S.elsewhere rename to {table}")
    assert delivering.play.delay("after", ["return:after"]).get(PATIENCE) == "after"
    assert worker.alive


def test_a_job_waits_for_a_worker_that_has_its_task(delivering: Cluster) -> None:
    """A worker without a task leaves its jobs to the others, at once and from then on, and runs what it can."""
    ignorant = delivering.worker("-c", "1", without="play")
    results = [delivering.play.delay(f"left-{number}", ["return:left"]) for number in range(3)]
    ignorant.await_text("jobs of play are left to other workers")
    assert delivering.play_acks_late.delay("known", ["return:ran"]).get(PATIENCE) == "ran"
    delivering.worker("-c", "1")
    results += [delivering.play.delay(f"later-{number}", ["return:left"]) for number in range(3)]
    assert [result.get(PATIENCE) for result in results] == ["left"] * 6
    assert ignorant.text.count("left to other workers") == 1
    assert "Received unregistered task" not in ignorant.text


@pytest.mark.parametrize("delivering", ["postgresql"], indirect=True)
@pytest.mark.parametrize("is_busy", [False, True])
def test_a_busy_workers_event_loop_is_not_blocked(
    delivering: Cluster, is_busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose processes run jobs takes more in another thread, and an idle one at once, in its event loop."""
    threads, received = list[int](), list[Any]()
    monkeypatch.setattr(
        app_state_of(delivering.app), "slots", SimpleNamespace(count_wanted=lambda _: 5, is_busy=is_busy)
    )
    deliver = delivering.ledger.store.deliver  # type: ignore[attr-defined] # of a `DeliveringStore`

    def note_thread(queues: Sequence[str], **options: Any) -> Any:
        threads.append(threading.get_ident())
        return deliver(queues, **options)

    monkeypatch.setattr(delivering.ledger.store, "deliver", note_thread)
    delivering.play.delay("one", ["return:1"])
    with event_loop(delivering, received.append) as (hub, _):
        steps = hub.create_loop()
        await_(lambda: next(steps) or received)
    assert (threads[0] != threading.get_ident()) is is_busy


def test_an_idle_worker_begins_at_once(delivering: Cluster) -> None:
    """A submission wakes an idle worker: it waits for no poll and no sweep."""
    delivering.worker("-c", "1")
    assert delivering.play.delay("warm", ["return"]).get(PATIENCE) == "warm"
    began = time.monotonic()
    for number in range(5):
        delivering.play.delay(f"quick-{number}", ["return"]).get(PATIENCE)
    assert time.monotonic() - began < LOOK_INTERVAL


class Taking:
    """The source of an event loop's messages whose worker has two free places, and what it asks of the store."""

    def __init__(self, cluster: Cluster, patch: pytest.MonkeyPatch) -> None:
        self.slots = SimpleNamespace(count_wanted=lambda _: 2, is_busy=False)
        self.asked, self.announced = list[str](), threading.Event()
        patch.setattr(app_state_of(cluster.app), "slots", self.slots)
        for name in ("deliver", "next_delivery"):
            patch.setattr(cluster.ledger.store, name, partial(self._note, name, getattr(cluster.ledger.store, name)))
        self.source = JobMessages(cluster.app, lambda *_: self.announced.set())
        self.source.has_loop = True

    def _note(self, name: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.asked.append(name)
        return function(*args, **options)

    def take(self, *queues: str) -> tuple[list[Taken], bool]:
        """Take jobs of queues."""
        return self.source.take(queues or ["celery"], 2, no_ack=False)

    def take_in_thread(self, *queues: str) -> list[Taken]:
        """Take jobs as a busy worker does, and return them when its thread has them."""
        self.slots.is_busy = True
        self.take(*queues)
        assert self.announced.wait(PATIENCE)
        self.announced.clear()
        return self.take(*queues)[0]

    @property
    def waits(self) -> float:
        """In how many seconds it wants to be asked again."""
        return (self.source.due_at() or math.inf) - time.monotonic()


@pytest.fixture
def taking(new_cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Cluster, Taking]]:
    """Return a cluster on SQLite whose ledger delivers, and the source of an idle worker."""
    cluster = new_cluster("sqlite", **DELIVERS, test_sweep=LONG)
    made = Taking(cluster, monkeypatch)
    yield cluster, made
    made.source.prefetch.close()


def test_an_idle_worker_hands_its_job_over_first(taking: tuple[Cluster, Taking]) -> None:
    """A job that an idle worker takes is in its process before the worker asks when the next one is due."""
    cluster, idle = taking
    cluster.play.delay("first", ["return"])
    cluster.play.apply_async(("later", ["return"]), countdown=LONG)
    assert len(idle.take()[0]) == 1
    assert idle.asked == ["deliver"]
    assert idle.waits <= ASK_AFTER
    assert idle.take_in_thread() == []
    assert idle.asked == ["deliver", "deliver", "next_delivery"]
    assert idle.waits == pytest.approx(LONG, rel=0.1)


def test_a_consumer_that_ends_leaves_no_question(taking: tuple[Cluster, Taking]) -> None:
    """After the end of a consumer nothing is asked for its queue, and jobs of the others are taken as before."""
    cluster, busy = taking
    cluster.play.delay("first", ["return"])
    busy.take("celery", "gone")
    assert busy.waits < math.inf
    busy.slots.is_busy = True
    busy.take("celery", "gone")
    busy.source.cancel()
    assert busy.waits == math.inf
    cluster.play.delay("second", ["return"])
    assert len(busy.take_in_thread()) == 1


def test_what_is_due_is_looked_for_once(taking: tuple[Cluster, Taking]) -> None:
    """A time at which a job becomes due leads to one look, also if nobody consumes its queue any more."""
    cluster, idle = taking
    cluster.play.apply_async(("soon", ["return"]), countdown=30)
    idle.take("celery", "other")
    assert not idle.source.pop_due(time.monotonic())
    assert idle.source.pop_due(time.monotonic() + 60)
    assert not idle.source.pop_due(time.monotonic() + 60)
    assert idle.waits == math.inf


def test_a_full_worker_rests(taking: tuple[Cluster, Taking], monkeypatch: pytest.MonkeyPatch) -> None:
    """An event loop whose worker has no free place begins no round by itself while jobs wait."""
    cluster, full = taking
    monkeypatch.setattr(app_state_of(cluster.app), "can_kill", True)
    monkeypatch.setattr(full.slots, "count_wanted", lambda _: 0)
    cluster.play.delay("waits", ["return"])
    with event_loop(cluster, lambda _body, _message: None) as (_, channel):
        transport = channel.connection
        for _ in range(3):
            transport._deliver_all()
        assert channel.has_due

        def rests() -> bool:
            transport._waker.clear()
            for _ in range(3):
                transport._on_tick()
            return not select.select([transport._waker.reader], [], [], 0)[0]

        await_(rests)  # once the signal of the submitted job has arrived


def test_a_worker_takes_a_job_once(taking: tuple[Cluster, Taking]) -> None:
    """A job that waits in a worker, as for its rate limit, is offered to others, and has one message in that worker."""
    cluster, limited = taking
    job_id = cluster.play.delay("limited", ["return"]).id
    (taken,), _more = limited.take()
    for _ in range(2):
        limited.source.renew(["celery"])
    assert cluster.ledger.get(job_id).published_at is None
    assert limited.take_in_thread() == []
    assert cluster.ledger.get(job_id).published_at is not None
    limited.source.requeue([taken.tag])
    assert cluster.ledger.get(job_id).published_at is None


@provokes(Transition.RETRY, because="a run is retried while its message is held")
def test_a_worker_takes_the_next_run_of_a_job_that_it_holds(taking: tuple[Cluster, Taking]) -> None:
    """A job that is retried before its message is acknowledged, as with `acks_late`, is taken again at once."""
    cluster, busy = taking
    job_id = cluster.play.delay("late", ["return"]).id
    assert len(busy.take()[0]) == 1
    job = accepted(cluster.ledger.claim(job_id, nonce="nonce", node="here"))
    retry = partial(cluster.ledger.retry, job, error=None, reason="fails")
    app_state_of(cluster.app).publisher.run_next(job, NextRun.again(job, delay=0.0, retries=1), retry)
    assert len(busy.take_in_thread()) == 1


def test_a_job_that_is_locked_is_asked_for_less_and_less(
    taking: tuple[Cluster, Taking], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is due and cannot be taken, as while a user's transaction holds it, keeps no worker busy."""
    cluster, idle = taking
    monkeypatch.setattr(cluster.ledger.store, "deliver", lambda *_, **__: [])
    monkeypatch.setattr(cluster.ledger.store, "next_delivery", lambda *_, **__: 0.0)
    pauses = []
    for _ in range(20):
        assert idle.take() == ([], False)
        pauses.append(idle.source._locked_pause)
        assert idle.waits <= pauses[-1]
    assert pauses[0] == LOCKED_PAUSES[0] < pauses[4] < pauses[19] == LOCKED_PAUSES[1]


def test_jobs_survive_an_error_after_their_delivery(
    taking: tuple[Cluster, Taking], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that were taken before the store went away are handed over; the next look meets the error."""
    cluster, busy = taking
    monkeypatch.setattr(cluster.ledger.store, "next_delivery", Mock(side_effect=StoreUnavailableError("away")))
    cluster.play.delay("one", ["return"])
    assert len(busy.take_in_thread()) == 1
    assert busy.waits <= 0
    with pytest.raises(StoreUnavailableError):
        busy.take_in_thread()


@provokes(Transition.PUBLISH, logs=["cannot be delivered"], because="the worker can make no message")
def test_a_job_without_a_message_is_tried_again_later(
    taking: tuple[Cluster, Taking], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job whose message this worker cannot make is offered again after a back-off: another worker may be able to."""
    cluster, idle = taking
    monkeypatch.setattr(
        app_state_of(cluster.app).publisher, "payload_of", Mock(side_effect=ValueError("no serializer"))
    )
    job_id = cluster.play.delay("odd", ["return"]).id
    assert idle.take()[0] == []
    job = cluster.ledger.get(job_id)
    assert job.state == State.QUEUED
    assert job.published_at is None
    assert "no serializer" in job.publish_error
    assert job.run_at - cluster.ledger.read_clock() == pytest.approx(job.lease, rel=0.1)


def test_one_message_is_got_from_a_worker(taking: tuple[Cluster, Taking]) -> None:
    """`basic_get` in the process of a worker with several free places takes one job, and returns the others."""
    cluster, _idle = taking
    cluster.play.submit_many([(f"job {number}", ["return"]) for number in range(3)])
    with cluster.app.connection_for_read() as connection, connection.channel() as channel:
        assert channel.basic_get("celery") is not None
        assert len(cluster.ledger.store.deliver(["celery"], limit=9)) == 2  # type: ignore[attr-defined] # as above


def test_two_consumers_wait_for_each_other(taking: tuple[Cluster, Taking]) -> None:
    """Two consumers of one connection, as with a step of the user's own, ask once each, and then wait for a signal."""
    cluster, busy = taking
    busy.slots.is_busy = True
    with cluster.app.connection_for_read() as connection, connection.channel() as one, connection.channel() as two:
        hub = Hub()
        for channel, name in ((one, "celery"), (two, "own")):
            Queue(name)(channel).consume(callback=lambda _body, _message: None)
        connection.transport.register_with_event_loop(connection.connection, hub)
        steps = hub.create_loop()
        await_(lambda: next(steps) or busy.asked.count("next_delivery") >= 2)
        seen = len(busy.asked)
        for _ in range(300):
            connection.transport.wake()
            next(steps)
        hub.close()
    assert len(busy.asked) - seen < 20  # the file may have been written to shortly before


def test_a_wake_in_between_is_no_endless_one() -> None:
    """A thread that wakes while another one clears leaves nothing that would end each later wait at once."""
    waker = Waker()
    waker._writer.send(b"x")
    waker.clear()
    assert not select.select([waker.reader], [], [], 0)[0]
    waker.close()


@pytest.mark.parametrize("delivering", ["postgresql"], indirect=True)
def test_a_signal_says_what_to_ask_for(delivering: Cluster) -> None:
    """The signal of a job has its worker ask for jobs, that of a message for messages, and an unknown one for both."""
    with delivering.app.connection_for_read() as connection, connection.channel() as channel:
        delivering.app.amqp.queues["celery"](channel).consume(callback=lambda _: None)
        for payload, names in ((JOB, [JobMessages]), (MESSAGE, [PlainMessages]), ("", [PlainMessages, JobMessages])):
            channel._due[False].clear()
            channel.look(no_ack=False, payload=payload)
            assert {type(source) for source in channel._due[False]} == {*names}


@pytest.mark.parametrize("delivering", ["postgresql"], indirect=True)
@pytest.mark.parametrize("pool_name", ["threads", *further("prefork")])
def test_the_end_of_a_run_makes_room_for_the_next(delivering: Cluster, pool_name: str) -> None:
    """A worker with a free place takes a job that waits: the end of a run makes room, and no signal comes."""
    results = delivering.play.submit_many([(f"waiting-{number}", ["return"]) for number in range(30)])
    delivering.worker("-c", "1", "-P", pool_name)
    assert results[0].get(PATIENCE)
    began = time.monotonic()
    assert [result.get(PATIENCE) for result in results]
    assert time.monotonic() - began < LOOK_INTERVAL


@pytest.mark.parametrize("delivering", ["postgresql"], indirect=True)
def test_a_worker_that_was_full_takes_a_job_at_its_time(delivering: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event loop that finds a free place, and a job that is not due yet, wakes for that job."""
    state, received, wanted, later = app_state_of(delivering.app), list[Any](), [0], list[int]()
    monkeypatch.setattr(state, "slots", SimpleNamespace(count_wanted=lambda _: wanted[0], is_busy=False))
    monkeypatch.setattr(state, "can_kill", True)
    monkeypatch.setattr(delivering.ledger.store.signals, "subscribe", lambda *_: lambda: None)
    with event_loop(delivering, received.append) as (hub, channel):
        hub.timer.max_interval = LOOK_INTERVAL
        steps = hub.create_loop()
        while channel.connection._timer is None:  # it has looked, and waits
            next(steps)
        delivering.play.apply_async(("soon", ["return"]), countdown=0.3)
        wanted[0] = 1
        hub.call_later(LOOK_INTERVAL - 1, later.append, 1)
        await_(lambda: next(steps) or received)
    assert not later


@pytest.mark.parametrize("delivering", ["sqlite"], indirect=True)
def test_a_full_worker_waits_for_a_place_only(delivering: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that becomes due while no place is free wakes nobody: the worker would look for it again and again."""
    wanted = [1]
    slots = SimpleNamespace(count_wanted=lambda _: wanted[0], is_busy=False)
    monkeypatch.setattr(app_state_of(delivering.app), "slots", slots)
    delivering.play.apply_async(("later", ["return"]), countdown=LONG)
    source = JobMessages(delivering.app, lambda *_: None)
    assert source.take(["celery"], 1, no_ack=False) == ([], False)
    assert source.due_at() is not None
    wanted[0] = 0
    assert source.take(["celery"], 1, no_ack=False) == ([], True)
    assert source.due_at() is None


@provokes(Transition.RELEASE, Transition.CRASH, logs=["SIGKILL"], because="a worker stops while its processes are busy")
def test_a_busy_worker_stops_at_once(delivering: Cluster) -> None:
    """The processes of a worker that stops do not wait until the parent has read what it will never read."""
    worker = delivering.worker("-c", "2")
    results = delivering.play.submit_many([(f"busy-{number}", ["return"]) for number in range(300)])
    assert results[20].get(PATIENCE) == "busy-20"
    began = time.monotonic()
    worker.stop()
    waited = pool.GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT * pool.GUARANTEE_MESSAGE_CONSUMPTION_RETRY_INTERVAL
    assert time.monotonic() - began < waited
