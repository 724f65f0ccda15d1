"""A worker that stops releases its jobs: they run elsewhere at once, unharmed, and never in two places."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from onejob import State
from tests.celery.harness import PATIENCE, is_running, on_every_store

if TYPE_CHECKING:
    from tests.celery.harness import House


@on_every_store("house")
@pytest.mark.parametrize("task", ["play", "play_late"])
def test_a_job_of_a_stopping_worker_runs_elsewhere(house: House, task: str) -> None:
    """On SIGTERM the running job is queued again at once and runs on another worker; that is no crash."""
    house.two_workers("-c", "1")
    result = getattr(house, task).delay("handed", ["hold:never", "return"])
    first = house.await_mark("handed")[0]
    stopping = house.worker_of(first)
    stopping.sigterm()
    second = house.await_mark("handed", times=2)[1]
    assert house.worker_of(second) is house.other_than(stopping)
    assert not is_running(first["pid"])
    assert result.get(PATIENCE) == "handed"
    stopping.await_end()
    job = house.assert_ran(result, State.COMPLETED, "handed", 2)
    assert (job.attempt, job.crashes, job.retries) == (2, 0, 0)
    assert "release" in house.events(result)
    house.assert_quiet()


def test_a_job_waits_while_no_other_worker_is_up(house: House) -> None:
    """The job of the last worker is queued when that worker has ended, and runs when another one starts."""
    house.use_lease(2 * PATIENCE)
    worker = house.worker("-c", "1")
    result = house.walk.delay("last", ["one", "two"], {"two": "hold:never"})
    house.await_mark("last", "before two")
    worker.sigterm()
    worker.await_end()
    assert house.job(result).state is State.QUEUED
    house.worker("-c", "1")
    house.await_mark("last", times=2)
    assert len(house.events(result)) < 8
    result.get(PATIENCE)
    assert len(house.marks("last", "step one")) == 1
    assert house.job(result).crashes == 0
    house.assert_quiet()


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_a_job_without_a_process_of_its_own_is_released_at_its_next_step(house: House, pool: str) -> None:
    """If a run cannot be killed, a stopping worker runs it to its next step, and queues the job there."""
    worker = house.worker("--pool", pool)
    result = house.walk.delay("leaves", ["one", "two"], {"two": "hold"})
    house.await_mark("leaves", "before two")
    worker.sigterm()
    worker.await_text("Warm shutdown")
    house.open("leaves")
    worker.await_end()
    assert house.job(result).state is State.QUEUED
    house.worker("--pool", pool)
    result.get(PATIENCE)
    assert [len(house.marks("leaves", f"step {name}")) for name in ("one", "two")] == [1, 1]
    job = house.job(result)
    assert (job.attempt, job.crashes) == (2, 0)
    house.assert_quiet()


def test_a_run_that_ends_in_the_grace_completes(house: House) -> None:
    """With a grace, a run that ends within it completes, and the worker does not wait longer than that."""
    worker = house.worker("-c", "1", onejob_shutdown_grace=PATIENCE)
    result = house.play.delay("grace", ["hold"])
    house.await_mark("grace")
    worker.sigterm()
    worker.await_text("Warm shutdown")
    house.open("grace")
    worker.await_end()
    job = house.job(result)
    assert (job.state, job.attempt, house.runs("grace")) == (State.COMPLETED, 1, 1)


def test_a_cold_shutdown_releases_jobs(house: House) -> None:
    """A cold shutdown by SIGQUIT queues the running job again, too: it runs elsewhere."""
    house.two_workers("-c", "1")
    result = house.play.delay("hurry", ["hold:never", "return"])
    stopping = house.worker_of(house.await_mark("hurry")[0])
    os.kill(stopping.pid, signal.SIGQUIT)
    assert result.get(PATIENCE) == "hurry"
    stopping.await_end()
    assert house.assert_ran(result, State.COMPLETED, "hurry", 2).crashes == 0
    house.assert_quiet()


def test_prefetched_jobs_are_not_lost(house: House) -> None:
    """Jobs that a stopping worker has fetched and not begun run elsewhere, once each."""
    worker = house.worker("-c", "1", worker_prefetch_multiplier=8)
    first = house.play.delay("front", ["hold:never", "return"])
    house.await_mark("front")
    others = [house.play.delay(f"fetched-{number}", ["return"]) for number in range(5)]
    worker.await_text("received", times=6)
    worker.sigterm()
    worker.await_end()
    house.worker()
    assert [result.get(PATIENCE) for result in [first, *others]] == ["front", *(f"fetched-{n}" for n in range(5))]
    assert [house.runs(f"fetched-{number}") for number in range(5)] == [1] * 5
    house.assert_quiet()


@pytest.mark.deep
@on_every_store("house")
def test_a_rolling_restart(house: House) -> None:
    """Jobs outlive a restart of every worker: no step is taken twice, no two runs overlap, an equal one attaches."""
    house.two_workers("-c", "4")  # each could run all: a worker reserves more than it runs
    names = [f"step-{number}" for number in range(10)]
    keys = [f"rolling-{number}" for number in range(4)]
    results = [house.walk.delay(key, names, {"step-5": "always hold:restarted"}) for key in keys]
    for key in keys:
        house.await_mark(key, "before step-5")
    for number in (0, 1):
        house.worker("-c", "4")
        house.workers[number].sigterm()
        house.workers[number].await_end()
        assert [house.walk.delay(key, names).id for key in keys] == [result.id for result in results]
    house.open("restarted")
    assert [len(result.get(PATIENCE)) for result in results] == [len(names)] * len(keys)
    for key, result in zip(keys, results, strict=True):
        assert [len(house.marks(key, f"step {name}")) for name in names] == [1] * len(names)
        job = house.job(result)
        assert (job.crashes, job.duplicate_count, house.runs(key)) == (0, 2, job.attempt)
    house.assert_quiet()
