"""The worker's parent keeps leases alive; a worker that was frozen beyond its lease comes back powerless."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from onejob import Outcome, State
from tests.celery.harness import PATIENCE, await_, is_running, on_both_stores, pause_until

if TYPE_CHECKING:
    from tests.celery.harness import House, Worker

SHORT = {"onejob_lease": 1.0, "onejob_heartbeat": 0.2}


def use_short_lease(house: House) -> None:
    """Have jobs and workers of a house use a lease of one second."""
    house.config |= SHORT
    house.app.conf.update(SHORT)


@pytest.mark.parametrize(("pool", "act"), [("prefork", "hold"), ("prefork", "hog"), ("threads", "hold")])
def test_a_run_outlives_many_leases(house: House, pool: str, act: str) -> None:
    """A run goes on as long as it likes, even one that never lets go of the interpreter: its parent beats."""
    use_short_lease(house)
    house.worker("--pool", pool, "-c", "2")
    result = house.play.delay("long", [act])
    mark = house.await_mark("long")[0]
    pause_until(mark["at"] + 4)
    house.open("long")
    assert result.get(PATIENCE) == "long"
    job = house.assert_ran(result, State.COMPLETED, "long", 1)
    assert (job.attempt, job.crashes) == (1, 0)
    house.assert_quiet()


def test_a_heartbeat_outlives_its_errors(house: House) -> None:
    """A heartbeat that fails for a while goes on when it can, and the run keeps its job."""
    house.worker("-c", "1", hook="renew-fails")
    result = house.play.delay("errors", ["hold"])
    mark = house.await_mark("errors")[0]
    house.workers[0].await_text("onejob-heartbeat failed, and goes on", times=2)
    pause_until(mark["at"] + 4)
    house.open("errors")
    assert result.get(PATIENCE) == "errors"
    assert house.assert_ran(result, State.COMPLETED, "errors", 1).crashes == 0
    house.assert_quiet()


def freeze_until_taken_over(house: House, key: str, event: str = "run") -> Worker:
    """Freeze the worker in which a body made a mark, and wait until another one runs the body."""
    frozen = house.worker_of(house.await_mark(key, event)[0])
    frozen.freeze()
    house.await_mark(key, times=2)
    return frozen


@on_both_stores("house")
def test_a_late_worker_cannot_end_a_job(house: House) -> None:
    """When a frozen worker wakes up after another has completed its job, its own result is refused."""
    house.two_workers("-c", "2")
    result = house.play.delay("late", ["hold:never>return:late", "return:in time"])
    frozen = freeze_until_taken_over(house, "late")
    assert result.get(PATIENCE) == "in time"
    before = house.job(result)
    house.open("never")
    frozen.thaw()
    frozen.await_text("refused the write of token")
    assert house.job(result) == before
    assert house.play.AsyncResult(result.id).get(PATIENCE) == "in time"
    house.assert_ran(result, State.COMPLETED, "late", 2)
    house.assert_quiet()


@on_both_stores("house")
def test_a_late_worker_frees_nothing(house: House) -> None:
    """When a frozen worker wakes up while another runs its job, its child is ended, and the identity stays held."""
    house.two_workers("-c", "2")
    result = house.play.delay("held", ["hold:never", "hold:second"])
    frozen = freeze_until_taken_over(house, "held")
    first = house.marks("held")[0]
    frozen.thaw()
    await_(lambda: not is_running(first["pid"]))
    again = house.play.delay("held", ["return"])
    assert (again.id, again.outcome) == (result.id, Outcome.ATTACHED)
    house.open("second")
    assert result.get(PATIENCE) == "held"
    house.assert_ran(result, State.COMPLETED, "held", 2)
    house.assert_quiet()


def test_a_late_run_cannot_retry(house: House) -> None:
    """A run that was overtaken cannot send its job into a retry."""
    house.two_workers("-c", "2")
    result = house.play.delay("retries", ["hold:never>retry", "return:in time", "return:retried"])
    frozen = freeze_until_taken_over(house, "retries")
    assert result.get(PATIENCE) == "in time"
    house.open("never")
    frozen.thaw()
    frozen.await_text("ignored")
    house.assert_ran(result, State.COMPLETED, "retries", 2)
    house.assert_quiet()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_late_step_is_not_taken(house: House, pool: str) -> None:
    """A run that was overtaken stops at its next step: it does not compute it, and keeps nothing."""
    house.two_workers("--pool", pool, "-c", "2")
    result = house.walk.delay("steps", ["one", "two", "three"], {"two": "hold:never"})
    frozen = freeze_until_taken_over(house, "steps", "before two")
    values = result.get(PATIENCE)
    house.open("never")
    frozen.thaw()
    frozen.await_text("ignored")
    assert [len(house.marks("steps", f"step {name}")) for name in ("one", "two", "three")] == [1, 1, 1]
    assert result.get(PATIENCE) == values
    house.assert_quiet()


def test_late_progress_is_refused(house: House) -> None:
    """A run that was overtaken tells no progress: it stops there."""
    house.two_workers("-c", "2")
    result = house.play.delay("progress", ["hold:never>progress", "progress:second"])
    frozen = freeze_until_taken_over(house, "progress")
    house.await_mark("progress", "half")
    told = house.job(result).progress
    house.open("never")
    house.open("progress")
    frozen.thaw()
    pause_until(time.monotonic() + 1)
    assert house.job(result).progress == told
    assert len(house.marks("progress", "half")) == 1
    house.open("second")
    assert result.get(PATIENCE) == "progress"
    house.assert_quiet()


def test_a_short_freeze_is_forgiven(house: House) -> None:
    """A worker that was frozen for less than its lease goes on with its jobs."""
    house.config["onejob_lease"] = house.app.conf.onejob_lease = 30.0
    worker = house.worker("-c", "1")
    result = house.play.delay("short", ["hold"])
    house.await_mark("short")
    worker.freeze()
    pause_until(time.monotonic() + 1)
    worker.thaw()
    house.open("short")
    assert result.get(PATIENCE) == "short"
    house.assert_ran(result, State.COMPLETED, "short", 1)
    house.assert_quiet()


def test_a_task_has_a_lease_of_its_own(shared: House) -> None:
    """A task's own lease wins over the app's."""
    result = shared.play_leased.delay("leased", ["return"])
    assert shared.job(result).lease == 30
    assert result.get(PATIENCE) == "leased"
