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
from onejob.concurrency.loops import Loop
from onejob.jobs.lifecycle import Transition
from tests.cases import further
from tests.celery.harness import LEASE, PATIENCE, Cluster, await_, is_running, on_every_store
from tests.quiet import KILLED, provokes


@on_every_store("cluster")
@provokes(Transition.CRASH, Transition.PUBLISH, because="the worker is killed")
def test_another_worker_takes_over(cluster: Cluster) -> None:
    """When a whole worker is killed, another one runs its job as soon as the lease has expired, and not before."""
    cluster.use_lease(LEASE)
    cluster.two_workers()
    result = cluster.play.delay("takeover", ["hold:never", "return"])
    first = cluster.await_mark("takeover")[0]
    cluster.worker_of(first).sigkill()
    lease_until = cluster.job(result).lease_until or 0.0
    assert cluster.play.delay("takeover", ["return"]).outcome is Outcome.ATTACHED
    second = cluster.await_mark("takeover", times=2)[1]
    assert [entry.at >= lease_until for entry in cluster.ledger.history(result.id) if entry.event == "crash"] == [True]
    assert cluster.worker_of(second) is cluster.other_than(cluster.worker_of(first))
    assert result.get(PATIENCE) == "takeover"
    assert cluster.assert_ran(result, State.COMPLETED, "takeover", 2).crashes == 1
    cluster.assert_quiet()


@provokes(Transition.PUBLISH, logs=[KILLED], because="the message dies with the child")
def test_a_child_that_dies_before_its_claim_costs_no_attempt(cluster: Cluster) -> None:
    """A child that dies between the message and the claim has started nothing: the job runs once, a lease later."""
    cluster.use_lease(LEASE)
    cluster.worker("-c", "2", hook="die-before-claim")
    result = cluster.play.delay("unclaimed", ["return"])
    assert result.get(PATIENCE) == "unclaimed"
    job = cluster.assert_ran(result, State.COMPLETED, "unclaimed", 1)
    assert (job.attempt, job.crashes) == (1, 0)
    cluster.assert_quiet()


@pytest.mark.deep
def test_a_child_that_is_recycled_is_no_crash(cluster: Cluster) -> None:
    """Children that the pool replaces after each job lose no job."""
    cluster.worker("-c", "2", "--max-tasks-per-child", "1")
    results = [cluster.play.delay(f"recycled-{number}", ["return"]) for number in range(8)]
    assert [result.get(PATIENCE) for result in results] == [f"recycled-{number}" for number in range(8)]
    assert {(cluster.job(result).attempt, cluster.job(result).crashes) for result in results} == {(1, 0)}
    cluster.assert_quiet()


# --- heartbeats -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["prefork", *further("threads")])
def test_a_lease_is_renewed_whatever_the_run_does(cluster: Cluster, pool: str) -> None:
    """The lease of a run is renewed; under prefork even if the run never releases the GIL."""
    cluster.worker("--pool", pool, "-c", "1", test_heartbeat=0.2)
    result = cluster.begin("renewed", ["hog" if pool == "prefork" else "hold"])
    first = cluster.job(result).lease_until or 0.0
    await_(lambda: (cluster.job(result).lease_until or 0.0) > first + 1)
    cluster.open("renewed")
    cluster.assert_ran(result, State.COMPLETED, "renewed", 1)
    cluster.assert_quiet()


@provokes(logs=["onejob-heartbeat failed, and goes on: as the test requested"], because="the store refuses it")
def test_a_heartbeat_outlives_its_errors(cluster: Cluster) -> None:
    """A heartbeat continues after errors of the store, which it tells when they are over, and the run keeps its job."""
    cluster.worker("-c", "1", hook="renew-fails", test_heartbeat=0.2)
    result = cluster.begin("errors")
    first = cluster.job(result).lease_until or 0.0
    cluster.workers[0].await_text("onejob-heartbeat failed, and goes on")
    cluster.workers[0].await_text("onejob-heartbeat works again, after")
    await_(lambda: (cluster.job(result).lease_until or 0.0) > first)
    cluster.open("errors")
    assert result.get(PATIENCE) == "errors"
    assert cluster.assert_ran(result, State.COMPLETED, "errors", 1).crashes == 0
    cluster.assert_quiet()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_waits_for_the_end_of_a_tick() -> None:
    """No child is forked while a thread of the worker holds a lock of a library, which the child could never take."""
    lock, took = threading.Lock(), threading.Event()

    def tick() -> None:
        with lock:
            took.set()
            time.sleep(0.02)

    loop = Loop("test", 0.02, tick)  # a lock that is taken again at once would starve the fork on a busy machine
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
STEPS = ["one", "two", "three"]
ENDED = ("result", "failure", "retry", "replaced", "steps")
"""The jobs that another worker has ended when the late one goes on."""


@pytest.mark.parametrize("kind", ["sqlite-prefork", *(pytest.param(kind, marks=pytest.mark.deep) for kind in OTHERS)])
@provokes(Transition.CRASH, logs=[KILLED], because="the worker is frozen for longer than its lease")
def test_a_late_worker_changes_nothing(new_cluster: Callable[[str], Cluster], kind: str) -> None:
    """A run that was overtaken cannot end, retry, replace or go on with its job, takes no step, and frees nothing."""
    store, _, pool = kind.partition("-")
    cluster = new_cluster(store)
    cluster.use_lease(2 * LEASE)
    late, play = cluster.worker("--pool", pool, "-c", "10"), cluster.play.delay
    results = {
        "result": play("result", ["hold:late>return:late", "return:in time"]),
        "failure": play("failure", ["hold:late>raise:late", "return:in time"]),
        "retry": play("retry", ["hold:late>retry", "return:in time", "return:a third run"]),
        "replaced": play("replaced", ["hold:late>replace:anywhere,note", "return:in time"], ["late part"]),
        "progress": play("progress", ["hold:late>progress", "progress:second"]),
        "held": play("held", ["hold:late held", "hold:second"]),
        "steps": cluster.run_steps.delay("steps", STEPS, {"two": "hold:late"}),
    }
    first = {key: cluster.await_mark(key)[0]["pid"] for key in results}
    cluster.await_mark("steps", "before two")
    cluster.worker("--pool", pool, "-c", "10")
    late.freeze()
    for key in results:
        cluster.await_mark(key, times=2)
    cluster.await_mark("progress", "half")
    for key in ENDED:
        results[key].get(PATIENCE)
    before = {key: replace(cluster.job(result), lease_until=None, wake_at=None) for key, result in results.items()}
    for gate in ("late", *(["late held"] if pool == "threads" else [])):
        cluster.open(gate)
    late.thaw()

    def is_over(key: str) -> bool:
        """Return whether the late run of a job has been refused, or ended with its process."""
        return f"[{results[key].id}] ignored" in late.text or (pool == "prefork" and not is_running(first[key]))

    for key, result in results.items():
        await_(partial(is_over, key))  # the heartbeat ends the child of a job that runs elsewhere
        assert replace(cluster.job(result), lease_until=None, wake_at=None) == before[key]
        assert cluster.runs(key) == before[key].attempt == 2
    assert {before[key].state for key in ENDED} == {State.COMPLETED}
    assert cluster.play.AsyncResult(results["result"].id).get(PATIENCE) == "in time"
    assert [job for job in cluster.jobs() if job.task in {"anywhere", "note"}] == []
    await_(lambda: cluster.queued_messages() == 0)
    assert cluster.marks("late part", None) == []
    assert [len(cluster.marks("steps", f"step {name}")) for name in STEPS] == [1, 1, 1]
    assert len(cluster.marks("progress", "half")) == 1
    assert late.alive
    again = play("held", ["return"])
    assert (again.id, again.outcome) == (results["held"].id, Outcome.ATTACHED)
    cluster.open("second")
    cluster.assert_quiet()


# --- messages that the broker delivers again --------------------------------------------------------------------------


@on_every_store("cluster")
def test_a_redelivered_message_starts_no_second_run(cluster: Cluster) -> None:
    """Jobs that run longer than the broker's visibility timeout run once, on any number of workers of any pool."""
    cluster.redeliver_after(1)
    for pool in ("prefork", "threads"):
        cluster.worker("--pool", pool, "-c", "4")
    keys = [f"outlasts-{number}" for number in range(4)]
    results = [cluster.play_acks_late.delay(key, ["hold:all"]) for key in keys]
    for result in results:
        await_(lambda: cluster.ledger.duplicates(result.id))  # noqa: B023 - the ledger has refused a copy
    cluster.open("all")
    assert [result.get(PATIENCE) for result in results] == keys
    for key, result in zip(keys, results, strict=True):
        (duplicate, *_) = cluster.ledger.duplicates(result.id)
        assert (duplicate.source, duplicate.outcome) == ("redelivery", Outcome.REJECTED)
        job = cluster.job(result)
        assert (job.state, job.attempt, job.duplicate_count, cluster.runs(key)) == (State.COMPLETED, 1, 0, 1)
    cluster.assert_free(keys[0], "play_acks_late")
    cluster.assert_quiet()


def test_no_wait_is_redelivered(cluster: Cluster) -> None:
    """Beyond the visibility timeout a job or a retry waits in the ledger, and a message in Celery: each runs once."""
    cluster.redeliver_after(1)
    cluster.two_workers("-c", "2")
    retried = cluster.play_acks_late.delay("retried", ["retry:3", "return"])
    await_(lambda: Transition.RETRY in cluster.events(retried))
    far = cluster.play.apply_async(("far", ["return"]), countdown=3)
    await_(lambda: not cluster.queued_messages())
    foreign = cluster.app.send_task("play", ("foreign", ["return"]), countdown=10).id  # which Celery holds
    await_(lambda: sum(worker.text.count(f"[{foreign}] received") for worker in cluster.workers) > 1)
    assert (far.get(PATIENCE), retried.get(PATIENCE)) == ("far", "retried")
    job = cluster.assert_ran(far, State.COMPLETED, "far", 1)
    assert (job.started_at or 0.0) >= job.run_at
    cluster.assert_ran(retried, State.COMPLETED, "retried", 2)
    assert cluster.play.AsyncResult(foreign).get(PATIENCE) == "foreign"
    cluster.assert_ran(cluster.play.AsyncResult(foreign), State.COMPLETED, "foreign", 1)
    cluster.assert_quiet()


def test_a_message_with_a_priority_of_any_kind_runs(cluster: Cluster) -> None:
    """A worker survives whatever a producer has written as the priority of a message, and runs its job."""
    sent = [
        cluster.app.send_task("play", (str(priority), ["return"]), priority=priority).id
        for priority in ("high", [1], -3, 300)
    ]
    cluster.worker("-c", "1")
    ends = [cluster.play.AsyncResult(each).get(PATIENCE) for each in sent]
    assert ends == ["high", "[1]", "-3", "300"]
    cluster.assert_quiet()


@on_every_store("cluster")
@provokes(Transition.NOTIFY_CANVAS, logs=[KILLED], because="the child dies after the end of its job")
def test_a_canvas_continues_after_a_crash_before_its_dispatch(cluster: Cluster) -> None:
    """A child that dies between a job's end in the ledger and its dispatch loses and repeats no link and no chord.

    The next sweep has the canvas notified; no lease has to end.
    """
    cluster.worker("-c", "2", hook="die-before-dispatch")
    result = (
        cluster.play.s("head", ["return"]) | cluster.note.s("onejob-tail") | cluster.plain.s("plain-tail")
    ).delay()
    assert result.get(timeout=PATIENCE) == [["onejob-tail", "head"], "plain-tail"]
    cluster.await_rest()
    cluster.assert_free("head")
    body: Any = chord([cluster.play.s("one", ["return"]), cluster.play.s("two", ["hold"])])(cluster.gather.s("chord"))
    # Of two members that end at once, one may find that the other has claimed the call of the body, for a lease.
    cluster.await_settled(cluster.await_state(body.parent.results[0], State.COMPLETED))
    (cluster.directory / "done-die-before-dispatch").unlink()
    cluster.open("two")
    assert sorted(body.get(timeout=PATIENCE)) == ["one", "two"]
    cluster.assert_quiet()
    assert [cluster.runs(key) for key in ("head", "onejob-tail", "one", "two")] == [2, 1, 1, 1]
    assert (len(cluster.marks("plain-tail", "plain")), len(cluster.marks("chord", "gather"))) == (1, 1)


@provokes(Transition.NOTIFY_CANVAS, logs=[KILLED], because="the child dies after the end of its job")
def test_a_chord_continues_after_the_claim_of_a_dead_worker(cluster: Cluster) -> None:
    """A member that ends again, while a dead worker has claimed the call of the body, ends again after the claim."""
    backend: Any = cluster.app.backend
    if not hasattr(type(backend), "_chord_part_return_script"):
        pytest.skip("before Celery 5.7, no worker claims the call of a chord's body")
    cluster.use_lease(LEASE)
    has_died = cluster.directory / "done-die-before-dispatch"
    has_died.touch()
    cluster.worker("-c", "2", hook="die-before-dispatch")
    result: Any = chord([cluster.play.s("one", ["return"]), cluster.play.s("two", ["hold"])])(cluster.gather.s("chord"))
    one, two = result.parent.results
    await_(lambda: Transition.CANVAS_NOTIFIED in cluster.events(one))
    claim = backend.get_key_for_group(result.parent.id, ".c")
    backend.client.set(claim, "of a dead worker")
    has_died.unlink()
    cluster.open("two")
    await_(lambda: any("has claimed" in entry.detail for entry in cluster.ledger.history(two.id)))
    assert not cluster.marks("chord", "gather")
    backend.client.delete(claim)
    assert result.get(PATIENCE) == ["one", "two"]
    cluster.await_rest()
    assert len(cluster.marks("chord", "gather")) == 1


# --- jobs that wait for long ------------------------------------------------------------------------------------------


BACKLOG = 100
SHORT = 1.0
"""The lease of jobs that wait for longer, as short as a cluster's heartbeat permits; a busy worker has `PATIENT`."""
PATIENT = {"onejob_lease": 2 * LEASE}
"""The settings of a worker whose heartbeat lasts for longer than a busy machine suspends it."""


def publications(cluster: Cluster) -> int:
    """Return how often sweeps have published any job."""
    return sum(entry.event == Transition.PUBLISH for job in cluster.jobs() for entry in cluster.ledger.history(job.id))


def await_completed(cluster: Cluster, results: Sequence[Any]) -> None:
    ids = [result.id for result in results]
    await_(lambda: all(job.state is State.COMPLETED for job in cluster.ledger.get_many(ids).values()))


@on_every_store("cluster")
def test_a_backlog_gets_no_copies(cluster: Cluster) -> None:
    """Jobs that wait longer than their lease, without a worker and then behind each other, are sent and run once."""
    cluster.use_lease(SHORT)
    results = cluster.add.submit_many([(number,) for number in range(BACKLOG)])
    last = cluster.job(results[-1])
    await_(lambda: cluster.ledger.read_clock() > last.created_at + 2 * last.lease)
    assert cluster.add.delay(BACKLOG - 1).id == last.id
    cluster.worker("-c", "1", **PATIENT)
    await_completed(cluster, results)
    assert publications(cluster) == 0
    assert {cluster.job(result).attempt for result in results} == {1}
    cluster.assert_quiet()


@on_every_store("cluster")
@provokes(Transition.PUBLISH, because="the broker loses the message")
def test_a_message_that_the_broker_lost_is_sent_again(cluster: Cluster) -> None:
    """A job whose message was lost while it was in the queue is live, and runs, at its first attempt."""
    cluster.use_lease(SHORT)
    lost = cluster.play.delay("lost", ["return"])
    assert cluster.queued_messages() == 1
    cluster.broker.flushdb() if cluster.kind != "redis" else cluster.app.control.purge()
    assert cluster.play.delay("lost", ["return"]).id == lost.id
    cluster.worker("-c", "1")
    assert cluster.assert_ran(lost, State.COMPLETED, "lost", runs=1).attempt == 1


@provokes(Transition.CRASH, Transition.PUBLISH, because="the worker is killed")
@pytest.mark.parametrize(
    "restarted",
    [pytest.param(False, id="another worker"), pytest.param(True, id="the same worker", marks=pytest.mark.deep)],
)
def test_the_jobs_that_a_killed_worker_held_run_soon(cluster: Cluster, *, restarted: bool) -> None:
    """Jobs in the memory of a killed worker are published when its heartbeat expires, however long they have waited."""
    cluster.use_lease(SHORT)
    cluster.config |= {"worker_prefetch_multiplier": 8}
    busy = cluster.worker("-c", "1", **PATIENT)
    cluster.begin("held", ["hold:never"], task="play_long_lease")
    waiting = [cluster.play.delay(f"waiting-{number}", ["return"]) for number in range(5)]
    await_(lambda: not cluster.queued_messages())
    first = cluster.job(waiting[0])
    await_(lambda: cluster.ledger.read_clock() > first.created_at + 3 * SHORT)
    assert publications(cluster) == 0
    await_(lambda: len(cluster.ledger.workers()[0].reserved) == 1 + len(waiting))
    busy.sigkill()
    killed_at = cluster.ledger.read_clock()
    if restarted:
        cluster.workers.remove(busy)  # so that the next one has its name
    cluster.worker("-c", "1")
    await_completed(cluster, waiting)
    started = [cluster.job(result).started_at or 0.0 for result in waiting]
    assert min(started) > killed_at
    assert [cluster.runs(f"waiting-{number}") for number in range(5)] == [1] * 5


# --- workers that stop ------------------------------------------------------------------------------------------------


stops = provokes(Transition.RELEASE, logs=[KILLED], because="a worker stops")
TASKS = ("play", "play_acks_late")


@pytest.mark.parametrize(
    ("cluster", "number"),
    [
        ("sqlite", signal.SIGTERM),
        pytest.param("postgresql", signal.SIGTERM, marks=pytest.mark.deep),
        pytest.param("redis", signal.SIGQUIT, marks=pytest.mark.deep),
    ],
    indirect=["cluster"],
)
@stops
def test_a_job_of_a_stopping_worker_runs_elsewhere(cluster: Cluster, number: signal.Signals) -> None:
    """On a warm or cold shutdown running jobs are queued again at once and run on another worker; that is no crash."""
    stopping = cluster.worker("-c", "2")
    results = {task: getattr(cluster, task).delay(task, ["hold:never", "return"]) for task in TASKS}
    first = {task: cluster.await_mark(task)[0] for task in TASKS}
    other = cluster.worker("-c", "2")
    os.kill(stopping.pid, number)
    for task, result in results.items():
        second = cluster.await_mark(task, times=2)[1]
        assert cluster.worker_of(second) is other
        assert not is_running(first[task]["pid"])
        assert result.get(PATIENCE) == task
        job = cluster.assert_ran(result, State.COMPLETED, task, 2)
        assert (job.attempt, job.crashes, job.retries) == (2, 0, 0)
        assert "release" in cluster.events(result)
    stopping.await_end()
    cluster.assert_quiet()


@pytest.mark.parametrize("pool", ["prefork", *further("threads", "solo")])
@stops
def test_a_released_job_goes_on_after_its_last_step(cluster: Cluster, pool: str) -> None:
    """The last worker queues its job, a run that it cannot kill at its next step; the next one goes on from there."""
    cluster.use_lease(2 * PATIENCE)
    worker = cluster.worker("--pool", pool, "-c", "1")
    result = cluster.run_steps.delay("leaves", ["one", "two"], {"two": "hold"})
    cluster.await_mark("leaves", "before two")
    worker.sigterm()
    worker.await_text("Warm shutdown")
    if pool != "prefork":
        cluster.open("leaves")
    worker.await_end()
    assert cluster.job(result).state is State.QUEUED
    cluster.open("leaves")
    cluster.worker("--pool", pool, "-c", "1")
    result.get(PATIENCE)
    assert [len(cluster.marks("leaves", f"step {name}")) for name in ("one", "two")] == [1, 1]
    job = cluster.job(result)
    assert (job.attempt, job.crashes) == (2, 0)
    assert len(cluster.events(result)) < 8
    cluster.assert_quiet()


def test_a_cold_shutdown_fails_no_run_of_the_solo_pool(cluster: Cluster) -> None:
    """A run of the solo pool that is in no step completes during a cold shutdown, and then the worker ends."""
    worker = cluster.worker("--pool", "solo")
    result = cluster.begin("cold")
    os.kill(worker.pid, signal.SIGQUIT)
    begun = ("terminate all running tasks", "Cold shutdown")  # the second one: before Celery 5.5
    await_(lambda: any(text in worker.text for text in begun))
    cluster.open("cold")
    worker.await_end()
    job = cluster.job(result)
    assert (job.state, job.attempt, cluster.runs("cold")) == (State.COMPLETED, 1, 1)
    cluster.assert_quiet()


@stops
def test_a_run_that_ends_in_the_grace_completes(cluster: Cluster) -> None:
    """With a grace, a run that ends within it completes, and the worker does not wait longer than that."""
    worker = cluster.worker("-c", "1", onejob_shutdown_grace=PATIENCE)
    result = cluster.begin("grace")
    worker.sigterm()
    worker.await_text("Warm shutdown")
    cluster.open("grace")
    worker.await_end()
    job = cluster.job(result)
    assert (job.state, job.attempt, cluster.runs("grace")) == (State.COMPLETED, 1, 1)
