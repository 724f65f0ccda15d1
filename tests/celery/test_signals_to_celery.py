"""What a body may ask of Celery by an exception is the job's transition in the ledger, and leaks nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery.exceptions import Reject, TaskRevokedError
from celery.result import AsyncResult as CeleryResult

from onejob import JobFailedError, JobNotFoundError, Outcome, State
from tests.celery.harness import PATIENCE, await_, on_both_stores

if TYPE_CHECKING:
    from tests.celery.harness import House


@on_both_stores("shared")
@pytest.mark.parametrize("task", ["play", "play_late"])
def test_ignore_ends_the_job(shared: House, task: str) -> None:
    """A body that raises `Ignore` has canceled its job after one run."""
    result = getattr(shared, task).delay(f"ignore-{task}", ["ignore"])
    job = shared.assert_ran(result, State.CANCELED, f"ignore-{task}", 1)
    assert "Ignore" in job.reason
    with pytest.raises(TaskRevokedError, match="Ignore"):
        result.get(PATIENCE)


@on_both_stores("shared")
@pytest.mark.parametrize("task", ["play", "play_late"])
def test_reject_fails_the_job(shared: House, task: str) -> None:
    """A body that rejects its message for good has failed its job after one run."""
    result = getattr(shared, task).delay(f"reject-{task}", ["reject"])
    shared.assert_ran(result, State.FAILED, f"reject-{task}", 1)
    with pytest.raises((Reject, JobFailedError), match="as the test asked"):
        result.get(PATIENCE)


@on_both_stores("shared")
@pytest.mark.parametrize("task", ["play", "play_late"])
def test_requeue_runs_the_job_again(shared: House, task: str) -> None:
    """A body that rejects its message with `requeue=True` runs again, as the same job and exactly once more."""
    result = getattr(shared, task).delay(f"requeue-{task}", ["requeue", "return"])
    assert result.get(PATIENCE) == f"requeue-{task}"
    assert shared.assert_ran(result, State.COMPLETED, f"requeue-{task}", 2).crashes == 0


@on_both_stores("shared")
def test_a_replacement_takes_the_jobs_place(shared: House) -> None:
    """A body that replaces itself by a onejob task gives it the job: its id, its identity and its end."""
    result = shared.play.delay("replaced", ["replace:play"], ["by", ["hold"]])
    shared.await_mark("by")
    assert shared.play.delay("replaced", ["return"]).outcome is Outcome.ATTACHED
    shared.open("by")
    assert result.get(PATIENCE) == "by"
    shared.assert_ran(result, State.COMPLETED, "replaced", 1)
    assert [mark["job"] for mark in shared.marks("by")] == [result.id]


def test_a_plain_replacement_takes_the_id(shared: House) -> None:
    """A body that replaces itself by a plain Celery task gives it the id: the job is gone, the result is the task's."""
    result = shared.play.delay("plainly", ["replace:plain"], ["by plain"])
    shared.await_mark("by plain", "plain")
    await_(lambda: shared.ledger.store.get(result.id) is None)
    with pytest.raises(JobNotFoundError):
        shared.job(result)
    assert CeleryResult(result.id, app=shared.app).get(timeout=PATIENCE) == ["by plain"]
    assert result.get(PATIENCE) == ["by plain"]
    assert shared.runs("plainly") == 1
    shared.assert_free("plainly")


def test_a_chain_as_replacement_ends_under_the_id(shared: House) -> None:
    """A body that replaces itself by a chain of onejob tasks ends, under its own id, as the last of them does."""
    result = shared.play.delay("chained", ["replace:anywhere,note"], ["link"])
    assert result.get(PATIENCE) == ["link", "link"]
    assert [mark["job"] for mark in shared.marks("link") if "value" in mark] == [result.id]
    assert len(shared.marks("link")) == 2
    assert shared.runs("chained") == 1
    shared.assert_free("chained")


def test_arguments_that_a_body_spoils_stay_the_jobs_identity(shared: House) -> None:
    """A body that changes its arguments in place frees the identity that its job was submitted with."""
    result = shared.play.delay("mutates", ["mutate"], {"a": 1})
    assert result.get(PATIENCE) == {"a": 1, "spoiled": True}
    shared.assert_ran(result, State.COMPLETED, "mutates", 1)
    whole = shared.echo.delay({"a": [1]})
    assert whole.get(PATIENCE) == {"a": [1]}
    assert shared.echo.delay({"a": [1]}).outcome is Outcome.ADMITTED


def test_a_retry_of_a_job_that_spoiled_its_arguments_is_the_same_job(shared: House) -> None:
    """A body that changes its arguments in place and retries stays one job with one identity."""
    result = shared.play.delay("spoils", ["mutate_and_retry", "hold>return"], {"a": 1})
    shared.await_mark("spoils", times=2)
    assert shared.play.delay("spoils", ["return"], {"a": 1}).id == result.id
    shared.open("spoils")
    assert result.get(PATIENCE)["a"] == 1
    shared.assert_ran(result, State.COMPLETED, "spoils", 2)


def test_a_job_submits_a_job(shared: House) -> None:
    """A body may submit jobs: another one is admitted, one that equals the running job attaches to it."""
    inner = shared.play.delay("outer", ["submit:anywhere"], ["inner"])
    assert shared.ledger.get(inner.get(PATIENCE)).task == "anywhere"
    shared.await_mark("inner")
    itself = shared.play.delay("itself", ["submit:play"], ["itself", ["return"]])
    assert itself.get(PATIENCE) == itself.id
    assert shared.marks("itself", "submitted")[0]["outcome"] == Outcome.ATTACHED
    shared.assert_ran(itself, State.COMPLETED, "itself", 1)
