"""A job survives the crash of its process: it runs again, up to the crash limit, and blocks no equal job."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError

from onejob import JobFailedError, Outcome, State
from tests.celery.harness import LEASE, PATIENCE, await_, is_running, on_every_store

if TYPE_CHECKING:
    from tests.celery.harness import House

REPEATING = ("play", "play_late", "play_stubborn")
"""Tasks that Celery itself would repeat after a crash in different ways: never, by the broker, by a retry."""


@on_every_store("shared")
def test_a_killed_child_costs_one_run(shared: House) -> None:
    """A job whose child is killed runs again at once, long before its lease expires."""
    result = shared.play.delay("killed", ["kill", "return"])
    assert result.get(PATIENCE) == "killed"
    job = shared.assert_ran(result, State.COMPLETED, "killed", 2)
    assert (job.attempt, job.crashes, job.retries) == (2, 1, 0)
    assert "its lease expired" not in str(shared.ledger.history(job.id))


@on_every_store("shared")
def test_a_poison_job_becomes_a_dead_letter(shared: House) -> None:
    """A job that kills its worker each time fails at the third crash, whatever Celery's own settings are."""
    results: dict[str, Any] = {task: shared.app.tasks[task].delay(f"poison-{task}", ["kill"]) for task in REPEATING}
    for task, result in results.items():
        with pytest.raises((WorkerLostError, JobFailedError)):
            result.get(PATIENCE)
        job = shared.job(result)
        assert (job.state, job.attempt, job.crashes) == (State.FAILED, 3, 3)
        assert "which is the limit" in job.reason
        assert [mark["job"] for mark in shared.marks(f"poison-{task}")].count(job.id) == 3
        shared.assert_free(f"poison-{task}", task)


def test_celery_does_not_repeat_what_the_ledger_repeats(shared: House) -> None:
    """Neither `reject_on_worker_lost` nor `retry_on_worker_lost` adds a run to the one that the ledger starts."""
    results: dict[str, Any] = {
        task: shared.app.tasks[task].delay(task, ["kill", "kill", "return"]) for task in REPEATING
    }
    for task, result in results.items():
        assert result.get(PATIENCE) == task
        job = shared.assert_ran(result, State.COMPLETED, task, 3)
        assert (job.crashes, job.retries) == (2, 0)


def test_a_body_that_leaves_its_process_is_lost_with_it(shared: House) -> None:
    """`SystemExit` or `KeyboardInterrupt` from a body counts as a crash, and the job runs again."""
    results = {act: shared.play.delay(act, [act, "return"]) for act in ("exit", "base")}
    for act, result in results.items():
        assert result.get(PATIENCE) == act
        assert shared.assert_ran(result, State.COMPLETED, act, 2).crashes == 1


@on_every_store("house")
def test_another_worker_takes_over(house: House) -> None:
    """When a whole worker is killed, another one runs its job as soon as the lease has expired, and not before."""
    house.use_lease(LEASE)
    house.two_workers()
    result = house.play.delay("takeover", ["hold:never", "return"])
    first = house.await_mark("takeover")[0]
    killed_at = time.monotonic()
    house.worker_of(first).sigkill()
    assert house.play.delay("takeover", ["return"]).outcome is Outcome.ATTACHED
    second = house.await_mark("takeover", times=2)[1]
    assert second["at"] - killed_at > LEASE - 1
    assert house.worker_of(second) is house.other_than(house.worker_of(first))
    assert result.get(PATIENCE) == "takeover"
    assert house.assert_ran(result, State.COMPLETED, "takeover", 2).crashes == 1
    house.assert_quiet()


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


def test_a_hard_time_limit_fails_the_job(shared: House) -> None:
    """A job beyond its hard time limit has failed after one run, and that run is dead before the identity is free."""
    result = shared.play_limited.delay("limited", ["hold:never"])
    mark = shared.await_mark("limited")[0]
    shared.await_state(result, State.FAILED)
    await_(lambda: not is_running(mark["pid"]))
    with pytest.raises(TimeLimitExceeded):
        result.get(PATIENCE)
    shared.assert_ran(result, State.FAILED, "limited", 1)


def test_a_soft_time_limit_fails_the_job(shared: House) -> None:
    """A job that does not catch the exception of the soft time limit fails with it after one run."""
    result = shared.play_soft.delay("soft", ["hold:never"])
    with pytest.raises(SoftTimeLimitExceeded):
        result.get(PATIENCE)
    shared.assert_ran(result, State.FAILED, "soft", 1)


def test_a_child_that_dies_before_its_claim_costs_no_attempt(house: House) -> None:
    """A child that dies between the message and the claim has started nothing: the job runs once, a lease later."""
    house.use_lease(LEASE)
    house.worker("-c", "2", hook="die-before-claim")
    result = house.play.delay("unclaimed", ["return"])
    assert result.get(PATIENCE) == "unclaimed"
    job = house.assert_ran(result, State.COMPLETED, "unclaimed", 1)
    assert (job.attempt, job.crashes) == (1, 0)
    house.assert_quiet()


def test_many_jobs_survive_many_crashes(shared: House) -> None:
    """Crashes of other jobs change nothing for a job: each of many runs exactly as often as it has to."""
    acts = {f"mixed-{n}": ["kill", "return"] if n % 3 == 0 else ["return"] for n in range(12)}
    results = {key: shared.play.delay(key, what) for key, what in acts.items()}
    assert {key: result.get(PATIENCE) for key, result in results.items()} == {key: key for key in acts}
    assert {key: shared.runs(key) for key in acts} == {key: len(what) for key, what in acts.items()}


@pytest.mark.deep
def test_a_child_that_is_recycled_is_no_crash(house: House) -> None:
    """Children that the pool replaces after each job lose no job."""
    house.worker("-c", "2", "--max-tasks-per-child", "1")
    keys = [f"recycled-{number}" for number in range(8)]
    results = [house.play.delay(key, ["return"]) for key in keys]
    assert [result.get(PATIENCE) for result in results] == keys
    assert {(house.job(result).attempt, house.job(result).crashes) for result in results} == {(1, 0)}
    assert [house.runs(key) for key in keys] == [1] * len(keys)
    house.assert_quiet()


@pytest.mark.parametrize(
    ("hook", "task", "acts"),
    [
        ("retry-fails", "play_auto", ["raise", "return:recorded"]),
        ("complete-fails", "play", ["return:recorded"]),
        ("fail-fails", "play", ["raise"]),
    ],
)
def test_the_end_of_a_run_is_recorded_when_the_store_is_back(
    house: House, hook: str, task: str, acts: list[str]
) -> None:
    """A run that ends while the store is briefly unavailable was not in vain: its end is recorded, and is no crash."""
    house.worker("-c", "1", hook=hook)
    result = getattr(house, task).delay("recorded", acts)
    failed = hook == "fail-fails"
    if failed:
        with pytest.raises(ValueError, match="recorded"):
            result.get(PATIENCE)
    else:
        assert result.get(PATIENCE) == "recorded"
    job = house.assert_ran(result, State.FAILED if failed else State.COMPLETED, "recorded", len(acts))
    assert (job.attempt, job.crashes) == (len(acts), 0)
    house.assert_quiet()


def test_a_run_that_cannot_reach_the_store_is_released(house: House) -> None:
    """A run whose progress could not be stored, as the store was away, runs again after a lease, without a crash."""
    house.use_lease(LEASE)
    house.worker("-c", "1", hook="report-fails")
    result = house.play.delay("unreached", ["progress", "return:reached"])
    assert result.get(PATIENCE) == "reached"
    job = house.assert_ran(result, State.COMPLETED, "unreached", 2)
    assert (job.attempt, job.crashes) == (2, 0)
    house.assert_quiet()
