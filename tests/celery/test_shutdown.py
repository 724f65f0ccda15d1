"""A worker that stops releases its jobs: they run elsewhere at once, unharmed, and never in two places."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from onejob import State
from onejob.jobs.lifecycle import Transition
from tests.celery.harness import PATIENCE, is_running
from tests.quiet import KILLED, provokes

if TYPE_CHECKING:
    from tests.celery.harness import House

pytestmark = provokes(Transition.RELEASE, logs=[KILLED], because="a worker stops")
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


@pytest.mark.deep
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
