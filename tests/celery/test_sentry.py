"""Sentry's integration for Celery reports onejob tasks as it does Celery's own: errors once, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob import Outcome
from onejob.jobs.lifecycle import State, Transition
from tests.celery.app import SENTRY
from tests.celery.harness import PATIENCE, await_
from tests.celery.reports import reports_in
from tests.quiet import provokes
from tests.tiers import deep

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.celery.harness import House

OPTIONS = {"traces_sample_rate": 1.0}


@pytest.fixture
def reporting(new_house: Callable[..., House], tmp_path: Path) -> House:
    """Return a house whose worker reports to Sentry."""
    house = new_house(tmp_path, "sqlite", **{SENTRY: OPTIONS})
    house.app.set_current()
    house.worker("-c", "1")  # runs report in their order
    return house


def messages(house: House) -> list[str]:
    """Return the messages of the exceptions that were reported so far."""
    return [error["exception"]["values"][-1]["value"] for error in reports_in(house.directory, "event")]


def test_errors_are_reported_once_and_nothing_else(reporting: House) -> None:
    """The error of a last attempt is one report, without arguments; duplicates, retries and cancellations are none."""
    result = reporting.play.delay("secret", ["raise:broken"])
    with pytest.raises(ValueError, match="broken"):
        result.get(PATIENCE)
    first = reporting.play.delay("d", ["hold:d"])
    reporting.await_mark("d")
    assert reporting.play.delay("d", ["return"]).outcome is Outcome.ATTACHED
    follower = reporting.play.apply_async(("d", ["return"]), task_id="a-follower")
    reporting.app.send_task("play", ("d", ["return"]), task_id=first.id)
    reporting.open("d")
    first.get(PATIENCE)
    follower.get(PATIENCE)
    reporting.await_state(reporting.play.delay("i", ["ignore"]), State.CANCELED)
    canceled = reporting.play.delay("c", ["poll:never"])
    reporting.await_mark("c")
    reporting.ledger.cancel(canceled.id)
    reporting.await_state(canceled, State.CANCELED)
    with pytest.raises(ValueError, match="the cause of r"):
        reporting.play.delay("r", ["retry_caught", "retry_caught"]).get(PATIENCE)
    await_(lambda: "the cause of r" in messages(reporting))  # earlier runs have reported what they report
    assert messages(reporting) == ["broken", "the cause of r"]
    error = reports_in(reporting.directory, "event")[0]
    raised, job = error["exception"]["values"][-1], error["extra"]["celery-job"]
    assert (raised["type"], raised["value"], raised["mechanism"]["type"]) == ("ValueError", "broken", "celery")
    assert (error["transaction"], error["tags"]["celery_task_id"]) == ("play", result.id)
    assert (job["task_name"], "secret" in str(job)) == ("play", False)


@deep
@provokes(Transition.RELEASE, because="the worker stops")
def test_a_shutdown_is_no_error(new_house: Callable[..., House], tmp_path: Path) -> None:
    """A run that its worker releases when it stops is not reported."""
    house = new_house(tmp_path, "sqlite", **{SENTRY: OPTIONS}, onejob_shutdown_grace=30)
    worker = house.worker("--pool", "threads", "-c", "2")
    result = house.play.delay("s", ["poll:never"])
    house.await_mark("s")
    worker.sigterm()
    worker.await_end()
    assert (house.job(result).state, "release" in house.events(result)) == (State.QUEUED, True)
    assert messages(house) == []


def test_a_run_is_in_the_trace_of_its_submission(reporting: House) -> None:
    """A run continues the trace of the run that submitted its job, which has the identity that others compute."""
    reporting.play.delay("w", ["return"]).get(PATIENCE)  # after it, the worker's task is wrapped
    outer = reporting.play.delay("outer", ["submit:walk"], ["k", ["one"]])
    inside = reporting.await_state(outer.get(PATIENCE), State.COMPLETED)
    await_(lambda: len(reports_in(reporting.directory, "transaction")) >= 3)
    reports = reports_in(reporting.directory, "transaction")
    runs = {report["tags"]["celery_task_id"]: report["contexts"]["trace"] for report in reports}
    assert runs[inside.id]["trace_id"] == runs[outer.id]["trace_id"]
    assert runs[inside.id]["parent_span_id"]
    assert runs[inside.id]["op"] == "queue.task.celery"
    outside = reporting.walk.delay("k", ["one"])
    assert reporting.await_state(outside, State.COMPLETED).identity == inside.identity
    assert outside.id != inside.id
