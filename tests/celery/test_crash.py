"""A job survives the crash of its worker: its lease is renewed while it runs, and when that ends it runs elsewhere."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from onejob import Outcome, State
from onejob.celery.worker.heartbeat import Loop
from onejob.jobs.lifecycle import Transition
from tests.celery.harness import LEASE, PATIENCE, await_, on_every_store
from tests.quiet import KILLED, provokes

if TYPE_CHECKING:
    from tests.celery.harness import House


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


@provokes(Transition.CRASH, Transition.PUBLISH, because="the worker is killed")
def test_a_killed_solo_worker_loses_nothing(house: House) -> None:
    """A job that kills the only process of a worker is run by the next worker that starts."""
    house.use_lease(LEASE)
    house.redeliver_after(1)
    worker = house.worker("--pool", "solo")
    result = house.play.delay("solo", ["kill", "return"])
    worker.await_end()
    house.worker("--pool", "solo")
    assert result.get(PATIENCE) == "solo"
    assert house.assert_ran(result, State.COMPLETED, "solo", 2).crashes == 1
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
    result = house.play.delay("renewed", ["hog" if pool == "prefork" else "hold"])
    house.await_mark("renewed")
    first = house.job(result).lease_until or 0.0
    await_(lambda: (house.job(result).lease_until or 0.0) > first + 1)
    house.open("renewed")
    house.assert_ran(result, State.COMPLETED, "renewed", 1)
    house.assert_quiet()


@provokes(logs=["onejob-heartbeat failed, and goes on: as the test requested"], because="the store refuses it")
def test_a_heartbeat_outlives_its_errors(house: House) -> None:
    """A heartbeat continues after errors of the store, and the run keeps its job."""
    house.worker("-c", "1", hook="renew-fails", onejob_heartbeat=0.2)
    result = house.play.delay("errors", ["hold"])
    house.await_mark("errors")
    first = house.job(result).lease_until or 0.0
    house.workers[0].await_text("onejob-heartbeat failed, and goes on", times=2)
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
