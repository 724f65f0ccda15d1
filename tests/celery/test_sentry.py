"""Sentry's integration for Celery reports onejob tasks as it does Celery's own: errors once, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from onejob import Outcome
from onejob.jobs.lifecycle import State
from tests.celery.app import SENTRY
from tests.celery.harness import PATIENCE, await_
from tests.celery.sentry import reports_in
from tests.tiers import deep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.celery.harness import House

OPTIONS = {"traces_sample_rate": 1.0}


@pytest.fixture
def reporting(request: pytest.FixtureRequest, new_house: Callable[..., House], tmp_path: Path) -> Iterator[House]:
    """Return a house whose workers report to Sentry, with a worker."""
    kind, options = getattr(request, "param", "sqlite"), OPTIONS
    house = new_house(tmp_path, kind, **{SENTRY: options})
    house.app.set_current()
    house.worker("-c", "1")  # runs report in their order
    yield house
    house.close()


def errors(house: House) -> list[dict[str, Any]]:
    """Return the errors that were reported so far."""
    return reports_in(house.directory, "event")


def messages(house: House) -> list[str]:
    """Return the messages of the exceptions that were reported so far."""
    return [error["exception"]["values"][-1]["value"] for error in errors(house)]


def end_of_runs(house: House, key: str) -> None:
    """Run one more job with an error, and wait for its report: earlier runs have reported what they report."""
    with pytest.raises(ValueError, match=key):
        house.play.delay(key, ["raise"]).get(PATIENCE)
    await_(lambda: key in messages(house))


def test_an_error_is_reported_once(reporting: House) -> None:
    """The error of a job's last attempt, and no retry, is one report, with task and job, without arguments."""
    result = reporting.play.delay("secret", ["raise:broken"])
    with pytest.raises(ValueError, match="broken"):
        result.get(PATIENCE)
    with pytest.raises(ValueError, match="the cause of r"):
        reporting.play.delay("r", ["retry_caught", "retry_caught"]).get(PATIENCE)
    end_of_runs(reporting, "last")
    assert messages(reporting) == ["broken", "the cause of r", "last"]
    error = errors(reporting)[0]
    raised = error["exception"]["values"][-1]
    assert (raised["type"], raised["value"], raised["mechanism"]["type"]) == ("ValueError", "broken", "celery")
    assert (error["transaction"], error["tags"]["celery_task_id"]) == ("play", result.id)
    job = error["extra"]["celery-job"]
    assert job["task_name"] == "play"
    assert "secret" not in str(job)
    assert reporting.job(result).state is State.FAILED


def test_what_is_no_error_is_not_reported(reporting: House) -> None:
    """Duplicates, followers, `Ignore`, a cancellation during a run and a redelivery are not reported."""
    first = reporting.play.delay("d", ["hold:d"])
    reporting.await_mark("d")
    assert reporting.play.delay("d", ["return"]).outcome is Outcome.ATTACHED
    follower = reporting.play.apply_async(("d", ["return"]), task_id="a-follower")
    reporting.app.send_task("play", ("d", ["return"]), task_id=first.id)
    reporting.open("d")
    first.get(PATIENCE)
    follower.get(PATIENCE)
    ignored = reporting.play.delay("i", ["ignore"])
    reporting.await_state(ignored, State.CANCELED)
    canceled = reporting.play.delay("c", ["poll:never"])
    reporting.await_mark("c")
    reporting.ledger.cancel(canceled.id)
    reporting.await_state(canceled, State.CANCELED)
    end_of_runs(reporting, "last")
    assert messages(reporting) == ["last"]


@deep
def test_a_shutdown_is_no_error(new_house: Callable[..., House], tmp_path: Path) -> None:
    """A run that its worker releases when it stops is not reported."""
    house = new_house(tmp_path, "sqlite", **{SENTRY: OPTIONS}, onejob_shutdown_grace=30)
    worker = house.worker("--pool", "threads", "-c", "2")
    result = house.play.delay("s", ["poll:never"])
    house.await_mark("s")
    worker.sigterm()
    worker.await_end()
    assert house.job(result).state is State.QUEUED
    assert "release" in house.events(result)
    assert errors(house) == []
    house.close()


def test_a_run_is_in_the_trace_of_its_submission(reporting: House) -> None:
    """A run continues the trace of the run that submitted its job, which has the identity that others compute."""
    reporting.play.delay("w", ["return"]).get(PATIENCE)  # after it, the worker's task is wrapped
    outer = reporting.play.delay("outer", ["submit:walk"], ["k", ["one"]])
    inside = reporting.await_state(outer.get(PATIENCE), State.COMPLETED)
    await_(lambda: len(reports_in(reporting.directory, "transaction")) >= 3)
    runs = {
        run["tags"]["celery_task_id"]: run["contexts"]["trace"]
        for run in reports_in(reporting.directory, "transaction")
    }
    assert runs[inside.id]["trace_id"] == runs[outer.id]["trace_id"]
    assert runs[inside.id]["parent_span_id"]
    assert runs[inside.id]["op"] == "queue.task.celery"
    outside = reporting.walk.delay("k", ["one"])
    assert reporting.await_state(outside, State.COMPLETED).identity == inside.identity
    assert outside.id != inside.id
