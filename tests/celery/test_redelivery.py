"""Copies of a message are harmless: only a claim in the ledger starts a run, and each claim has a token of its own."""

from __future__ import annotations

import pickle
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from celery import chord

from onejob import Outcome, State
from onejob.jobs.lifecycle import Transition
from tests.celery.harness import LEASE, PATIENCE, await_, on_every_store
from tests.quiet import KILLED, provokes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onejob import AsyncResult
    from tests.celery.harness import House


def await_refusal(house: House, result: AsyncResult) -> None:
    """Wait until the ledger has refused a copy of a job's message."""
    await_(lambda: house.ledger.duplicates(result.id))


@on_every_store("house")
def test_a_redelivered_message_starts_no_second_run(house: House) -> None:
    """A job that runs longer than the broker's visibility timeout runs once, on however many workers."""
    house.redeliver_after(1)
    house.two_workers("-c", "4")
    result = house.play_late.delay("outlasts", ["hold"])
    house.await_mark("outlasts")
    await_refusal(house, result)
    house.open("outlasts")
    assert result.get(PATIENCE) == "outlasts"
    job = house.assert_ran(result, State.COMPLETED, "outlasts", 1)
    assert job.attempt == 1
    (duplicate,) = house.ledger.duplicates(result.id)
    assert (duplicate.source, duplicate.outcome, job.duplicate_count) == ("redelivery", Outcome.REJECTED, 0)
    house.assert_quiet()


def test_no_wait_is_redelivered(house: House) -> None:
    """Beyond the visibility timeout a job or a retry waits in the ledger, and a message in Celery: each runs once."""
    house.redeliver_after(1)
    house.two_workers("-c", "2")
    retried = house.play_late.delay("retried", ["retry:3", "return"])
    house.await_state(retried, State.RETRYING)
    far = house.play.apply_async(("far", ["return"]), countdown=3)
    await_(lambda: not house.queued_messages())
    foreign = house.app.send_task("play", ("foreign", ["return"]), countdown=4)  # which Celery holds
    assert (far.get(PATIENCE), retried.get(PATIENCE)) == ("far", "retried")
    job = house.assert_ran(far, State.COMPLETED, "far", 1)
    assert (job.started_at or 0.0) >= job.run_at
    house.assert_ran(retried, State.COMPLETED, "retried", 2)
    assert sum(worker.text.count(f"[{foreign.id}] received") for worker in house.workers) > 1
    assert house.play.AsyncResult(foreign.id).get(PATIENCE) == "foreign"
    house.assert_ran(house.play.AsyncResult(foreign.id), State.COMPLETED, "foreign", 1)
    house.assert_quiet()


@on_every_store("house")
@provokes(Transition.NOTIFY_CANVAS, logs=[KILLED], because="the child dies after the end of its job")
def test_a_canvas_continues_after_a_crash_before_its_dispatch(house: House) -> None:
    """A child that dies between a job's end in the ledger and its dispatch loses and repeats no link and no chord."""
    house.use_lease(LEASE)
    house.worker("-c", "2", hook="die-before-dispatch")
    result = (house.play.s("head", ["return"]) | house.note.s("onejob-tail") | house.plain.s("plain-tail")).delay()
    assert result.get(timeout=PATIENCE) == [["onejob-tail", "head"], "plain-tail"]
    house.await_rest()
    house.assert_free("head")
    (house.directory / "done-die-before-dispatch").unlink()
    header = [house.play.s("one", ["return"]), house.play.s("two", ["return"])]
    assert sorted(chord(header)(house.gather.s("chord")).get(timeout=PATIENCE)) == ["one", "two"]
    house.assert_quiet()
    assert [house.runs(key) for key in ("head", "onejob-tail", "one", "two")] == [2, 1, 1, 1]
    assert (len(house.marks("plain-tail", "plain")), len(house.marks("chord", "gather"))) == (1, 1)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_many_copies_of_many_jobs(house: House, pool: str) -> None:
    """Under a visibility timeout shorter than every job, each of many jobs runs once."""
    house.redeliver_after(1)
    house.worker("--pool", pool, "-c", "8")
    keys = [f"many-{number}" for number in range(4)]
    results = [house.play_late.delay(key, ["hold:all"]) for key in keys]
    for result in results:
        await_refusal(house, result)
    house.open("all")
    assert [result.get(PATIENCE) for result in results] == keys
    assert [house.runs(key) for key in keys] == [1] * len(keys)
    assert house.play_late.delay(keys[0], ["return"]).outcome is Outcome.ADMITTED
    house.assert_quiet()


def test_a_refused_copy_ends_before_the_run(house: House) -> None:
    """A copy of a message whose job has ended is refused without Celery's tracer, without a write, in a few bytes."""
    result = house.play.delay("ended", ["return"])
    job = house.ledger.claim(result.id, nonce="0123456789abcdef", node="w1").job
    assert job is not None
    ended = house.ledger.complete(job, "1")
    request = {"hostname": "w2", "delivery_info": {"redelivered": False}}
    with patched_tracer(house.play):
        refused, is_refused, _, _ = house.play.__trace__(result.id, [], {}, request)
    assert is_refused
    assert len(pickle.dumps(refused)) < 1000
    assert "it is completed" in str(refused.exception)
    assert (house.job(result), house.ledger.duplicates(result.id)) == (ended, [])


@contextmanager
def patched_tracer(task: Any) -> Iterator[None]:
    """Fail when Celery traces a run of a task in this block."""
    task.__trace__ = lambda *_: pytest.fail("a run was traced")
    try:
        yield
    finally:
        task.__trace__ = None
