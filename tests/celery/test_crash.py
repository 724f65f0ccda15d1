"""What a dead, slow or stopped worker leaves behind: its jobs run again, once, and what comes late changes nothing."""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from celery import chord

from onejob import Outcome, State
from onejob.celery.loops import Loop
from onejob.jobs.lifecycle import Transition
from tests.celery.harness import LEASE, PATIENCE, House, await_, is_running, on_every_store
from tests.quiet import KILLED, provokes


@on_every_store("house")
@provokes(Transition.CRASH, Transition.PUBLISH, because="the worker is killed")
def test_another_worker_takes_over(house: House) -> None:
    """When a whole worker is killed, another one runs its job as soon as the lease has expired, and not before."""
    house.use_lease(LEASE)
    house.two_workers()
    result = house.play.delay("takeover", ["hold:never", "return"])
    first = house.await_mark("takeover")[0]
    house.worker_of(first).sigkill()
    lease_until = house.job(result).lease_until or 0.0
    assert house.play.delay("takeover", ["return"]).outcome is Outcome.ATTACHED
    second = house.await_mark("takeover", times=2)[1]
    assert [entry.at >= lease_until for entry in house.ledger.history(result.id) if entry.event == "crash"] == [True]
    assert house.worker_of(second) is house.other_than(house.worker_of(first))
    assert result.get(PATIENCE) == "takeover"
    assert house.assert_ran(result, State.COMPLETED, "takeover", 2).crashes == 1
    house.assert_quiet()


@provokes(Transition.PUBLISH, logs=[KILLED], because="the message dies with the child")
def test_a_child_that_dies_before_its_claim_costs_no_attempt(house: House) -> None:
    """A child that dies between the message and the claim has started nothing: the job runs once, a lease later."""
    house.use_lease(LEASE)
    house.worker("-c", "2", hook="die-before-claim")
    result = house.play.delay("unclaimed", ["return"])
    assert result.get(PATIENCE) == "unclaimed"
    job = house.assert_ran(result, State.COMPLETED, "unclaimed", 1)
    assert (job.attempt, job.crashes) == (1, 0)
    house.assert_quiet()


@pytest.mark.deep
def test_a_child_that_is_recycled_is_no_crash(house: House) -> None:
    """Children that the pool replaces after each job lose no job."""
    house.worker("-c", "2", "--max-tasks-per-child", "1")
    results = [house.play.delay(f"recycled-{number}", ["return"]) for number in range(8)]
    assert [result.get(PATIENCE) for result in results] == [f"recycled-{number}" for number in range(8)]
    assert {(house.job(result).attempt, house.job(result).crashes) for result in results} == {(1, 0)}
    house.assert_quiet()


# --- heartbeats -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_lease_is_renewed_whatever_the_run_does(house: House, pool: str) -> None:
    """The lease of a run is renewed; under prefork even if the run never releases the GIL."""
    house.worker("--pool", pool, "-c", "1", onejob_heartbeat=0.2)
    result = house.begin("renewed", ["hog" if pool == "prefork" else "hold"])
    first = house.job(result).lease_until or 0.0
    await_(lambda: (house.job(result).lease_until or 0.0) > first + 1)
    house.open("renewed")
    house.assert_ran(result, State.COMPLETED, "renewed", 1)
    house.assert_quiet()


@provokes(logs=["onejob-heartbeat failed, and goes on: as the test requested"], because="the store refuses it")
def test_a_heartbeat_outlives_its_errors(house: House) -> None:
    """A heartbeat continues after errors of the store, which it tells when they are over, and the run keeps its job."""
    house.worker("-c", "1", hook="renew-fails", onejob_heartbeat=0.2)
    result = house.begin("errors")
    first = house.job(result).lease_until or 0.0
    house.workers[0].await_text("onejob-heartbeat failed, and goes on")
    house.workers[0].await_text("onejob-heartbeat works again, after")
    await_(lambda: (house.job(result).lease_until or 0.0) > first)
    house.open("errors")
    assert result.get(PATIENCE) == "errors"
    assert house.assert_ran(result, State.COMPLETED, "errors", 1).crashes == 0
    house.assert_quiet()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_waits_for_the_end_of_a_tick() -> None:
    """No child is forked while a thread of the worker holds a lock of a library, which the child could never take."""
    lock, took = threading.Lock(), threading.Event()

    def tick() -> None:
        with lock:
            took.set()
            time.sleep(0.02)

    loop = Loop("test", 0.0, tick)
    loop.start()
    try:
        for _ in range(20):
            took.clear()
            took.wait(PATIENCE)
            child = os.fork()
            if not child:
                os._exit(0 if lock.acquire(timeout=1.0) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        loop.stop()


# --- a late worker is powerless ---------------------------------------------------------------------------------------


OTHERS = ("postgresql-prefork", "redis-prefork", "sqlite-threads")
WALK = ["one", "two", "three"]
ENDED = ("result", "failure", "retry", "replaced", "steps")
"""The jobs that another worker has ended when the late one goes on."""


@pytest.mark.parametrize("kind", ["sqlite-prefork", *(pytest.param(kind, marks=pytest.mark.deep) for kind in OTHERS)])
@provokes(Transition.CRASH, logs=[KILLED], because="the worker is frozen for longer than its lease")
def test_a_late_worker_changes_nothing(new_house: Callable[[str], House], kind: str) -> None:
    """A run that was overtaken cannot end, retry, replace or go on with its job, takes no step, and frees nothing."""
    store, _, pool = kind.partition("-")
    house = new_house(store)
    house.use_lease(2 * LEASE)
    late, play = house.worker("--pool", pool, "-c", "10"), house.play.delay
    results = {
        "result": play("result", ["hold:late>return:late", "return:in time"]),
        "failure": play("failure", ["hold:late>raise:late", "return:in time"]),
        "retry": play("retry", ["hold:late>retry", "return:in time", "return:a third run"]),
        "replaced": play("replaced", ["hold:late>replace:anywhere,note", "return:in time"], ["late part"]),
        "progress": play("progress", ["hold:late>progress", "progress:second"]),
        "held": play("held", ["hold:late held", "hold:second"]),
        "steps": house.walk.delay("steps", WALK, {"two": "hold:late"}),
    }
    first = {key: house.await_mark(key)[0]["pid"] for key in results}
    house.await_mark("steps", "before two")
    house.worker("--pool", pool, "-c", "10")
    late.freeze()
    for key in results:
        house.await_mark(key, times=2)
    house.await_mark("progress", "half")
    for key in ENDED:
        results[key].get(PATIENCE)
    before = {key: replace(house.job(result), lease_until=None, wake_at=None) for key, result in results.items()}
    for gate in ("late", *(["late held"] if pool == "threads" else [])):
        house.open(gate)
    late.thaw()

    def is_over(key: str) -> bool:
        """Return whether the late run of a job has been refused, or ended with its process."""
        return f"[{results[key].id}] ignored" in late.text or (pool == "prefork" and not is_running(first[key]))

    for key, result in results.items():
        await_(partial(is_over, key))  # the heartbeat ends the child of a job that runs elsewhere
        assert replace(house.job(result), lease_until=None, wake_at=None) == before[key]
        assert house.runs(key) == before[key].attempt == 2
    assert {before[key].state for key in ENDED} == {State.COMPLETED}
    assert house.play.AsyncResult(results["result"].id).get(PATIENCE) == "in time"
    assert [job for job in house.jobs() if job.task in {"anywhere", "note"}] == []
    await_(lambda: house.queued_messages() == 0)
    assert house.marks("late part", None) == []
    assert [len(house.marks("steps", f"step {name}")) for name in WALK] == [1, 1, 1]
    assert (len(house.marks("progress", "half")), late.alive) == (1, True)
    again = play("held", ["return"])
    assert (again.id, again.outcome) == (results["held"].id, Outcome.ATTACHED)
    house.open("second")
    house.assert_quiet()


# --- messages that the broker delivers again --------------------------------------------------------------------------


@on_every_store("house")
def test_a_redelivered_message_starts_no_second_run(house: House) -> None:
    """Jobs that run longer than the broker's visibility timeout run once, on any number of workers of any pool."""
    house.redeliver_after(1)
    for pool in ("prefork", "threads"):
        house.worker("--pool", pool, "-c", "4")
    keys = [f"outlasts-{number}" for number in range(4)]
    results = [house.play_late.delay(key, ["hold:all"]) for key in keys]
    for result in results:
        await_(lambda: house.ledger.duplicates(result.id))  # noqa: B023 - the ledger has refused a copy
    house.open("all")
    assert [result.get(PATIENCE) for result in results] == keys
    for key, result in zip(keys, results, strict=True):
        (duplicate, *_) = house.ledger.duplicates(result.id)
        assert (duplicate.source, duplicate.outcome) == ("redelivery", Outcome.REJECTED)
        job = house.job(result)
        assert (job.state, job.attempt, job.duplicate_count, house.runs(key)) == (State.COMPLETED, 1, 0, 1)
    house.assert_free(keys[0], "play_late")
    house.assert_quiet()


def test_no_wait_is_redelivered(house: House) -> None:
    """Beyond the visibility timeout a job or a retry waits in the ledger, and a message in Celery: each runs once."""
    house.redeliver_after(1)
    house.two_workers("-c", "2")
    retried = house.play_late.delay("retried", ["retry:3", "return"])
    await_(lambda: Transition.RETRY in house.events(retried))
    far = house.play.apply_async(("far", ["return"]), countdown=3)
    await_(lambda: not house.queued_messages())
    foreign = house.app.send_task("play", ("foreign", ["return"]), countdown=4).id  # which Celery holds
    await_(lambda: sum(worker.text.count(f"[{foreign}] received") for worker in house.workers) > 1)
    assert (far.get(PATIENCE), retried.get(PATIENCE)) == ("far", "retried")
    job = house.assert_ran(far, State.COMPLETED, "far", 1)
    assert (job.started_at or 0.0) >= job.run_at
    house.assert_ran(retried, State.COMPLETED, "retried", 2)
    assert house.play.AsyncResult(foreign).get(PATIENCE) == "foreign"
    house.assert_ran(house.play.AsyncResult(foreign), State.COMPLETED, "foreign", 1)
    house.assert_quiet()


def test_a_message_with_a_priority_of_any_kind_runs(house: House) -> None:
    """A worker survives whatever a producer has written as the priority of a message, and runs its job."""
    sent = [
        house.app.send_task("play", (str(priority), ["return"]), priority=priority).id
        for priority in ("high", [1], -3, 300)
    ]
    house.worker("-c", "1")
    ends = [house.play.AsyncResult(each).get(PATIENCE) for each in sent]
    assert ends == ["high", "[1]", "-3", "300"]
    house.assert_quiet()


@on_every_store("house")
@provokes(Transition.NOTIFY_CANVAS, logs=[KILLED], because="the child dies after the end of its job")
def test_a_canvas_continues_after_a_crash_before_its_dispatch(house: House) -> None:
    """A child that dies between a job's end in the ledger and its dispatch loses and repeats no link and no chord.

    The next sweep has the canvas notified; no lease has to end.
    """
    house.worker("-c", "2", hook="die-before-dispatch")
    result = (house.play.s("head", ["return"]) | house.note.s("onejob-tail") | house.plain.s("plain-tail")).delay()
    assert result.get(timeout=PATIENCE) == [["onejob-tail", "head"], "plain-tail"]
    house.await_rest()
    house.assert_free("head")
    (house.directory / "done-die-before-dispatch").unlink()
    header = [house.play.s("one", ["return"]), house.play.s("two", ["return"])]
    assert sorted(chord(header)(house.gather.s("chord")).get(timeout=PATIENCE)) == ["one", "two"]
    house.assert_quiet()
    assert [house.runs(key) for key in ("head", "onejob-tail", "one", "two")] == [2, 1, 1, 1]
    assert (len(house.marks("plain-tail", "plain")), len(house.marks("chord", "gather"))) == (1, 1)


@provokes(Transition.NOTIFY_CANVAS, logs=[KILLED], because="the child dies after the end of its job")
def test_a_chord_continues_after_the_claim_of_a_dead_worker(house: House) -> None:
    """A member that ends again, while a dead worker has claimed the call of the body, ends again after the claim."""
    backend: Any = house.app.backend
    if not hasattr(type(backend), "_chord_part_return_script"):
        pytest.skip("before Celery 5.7, no worker claims the call of a chord's body")
    house.use_lease(LEASE)
    has_died = house.directory / "done-die-before-dispatch"
    has_died.touch()
    house.worker("-c", "2", hook="die-before-dispatch")
    result: Any = chord([house.play.s("one", ["return"]), house.play.s("two", ["hold"])])(house.gather.s("chord"))
    one, two = result.parent.results
    await_(lambda: Transition.CANVAS_NOTIFIED in house.events(one))
    claim = backend.get_key_for_group(result.parent.id, ".c")
    backend.client.set(claim, "of a dead worker")
    has_died.unlink()
    house.open("two")
    await_(lambda: any("has claimed" in entry.detail for entry in house.ledger.history(two.id)))
    assert not house.marks("chord", "gather")
    backend.client.delete(claim)
    assert result.get(PATIENCE) == ["one", "two"]
    house.await_rest()
    assert len(house.marks("chord", "gather")) == 1


# --- jobs that wait for long ------------------------------------------------------------------------------------------


BACKLOG = 100
SHORT = 1.0
"""The lease of jobs that wait for longer, as short as the heartbeat of a house permits; a busy worker has `PATIENT`."""
PATIENT = {"onejob_lease": 2 * LEASE}
"""The settings of a worker whose heartbeat lasts for longer than a busy machine suspends it."""


def publications(house: House) -> int:
    """Return how often sweeps have published any job."""
    return sum(entry.event == Transition.PUBLISH for job in house.jobs() for entry in house.ledger.history(job.id))


def await_completed(house: House, results: Sequence[Any]) -> None:
    ids = [result.id for result in results]
    await_(lambda: all(job.state is State.COMPLETED for job in house.ledger.get_many(ids).values()))


@on_every_store("house")
def test_a_backlog_gets_no_copies(house: House) -> None:
    """Jobs that wait longer than their lease, without a worker and then behind each other, are sent and run once."""
    house.use_lease(SHORT)
    results = house.add.submit_many([(number,) for number in range(BACKLOG)])
    last = results[-1].job
    await_(lambda: house.ledger.read_clock() > last.created_at + 2 * last.lease)
    assert house.add.delay(BACKLOG - 1).id == last.id
    house.worker("-c", "1", **PATIENT)
    await_completed(house, results)
    assert publications(house) == 0
    assert {house.job(result).attempt for result in results} == {1}
    house.assert_quiet()


@on_every_store("house")
@provokes(Transition.PUBLISH, because="the broker loses the message")
def test_a_message_that_the_broker_lost_is_sent_again(house: House) -> None:
    """A job whose message was lost while it was in the queue is live, and runs, at its first attempt."""
    house.use_lease(SHORT)
    lost = house.play.delay("lost", ["return"])
    assert house.queued_messages() == 1
    house.broker.flushdb() if house.kind != "redis" else house.app.control.purge()
    assert house.play.delay("lost", ["return"]).id == lost.id
    house.worker("-c", "1")
    assert house.assert_ran(lost, State.COMPLETED, "lost", runs=1).attempt == 1


@provokes(Transition.CRASH, Transition.PUBLISH, because="the worker is killed")
@pytest.mark.parametrize("restarted", [False, True], ids=["another worker", "the same worker"])
def test_the_jobs_that_a_killed_worker_held_run_soon(house: House, *, restarted: bool) -> None:
    """Jobs in the memory of a killed worker are published when its heartbeat expires, however long they have waited."""
    house.use_lease(SHORT)
    house.config |= {"worker_prefetch_multiplier": 8}
    busy = house.worker("-c", "1", **PATIENT)
    house.begin("held", ["hold:never"], task="play_leased")
    waiting = [house.play.delay(f"waiting-{number}", ["return"]) for number in range(5)]
    await_(lambda: not house.queued_messages())
    first = waiting[0].job
    await_(lambda: house.ledger.read_clock() > first.created_at + 3 * SHORT)
    assert publications(house) == 0
    await_(lambda: len(house.ledger.workers()[0].reserved) == 1 + len(waiting))
    busy.sigkill()
    killed_at = house.ledger.read_clock()
    if restarted:
        house.workers.remove(busy)  # so that the next one has its name
    house.worker("-c", "1")
    await_completed(house, waiting)
    started = [house.job(result).started_at or 0.0 for result in waiting]
    assert min(started) > killed_at
    assert [house.runs(f"waiting-{number}") for number in range(5)] == [1] * 5


# --- workers that stop ------------------------------------------------------------------------------------------------


stops = provokes(Transition.RELEASE, logs=[KILLED], because="a worker stops")
TASKS = ("play", "play_late")


@pytest.mark.parametrize(
    ("house", "number"),
    [
        ("sqlite", signal.SIGTERM),
        pytest.param("postgresql", signal.SIGTERM, marks=pytest.mark.deep),
        pytest.param("redis", signal.SIGQUIT, marks=pytest.mark.deep),
    ],
    indirect=["house"],
)
@stops
def test_a_job_of_a_stopping_worker_runs_elsewhere(house: House, number: signal.Signals) -> None:
    """On a warm or cold shutdown running jobs are queued again at once and run on another worker; that is no crash."""
    stopping = house.worker("-c", "2")
    results = {task: getattr(house, task).delay(task, ["hold:never", "return"]) for task in TASKS}
    first = {task: house.await_mark(task)[0] for task in TASKS}
    other = house.worker("-c", "2")
    os.kill(stopping.pid, number)
    for task, result in results.items():
        second = house.await_mark(task, times=2)[1]
        assert house.worker_of(second) is other
        assert not is_running(first[task]["pid"])
        assert result.get(PATIENCE) == task
        job = house.assert_ran(result, State.COMPLETED, task, 2)
        assert (job.attempt, job.crashes, job.retries) == (2, 0, 0)
        assert "release" in house.events(result)
    stopping.await_end()
    house.assert_quiet()


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
@stops
def test_a_released_job_goes_on_after_its_last_step(house: House, pool: str) -> None:
    """The last worker queues its job, a run that it cannot kill at its next step; the next one goes on from there."""
    house.use_lease(2 * PATIENCE)
    worker = house.worker("--pool", pool, "-c", "1")
    result = house.walk.delay("leaves", ["one", "two"], {"two": "hold"})
    house.await_mark("leaves", "before two")
    worker.sigterm()
    worker.await_text("Warm shutdown")
    if pool != "prefork":
        house.open("leaves")
    worker.await_end()
    assert house.job(result).state is State.QUEUED
    house.open("leaves")
    house.worker("--pool", pool, "-c", "1")
    result.get(PATIENCE)
    assert [len(house.marks("leaves", f"step {name}")) for name in ("one", "two")] == [1, 1]
    job = house.job(result)
    assert (job.attempt, job.crashes) == (2, 0)
    assert len(house.events(result)) < 8
    house.assert_quiet()


def test_a_cold_shutdown_fails_no_run_of_the_solo_pool(house: House) -> None:
    """A run of the solo pool that is in no step completes during a cold shutdown, and then the worker ends."""
    worker = house.worker("--pool", "solo")
    result = house.begin("cold")
    os.kill(worker.pid, signal.SIGQUIT)
    begun = ("terminate all running tasks", "Cold shutdown")  # the second one: before Celery 5.5
    await_(lambda: any(text in worker.text for text in begun))
    house.open("cold")
    worker.await_end()
    job = house.job(result)
    assert (job.state, job.attempt, house.runs("cold")) == (State.COMPLETED, 1, 1)
    house.assert_quiet()


@stops
def test_a_run_that_ends_in_the_grace_completes(house: House) -> None:
    """With a grace, a run that ends within it completes, and the worker does not wait longer than that."""
    worker = house.worker("-c", "1", onejob_shutdown_grace=PATIENCE)
    result = house.begin("grace")
    worker.sigterm()
    worker.await_text("Warm shutdown")
    house.open("grace")
    worker.await_end()
    job = house.job(result)
    assert (job.state, job.attempt, house.runs("grace")) == (State.COMPLETED, 1, 1)
