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
    """A job or a retry whose time lies beyond the visibility timeout waits in the ledger, and runs once when due."""
    house.redeliver_after(1)
    house.two_workers("-c", "2")
    retried = house.play_late.delay("retried", ["retry:3", "return"])
    house.await_state(retried, State.RETRYING)
    far = house.play.apply_async(("far", ["return"]), countdown=3)
    await_(lambda: not house.queued_messages())
    assert (far.get(PATIENCE), retried.get(PATIENCE)) == ("far", "retried")
    job = house.assert_ran(far, State.COMPLETED, "far", 1)
    assert (job.started_at or 0.0) >= job.run_at
    house.assert_ran(retried, State.COMPLETED, "retried", 2)
    house.assert_quiet()


@pytest.mark.deep
def test_a_foreign_message_with_a_far_time_starts_one_run(house: House) -> None:
    """A message with a time of its own, that Celery holds and the broker repeats, starts one run."""
    house.redeliver_after(1)
    house.two_workers("-c", "2")
    sent = house.app.send_task("play", ("far-foreign", ["return"]), countdown=4)
    result = house.play.AsyncResult(sent.id)
    line = f"[{result.id}] received"
    await_(lambda: sum(worker.text.count(line) for worker in house.workers) > 1)
    assert result.get(PATIENCE) == "far-foreign"
    house.await_rest()
    house.assert_ran(result, State.COMPLETED, "far-foreign", 1)
    house.assert_quiet()


@on_every_store("house")
@provokes(Transition.NOTIFY_CANVAS, logs=[KILLED], because="the child dies after the end of its job")
def test_a_chain_continues_after_a_crash_before_its_dispatch(house: House) -> None:
    """A child that dies between the end in the ledger and the dispatch of the chain loses no link and repeats none."""
    house.use_lease(LEASE)
    house.worker("-c", "2", hook="die-before-dispatch")
    chain = house.play.s("head", ["return"]) | house.note.s("onejob-tail") | house.plain.s("plain-tail")
    result = chain.delay()
    house.await_mark("plain-tail", "plain")
    house.await_rest()
    assert house.runs("head") == 1
    assert house.runs("onejob-tail") == 1
    assert house.marks("plain-tail", "plain")[0]["args"] == [["onejob-tail", "head"], "plain-tail"]
    assert result.get(timeout=PATIENCE) == [["onejob-tail", "head"], "plain-tail"]
    house.assert_free("head")
    house.assert_quiet()
    assert len(house.marks("plain-tail", "plain")) == 1


@provokes(Transition.NOTIFY_CANVAS, logs=[KILLED], because="the child dies after the end of its job")
def test_a_chord_continues_after_a_crash_before_its_count(house: House) -> None:
    """A child that dies between the end in the ledger and the chord's count leaves no chord waiting."""
    house.use_lease(LEASE)
    house.worker("-c", "2", hook="die-before-dispatch")
    result = chord([house.play.s("one", ["return"]), house.play.s("two", ["return"])])(house.gather.s("chord"))
    assert sorted(result.get(timeout=PATIENCE)) == ["one", "two"]
    house.assert_quiet()
    assert len(house.marks("chord", "gather")) == 1
    assert (house.runs("one"), house.runs("two")) == (1, 1)


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
