"""A job that has not started by its expiry is canceled; a job that has started no longer expires."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from onejob import State
from onejob.jobs.model import Cancel
from tests.celery.harness import PATIENCE, await_

if TYPE_CHECKING:
    from tests.celery.harness import House


def test_a_job_expires_before_it_starts(shared: House) -> None:
    """A job that expires before it is due never runs; a start, or a duplicate without an expiry, ends the expiry."""
    forms = {"seconds": 0.5, "datetime": datetime.now(UTC) + timedelta(seconds=0.5)}
    for key, expires in forms.items():
        result = shared.play.apply_async((key, ["return"]), countdown=3600, expires=expires)
        assert "expired" in shared.assert_ran(result, State.CANCELED, key, 0).reason
    started = shared.play.apply_async(("started", ["hold>retry", "return"]), expires=600)
    shared.await_mark("started")
    assert shared.job(started).expires_at is None
    shared.open("started")
    assert started.get(PATIENCE) == "started"
    shared.assert_ran(started, State.COMPLETED, "started", 2)
    attached = shared.play.apply_async(("attached", ["return"]), countdown=3600, expires=600)
    assert shared.play.apply_async(("attached", ["return"]), countdown=3600).id == attached.id
    assert shared.job(attached).expires_at is None
    attached.revoke()


def test_a_message_expires_in_the_queue(house: House) -> None:
    """A job whose message expires in the queue never runs, even if the ledger has no such job."""
    result = house.play.apply_async(("late", ["return"]), expires=0.2)
    sent = house.app.send_task("play", ("foreign", ["return"]), expires=datetime.now(UTC) - timedelta(seconds=5))
    await_(lambda: house.ledger.read_clock() > (house.job(result).expires_at or 0.0))
    house.worker().await_text(f"Discarding revoked task: play[{sent.id}]")
    house.await_rest()
    house.assert_ran(result, State.CANCELED, "late", 0)
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
    assert house.anywhere.delay("behind them").get(PATIENCE) == "behind them"
    assert house.job(sent.id).cancel is Cancel.NO
    house.open("copied")
    house.assert_ran(house.play.AsyncResult(sent.id), State.COMPLETED, "copied", 1)
    house.assert_quiet()
