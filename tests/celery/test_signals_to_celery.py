"""Celery's control exceptions (Retry, Ignore, Reject) in a body become the job's transitions in the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery.exceptions import Reject, TaskRevokedError
from celery.result import AsyncResult as CeleryResult

from onejob import JobFailedError, Outcome, State
from tests.celery.harness import PATIENCE, await_, on_every_store

if TYPE_CHECKING:
    from tests.celery.harness import House


@on_every_store("shared")
@pytest.mark.parametrize("task", ["play", "play_late"])
def test_ignore_ends_the_job(shared: House, task: str) -> None:
    """A body that raises `Ignore` has canceled its job after one run."""
    result = getattr(shared, task).delay(f"ignore-{task}", ["ignore"])
    job = shared.assert_ran(result, State.CANCELED, f"ignore-{task}", 1)
    assert "Ignore" in job.reason
    with pytest.raises(TaskRevokedError, match="Ignore"):
        result.get(PATIENCE)


@on_every_store("shared")
@pytest.mark.parametrize("task", ["play", "play_late"])
def test_reject_fails_the_job(shared: House, task: str) -> None:
    """A body that rejects its message for good has failed its job after one run."""
    result = getattr(shared, task).delay(f"reject-{task}", ["reject"])
    shared.assert_ran(result, State.FAILED, f"reject-{task}", 1)
    with pytest.raises((Reject, JobFailedError), match="as the test requested"):
        result.get(PATIENCE)


@on_every_store("shared")
@pytest.mark.parametrize("task", ["play", "play_late"])
def test_requeue_runs_the_job_again(shared: House, task: str) -> None:
    """A body that rejects its message with `requeue=True` runs again, as the same job and exactly once more."""
    result = getattr(shared, task).delay(f"requeue-{task}", ["requeue", "return"])
    assert result.get(PATIENCE) == f"requeue-{task}"
    assert shared.assert_ran(result, State.COMPLETED, f"requeue-{task}", 2).crashes == 0


@on_every_store("shared")
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
    """A body that replaces itself by a plain Celery task passes on its id: the job's result is that task's result."""
    result = shared.play.delay("plainly", ["replace:plain"], ["by plain"])
    assert result.get(PATIENCE) == ["by plain"]
    assert CeleryResult(result.id, app=shared.app).get(timeout=PATIENCE) == ["by plain"]
    shared.assert_ran(result, State.COMPLETED, "plainly", 1)


def test_an_old_message_of_a_replaced_job_starts_nothing(house: House) -> None:
    """Copies of the message of a job that was replaced run neither the old body again nor the new one's arguments."""
    worker = house.worker("-c", "2")
    plainly = house.play.delay("old", ["replace:plain"], ["by plain"])
    assert plainly.get(PATIENCE) == ["by plain"]
    renamed = house.play.delay("renamed", ["replace_elsewhere:play_late"], ["new name", ["return"]])
    await_(lambda: "replace" in house.events(renamed))
    for result in (plainly, renamed):
        worker.await_text(f"play[{result.id}] ignored")
        house.app.send_task("play", ("any", ["return"]), task_id=result.id)
        worker.await_text(f"play[{result.id}] ignored", times=2)
    house.app.control.add_consumer("elsewhere")
    assert renamed.get(PATIENCE) == "new name"
    assert [house.runs(key) for key in ("old", "renamed", "any")] == [1, 1, 0]
    assert [mark["task"] for mark in house.marks("new name")] == ["play_late"]
    house.assert_quiet()


@pytest.mark.deep
def test_a_fast_replacement_is_not_lost(house: House) -> None:
    """A chain whose end arrives before the run of the replaced job has ended still runs, once."""
    house.worker("-c", "3", hook="releases-late")
    result = house.play.delay("slow", ["replace:anywhere,note"], ["fast"])
    await_(lambda: any(job.task == "anywhere" and job.state.final for job in house.ledger.find(house.everything())))
    house.open("release")
    assert result.get(PATIENCE) == ["fast", "fast"]
    assert (house.runs("slow"), house.runs("fast")) == (1, 2)
    house.assert_free("slow")
    house.assert_quiet()


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
