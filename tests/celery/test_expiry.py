"""A job that has not started by its expiry is canceled; a job that has started no longer expires."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from onejob import State
from onejob.jobs.model import Cancel
from tests.celery.harness import PATIENCE, await_, on_every_store, pause_until

if TYPE_CHECKING:
    from tests.celery.harness import House

EXPIRY = 15.0
"""Seconds within which a worker starts a job on any machine."""


@on_every_store("shared")
@pytest.mark.parametrize("form", ["seconds", "datetime"])
def test_a_job_expires_before_it_is_due(shared: House, form: str) -> None:
    """A job that expires before it is due is canceled, never runs, and frees its identity."""
    expires: Any = 0.5 if form == "seconds" else datetime.now(UTC) + timedelta(seconds=0.5)
    result = shared.play.apply_async((f"expires-{form}", ["return"]), countdown=3600, expires=expires)
    job = shared.assert_ran(result, State.CANCELED, f"expires-{form}", 0)
    assert "expired" in job.reason


def test_a_job_expires_in_the_queue(house: House) -> None:
    """A job that expires while its message is in the queue does not run when a worker starts."""
    result = house.play.apply_async(("late", ["return"]), expires=0.2)
    pause_until(time.monotonic() + 0.3)
    house.worker()
    house.await_rest()
    house.assert_ran(result, State.CANCELED, "late", 0)
    house.assert_quiet()


@pytest.mark.deep
def test_a_job_that_has_started_no_longer_expires(shared: House) -> None:
    """An expiry that passes during a run ends nothing, and the job may run again after it."""
    result = shared.play.apply_async(("started", ["hold>retry", "return"]), expires=EXPIRY)
    submitted_at = time.monotonic()
    shared.await_mark("started")
    assert shared.job(result).expires_at is None
    pause_until(submitted_at + EXPIRY)
    shared.open("started")
    assert result.get(PATIENCE) == "started"
    shared.assert_ran(result, State.COMPLETED, "started", 2)


def test_a_foreign_message_expires(house: House) -> None:
    """An expired message starts nothing, even if its job is not in the ledger."""
    sent = house.app.send_task("play", ("foreign", ["return"]), expires=0.2)
    pause_until(time.monotonic() + 0.3)
    worker = house.worker()
    worker.await_text(f"Discarding revoked task: play[{sent.id}]")
    house.await_rest()
    assert house.runs("foreign") == 0
    house.assert_free("foreign")
    house.assert_quiet()


def test_an_expired_copy_of_a_message_does_nothing(house: House) -> None:
    """An expired copy of the message of a job that runs is dropped: it cancels nothing."""
    house.worker("-c", "2")
    sent = house.app.send_task("play", ("copied", ["hold"]))
    house.await_mark("copied")
    past = datetime.now(UTC) - timedelta(seconds=5)
    for _ in range(2):  # Celery regards the second as revoked, since the first has expired
        house.app.send_task("play", ("copied", ["hold"]), task_id=sent.id, expires=past)
    await_(lambda: not house.queued_messages())
    pause_until(time.monotonic() + 1)
    assert house.job(sent.id).cancel is Cancel.NO
    house.open("copied")
    house.assert_ran(house.play.AsyncResult(sent.id), State.COMPLETED, "copied", 1)
    house.assert_quiet()
