"""Retries are transitions of the job: it stays one job, keeps its identity while it waits, and frees it at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import onejob
from onejob import Outcome, State
from onejob.celery.message import has_canvas, loads
from tests.celery.harness import LEASE, PATIENCE, await_, on_every_store

if TYPE_CHECKING:
    from tests.celery.harness import House


@on_every_store("shared")
def test_a_retry_runs_again_and_frees_the_identity(shared: House) -> None:
    """`raise self.retry()` runs the same job once more, and its identity is free at the end."""
    result = shared.play.delay("retry", ["retry:0.2", "return"])
    assert result.get(PATIENCE) == "retry"
    job = shared.assert_ran(result, State.COMPLETED, "retry", 2)
    assert {mark["job"] for mark in shared.marks("retry")[:2]} == {result.id}
    assert (job.attempt, job.retries, job.crashes) == (2, 1, 0)


@on_every_store("shared")
def test_autoretry_runs_out(shared: House) -> None:
    """`autoretry_for` with two retries runs three times, then the job has failed with the error of the body."""
    result = shared.play_auto.delay("auto", ["raise:always"])
    with pytest.raises(ValueError, match="always"):
        result.get(PATIENCE)
    job = shared.assert_ran(result, State.FAILED, "auto", 3)
    assert (job.attempt, job.retries, job.crashes) == (3, 2, 0)


def test_autoretry_can_succeed(shared: House) -> None:
    """A job that fails once under `autoretry_for` completes in its second attempt."""
    result = shared.play_auto.delay("auto-once", ["raise", "return"])
    assert result.get(PATIENCE) == "auto-once"
    shared.assert_ran(result, State.COMPLETED, "auto-once", 2)


def test_a_failure_is_final(shared: House) -> None:
    """A body that raises has failed for good, after one run."""
    result = shared.play.delay("raise", ["raise:no luck"])
    with pytest.raises(ValueError, match="no luck"):
        result.get(PATIENCE)
    job = shared.assert_ran(result, State.FAILED, "raise", 1)
    assert "no luck" in job.reason


@on_every_store("shared")
def test_an_equal_submission_is_attached_during_the_countdown(shared: House) -> None:
    """A job that waits for its retry is live: an equal submission attaches to it and starts no second one."""
    result = shared.play.delay("waits", ["retry:0.5", "hold:waits"])
    shared.await_state(result, State.RETRYING)
    again = shared.play.delay("waits", ["return:intruder"])
    assert (again.id, again.outcome) == (result.id, Outcome.ATTACHED)
    shared.await_mark("waits", times=2)
    late = shared.play.delay("waits", ["return:intruder"])
    assert (late.id, late.outcome) == (result.id, Outcome.ATTACHED)
    shared.open("waits")
    assert again.get(PATIENCE) == "waits"
    shared.assert_ran(result, State.COMPLETED, "waits", 2)


def test_a_waiting_retry_shows_its_error(shared: House) -> None:
    """A job that waits for its retry shows its state, its countdown and its error."""
    result = shared.play.delay("why", ["retry:1", "return"])
    job = shared.await_state(result, State.RETRYING, State.COMPLETED)
    assert "retry" in shared.events(result)
    details = [entry.detail for entry in shared.ledger.history(job.id) if entry.event == "retry"]
    assert "runs again in 1 s" in details[0]
    assert result.get(PATIENCE) == "why"


def test_retries_end_with_their_cause(shared: House) -> None:
    """A job whose own retries run out fails with the error that it gave to `retry`."""
    result = shared.play.delay("cause", ["retry_caught"])
    with pytest.raises(ValueError, match="the cause of cause"):
        result.get(PATIENCE)
    shared.assert_ran(result, State.FAILED, "cause", 2)


def test_a_retry_with_other_arguments_is_the_same_job(shared: House) -> None:
    """A retry may change the arguments; the job keeps the identity that it was submitted with."""
    result = shared.play.delay("other", ["retry_other:hold"])
    shared.await_mark("other", times=2)
    assert shared.play.delay("other", ["return"]).id == result.id
    shared.open("other")
    assert result.get(PATIENCE) == "other"
    shared.assert_ran(result, State.COMPLETED, "other", 2)


def test_a_retry_that_is_not_raised_still_counts(shared: House) -> None:
    """`retry(throw=False)` ends the run for the ledger: what the body returns then is refused, the next run decides."""
    result = shared.play.delay("unraised", ["retry_on", "return:second"])
    assert result.get(PATIENCE) == "second"
    shared.assert_ran(result, State.COMPLETED, "unraised", 2)


def test_a_rate_limit_delays_and_loses_nothing(shared: House) -> None:
    """Jobs of a task with a rate limit all run, each once, and release their identities."""
    keys = [f"rated-{number}" for number in range(6)]
    results = {key: [shared.play_rated.delay(key, ["return"]) for _ in range(2)] for key in keys}
    assert {key: [result.get(PATIENCE) for result in two] for key, two in results.items()} == {k: [k, k] for k in keys}
    # A job that ends between the two submissions is followed by a second one.
    assert {key: shared.runs(key) for key in keys} == {key: len({each.id for each in results[key]}) for key in keys}


def test_a_retry_survives_the_worker(house: House) -> None:
    """A job that waits for its retry is run by another worker when its own has died meanwhile."""
    house.use_lease(LEASE)
    worker = house.worker()
    result = house.play.delay("orphan", ["retry:1", "return"])
    house.await_state(result, State.RETRYING)
    worker.sigkill()
    house.worker()
    assert result.get(PATIENCE) == "orphan"
    house.assert_ran(result, State.COMPLETED, "orphan", 2)
    house.assert_quiet()


def test_a_retry_in_a_thread(house: House) -> None:
    """Retries are the same under the threads pool."""
    house.worker("--pool", "threads", "-c", "2")
    results = [house.play.delay(f"thread-{number}", ["retry:0.1", "retry", "return"]) for number in range(3)]
    for number, result in enumerate(results):
        assert result.get(PATIENCE) == f"thread-{number}"
        house.assert_ran(result, State.COMPLETED, f"thread-{number}", 3)
    house.await_rest()
    house.assert_quiet()


# --- permanent errors and dead letters ------------------------------------------------------------------------------


@on_every_store("shared")
@pytest.mark.parametrize(
    ("task", "act", "error"),
    [("play_greedy", "permanent", onejob.PermanentError), ("play_picky", "lookup", LookupError)],
)
def test_a_permanent_error_is_not_retried(shared: House, task: str, act: str, error: type[Exception]) -> None:
    """After a permanent error the job is a dead letter at once, whatever `autoretry_for` is, with its traceback."""
    result = getattr(shared, task).delay(f"{task}-{act}", [f"{act}:no use"])
    with pytest.raises(error, match="no use"):
        result.get(PATIENCE)
    job = shared.assert_ran(result, State.FAILED, f"{task}-{act}", 1)
    assert (job.retries, "no use" in job.reason, "act_raise" in str(result.traceback)) == (0, True, True)


def test_other_errors_are_retried(shared: House) -> None:
    """A task with permanent errors retries those that are not."""
    result = shared.play_picky.delay("picky", ["raise", "return"])
    assert result.get(PATIENCE) == "picky"
    shared.assert_ran(result, State.COMPLETED, "picky", 2)


def test_an_explicit_retry_after_a_permanent_error_is_none(shared: House) -> None:
    """`self.retry(exc=...)` with a permanent error raises it: the job fails."""
    result = shared.play_picky.delay("explicit", ["retry_caught:lookup"])
    with pytest.raises(LookupError):
        result.get(PATIENCE)
    shared.assert_ran(result, State.FAILED, "explicit", 1)


@on_every_store("shared")
def test_a_dead_letter_runs_again(shared: House) -> None:
    """A redriven dead letter is published by the sweeper and runs under its old id, and its canvas gets the new end."""
    result = (shared.play.s("again", ["raise:once", "return:second"]) | shared.echo.s()).apply_async()
    dead = shared.await_state(result.parent, State.FAILED)
    await_(lambda: not shared.job(result.parent).canvas_pending)
    shared.ledger.redrive(dead.id, canvas=has_canvas(loads(dead.options)))
    assert shared.await_state(result.parent, State.COMPLETED).id == dead.id
    assert shared.await_state(result, State.COMPLETED).result == '"second"'
    assert shared.runs("again") == 2
